"""Faults reported of engines and servers of this kind (the numbers of ../shared/cases/bugs.md), with the right
outcome: of the program and of a running server. What the unit tests prove already is not repeated here."""
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest

MODEL = "smollm2-135m"
HELLO = [{"role": "user", "content": "Hi"}]
SHORT = {"prompt": "The quick brown", "max_tokens": 3, "temperature": 0}


def error_of(server, path, body, status=400):
    return server.json(path, body, status=status)["error"]


# ---- model files (082-086) ----

def limited(command, seconds=1.0, peak_bytes=100 << 20):
    """Runs a command that must refuse its input: an exit status above 0, soon, in little memory."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    assert process.returncode > 0, f"{command}: exit {process.returncode}\n{text}"
    assert time.monotonic() - started < 3 * seconds  # the case says 1 s; a busy machine gets more
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # a child is charged for its parent's, too
    assert usage.ru_maxrss << 10 < max(peak_bytes, before + (1 << 20))
    assert text.startswith("ridge: ")
    return text


def test_malformed_model_files(ridge, shared, tmp_path):
    subprocess.run([sys.executable, shared / "cases" / "make_bad_files.py", tmp_path], check=True, capture_output=True)
    files = sorted(tmp_path.glob("*.gguf")) + sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 50
    for file in files:
        for command in (["run", file, "hi"], ["tokenize", file, "--json"], ["inspect", file]):
            limited([ridge.path, *command])


def test_token_types_of_the_wrong_kind(ridge, shared, tmp_path):
    subprocess.run([sys.executable, shared / "cases" / "make_bad_files.py", tmp_path], check=True, capture_output=True)
    assert "token_type" in limited([ridge.path, "tokenize", tmp_path / "g40_token_type_u8.gguf"])


def test_a_fifo_is_no_model(ridge, tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    assert "not a regular file" in limited([ridge.path, "inspect", tmp_path / "model.gguf"])


def test_out_of_memory_is_named(ridge, model):
    """The cache is refused by the system, not by our own arithmetic: an address space of 400 MB."""
    path = model(MODEL)
    done = subprocess.run([ridge.path, "run", path, "hi", "--max-tokens", "1"],
                          capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)))
    assert done.returncode == 1 and b"out of memory" in done.stderr, done.stderr


# ---- tokenizer (001-020; the longer tables of ../shared are unit tests) ----

QWEN, SMOL, GEMMA = "qwen2.5-coder-0.5b", "smollm2-135m", "gemma3-270m"
LONG = ["a" * 100000, "-" * 32000, "_" * 50000, "\u4e16" * 24000, " " * 50000, "\n" * 50000, "ab" * 50000]


@pytest.mark.parametrize("name, texts, special, expected", [
    (QWEN, [" " * n + "X" for n in (31, 32, 33, 64, 127, 128, 129)], False,  # 004
     [[7561, 1599], [1383, 1599], [786, 1599], [15270, 1599], [5238, 37083, 1599], [5238, 15270, 1599],
      [56940, 1599]]),
    (QWEN, ["->", "(x):\n", "12345", "3.14", "f(x)=-1;", "==>", "a -> b"], False,  # 001
     [[405], [2075, 982], [16, 17, 18, 19, 20], [18, 13, 16, 19], [69, 2075, 8, 10829, 16, 26], [84653],
      [64, 1464, 293]]),
    (GEMMA, ["a  b and    c", "<code>x</code>", "xxx" + " " * 31 + "y"], False,  # 002
     [[236746, 138, 236763, 532, 140, 236755], [206, 236781, 215], [41128, 167, 236762]]),
    (QWEN, ["X.<|im_end|>", "}<|im_end|>", "ok!<|im_end|>\n", "  x", "    if x:\n        y", " \n \n"], True,  # 005
     [[55, 13, 151645], [92, 151645], [562, 0, 151645, 198], [220, 856], [262, 421, 856, 510, 286, 379], [31906]]),
    (SMOL, ["X.<|im_end|>", "}<|im_end|>", "ok!<|im_end|>\n", "  x", "    if x:\n        y", " \n \n"], True,
     [[72, 30, 2], [109, 2], [2231, 17, 2, 198], [216, 1792], [333, 585, 1792, 42, 448, 329], [3717, 3717]]),
    (QWEN, [" ~", "~~ ~", "x ~ y"], False, [[3968], [5817, 3968], [87, 3968, 379]]),  # 007
    (SMOL, [" ~", "~~ ~", "x ~ y"], False, [[11417], [9493, 11417], [104, 11417, 329]]),
    (SMOL, ["\x04", "a\x04b", "th\x1de", "\U00040000", "a\U00040000b"], False,  # 008
     [[], [81, 82], [373, 85], [218, 218, 218], [81, 218, 218, 218, 82]]),
    (GEMMA, ["\r\n\r\n", "\x04", "\U00040000", "\U0001f600\U000e0041", "<0x0A>"], False,  # 011
     [[251, 107, 251, 107], [242], [479, 366, 366, 366], [242398, 481, 398, 367, 367],
      [236820, 236771, 236781, 236771, 236776, 236813]]),
    (GEMMA, ["<start_of_turn> hi"], True, [[105, 5631]]),  # 013
    (QWEN, ["Hi <|im_end|> there"], True, [[13048, 220, 151645, 1052]]),  # 016
    (SMOL, ["Hi <|im_end|> there"], True, [[26843, 216, 2, 665]]),
    (QWEN, ["\U0001f44b", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u4e16\u4e16", "\U0001f600"], False,  # 020
     [[145707], [145367, 378, 235, 145233, 378, 235, 145665], [99244, 99244], [141334]]),
    (SMOL, ["\U0001f44b", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u4e16\u4e16", "\U0001f600"], False,
     [[10813, 235, 229], [10813, 235, 118, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117],
      [7906, 240, 7906, 240], [10813, 242, 218]]),
    (GEMMA, ["\U0001f44b"], False, [[242687]])])
def test_ids_there_and_back(ridge, model, name, texts, special, expected):
    path = model(name)
    documents = ridge.jsonl("tokenize", path, lines=[{"text": t, "parse_special": special} for t in texts])
    assert [d["ids"] for d in documents] == expected
    back = [d["text"] for d in ridge.jsonl("detokenize", path, lines=expected)]
    missing = str.maketrans("", "", "\x04\x1d") if name == SMOL else {}  # 008: bytes which the vocabulary has not
    for text, got in zip(texts, back):
        assert got == text.translate(missing) or (name == SMOL and "\U00040000" in text)


@pytest.mark.parametrize("name, counts", [(QWEN, [12500, 500, 782, 24000, 391, 1563, 50000]),
                                          (SMOL, [25000, 500, 1563, 48000, 782, 12500, 50000]),
                                          (GEMMA, [12500, 2000, 3125, 24000, 1613, 1613, None])])
def test_010_long_pieces(ridge, model, name, counts):
    path = model(name)
    started = time.monotonic()
    documents = ridge.jsonl("tokenize", path, lines=LONG)
    assert time.monotonic() - started < 5  # quadratic merging takes minutes
    assert [len(d["ids"]) for d, n in zip(documents, counts) if n] == [n for n in counts if n]


def test_010_long_prompts_are_refused_soon(server):
    started = time.monotonic()
    for text in (LONG[0], LONG[3], LONG[5], LONG[6]):  # the others fit
        assert "maximum context" in error_of(server, "/v1/completions", {"prompt": text})["message"]
    assert time.monotonic() - started < 10


def test_004_every_id_decodes_to_something(ridge, model):
    lines = ridge("detokenize", model(QWEN), "--jsonl", stdin="".join(f"[{i}]\n" for i in range(151643))).stdout
    assert lines.count(b"\n") == 151643 and b'{"text":""}' not in lines


def test_014_one_bos(ridge, model):
    for text, path in (("<bos>Hello world", model(GEMMA)), ("Hello world", model(GEMMA))):
        assert ridge.json("tokenize", path, "--add-bos", "--parse-special", "--json",
                          stdin=text) == {"ids": [2, 9259, 1902]}
    for name in (QWEN, SMOL):
        ids = ridge.json("tokenize", model(name), "--json", stdin="Hello world")
        assert ridge.json("tokenize", model(name), "--add-bos", "--json", stdin="Hello world") == ids


def test_017_streamed_whole_and_decoded_text_are_one(ridge, server, model):
    body = {"prompt": "The quick brown", "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    whole = server.json("/v1/completions", body)["choices"][0]
    status, events = server.request("/v1/completions", {**body, "stream": True})
    chunks = [json.loads(e) for e in events.split(b"data: ")[1:-1]]
    streamed = "".join(c["choices"][0]["text"] for c in chunks)
    decoded = ridge.json("detokenize", model(MODEL), "--json", stdin=json.dumps(whole["token_ids"]))["text"]
    assert status == 200 and streamed == whole["text"] == decoded and whole["text"].startswith(" ")
    echoed = server.json("/v1/completions", {**body, "echo": True})["choices"][0]["text"]
    assert echoed == body["prompt"] + decoded


def test_019_pieces_are_not_shown(ridge, model):
    path = model(GEMMA)
    assert ridge.json("detokenize", path, "--json", stdin="[1594]") == {"text": " test"}
    assert ridge.json("tokenize", path, "--json", stdin="a\u2581b") == {"ids": [236746, 518]}
    assert ridge.json("detokenize", path, "--json", stdin="[236746,518]") == {"text": "a b"}


# ---- chat templates (022-028 are unit tests) ----

def test_029_content_null_beside_calls(ridge, model):
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "SF"}}}
    tail = ('<|im_start|>user\nw?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", '
            '"arguments": {"city": "SF"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n18C\n'
            '</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n<|im_start|>assistant\n')
    for content in ({"content": None}, {"content": ""}, {}):
        messages = [{"role": "user", "content": "w?"}, {"role": "assistant", "tool_calls": [call], **content},
                    {"role": "tool", "content": "18C"}, {"role": "tool", "content": "sun"}]
        text = ridge.json("render", model(QWEN), "--json",
                          stdin=json.dumps({"messages": messages, "add_generation_prompt": True}))["text"]
        assert text.endswith(tail) and "None" not in text


def test_031_malformed_arguments_in_the_history(server):
    for arguments in ("{", "", "null", "[1,2]", "5", '{"city": "SF"}', None, 5):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": "x"}]
        status, answer = server.request("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert status in (200, 400), answer


def test_034_templates_that_cannot_be(ridge, model, tmp_path):
    for name, text in (("unclosed", "{% if x %}"), ("empty", ""), ("open", "{{" * (1 << 19)), ("line", "\n\n{{ x ")):
        (tmp_path / name).write_text(text)
        said = ridge("serve", model(MODEL), "--port", 0, "--chat-template", tmp_path / name, status=1).stderr
        assert name.encode() in said and (name != "line" or b"line:3" in said), said


# ---- streams ----

def test_053_cut_characters(ridge, model):
    """Of forced ids, cut anywhere: whole characters, and at most one U+FFFD for the one that is cut."""
    ids, text = [10813, 235, 229, 7906, 240], "\U0001f44b\u4e16"
    for n in range(6):
        got = ridge.json("detokenize", model(SMOL), "--json", stdin=json.dumps(ids[:n]))["text"]
        assert text.startswith(got.removesuffix("\ufffd")) and got.count("\ufffd") <= 1
    assert got == text


def test_059_061_chunks(server):
    body = {"messages": HELLO, "max_tokens": 4, "temperature": 0, "stream": True}
    status, events = server.request("/v1/chat/completions", body)
    assert status == 200 and events.endswith(b"data: [DONE]\n\n")
    lines = events.split(b"\n\n")
    assert lines.pop() == b"" and all(line.startswith(b"data: ") and b"\n" not in line for line in lines)  # 062
    choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] in ("stop", "length")
    for bad in ({"n": 0}, {"messages": [{"role": "user", "content": "long " * 20000}]}, {"logit_bias": {"x": 1}}):
        status, answer = server.request("/v1/chat/completions", {**body, **bad})
        assert status == 400 and set(json.loads(answer)) == {"error"}


# ---- model files whose metadata is wrong, behind a tokenizer that is right (086) ----

LLAMA = {"block_count": 1, "embedding_length": 64, "attention.head_count": 4, "context_length": 64,
         "feed_forward_length": 64, "attention.layer_norm_rms_epsilon": 1e-5}


def llama_file(bad, path, more=b"", n_more=0, merges=None, kind="llama", **changed):
    """A file of the generator's vocabulary and these hyper-parameters, without tensors; None leaves a key out."""
    keys = [bad.kvs("general.architecture", "llama"), bad.kvs("tokenizer.ggml.model", kind)]
    keys.append(bad.S("tokenizer.ggml.tokens") + bad.U32(9) + bad.U32(8) + bad.U64(len(bad.T)) +
                b"".join(bad.S(t) for t in bad.T))
    keys.append(bad.S("tokenizer.ggml.scores") + bad.U32(9) + bad.U32(6) + bad.U64(4) + bad.F32(0) * 4)
    if merges is not None:
        keys.append(bad.S("tokenizer.ggml.merges") + bad.U32(9) + bad.U32(8) + bad.U64(len(merges)) +
                    b"".join(bad.S(m) for m in merges))
    for key, value in {**LLAMA, **changed}.items():
        if isinstance(value, float):
            keys.append(bad.S("llama." + key) + bad.U32(6) + bad.F32(value))
        elif value is not None:
            keys.append(bad.kvu32("llama." + key, value))
    path.write_bytes(bad.H(0, len(keys) + n_more) + b"".join(keys) + more)
    return path


def test_086_metadata_is_checked(ridge, shared, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(shared / "cases"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import make_bad_files as bad
    file = tmp_path / "m.gguf"
    for said, changed in (("attention.head_count", {"attention.head_count": 0}),  # g45
                          ("block_count", {"block_count": 0x7fffffff}),  # g46
                          ("attention.head_count", {"embedding_length": 64, "attention.head_count": 65}),  # g47
                          ("head_count_kv", {"attention.head_count_kv": 3}),
                          ("embedding_length", {"embedding_length": None}),
                          ("context_length", {"context_length": 0}),
                          ("token_embd.weight", {})):  # the vocabulary's size is that of the tokens: no complaint
        assert said in limited([ridge.path, "run", str(llama_file(bad, file, **changed)), "hi"]), changed
    eos = bad.kvu32("tokenizer.ggml.eos_token_id", 99)
    for said, made in (("eos_token_id", {"more": eos, "n_more": 1}),  # g44
                       ("merges is missing", {"kind": "gpt2"}),
                       ("no token", {"kind": "gpt2", "merges": ["a zz"]}),
                       ("not two parts", {"kind": "gpt2", "merges": ["a"]})):
        for command in ("run", "tokenize"):
            assert said in limited([ridge.path, command, str(llama_file(bad, file, **made)), "hi"][:4 - (command != "run")])


# ---- threads and paths (106) ----

def test_106_perplexity_of_any_threads_and_path(ridge, model, tmp_path):
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 14)
    answers = {ridge.text("perplexity", model(MODEL), tmp_path / "text", "--ctx", 64, "--json", "--threads", n, env=env)
               for n, env in ((1, None), (2, None), (3, None), (2, {"RIDGE_CPU": "portable"}))}
    assert len(answers) == 1


# ---- requests ----

def test_an_empty_key_does_not_open_the_server(ridge, model):
    """serve --api-key "$KEY" with KEY unset must not serve everybody."""
    assert b"--api-key" in ridge("serve", model(MODEL), "--port", 0, "--api-key", "", status=2, timeout=60).stderr


def test_089_model_names(server):
    for name in ("../../x", "a\0b", MODEL + "\0x", "nope", ""):
        message = error_of(server, "/v1/completions", {**SHORT, "model": name}, status=404)["message"]
        assert "/models" not in message and ".gguf" not in message


def test_056_stops(server):
    plain = server.json("/v1/completions", SHORT)["choices"]
    for stop in ("", [], None):
        assert server.json("/v1/completions", {**SHORT, "stop": stop})["choices"] == plain
    for stop in ([""], 5, [5], "a\0b"):
        assert error_of(server, "/v1/completions", {**SHORT, "stop": stop})["param"] == "stop"


def test_092_nulls_are_absent(server):
    optional = ("top_p", "stop", "seed", "n", "logit_bias", "tools", "tool_choice", "response_format", "stream",
                "stream_options", "user", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty",
                "max_completion_tokens")
    body = {"messages": HELLO, "max_tokens": 3, "temperature": 0}
    plain = server.json("/v1/chat/completions", body)
    nulls = server.json("/v1/chat/completions", {**body, **dict.fromkeys(optional)})
    assert nulls["choices"] == plain["choices"] and nulls["usage"] == plain["usage"]


@pytest.mark.parametrize("literal, status", [
    (rb'"\ud83d"', 400), (rb'"\ude00\ud83d"', 400), (rb'"\s"', 400), (b'"a\tb"', 400), (b'"a\nb"', 400),
    (b'"\xff"', 400), (rb'"a\u0000b"', 200), (rb'"\uD83D\uDE00"', 200)])
def test_094_strings(server, literal, status):
    body = b'{"messages":[{"role":"user","content":' + literal + b'}],"max_tokens":1}'
    assert server.request("/v1/chat/completions", body)[0] == status


@pytest.mark.parametrize("literal, status", [
    (b"1e400", 400), (b"-0", 200), (b"1E5", 400), (b"01", 400), (b"NaN", 400)])
def test_094_numbers(server, literal, status):
    body = b'{"prompt":"x","max_tokens":1,"temperature":' + literal + b"}"
    got, answer = server.request("/v1/completions", body)
    assert got == status, answer


def test_temperature_names_one_range(server):
    assert "between 0 and 100" in error_of(server, "/v1/completions", {**SHORT, "temperature": 1e7})["message"]


@pytest.mark.parametrize("prompt, choices", [
    ("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3, 4]], 2), (["a", [1]], 2), ([1, "a"], 0), ([1.5], 0),
    ([-1], 0), ([999999999], 0), ([], 0), ("", 0), ([""], 0), ([[]], 0), (None, 0), ({"x": 1}, 0), ("\x04", 0)])
def test_097_prompts(server, prompt, choices):
    body = {"prompt": prompt, "max_tokens": 1}
    if choices == 0:
        assert error_of(server, "/v1/completions", body)["param"] == "prompt"
    else:
        assert len(server.json("/v1/completions", body)["choices"]) == choices


def test_091_a_refused_body_is_no_request(server):
    """After each refusal the next request on the connection is answered, never the bytes of the body."""
    hidden = b"GET /metrics HTTP/1.1\r\n\r\n"
    for path in (b"/nope", b"/v1/models", b"/v1/completions"):
        for body in (b"", b"0123456789", hidden, b"x" * 1000000):
            head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
                s.sendall(head + body + last)
                answer = b""
                while piece := s.recv(65536):
                    answer += piece
            codes = re.findall(rb"HTTP/1.1 (\d+) ", answer)
            assert len(codes) == 2 and codes[0] in (b"400", b"404", b"405") and codes[1] == b"200"


def test_119_usage(server):
    for body in ({"max_tokens": 7}, {"max_tokens": 7, "stream": True, "stream_options": {"include_usage": True}}):
        status, answer = server.request("/v1/completions", {"prompt": "The", "ignore_eos": True, **body})
        assert status == 200
        last = answer if "stream" not in body else answer.split(b"data: ")[-2]
        usage = json.loads(last)["usage"]
        assert (usage["completion_tokens"], usage["total_tokens"]) == (7, 8)


def test_100_two_hundred_at_once(serve, model):
    """On two places, a third of them leaving: the others are answered, and nothing of them stays open."""
    server = serve(model(MODEL), "--max-num-seqs", 2, "--max-model-len", 2048)
    reference = server.json("/v1/completions", SHORT)["choices"]
    files = f"/proc/{server.process.pid}/fd"
    before, results = len(os.listdir(files)), []

    def ask(i):
        if i % 3 > 0:
            results.append(server.request("/v1/completions", {**SHORT, "prompt": f"Number {i}"})[0])
            return
        body = json.dumps({"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": i % 2 == 0}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(i % 7 / 20)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(200)]
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [200] * 133
    for s in idle:
        s.close()
    deadline = time.monotonic() + 10
    while len(os.listdir(files)) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(files)) <= before
    assert server.json("/v1/completions", SHORT)["choices"] == reference


def test_094_duplicate_keys(server):
    body = b'{"model":"nope","prompt":"The","max_tokens":1,"model":"' + MODEL.encode() + b'","max_tokens":2}'
    status, answer = server.request("/v1/completions", body)
    assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] <= 2
    assert server.request("/v1/completions", body.replace(b'"nope"', b"5").replace(MODEL.encode(), b"no"))[0] == 404


def test_the_server_is_well_after_all_that(server):
    assert server.request("/health")[0] == 200
    assert server.json("/v1/completions", SHORT)["usage"]["completion_tokens"] == 3
