"""best_of and prompt_logprobs through the official client, against what the same server says of the same draws."""
import pytest

openai = pytest.importorskip("openai")

MODEL = "smollm2-135m"
PROMPT = "The capital of France is Paris. The capital of Italy is"


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=300)


def total(choice):
    return sum(choice.logprobs.token_logprobs)


def mean(choice):
    return total(choice) / len(choice.logprobs.token_logprobs)


def test_best_of(client):
    """The candidates are the choices that n would give; of different lengths, so that means and sums differ."""
    lengths_matter = 0
    for seed in (5, 6):
        args = dict(model=MODEL, prompt=["Once upon a time", "A list: one,"], seed=seed, temperature=1, max_tokens=12,
                    stop=[".", " the"], logprobs=0)
        every = client.completions.create(**args, n=6)
        best = client.completions.create(**args, n=2, best_of=6)
        for p in range(2):
            candidates = every.choices[6 * p:6 * p + 6]
            expected = sorted(candidates, key=mean, reverse=True)[:2]
            lengths_matter += expected != sorted(candidates, key=total, reverse=True)[:2]
            got = best.choices[2 * p:2 * p + 2]
            assert [c.index for c in got] == [2 * p, 2 * p + 1]
            assert [(c.text, c.logprobs) for c in got] == [(c.text, c.logprobs) for c in expected]
        assert best.usage.completion_tokens == every.usage.completion_tokens
        assert best.usage.prompt_tokens == every.usage.prompt_tokens
    assert lengths_matter > 0
    quiet = client.completions.create(**{**args, "logprobs": None}, n=2, best_of=6)
    assert [(c.text, c.logprobs) for c in quiet.choices] == [(c.text, None) for c in best.choices]
    with pytest.raises(openai.BadRequestError, match="best_of"):
        client.completions.create(**args, n=2, best_of=3, stream=True)


def check_entry(entry, id, value, likeliest, k):
    """vLLM's entry of the prompt's token `id`, against echo's value of it and its likeliest alternatives."""
    own = entry[str(id)]
    assert own["logprob"] == value and isinstance(own["decoded_token"], str) and own["rank"] >= 1
    assert len(entry) == (k if own["rank"] <= k else k + 1)
    ranked = sorted(entry.values(), key=lambda e: e["rank"])
    assert [e["rank"] for e in ranked[:k]] == list(range(1, k + 1))
    assert [e["logprob"] for e in ranked] == sorted((e["logprob"] for e in ranked), reverse=True)
    for e in ranked[:k]:
        assert e["logprob"] <= likeliest[e["decoded_token"]]  # of several tokens with one text echo shows the likeliest


def test_prompt_logprobs(server, client):
    ids = server.json("/tokenize", {"prompt": PROMPT})["tokens"]
    plain = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    echo = client.completions.create(model=MODEL, prompt=ids, echo=True, logprobs=20, max_tokens=0).choices[0].logprobs
    for k in (0, 1, 5, 20):
        for prompt in (PROMPT, ids):
            answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0,
                                               extra_body={"prompt_logprobs": k})
            assert answer.choices[0].text == plain.choices[0].text
            assert answer.usage.prompt_tokens_details.cached_tokens == 0  # what is cached has no logits
            entries = answer.choices[0].prompt_logprobs
            assert len(entries) == len(ids) and entries[0] is None
            for i in range(1, len(ids)):
                check_entry(entries[i], ids[i], echo.token_logprobs[i], echo.top_logprobs[i], k)
    several = client.completions.create(model=MODEL, prompt=[ids[:5], PROMPT], n=2, max_tokens=1, seed=1,
                                        extra_body={"prompt_logprobs": 20})
    assert [c.prompt_logprobs for c in several.choices] == [entries[:5]] * 2 + [entries] * 2


def test_prompt_logprobs_of_chats(server, client):
    args = dict(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=2, temperature=0)
    n = server.json("/tokenize", {"messages": args["messages"]})["count"]
    plain = client.chat.completions.create(**args)
    answer = client.chat.completions.create(**args, logprobs=True, extra_body={"prompt_logprobs": 2})
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert len(answer.prompt_logprobs) == n and answer.prompt_logprobs[0] is None
    assert all(len(e) in (2, 3) for e in answer.prompt_logprobs[1:])
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    for bad in (21, -1, -2):
        with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
            client.chat.completions.create(**args, extra_body={"prompt_logprobs": bad})
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        client.chat.completions.create(**args, stream=True, extra_body={"prompt_logprobs": 1})


def test_choices_share_what_their_prompt_says(server, client):
    """One sequence describes the prompt; every choice shows it, whole and in a stream, as one choice alone does."""
    args = dict(model=MODEL, prompt=PROMPT, echo=True, logprobs=2, max_tokens=5, temperature=1, seed=7)
    alone = client.completions.create(**args).choices[0]
    n = server.json("/tokenize", {"prompt": PROMPT})["count"]
    whole = client.completions.create(**args, n=3).choices
    assert len({c.text for c in whole}) > 1 and whole[0].text == alone.text and whole[0].logprobs == alone.logprobs
    joined = [{"text": ""} for _ in whole]
    for chunk in client.completions.create(**args, n=3, stream=True):
        choice = chunk.choices[0]
        joined[choice.index]["text"] += choice.text
        for name, part in choice.logprobs.model_dump().items():
            joined[choice.index].setdefault(name, []).extend(part)
    for choice, streamed in zip(whole, joined):
        assert choice.logprobs.token_logprobs[:n] == alone.logprobs.token_logprobs[:n]
        assert streamed.pop("text") == choice.text and streamed == choice.logprobs.model_dump()


def test_the_texts_of_tokens_are_the_text(client):
    """Also where it ends inside a character, or the prompt's ids do: 10813 is the first half of most emoji."""
    half = dict(model=MODEL, temperature=0, logprobs=1, logit_bias={"10813": 100})
    for prompt in ("A", [504, 10813]):
        for n in (0, 1, 3):
            for echo in (False, True) if n > 0 else (True,):
                choice = client.completions.create(**half, prompt=prompt, max_tokens=n, echo=echo).choices[0]
                assert "".join(choice.logprobs.tokens) == choice.text
                assert choice.text.endswith("\ufffd") == (n > 0 or prompt != "A")
                if n == 0:
                    continue
                chunks = [c.choices[0] for c in client.completions.create(**half, prompt=prompt, max_tokens=n, echo=echo,
                                                                          stream=True)]
                assert sum((c.logprobs.tokens for c in chunks), []) == choice.logprobs.tokens


@pytest.mark.parametrize("path, body, message", [
    ("completions", {"prompt": "a " * 1000, "echo": True, "logprobs": 20, "n": 128, "max_tokens": 1}, "log-probabilities"),
    ("completions", {"prompt": "a " * 1000, "prompt_logprobs": 20, "n": 128}, "at most 2097152"),
    ("completions", {"prompt": ["x"] * 8, "logprobs": 20, "n": 128, "max_tokens": 120}, "2580480 of its own"),
    ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 128, "logprobs": True, "top_logprobs": 20,
                          "max_tokens": 2000}, "5376000 of its own"),
    ("completions", {"prompt": ["x"] * 2049}, "2049 prompts"),
    ("completions", {"prompt": "x", "stop": ["x"] * 65}, "65 strings"),
    ("completions", {"prompt": "x", "logit_bias": {str(i): 1 for i in range(1025)}}, "1025 entries"),
    ("completions", {"prompt": "x", "unknown": [0] * (1 << 21)}, "2097152 values"),
    ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "tool_choice": "none",
                          "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(600000)]},
     "2097152 values")])
def test_what_one_request_may_ask_for(server, path, body, message):
    error = server.json(f"/v1/{path}", body, status=400)["error"]
    assert message in error["message"]
