"""Speculative decoding on a real model: answers with it are plain answers, byte for byte, whatever shapes them and wherever
guesses come from; the counts agree; what cannot work is refused by name."""
import concurrent.futures
import re
import subprocess
import sys

import pytest

from conftest import ROOT, model_path, running_server

MODEL = "smollm2-135m"
CODE = "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return width * height * depth\n\n"
TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox"
# Each has what could go another way where a token is guessed before it is drawn.
REQUESTS = [
    {"prompt": CODE + "def area(", "max_tokens": 40, "temperature": 0},
    {"prompt": CODE, "max_tokens": 40, "temperature": .8, "seed": 11, "logprobs": 3},
    {"prompt": TEXT, "max_tokens": 32, "temperature": 1.2, "top_p": .9, "top_k": 50, "seed": 2, "n": 2},
    {"prompt": TEXT, "max_tokens": 40, "temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": .4,
     "presence_penalty": .2},
    {"prompt": CODE, "max_tokens": 40, "temperature": .3, "seed": 5, "logit_bias": {"198": 4, "288": -100}},
    {"prompt": CODE + "def area(", "max_tokens": 40, "temperature": 0, "stop": ["* height", "return w"]},
    {"prompt": "One, two, three, one, two, three, one", "max_tokens": 40, "min_tokens": 12, "temperature": 0,
     "stop_token_ids": [28, 827]},
    {"prompt": TEXT, "max_tokens": 24, "temperature": .5, "min_p": .05, "seed": 9, "ignore_eos": True},
]
SOURCES = {
    "n-grams": ("--speculative", "ngram"),
    "four n-grams": ("--speculative", "ngram", "--num-speculative-tokens", 4),
    "itself": ("--speculative-model", MODEL, "--num-speculative-tokens", 3),
    "its first layers": ("--speculative-model", "CUT", "--num-speculative-tokens", 2),
    "its first layers, as many as pay": ("--speculative-model", "CUT"),
}


def ask(server, body):
    """What an answer says, without what differs between two of the same."""
    answer = server.json("/v1/completions", {**body, "ridge": {"explain": True}})
    usage = {k: v for k, v in answer["usage"].items() if k.endswith("_tokens")}
    return answer["choices"], usage, answer["ridge"]


def counts(server):
    text = server.request("/metrics")[1].decode()
    values = {name: float(re.search(rf"^vllm:spec_decode_num_{name}_total(?:\{{[^}}]*\}})? (\S+)$", text, re.M)[1])
              for name in ("drafts", "draft_tokens", "accepted_tokens")}
    values["at"] = [float(x) for x in re.findall(r"^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*\} (\S+)$", text,
                                                 re.M)]
    for name in ("acceptance_rate", "tokens_per_draft", "gain", "saved_seconds"):
        values[name] = float(re.search(rf"^ridge:speculation_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)[1])
    return values


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """The model's first third."""
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    subprocess.run([sys.executable, ROOT / "scripts" / "cut_layers.py", model_path(MODEL), path, "10"], check=True)
    return path


@pytest.fixture(scope="module")
def plain(ridge, tmp_path_factory):
    """The answers without guesses, one after the other."""
    log = tmp_path_factory.mktemp("plain") / "log"
    with running_server(ridge, log, model_path(MODEL), "--max-model-len", 1024, "--no-enable-prefix-caching") as server:
        answers = [ask(server, body) for body in REQUESTS]
        assert counts(server) == {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "at": [0] * 16,
                                  "acceptance_rate": 0, "tokens_per_draft": 0, "gain": 1, "saved_seconds": 0}
    reasons = [choice["finish_reason"] for choices, _, _ in answers for choice in choices]
    assert "stop" in reasons and "length" in reasons
    return answers


@pytest.mark.parametrize("source", SOURCES)
def test_answers_are_the_plain_ones(source, serve, plain, cut):
    flags = [str(cut) if f == "CUT" else f for f in SOURCES[source]]
    server = serve(model_path(MODEL), "--max-model-len", 1024, "--max-num-seqs", 6, *flags)
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as pool:
        answers = list(pool.map(lambda body: ask(server, body), REQUESTS))
    for (choices, usage, _), (plain_choices, plain_usage, _), body in zip(answers, plain, REQUESTS):
        assert choices == plain_choices, body
        assert usage == plain_usage, body
    alone = ask(server, REQUESTS[0])
    assert alone[0] == plain[0][0]

    c = counts(server)
    assert 0 <= c["accepted_tokens"] <= c["draft_tokens"] and c["drafts"] <= c["draft_tokens"]
    assert sum(c["at"]) == c["accepted_tokens"] and c["at"] == sorted(c["at"], reverse=True)
    if c["drafts"] == 0:  # as many as pay: that may be none, on a busy machine
        assert "as many as pay" in source or source == "n-grams"
        return
    assert c["acceptance_rate"] == pytest.approx(c["accepted_tokens"] / c["draft_tokens"])
    assert c["tokens_per_draft"] == pytest.approx(1 + c["accepted_tokens"] / c["drafts"])
    assert c["gain"] > 0 and (c["gain"] > 1) == (c["saved_seconds"] > 0)
    if source == "itself":  # wrong only in what comes after an end
        assert c["acceptance_rate"] > .8 and c["tokens_per_draft"] > 3
    if "num-speculative-tokens" in " ".join(map(str, flags)):
        said = alone[2]
        n_tokens = alone[1]["completion_tokens"]
        assert 0 < said["accepted_tokens"] <= said["drafted_tokens"]
        # Each step gives one token of its own: those accepted came without a step.
        assert said["steps"] <= n_tokens - said["accepted_tokens"] + 1


def test_run_says_what_was_drafted(ridge, model):
    ask_for = (model(MODEL), CODE, "--raw", "--max-tokens", 24, "--json")
    without = ridge.json("run", *ask_for)
    drafted = ridge.json("run", *ask_for, "--speculative", "ngram", "--num-speculative-tokens", 4)
    assert drafted["ids"] == without["ids"] and drafted["text"] == without["text"]
    assert without["timing"]["drafted_tokens"] == without["timing"]["accepted_tokens"] == 0
    assert 0 < drafted["timing"]["accepted_tokens"] <= drafted["timing"]["drafted_tokens"]


@pytest.mark.parametrize("status, flags, says", [
    (2, ("--num-speculative-tokens", 4), ("--num-speculative-tokens", "--speculative ngram", "--speculative-model")),
    (2, ("--speculative", "magic"), ("--speculative", "ngram", "magic")),
    (2, ("--speculative", "ngram", "--speculative-model", MODEL), ("--speculative", "--speculative-model")),
    (2, ("--speculative", "ngram", "--num-speculative-tokens", 17), ("num-speculative-tokens", "16", "17")),
    (1, ("--speculative-model", "gemma3-270m"), ("--speculative-model", "262144", "49152", "vocabulary")),
    (1, ("--speculative-model", "no-such-model"), ("no-such-model",)),
])
def test_what_cannot_work_is_refused(ridge, status, flags, says):
    for flag in flags:
        if flag == "gemma3-270m":
            model_path(flag)
    done = ridge("run", model_path(MODEL), "x", "--max-tokens", 1, *flags, status=status)
    text = done.stderr.decode()
    assert not done.stdout
    assert all(word in text for word in says), text


def test_cutting_layers(ridge, model, cut, tmp_path):
    whole, part = ridge.json("inspect", model(MODEL), "--json"), ridge.json("inspect", cut, "--json")
    assert whole != part
    script = ROOT / "scripts" / "cut_layers.py"
    same = tmp_path / "same.gguf"
    subprocess.run([sys.executable, script, model(MODEL), same, "30"], check=True)
    ids = "[1,504,2365,6354,16438]"
    scores = [ridge.json("score", path, "--ids", "--top", 3, "--json", stdin=ids) for path in (model(MODEL), same, cut)]
    assert scores[0] == scores[1] != scores[2]
    for layers, path, says in ((0, model(MODEL), "1 to 30"), (31, model(MODEL), "1 to 30"), (1, script, "GGUF")):
        done = subprocess.run([sys.executable, script, path, tmp_path / "out.gguf", str(layers)], capture_output=True,
                              text=True)
        assert done.returncode == 1 and says in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["same.gguf"]
