"""The three models against the numpy f32 reference in ../shared/golden (its README has the protocol).

--precise: log-probabilities, greedy continuations and perplexity of the reference. The default path (int8
activations, f16 cache): perplexity; its KL is measured by bench/kl.py. And the contract: the same bits for
any chunking, block size, thread count and company.
"""
import concurrent.futures
import json
import math

import pytest

from conftest import running_server

TOLERANCE = 2e-3  # of a log-probability, with --precise


def prompts_of(golden, name):
    return golden(f"logits-{name}.json")["prompts"]


@pytest.fixture(scope="module")
def precise(ridge, golden, each_model):
    """Per prompt: it, and the scored positions of it and of the reference's greedy continuation; in one process."""
    name, path = each_model
    prompts = prompts_of(golden, name)
    lines = [p["ids"] + p["greedy"]["ids"] for p in prompts]
    documents = ridge.jsonl("score", path, "--precise", "--top", "30", lines=lines, timeout=1200)
    assert [d["ids"] for d in documents] == lines
    return [(prompt, d["positions"]) for prompt, d in zip(prompts, documents)]


def test_precise_log_probabilities(precise):
    worst = 0.0
    for prompt, rows in precise:
        for expected in prompt["positions"]:
            top = rows[expected["pos"]]["top"]
            ours = dict((token, lp) for token, lp in top)
            for token, lp in expected["top"]:
                assert token in ours, (prompt["name"], expected["pos"], token)
                worst = max(worst, abs(ours[token] - lp))
            if expected["top"][0][1] - expected["top"][1][1] > TOLERANCE:
                assert top[0][0] == expected["top"][0][0], (prompt["name"], expected["pos"])
    assert worst <= TOLERANCE, f"largest difference {worst}"


def test_precise_teacher_forced(precise):
    """Along the reference's greedy continuation: the same first token wherever its margin allows."""
    for prompt, rows in precise:
        greedy = prompt["greedy"]
        for i, (token, lp, margin) in enumerate(zip(greedy["ids"], greedy["logprob"], greedy["margin"])):
            row = rows[prompt["n_ids"] - 1 + i]
            assert abs(row["logprob"] - lp) <= TOLERANCE, (prompt["name"], i)
            if margin > 2 * TOLERANCE:
                assert row["top"][0][0] == token, (prompt["name"], i)


def test_precise_greedy_continuation(ridge, golden, each_model, tmp_path):
    """Every prompt, from its text, all at once in one server; the shortest by `ridge run` too."""
    name, path = each_model
    prompts = prompts_of(golden, name)

    def ask(server, prompt):
        return server.json("/v1/completions", {"prompt": prompt["text"], "temperature": 0, "ignore_eos": True,
                                               "max_tokens": 48, "return_token_ids": True}, timeout=600)

    with running_server(ridge, tmp_path / "log", path, "--precise", "--max-model-len", 2048) as server, \
            concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = [(p, a["choices"][0]["token_ids"], a["usage"])
                   for p, a in zip(prompts, pool.map(lambda p: ask(server, p), prompts))]
    shortest = min(prompts, key=lambda p: p["n_ids"])
    out = ridge.json("run", path, "--raw", "--temperature", 0, "--precise", "--ignore-eos", "--max-tokens", 48, "--json",
                     "--", shortest["text"], timeout=600)
    for prompt, ids, usage in (*answers, (shortest, out["ids"], out["usage"])):
        greedy = prompt["greedy"]
        n = next((i for i, margin in enumerate(greedy["margin"]) if margin < 0.002), len(greedy["ids"]))
        assert usage["prompt_tokens"] == prompt["n_ids"]
        assert ids[:n] == greedy["ids"][:n], prompt["name"]


def check_perplexity(ridge, golden, shared, name, path, bar, *flags):
    expected = golden("ppl.json")["models"][name]
    got = ridge.json("perplexity", path, shared / "golden" / "ppl.txt", "--json", *flags, timeout=1800)
    assert got["tokens"] == expected["tokens"]
    assert got["scored"] == expected["second_half_targets"]["count"]
    assert got["scored_all"] == expected["all_targets"]["count"]
    assert got["perplexity"] == pytest.approx(expected["second_half_targets"]["ppl"], rel=bar)
    assert got["perplexity_all"] == pytest.approx(expected["all_targets"]["ppl"], rel=bar)


def test_perplexity(ridge, golden, shared, each_model):
    check_perplexity(ridge, golden, shared, *each_model, 0.005)


def test_precise_perplexity(ridge, golden, shared, model, tmp_path):
    """Of one model, and the text's first windows: the distributions of all are compared with the reference above."""
    reference = golden("ppl.json")["models"]["smollm2-135m"]["window_nll_sums"]
    text = tmp_path / "text"
    text.write_bytes((shared / "golden" / "ppl.txt").read_bytes()[:12000])
    got = ridge.json("perplexity", model("smollm2-135m"), text, "--json", "--precise", timeout=1800)
    n = got["scored_all"] // 511  # windows of 512 tokens, of which all but the first and 255 of the second half count
    assert n >= 4 and got["scored_all"] == 511 * n and got["scored"] == 255 * n
    assert got["perplexity_all"] == pytest.approx(math.exp(sum(w[0] for w in reference[:n]) / (511 * n)), rel=0.001)
    assert got["perplexity"] == pytest.approx(math.exp(sum(w[1] for w in reference[:n]) / (255 * n)), rel=0.001)


def test_q8_0_cache(ridge, shared, each_model, tmp_path):
    """A cache of 8 bits costs little: the text's beginning, two windows of it."""
    text = tmp_path / "text"
    text.write_bytes((shared / "golden" / "ppl.txt").read_bytes()[:6000])
    f16, q8 = (ridge.json("perplexity", each_model[1], text, "--json", "--kv-cache-dtype", t)["perplexity"]
               for t in ("f16", "q8_0"))
    assert f16 != q8 and q8 == pytest.approx(f16, rel=0.005)


# How a prompt is cut into steps and its cache into blocks, with threads among them: of every model.
SHAPES = [["--max-num-batched-tokens", 1], ["--max-num-batched-tokens", 7],
          ["--max-num-batched-tokens", 32, "--block-size", 1],
          ["--max-num-batched-tokens", 512, "--block-size", 64, "--threads", 3],
          ["--threads", 1, "--threads-batch", 2, "--max-num-batched-tokens", 24]]
# What no architecture has a part in: of one.
MORE_SHAPES = [["--threads", 1], ["--block-size", 7], ["--threads", 3, "--threads-batch", 1],
               ["--threads", 1, "--cpu-affinity", "auto"]]


def test_same_bits_however_it_is_computed(ridge, golden, each_model, tmp_path):
    """score --logits is equal to the byte for any chunking, block size and number of threads."""
    name, path = each_model
    long = next(p for p in prompts_of(golden, name) if p["name"] == "long")["ids"]
    reference = None
    for i, flags in enumerate([[], *SHAPES, *(MORE_SHAPES if name == "smollm2-135m" else [])]):
        ids = long[:96] if "--max-num-batched-tokens" in flags and 1 in flags else long[:320]
        file = tmp_path / f"{i}.f32"
        ridge("score", path, "--ids", "--json", "--top", 1, "--logits", file, *flags, stdin=json.dumps(ids), timeout=900)
        data = file.read_bytes()
        reference = reference or data
        assert len(data) == len(reference) // 320 * len(ids)
        assert data == reference[:len(data)], flags
        file.unlink()


def test_every_path_gives_the_same_bits(ridge, golden, model, tmp_path):
    """So the distances from the reference that one path is measured at are those of all."""
    path = model("smollm2-135m")
    prompt = next(p for p in prompts_of(golden, "smollm2-135m") if p["name"] == "chat")
    logits = {}
    for isa in ("portable", "avx2", "avx512"):
        file = tmp_path / isa
        done = ridge("score", path, "--ids", "--json", "--logits", file, stdin=json.dumps(prompt["ids"]), status=None,
                     env={"RIDGE_CPU": isa}, timeout=600)
        if done.returncode == 0:
            logits[isa] = file.read_bytes()
        else:
            assert isa.encode() in done.stderr  # a path that the machine lacks says so
    assert len(logits["portable"]) == 4 * 49152 * len(prompt["ids"])
    assert all(data == logits["portable"] for data in logits.values())
