"""The three models against the numpy f32 reference in ../shared/golden (its README has the protocol).

--precise: log-probabilities, greedy continuations and perplexity of the reference. The default path (int8
activations, f16 cache): perplexity; its KL is measured by bench/kl.py. And the contract: the same bits for
any chunking, block size, thread count and company.
"""
import json

import pytest

TOLERANCE = 2e-3  # of a log-probability, with --precise


def prompts_of(golden, name):
    return golden(f"logits-{name}.json")["prompts"]


def positions(ridge, path, id_lists, *flags):
    """The scored positions of every id list, in one process."""
    documents = ridge.jsonl("score", path, *flags, lines=id_lists, timeout=1200)
    assert [d["ids"] for d in documents] == id_lists
    return [d["positions"] for d in documents]


def test_precise_log_probabilities(ridge, golden, each_model):
    name, path = each_model
    prompts = prompts_of(golden, name)
    scored = positions(ridge, path, [p["ids"] for p in prompts], "--precise", "--top", "30")
    worst = 0.0
    for prompt, rows in zip(prompts, scored):
        for expected in prompt["positions"]:
            top = rows[expected["pos"]]["top"]
            ours = dict((token, lp) for token, lp in top)
            for token, lp in expected["top"]:
                assert token in ours, (prompt["name"], expected["pos"], token)
                worst = max(worst, abs(ours[token] - lp))
            if expected["top"][0][1] - expected["top"][1][1] > TOLERANCE:
                assert top[0][0] == expected["top"][0][0], (prompt["name"], expected["pos"])
    assert worst <= TOLERANCE, f"largest difference {worst}"


def test_precise_teacher_forced(ridge, golden, each_model):
    """Along the reference's greedy continuation: the same first token wherever its margin allows."""
    name, path = each_model
    prompts = prompts_of(golden, name)
    scored = positions(ridge, path, [p["ids"] + p["greedy"]["ids"] for p in prompts], "--precise", "--top", "1")
    for prompt, rows in zip(prompts, scored):
        greedy = prompt["greedy"]
        for i, (token, lp, margin) in enumerate(zip(greedy["ids"], greedy["logprob"], greedy["margin"])):
            row = rows[prompt["n_ids"] - 1 + i]
            assert abs(row["logprob"] - lp) <= TOLERANCE, (prompt["name"], i)
            if margin > 2 * TOLERANCE:
                assert row["top"][0][0] == token, (prompt["name"], i)


def test_precise_greedy_continuation(ridge, golden, each_model):
    name, path = each_model
    for prompt in prompts_of(golden, name):
        if prompt["n_ids"] > 1 and prompt["name"] == "long":
            continue  # teacher-forced above; a run of its own costs a minute
        out = ridge.json("run", path, "--raw", "--temperature", 0, "--precise", "--ignore-eos", "--max-tokens", 48,
                         "--json", "--", prompt["text"], timeout=600)
        greedy = prompt["greedy"]
        n = next((i for i, margin in enumerate(greedy["margin"]) if margin < 0.002), len(greedy["ids"]))
        assert out["usage"]["prompt_tokens"] == prompt["n_ids"]
        assert out["ids"][:n] == greedy["ids"][:n], prompt["name"]


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


def test_precise_perplexity(ridge, golden, shared, model):
    """Of one model: the distributions of all are compared with the reference above, and the text takes minutes."""
    check_perplexity(ridge, golden, shared, "smollm2-135m", model("smollm2-135m"), 0.001, "--precise")


def test_q8_0_cache(ridge, shared, each_model, tmp_path):
    """A cache of 8 bits costs little: the text's beginning, two windows of it."""
    text = tmp_path / "text"
    text.write_bytes((shared / "golden" / "ppl.txt").read_bytes()[:6000])
    f16, q8 = (ridge.json("perplexity", each_model[1], text, "--json", "--kv-cache-dtype", t)["perplexity"]
               for t in ("f16", "q8_0"))
    assert f16 != q8 and q8 == pytest.approx(f16, rel=0.005)


def test_same_bits_however_it_is_computed(ridge, golden, each_model, tmp_path):
    """score --logits is equal to the byte for any chunking, block size and number of threads."""
    name, path = each_model
    long = next(p for p in prompts_of(golden, name) if p["name"] == "long")["ids"]
    reference = None
    for i, flags in enumerate([[], ["--threads", 1], ["--max-num-batched-tokens", 1], ["--max-num-batched-tokens", 7],
                               ["--max-num-batched-tokens", 32, "--block-size", 1], ["--block-size", 7],
                               ["--max-num-batched-tokens", 512, "--block-size", 64, "--threads", 3],
                               ["--threads", 1, "--threads-batch", 2, "--max-num-batched-tokens", 24],
                               ["--threads", 3, "--threads-batch", 1], ["--threads", 1, "--cpu-affinity", "auto"]]):
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
