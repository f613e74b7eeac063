"""Faults reported of sampling (065-073) and of the prefix cache and the context (074-080), the numbers of
../shared/cases/bugs.md, with the right outcome over HTTP. Their arithmetic is in tests/sample and tests/kv; metrics and
health (101, 103) are in test_metrics.py, speculation (107-110) in tests/engine/test_speculation.c."""
import concurrent.futures
import json

import pytest

MODEL = "smollm2-135m"
HELLO = [{"role": "user", "content": "Hi"}]
SHORT = {"prompt": "The quick brown", "max_tokens": 3, "temperature": 0}
EOS = 2  # <|im_end|>


def error_of(server, path, body, status=400):
    return server.json(path, body, status=status)["error"]


def complete(server, **fields):
    return server.json("/v1/completions", {**SHORT, **fields})


def text_of(server, **fields):
    return complete(server, **fields)["choices"][0]["text"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


# ---- sampling ----

def test_065_edges_of_the_cuts(server):
    warm = {"temperature": 1, "max_tokens": 8}
    greedy = text_of(server, max_tokens=8)
    for seed in (1, 2):
        for one in ({"top_p": 0}, {"top_k": 1}, {"min_p": 1}, {"top_k": 1, "top_p": 0, "min_p": 1}):
            assert text_of(server, **warm, seed=seed, **one) == greedy, one
        drawn = text_of(server, **warm, seed=seed)
        for everything in ({"top_k": 0}, {"top_k": -1}, {"top_k": 2**31 - 1}, {"top_p": 1}, {"min_p": 0}):
            assert text_of(server, **warm, seed=seed, **everything) == drawn, everything
        assert drawn != greedy
    for field, bad in (("top_p", -.1), ("top_p", 1.1), ("min_p", 2), ("top_k", -2), ("top_k", 2**31), ("top_k", 1.5)):
        assert error_of(server, "/v1/completions", {**SHORT, field: bad})["param"] == field


def test_067_what_penalties_count(server):
    """The answer goes on with a token of the prompt: OpenAI's penalties are of what was generated, the repetition
    penalty of both."""
    body = {"prompt": "a b a b a b a b a b a b a b", "max_tokens": 1}
    plain = text_of(server, **body)
    assert plain in body["prompt"]
    assert text_of(server, **body, presence_penalty=2, frequency_penalty=2) == plain
    assert text_of(server, **body, repetition_penalty=100) != plain
    for bad in (0, .009, 101, -1):
        said = error_of(server, "/v1/completions", {**SHORT, "repetition_penalty": bad})
        assert said["param"] == "repetition_penalty" and "between 0.01 and 100" in said["message"]
    body["max_tokens"] = 8
    assert text_of(server, **body, frequency_penalty=2) != text_of(server, **body) == " a b a b a b a b"[:16]


def test_068_logprobs_are_of_the_raw_logits(server):
    def content(**more):
        body = {"messages": HELLO, "max_tokens": 3, "temperature": 0, "logprobs": True, "top_logprobs": 5, **more}
        return server.json("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]

    plain = content()
    assert plain == content(temperature=0.3, top_k=1)
    for entry in plain:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert values[0] == entry["logprob"] < 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
    assert all(entry["top_logprobs"] == [] for entry in content(top_logprobs=0))
    for bad in ({"top_logprobs": 21, "logprobs": True}, {"top_logprobs": -1, "logprobs": True}, {"top_logprobs": 3}):
        assert error_of(server, "/v1/chat/completions", {"messages": HELLO, **bad})["param"] == "top_logprobs"
    for bad in (21, -1, 1.5):
        assert error_of(server, "/v1/completions", {**SHORT, "logprobs": bad})["param"] == "logprobs"


def test_068_twenty_and_biased(server):
    body = {"messages": HELLO, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 20}
    plain = server.json("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 20 for entry in plain)
    biased = server.json("/v1/chat/completions", {**body, "logit_bias": {"0": -100}})["choices"][0]["logprobs"]["content"]
    assert biased == plain


def test_068_the_chosen_tokens_value_is_there(server):
    """Also of one that bias has forced from far below: raw, finite, and beside the alternatives."""
    forced = server.json("/tokenize", {"prompt": " zebra"})["tokens"]
    assert len(forced) == 1
    lp = complete(server, logprobs=2, logit_bias={str(forced[0]): 100})["choices"][0]["logprobs"]
    assert lp["tokens"] == [" zebra"] * 3
    for value, tops in zip(lp["token_logprobs"], lp["top_logprobs"]):
        assert -9999 < value < -1 and tops[" zebra"] == value and len(tops) in (2, 3)


def test_070_choices(server):
    for bad in ({"n": 0}, {"n": 1000}, {"n": 2, "best_of": 1}, {"best_of": 0}, {"best_of": 1000}):
        error_of(server, "/v1/completions", {**SHORT, **bad})
    for fine in ({"n": 2, "best_of": 2}, {"n": 2}):
        usage = complete(server, **fine)["usage"]
        assert usage["prompt_tokens"] == 3 and usage["completion_tokens"] == 6
    assert complete(server, best_of=1)["choices"] == complete(server)["choices"]
    three = complete(server, n=3, seed=7, temperature=1, max_tokens=8)
    assert [c["index"] for c in three["choices"]] == [0, 1, 2]
    assert len({c["text"] for c in three["choices"]}) > 1
    assert complete(server, n=3, seed=7, temperature=1, max_tokens=8)["choices"] == three["choices"]


def test_071_seeds(server):
    def text(seed):
        return text_of(server, seed=seed, temperature=1, max_tokens=16)

    seeds = (0, 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -2, -2**63)
    alone = [text(seed) for seed in seeds]
    assert len(set(alone)) == len(seeds)  # no two of them are one
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(text, seeds)) == alone
    for seed in (2**63, 1.5, "7", True):
        assert error_of(server, "/v1/completions", {**SHORT, "seed": seed})["param"] == "seed"
    for seed in (None, -1):
        assert text(seed) != text(seed)


def test_073_lengths(server):
    body = {"max_tokens": 20, "stop": ["a"], "min_tokens": 10}
    assert complete(server, **body)["usage"]["completion_tokens"] >= 10
    assert error_of(server, "/v1/completions", {**SHORT, "min_tokens": 10})["param"] == "min_tokens"
    wants_to_end = {"logit_bias": {str(EOS): 100}, "max_tokens": 64}
    answer = complete(server, **wants_to_end)
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "stop"
    answer = complete(server, **wants_to_end, min_tokens=10)
    assert answer["usage"]["completion_tokens"] == 11 and answer["choices"][0]["finish_reason"] == "stop"
    for stream in (False, True):
        fields = {**SHORT, **wants_to_end, "ignore_eos": True, "stream": stream, "stream_options": {"include_usage": True}}
        status, raw = server.request("/v1/completions", fields)
        chunks = [json.loads(raw)] if not stream else [json.loads(e[6:]) for e in raw.split(b"\n\n")[:-2]]
        choices = [c for chunk in chunks for c in chunk["choices"]]
        assert status == 200 and chunks[-1]["usage"]["completion_tokens"] == 64
        assert "".join(c["text"] for c in choices) == ""  # 64 ends of text, of which none shows
        assert choices[-1]["finish_reason"] == "length"


# ---- the prefix cache ----

def test_074_prompt_logprobs_and_the_cache(server):
    """What is cached has no logits: such a prompt is computed whole, and says the same each time."""
    def ask(ids, **more):
        answer = complete(server, prompt=ids, echo=True, logprobs=1, max_tokens=1, **more)
        lp = answer["choices"][0]["logprobs"]
        assert {len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {len(ids) + 1}
        assert cached(answer) == 0
        return answer["choices"]

    ids = list(range(40, 76))
    alone = ask(ids, cache_prompt=False)
    assert ask(ids) == alone and ask(ids) == alone
    other = ask(ids[:20] + list(range(200, 216)))
    shared = [c["logprobs"]["token_logprobs"][:20] for c in (alone[0], other[0])]
    assert shared[0] == shared[1] and other != alone
    assert cached(complete(server, prompt=ids)) == 35  # who wants none of that does use what they have left
    assert ask(ids) == alone


def test_076_cached_tokens_are_counted(server):
    ids = list(range(1000, 1100))
    first = complete(server, prompt=ids, max_tokens=8, ignore_eos=True, return_token_ids=True)
    assert cached(first) < 100
    assert cached(complete(server, prompt=ids, max_tokens=8)) == 99  # the last is always computed
    turn = ids + first["choices"][0]["token_ids"] + [5, 6, 7]
    second = complete(server, prompt=turn)
    assert cached(second) == 107  # the prompt and all of the answer that has been computed: not its last token
    assert second["choices"] == complete(server, prompt=turn, cache_prompt=False)["choices"]
    three = complete(server, prompt=turn, n=3)
    assert three["usage"]["prompt_tokens"] == len(turn) and cached(three) == len(turn) - 1
    stream = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for n in (1, 2):
        body = {**SHORT, **stream, "prompt": ids, "n": n}
        events = server.request("/v1/completions", body)[1].split(b"\n\n")[:-2]
        assert {cached(json.loads(event[6:])) for event in events} == {99}  # not only in the last
    fresh = list(range(2000, 2100))
    for n in (1, 3):
        assert cached(complete(server, prompt=[i + n for i in fresh], n=n, cache_prompt=False)) == 0


def test_076_the_second_turn_of_a_chat(server):
    talk = [{"role": "user", "content": "Name five colours of the rainbow, please."}]
    body = {"messages": talk, "max_tokens": 12, "temperature": 0}
    first = server.json("/v1/chat/completions", body)
    reply = first["choices"][0]["message"]["content"]
    turn = [*talk, {"role": "assistant", "content": reply}, {"role": "user", "content": "And animals?"}]
    second = server.json("/v1/chat/completions", {**body, "messages": turn})
    known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert known - 2 <= cached(second) < second["usage"]["prompt_tokens"]
    assert "prompt_tokens_details" in server.json("/v1/chat/completions", {**body, "cache_prompt": False})["usage"]


def test_077_tenants(server):
    ids = list(range(3000, 3050))
    for salt in ("A", "B", None, "a"):
        assert cached(complete(server, prompt=ids, cache_salt=salt)) == 0, salt
        assert cached(complete(server, prompt=ids, cache_salt=salt)) == 49, salt
    for other in (ids[1:], ids[16:], [999] + ids, ids[32:] + ids[:16]):  # the same tokens elsewhere are not the same
        assert cached(complete(server, prompt=other)) == 0


def test_079_there_are_no_slots_to_save(server, tmp_path):
    """llama-server's slots name files; what is kept here is of the operator's choice (test_prefix_cache_shared.py)."""
    for action in ("save", "restore", "erase"):
        for name in ("../x", str(tmp_path / "x"), "a/b", "a\0b", "x" * 300):
            assert server.request(f"/slots/0?action={action}", {"filename": name})[0] == 404
    assert list(tmp_path.iterdir()) == []


def test_080_a_full_context_ends_the_answer(serve, model):
    """Nothing is shifted: the answer ends with the context, and is as long as it can be."""
    server = serve(model(MODEL), "--max-model-len", 64)
    for n in (50, 63):
        answer = complete(server, prompt=list(range(100, 100 + n)), max_tokens=1000, ignore_eos=True)
        assert answer["usage"]["total_tokens"] == 64 and answer["choices"][0]["finish_reason"] == "length"
    assert "64 tokens" in error_of(server, "/v1/completions", {**SHORT, "prompt": list(range(100, 164))})["message"]
