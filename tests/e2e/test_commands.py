"""The command line: what it prints where, and what it says about bad input."""
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import termios
import time

import pytest


def test_version(ridge):
    assert ridge.text("--version").startswith("ridge ")


@pytest.mark.parametrize("args, says", [
    ([], ""), (["nonsense"], "unknown command 'nonsense'"),
    *((command.split(), "an argument is missing") for command in (
        "run", "score", "serve", "bench", "inspect", "tokenize", "detokenize", "render", "load", "perplexity m",
        "plan --fit --gpu h100")),
    *((command.split() + ["more"], "unexpected argument 'more'") for command in (
        "score m", "serve m", "bench m", "bench --kernels", "inspect m", "tokenize m", "detokenize m", "render m",
        "load http://127.0.0.1:1", "perplexity m f", "plan --model llama-2-7b --gpu h100", "plan --calibrate m", "sim")),
    (["plan", "--model", "llama-2-7b"], "--gpu is needed"), (["plan", "--gpu", "h100"], "--model is needed"),
    (["sim"], "--model is needed"), (["plan", "--fit", "x.csv"], "--gpu is needed"),
    (["plan", "--calibrate", "--output", "x.json"], "--calibrate: expected a text, found the option '--output'"),
    (["bench", "x", "--batch", "0"], "--batch: expected up to 16 numbers from 1 to 4096, such as 1,4,16, found '0'"),
    (["bench", "x", "--repeat", "102"], "--repeat: expected 1 to 101, found 102"),
    (["bench", "x", "--prompt", "0"], "--prompt: expected 1 to"),
    (["perplexity", "m", "f", "--ctx", "3"], "--ctx: expected 4 to 1048576, found 3"),
    (["run", "m", "--raw"], "need a PROMPT"), (["run", "m", "--max-tokens", "-1"], "--max-tokens: expected"),
    (["serve", "m", "--chat-template", "--port", "80"], "--chat-template: expected a text, found the option '--port'"),
    (["serve", "m", "--port", "--host"], "--port: expected a number >= 0, found the option '--host'"),
    (["load", "u", "--rate", "--", "3"], "--rate: expected a number, found the option '--'"),
    (["plan", "--what-if", "--model", "x"], "--what-if: expected a text, 15 times at most, found the option '--model'"),
    (["run", "m", "--max-tokens"], "--max-tokens: expected a number >= 0, found 'nothing'"),
    (["plan", "--model=--llama", "--gpu", "h100"], "'--llama'"),
    (["run", "m", "--temperature", "warm"], "--temperature: expected a number"),
    (["run", "m", "hi", "--threads", "-1"], "--threads: expected 1 to 1024, found -1"),
    (["run", "m", "hi", "--min-tokens", "5", "--max-tokens", "2"], "--min-tokens 5 is above --max-tokens 2"),
    (["run", "m", "hi", "--cpu-affinity", "0-"], "'0-'"),
    (["score", "m", "--kv-cache-dtype", "q2"], "--kv-cache-dtype: expected auto, f16, f32 or q8_0, found 'q2'"),
    (["perplexity", "m", "f", "--block-size", "0"], "--block-size: expected 1 to 4096, found 0"),
    (["bench", "m", "--max-model-len", "4294967296"], "--max-model-len: expected 0 to 4294967295"),
    (["bench", "--kernels", "--threads-batch", "-1"], "--threads-batch: expected"),
    (["plan", "--calibrate", "m", "--threads", "1025"], "--threads: expected 1 to 1024, found 1025"),
    (["serve", "m", "--speculative", "magic"], "--speculative: expected ngram, found 'magic'"),
    (["serve", "m", "--scheduler", "fifo"], "--scheduler: expected continuous or static, found fifo"),
    (["serve", "m", "--shed"], "--slo-ttft MS"), (["serve", "m", "--slo-tpot", "-1"], "--slo-tpot: expected"),
    (["serve", "m", "--idle-timeout", "-1"], "-1 s is out of range"), (["serve", "m", "--workers", "65"], "--workers"),
    (["run", "m", "--no-such-flag"], "unknown option '--no-such-flag'")])
def test_usage_is_exit_2(ridge, args, says):
    done = ridge(*args, status=2)
    assert done.stdout == b"" and says in done.stderr.decode() and done.stderr != b""


def test_missing_model(ridge, tmp_path):
    for name in ("no-such-model", "no/such/file.gguf", str(tmp_path)):
        done = ridge("run", name, "hi", status=1)
        assert name.encode() in done.stderr


def test_truncated_model(ridge, model, tmp_path):
    with open(model("smollm2-135m"), "rb") as f:
        (tmp_path / "cut.gguf").write_bytes(f.read(8 << 20))
    done = ridge("run", tmp_path / "cut.gguf", "hi", status=1)
    assert b"cut.gguf" in done.stderr and b"tensor" in done.stderr


def test_unreadable_model(ridge, tmp_path):
    path = tmp_path / "dir.gguf"
    path.mkdir()
    assert b"dir.gguf" in ridge("run", path, "hi", status=1).stderr


def test_cache_larger_than_memory(ridge, model):
    cache = ("--kv-cache-memory-bytes", "100000G")
    for more in ((), ("--max-model-len", 10**9)):
        done = ridge("run", model("smollm2-135m"), "hi", *cache, *more, status=1)
        assert b"cache" in done.stderr.lower() and b"bytes of memory are free" in done.stderr


def test_limits_are_the_engines(ridge, model):
    for flag, most in (("--max-num-seqs", 4096), ("--max-num-batched-tokens", 1 << 17), ("--block-size", 4096)):
        done = ridge("serve", model("smollm2-135m"), flag, most + 1, status=2)
        assert f"{flag}: expected 1 to {most}, found {most + 1}".encode() in done.stderr


def test_prompt_too_long(ridge, model):
    done = ridge("run", model("smollm2-135m"), "word " * 300, "--max-model-len", 128, status=1)
    assert b"128" in done.stderr


def test_sampling_ranges(ridge):
    for flag, value in (("--temperature", "-1"), ("--top-p", "2"), ("--min-p", "-0.5"), ("--repetition-penalty", "0"),
                        ("--top-k", "-5")):
        done = ridge("run", "m", "hi", flag, value, status=2)  # said before a model is opened
        assert flag.strip("-").replace("-", "_").encode() in done.stderr.replace(b"-", b"_"), flag


def test_run_streams_and_json_agree(ridge, model):
    path = model("smollm2-135m")
    document = ridge.json("run", path, "Name three colours.", "--max-tokens", 40, "--json")
    done = ridge("run", path, "Name three colours.", "--max-tokens", 40)
    assert done.stdout.decode() == document["text"] + "\n"
    assert b"TTFT" in done.stderr and b"tokens/s" in done.stderr
    assert document["finish_reason"] in ("stop", "length") and len(document["ids"]) == document["usage"]["completion_tokens"]
    timing = document["timing"]
    assert 0 < timing["load"] < 60  # a hang limit, no claim of speed
    assert 0 < timing["mbu"] < 2 and 0 < timing["mfu"] < 2
    assert timing["bytes_per_s"] > 0 and timing["flops_per_s"] > 0


def test_same_seed_same_text(ridge, model):
    args = ["run", model("smollm2-135m"), "--raw", "--temperature", 1.2, "--max-tokens", 30, "--json", "Once"]
    a = ridge.json(*args, "--seed", 7)
    assert a["ids"] == ridge.json(*args, "--seed", 7, "--threads", 1)["ids"]
    assert a["ids"] != ridge.json(*args, "--seed", 8)["ids"]


def test_stop_string_across_tokens(ridge, model):
    path = model("smollm2-135m")
    text = ridge.json("run", path, "--raw", "--json", "--max-tokens", 30, "The capital of France is")["text"]
    stop = text[9:14]  # in the middle of words
    cut = ridge.json("run", path, "--raw", "--json", "--max-tokens", 30, "--stop", stop, "The capital of France is")
    assert cut["text"] == text[:text.index(stop)] and cut["finish_reason"] == "stop"


def test_model_without_template_says_the_choice(ridge, model):
    done = ridge("run", model("gemma3-270m"), "hi", status=1)
    assert b"--chat-template" in done.stderr and b"--raw" in done.stderr
    ridge("run", model("gemma3-270m"), "hi", "--chat-template", "gemma", "--max-tokens", 4)


def test_bad_chat_templates(ridge, model, tmp_path):
    path = model("smollm2-135m")
    for name, text in (("unclosed", "{% if x %}"), ("empty", ""), ("open", "{{" * 1000)):
        file = tmp_path / name
        file.write_text(text)
        assert name.encode() in ridge("run", path, "hi", "--chat-template", file, status=1).stderr
    assert b"nowhere" in ridge("run", path, "hi", "--chat-template", "nowhere", status=1).stderr


def test_a_template_file_is_read_alike_everywhere(ridge, model, tmp_path):
    """The same limit, the same words: whoever takes a template's file."""
    path, huge, empty = model("smollm2-135m"), tmp_path / "huge.jinja", tmp_path / "empty.jinja"
    huge.write_text("{#" + "x" * (5 << 20) + "#}")
    empty.write_text("")
    for file, said in ((huge, b"4194304 bytes"), (empty, b"is empty"), ("nowhere", b"neither a file nor one of")):
        for command in (["run", path, "hi", "--chat-template"], ["serve", path, "--port", 0, "--chat-template"],
                        ["render", "--template"]):
            assert said in ridge(*command, file, stdin="{}", status=1).stderr, (command, file)
    huge.write_text("{#" + "x" * (3 << 20) + "#}ok")
    assert ridge.text("render", "--template", huge, stdin="{}") == "ok"


def test_closed_pipe(ridge, model):
    """The reader goes away: the program ends soon, by itself or by SIGPIPE."""
    process = subprocess.Popen([ridge.path, "run", model("smollm2-135m"), "--raw", "--ignore-eos", "--max-tokens", "4000",
                                "Once"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) in (1, -signal.SIGPIPE)


def test_score_bad_ids(ridge, model):
    path = model("smollm2-135m")
    for text in ("[1,", "{}", "[1.5]", "[-1]", "[99999999]", '["a"]', "[]"):
        assert ridge("score", path, "--ids", "--json", stdin=text, status=1).stderr != b"", text


def test_ids_as_tokenize_prints_them(ridge, model):
    """What one command prints the other takes: {"ids":[...]} as well as a list."""
    path = model("smollm2-135m")
    printed = ridge.text("tokenize", path, "--json", stdin="Hello world")
    listed = json.dumps(json.loads(printed)["ids"])
    assert ridge.text("score", path, "--ids", stdin=printed) == ridge.text("score", path, "--ids", stdin=listed)
    for ids in (printed, listed):
        assert ridge.json("detokenize", path, "--json", stdin=ids) == {"text": "Hello world"}
    for bad in ('{"id":[1]}', '{"ids":5}', '{"ids":[99999999999999999999]}'):
        assert b"ids" in ridge("score", path, "--ids", stdin=bad, status=1).stderr


def test_one_is_no_plural(ridge, model, tmp_path):
    path, saved = model("smollm2-135m"), tmp_path / "chat.json"
    done = ridge("run", path, "--raw", "Hello", "--max-tokens", 1)
    assert b"1 prompt token, 1 answered" in done.stderr
    assert b"1 message saved" in ridge("run", path, "--system", "x", stdin=f"/save {saved}\n").stderr
    (tmp_path / "x").write_text("Hello")
    assert b"has 1 token:" in ridge("perplexity", path, tmp_path / "x", status=1).stderr


def test_score_jsonl_goes_on_after_a_bad_line(ridge, model):
    done = ridge("score", model("smollm2-135m"), "--jsonl", stdin='"Hello world"\nnonsense\n[19556, 905]\n', status=1)
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert documents[0] == documents[2] and "error" in documents[1]
    assert documents[0]["ids"] == [19556, 905] and "logprob" not in documents[0]["positions"][1]


def read_until(fd, pattern, seconds=60):
    data, deadline = b"", time.monotonic() + seconds
    while not re.search(pattern, data, re.DOTALL):
        assert time.monotonic() < deadline, data
        if select.select([fd], [], [], 1)[0]:
            data += os.read(fd, 65536)


def type_at_prompt(fd, text, seconds=60):
    """What is typed before the program edits the line itself, the terminal would take as it sees fit."""
    deadline = time.monotonic() + seconds
    while termios.tcgetattr(fd)[3] & termios.ICANON:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.write(fd, text)


def exit_status(pid, seconds=60):
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_chat_on_a_terminal(ridge, model, tmp_path):
    """/help, an answer, Ctrl-C that stops an answer but not the program, /save, Ctrl-D."""
    path, saved = model("smollm2-135m"), tmp_path / "chat.json"
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "dumb"
        os.execv(ridge.path, [ridge.path, "run", path, "--max-tokens", "4000", "--ignore-eos"])
    try:
        type_at_prompt(fd, b"/help\n")
        read_until(fd, rb"/reset")
        type_at_prompt(fd, b"Count to one thousand.\n")
        read_until(fd, rb"thousand\..{40}")
        os.write(fd, b"\x03")
        read_until(fd, rb"TTFT")
        type_at_prompt(fd, b"/save " + str(saved).encode() + b"\n")
        read_until(fd, rb"messages saved")
        type_at_prompt(fd, b"\x04")
        assert exit_status(pid) == 0
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(fd)
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["user", "assistant"]


def test_peaks_that_cannot_be_stored(ridge, model, tmp_path):
    """A full disk, no folder, a folder in the file's place: the answer comes, and nothing is left lying about."""
    path, args = model("smollm2-135m"), ["hi", "--max-tokens", "2", "--threads", "1"]
    (tmp_path / "full").mkdir()
    done = subprocess.run([ridge.path, "run", path, *args], env={**os.environ, "RIDGE_HOME": str(tmp_path / "full")},
                          capture_output=True, timeout=60, restore_signals=False, stdin=subprocess.DEVNULL,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)))
    assert done.returncode == 0 and b"roof" in done.stderr and b"ridge:" not in done.stderr
    assert list((tmp_path / "full").iterdir()) == []
    (tmp_path / "taken" / "peaks.json").mkdir(parents=True)
    for home in (tmp_path / "absent", tmp_path / "taken"):
        done = ridge("run", path, *args, env={"RIDGE_HOME": str(home)})
        assert b"roof" in done.stderr and b"ridge:" not in done.stderr
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["peaks.json"] and not (tmp_path / "absent").exists()


def test_peaks_of_another_version_are_measured_again(ridge, model, tmp_path):
    """What is stored is believed as long as the loops are those that measured it."""
    store, args = tmp_path / "peaks.json", ("run", model("smollm2-135m"), "hi", "--max-tokens", "2", "--threads", "1")

    def after_a_run(**changes):
        entry = {**json.loads(store.read_text())[key], **changes}
        store.write_text(json.dumps({key: {k: v for k, v in entry.items() if v is not None}, "another": {}}))
        ridge(*args, env={"RIDGE_HOME": str(tmp_path)})
        stored = json.loads(store.read_text())
        assert stored.keys() == {key, "another"} and stored[key]["version"] == version
        return stored[key]["read_bytes_per_s"]

    ridge(*args, env={"RIDGE_HOME": str(tmp_path)})
    (key, first), = json.loads(store.read_text()).items()
    version = first["version"]
    assert after_a_run(read_bytes_per_s=12345.0) == 12345.0
    for other in (None, version - 1, version + 1, str(version), 0):
        assert after_a_run(read_bytes_per_s=12345.0, version=other) > 1e6, other


def test_threads_are_pinned_where_that_can_be(ridge, model):
    """The process's own mask bounds what can be asked for; nothing is pinned unless asked."""
    own = sorted(os.sched_getaffinity(0))
    args = ("run", model("smollm2-135m"), "hi", "--max-tokens", "12")
    text = ridge.text(*args)
    assert ridge.text(*args, "--cpu-affinity", "auto") == text
    assert ridge.text(*args, "--cpu-affinity", own[-1]) == text  # so many threads as the list has processors
    absent = next(i for i in range(65536) if i not in own)
    for flags, expected in ((("--cpu-affinity", "0-"), "'0-'"), (("--cpu-affinity", absent), f"'{absent}'"),
                            (("--cpu-affinity", f"{own[0]},{own[0]}"), "twice"),
                            (("--cpu-affinity", own[0], "--threads", 2), "1 for 2 threads"),
                            (("--threads-batch", -1), "--threads-batch")):
        done = ridge(*args, *flags, status=None)
        assert done.returncode == 2 and expected.encode() in done.stderr, flags


def test_outputs_that_take_nothing(ridge, model, tmp_path):
    """A full disk or a closed output: said on stderr, exit 1; never written into what was opened next."""
    path, logits = model("smollm2-135m"), tmp_path / "logits"
    chat = b'{"messages":[{"role":"user","content":"x"}]}'
    commands = [(["--version"], b""), (["--help"], b""), (["run", "--help"], b""), (["tokenize", path], b"x"),
                (["detokenize", path, "--json"], b"[1]"), (["render", path, "--json"], chat), (["inspect", path], b""),
                (["run", path, "hi", "--max-tokens", "2"], b""), (["score", path, "--jsonl"], b'"x"'),
                (["score", path, "--logits", logits], b"Hello world")]
    for command, stdin in commands:
        for redirect in (">/dev/full", ">&-"):
            done = subprocess.run(["sh", "-c", '"$@" ' + redirect, "sh", ridge.path, *map(str, command)], input=stdin,
                                  capture_output=True, timeout=60)
            assert done.returncode == 1 and b"cannot write the output" in done.stderr, (command, redirect, done)
    assert logits.stat().st_size == 2 * 49152 * 4
    assert b"/dev/full" in ridge("score", path, "--logits", "/dev/full", stdin="x", status=1).stderr
    for redirect, status in (("<&-", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1)):
        done = subprocess.run(["sh", "-c", f'"$@" {redirect}', "sh", ridge.path, "tokenize", path, "--json"], input=b"x",
                              capture_output=True, timeout=60)
        assert done.returncode == status, redirect


def test_inputs_that_are_no_files(ridge, model, tmp_path):
    """Pipes that nobody writes, devices without an end and folders are named, not waited for."""
    path, fifo = model("smollm2-135m"), tmp_path / "fifo"
    os.mkfifo(fifo)
    for file, said in ((fifo, b"a pipe"), ("/dev/zero", b"a device"), (tmp_path, b"a directory")):
        for command in (["perplexity", path, file], ["render", "--template", file],
                        ["serve", path, "--port", 0, "--chat-template", file], ["tokenize", file],
                        ["run", file, "hi"]):
            assert said in ridge(*command, status=1, timeout=30).stderr, command
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert b"empty.gguf" in ridge("run", tmp_path / "empty.gguf", "hi", status=1).stderr
    assert ridge.json("tokenize", path, "--json", stdin="Hello world") == {"ids": [19556, 905]}
    folder = os.open("/", os.O_RDONLY)
    for command in (["tokenize", path], ["render", path], ["render", path, "--jsonl"], ["score", path, "--ids"]):
        done = subprocess.run([ridge.path, *command], stdin=folder, capture_output=True, timeout=30)
        assert done.returncode == 1 and b"standard input" in done.stderr, command
    os.close(folder)
