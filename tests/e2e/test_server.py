"""ridge serve, end to end: the official client, raw sockets, bad input, clients that leave, SIGTERM."""
import concurrent.futures
import json
import signal
import socket
import threading
import time

import pytest

openai = pytest.importorskip("openai")

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The quick brown"


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def stream_text(chunks):
    text, finish, usage = "", None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            finish = choice.finish_reason or finish
    return text, finish, usage


def raw(server, data, timeout=30):
    """All bytes that come back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as s:
        s.sendall(data)
        out = b""
        while piece := s.recv(65536):
            out += piece
        return out


def post(path, body, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(head).encode() + data


def test_models_version_health(server, client):
    assert server.request("/health") == (200, b"")
    assert server.json("/version")["version"]
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL] and models[0].max_model_len > 0
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_whole_streamed_and_run_agree(ridge, server, client):
    args = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
    whole = client.chat.completions.create(**args)
    text, finish, usage = stream_text(
        client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}))
    assert text == whole.choices[0].message.content
    assert finish == whole.choices[0].finish_reason
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1  # asked a second time
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert usage.total_tokens == whole.usage.total_tokens and usage.completion_tokens <= 24
    run = ridge.json("run", MODEL, QUESTION[0]["content"], "--max-tokens", 24, "--temperature", 0, "--json")
    assert run["text"] == text


def test_completion_whole_streamed_and_run_agree(ridge, server, client):
    args = dict(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=20)
    whole = client.completions.create(**args).choices[0].text
    assert stream_text(client.completions.create(**args, stream=True))[0] == whole
    echoed = client.completions.create(**args, echo=True).choices[0].text
    assert echoed == PROMPT + whole
    run = ridge.json("run", MODEL, PROMPT, "--raw", "--max-tokens", 20, "--temperature", 0, "--json")
    assert run["text"] == whole


def test_many_at_once_answer_as_alone(server, client):
    prompts = [f"Number {i} is" for i in range(8)]

    def ask(prompt, seed):
        return client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, seed=seed,
                                         temperature=1).choices[0].text

    alone = [ask(p, i) for i, p in enumerate(prompts)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, prompts, range(8)))
    assert together == alone


def test_choices_and_prompt_lists(server, client):
    args = dict(model=MODEL, prompt=["A", "B"], n=2, max_tokens=5, seed=7, temperature=1,
                extra_body={"ignore_eos": True})
    first = client.completions.create(**args)
    assert [c.index for c in first.choices] == [0, 1, 2, 3]
    assert [c.text for c in client.completions.create(**args).choices] == [c.text for c in first.choices]
    assert first.usage.completion_tokens == 20 and first.usage.prompt_tokens == 2
    assert len({c.text for c in first.choices}) > 1
    texts = ["", "", "", ""]
    finishes = [0] * 4
    for chunk in client.completions.create(**args, stream=True):
        for c in chunk.choices:
            texts[c.index] += c.text
            finishes[c.index] += c.finish_reason is not None
    assert texts == [c.text for c in first.choices] and finishes == [1] * 4


def test_token_ids(server, client):
    """Where vLLM has them: the prompt's in each choice of a completion (in a stream: in its first chunk), a chat's beside
    the choices; the answer's in every chunk."""
    prompts = ["A b c", "One two"]
    asked = [server.json("/tokenize", {"prompt": p})["tokens"] for p in prompts]
    args = dict(model=MODEL, prompt=prompts, n=2, max_tokens=3, temperature=0, stream=False,
                extra_body={"return_token_ids": True, "ignore_eos": True})
    whole = client.completions.create(**args).choices
    assert [c.prompt_token_ids for c in whole] == [asked[0], asked[0], asked[1], asked[1]]
    seen, ids = [[] for _ in whole], [[] for _ in whole]
    for chunk in client.completions.create(**{**args, "stream": True}):
        for c in chunk.choices:
            seen[c.index].append(getattr(c, "prompt_token_ids", None))
            ids[c.index] += c.token_ids
    assert all(s == [c.prompt_token_ids] + [None] * (len(s) - 1) for s, c in zip(seen, whole))
    assert ids == [c.token_ids for c in whole] and all(len(i) == 3 for i in ids)
    args = dict(model=MODEL, messages=QUESTION, max_tokens=3, temperature=0, extra_body={"return_token_ids": True})
    rendered = server.json("/tokenize", {"messages": QUESTION})["tokens"]
    assert client.chat.completions.create(**args).prompt_token_ids == rendered
    chunks = list(client.chat.completions.create(**args, stream=True))
    assert [getattr(c, "prompt_token_ids", None) for c in chunks] == [rendered] + [None] * (len(chunks) - 1)


def test_usage_and_lengths(server, client):
    tokens = server.json("/tokenize", {"messages": QUESTION})
    rendered = server.json("/detokenize", {"tokens": tokens["tokens"]})["prompt"]
    assert server.json("/tokenize", {"prompt": rendered})["tokens"] == tokens["tokens"]
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=7,
                                           extra_body={"ignore_eos": True})
    assert whole.usage.completion_tokens == 7 and whole.choices[0].finish_reason == "length"
    assert whole.usage.prompt_tokens == tokens["count"]
    assert whole.usage.prompt_tokens_details.cached_tokens < tokens["count"]
    # Near the roof or not: there where the machine's peaks are known, and never 0.
    assert whole.metrics["tokens_per_second"] > 0
    assert 0 < whole.metrics.get("mbu", 1) < 2 and 0 < whole.metrics.get("mfu", 1) < 2


def test_stop_strings(server, client):
    args = dict(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=24)
    text = client.completions.create(**args).choices[0].text
    stop = text[len(text) // 2:len(text) // 2 + 3]
    for stops in (stop, [stop, "never seen"]):
        choice = client.completions.create(**args, stop=stops).choices[0]
        assert choice.text == text[:text.index(stop)]
        assert choice.finish_reason == "stop" and choice.stop_reason == stop
        assert stream_text(client.completions.create(**args, stop=stops, stream=True))[0] == choice.text
    # A beginning of a stop string that doesn't come is let out at the end.
    assert client.completions.create(**args, stop=[text[-4:] + "\x7fnever"]).choices[0].text == text


def test_logprobs(server, client):
    args = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=6)
    whole = client.chat.completions.create(**args, logprobs=True, top_logprobs=5)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    for e in entries:
        values = [t.logprob for t in e.top_logprobs]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert e.logprob == values[0] < 0 and e.top_logprobs[0].token == e.token
    warm = client.chat.completions.create(**{**args, "temperature": 0.3}, logprobs=True, top_logprobs=5,
                                          extra_body={"top_k": 1})
    assert [e.logprob for e in warm.choices[0].logprobs.content] == [e.logprob for e in entries]


def test_echo_logprobs_for_evaluation(server, client):
    ids = server.json("/tokenize", {"prompt": "The capital of France is Paris"})["tokens"]
    answers = []
    for prompt in ("The capital of France is Paris", ids, [ids]):
        c = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=1, max_tokens=1,
                                      temperature=0).choices[0]
        lp = c.logprobs
        n = len(ids) + 1
        assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == n
        assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
        assert all(v is not None and v <= 0 for v in lp.token_logprobs[1:])
        assert "".join(lp.tokens) == c.text
        assert lp.text_offset == [len("".join(lp.tokens[:i])) for i in range(n)]
        assert lp.token_logprobs[-1] == max(lp.top_logprobs[-1].values())
        answers.append(lp.token_logprobs)
    assert answers[0] == answers[1] == answers[2]
    only = client.completions.create(model=MODEL, prompt=ids, echo=True, logprobs=1, max_tokens=0).choices[0]
    assert only.logprobs.token_logprobs == answers[0][:-1] and only.text == "The capital of France is Paris"


def test_bias_and_seeds(server, client):
    token = server.json("/tokenize", {"prompt": " the"})["tokens"][0]
    c = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0,
                                  logit_bias={str(token): 100})
    assert c.choices[0].text == " the" * 4
    args = dict(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=1)
    one, big = (client.completions.create(**args, seed=s).choices[0].text for s in (1, 2**32 + 1))
    assert one != big and one == client.completions.create(**args, seed=1).choices[0].text


BAD = [  # path, body, status, part of the message
    ("chat/completions", b'{"messages": [', 400, "line 1"),
    ("chat/completions", b'{"messages": "\xff"}', 400, "JSON"),
    ("chat/completions", b"[" * 100000, 400, "nested"),
    ("chat/completions", {"messages": QUESTION, "model": "gpt-4"}, 404, "does not exist"),
    ("chat/completions", {"messages": QUESTION, "temperature": "hot"}, 400, "temperature"),
    ("chat/completions", {"messages": QUESTION, "n": 0}, 400, "'n'"),
    ("chat/completions", {"messages": QUESTION, "stop": 5}, 400, "stop"),
    ("chat/completions", {"messages": QUESTION, "seed": 1.5}, 400, "seed"),
    ("chat/completions", {"messages": QUESTION, "stream": True, "max_tokens": 0}, 400, "max_tokens"),
    ("chat/completions", {"messages": QUESTION, "tools": [{"type": "function"}]}, 400, "tools"),
    ("chat/completions", {"messages": QUESTION, "response_format": {"type": "json_object"}}, 400, "response_format"),
    ("chat/completions", {"messages": []}, 400, "messages"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url"),
    ("completions", {"prompt": ""}, 400, "empty"),
    ("completions", {"prompt": "\x04"}, 400, "empty"),  # a byte which the vocabulary has not
    ("completions", {"prompt": [[]]}, 400, "empty"),
    ("completions", {"prompt": [999999999]}, 400, "999999999"),
    ("completions", {"prompt": "a " * 100000}, 400, "maximum context length"),
    ("completions", {"prompt": "a" * 1000000, "stream": True}, 400, "maximum context length"),
    ("nothing", {}, 404, "/v1/nothing"),
]


@pytest.mark.parametrize("path,body,status,message", BAD, ids=range(len(BAD)))
def test_bad_requests(server, path, body, status, message):
    error = server.json(f"/v1/{path}", body, status=status)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status and message in error["message"]
    assert server.request("/health")[0] == 200


def test_methods(server):
    assert server.json("/v1/completions", status=405, method="GET")["error"]["code"] == 405
    assert server.json("/health", b"{}", status=405)["error"]["code"] == 405


def test_framing(server):
    two = post("/v1/nope", b"GET /metrics HTTP/1.1\r\n\r\n") + post("/version", b"", "Connection: close")
    answer = raw(server, two)
    assert answer.count(b"HTTP/1.1 ") == 2 and answer.startswith(b"HTTP/1.1 404")
    for head in ("Content-Length: -1", "Content-Length: +5", "Content-Length: 5\r\nContent-Length: 5",
                 "Content-Length: 5\r\nTransfer-Encoding: chunked"):
        answer = raw(server, f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\nhello".encode())
        assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer
    assert raw(server, b"\x16\x03\x01\x00\xa5\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_stream_bytes(server):
    body = {"messages": QUESTION, "stream": True, "max_tokens": 3, "stream_options": {"include_usage": True}}
    head, _, rest = raw(server, post("/v1/chat/completions", body, "Connection: close",
                                     "X-Request-Id: abc")).partition(b"\r\n\r\n")
    assert b"Content-Type: text/event-stream" in head and b"X-Request-Id: abc" in head
    text = b""
    while (size := int(rest.split(b"\r\n", 1)[0], 16)) > 0:
        piece = rest.split(b"\r\n", 1)[1][:size]
        rest = rest.split(b"\r\n", 1)[1][size + 2:]
        assert piece.startswith(b"data: ") and piece.endswith(b"\n\n")  # one chunk, one event
        text += piece
    events = text.decode().split("\n\n")
    assert events.pop() == "" and events.pop() == "data: [DONE]"
    chunks = [json.loads(e.removeprefix("data: ")) for e in events]
    assert {c["id"] for c in chunks} == {"chatcmpl-abc"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] <= 3
    finishes = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert finishes[-1] in ("stop", "length") and not any(finishes[:-1])


def test_utf8_is_never_cut(server, client):
    """SmolLM2 splits most non-Latin characters: the ids of a text are forced one after the other."""
    args = dict(model=MODEL, prompt="\u4e16\u754c\U0001f44b \u4e16", temperature=0, extra_body={"ignore_eos": True})
    whole = [client.completions.create(**args, max_tokens=n).choices[0].text for n in range(1, 8)]
    for text in whole:
        assert "\ufffd" not in text.rstrip("\ufffd")
    for n in (3, 7):
        assert stream_text(client.completions.create(**args, max_tokens=n, stream=True))[0] == whole[n - 1]


def test_clients_that_leave(serve, model):
    server = serve(model(MODEL), "--max-num-seqs", 1, "--max-waiting", 8)
    client = client_of(server)
    reference = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, temperature=0).choices[0].text
    endless = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": False}
    for body in (endless, {**endless, "stream": True}, {**endless, "prompt": "long " * 1500}):
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(post("/v1/completions", body))
            time.sleep(0.3)
    # One leaves the queue while another runs: the running one is not disturbed.
    with socket.create_connection(("127.0.0.1", server.port)) as queued:
        result = {}
        runner = threading.Thread(target=lambda: result.update(text=client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=30, temperature=0).choices[0].text))
        started = time.monotonic()
        runner.start()
        time.sleep(0.1)
        queued.sendall(post("/v1/completions", endless))
    runner.join()
    assert result["text"] == reference
    assert time.monotonic() - started < 60  # 2000 tokens of one sequence would hold the only slot for longer


def test_full_queue(serve, model):
    server = serve(model(MODEL), "--max-num-seqs", 1, "--max-waiting", 1)
    body = {"prompt": PROMPT, "max_tokens": 5, "n": 2, "seed": 1}
    assert len(server.json("/v1/completions", body)["choices"]) == 2  # one place, and one waits
    # What could never come in is not told to try again later.
    for many, numbers in ({"n": 3}, b"1 prompt times 3 choices make 3 sequences, more than the 2 that may run and wait"), \
            ({"prompt": [PROMPT] * 4, "n": 1}, b"4 prompts times 1 choice make 4 sequences"):
        status, answer = server.request("/v1/completions", {**body, **many})
        assert status == 400 and numbers in answer and b"--max-waiting" in answer
    with socket.create_connection(("127.0.0.1", server.port)) as runs:
        runs.sendall(post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": True}))
        assert runs.recv(10)
        status, answer = server.request("/v1/completions", body)
        assert status == 429 and b"RateLimitError" in answer and b"2 choices, and there is room for 1" in answer
        assert b'finished_reason="abort"} 0.0' in server.request("/metrics")[1]


def test_limits_and_key(serve, model):
    server = serve(model(MODEL), "--api-key", "secret", "--max-body-bytes", 10000, "--head-timeout", 0.5,
                   "--request-timeout", 2, "--max-model-len", 2048, "--served-model-name", "org/name",
                   "--max-answer-bytes", 20000)
    assert server.request("/v1/models")[0] == 401
    assert server.request("/v1/models", headers={"Authorization": "Bearer Secret"})[0] == 401
    key = {"Authorization": "Bearer secret"}
    assert server.json("/v1/models/org%2Fname", headers=key)["max_model_len"] == 2048
    assert server.request("/v1/completions", b" " * 20000, headers=key)[0] == 413
    assert raw(server, b"GET /v1/mod").startswith(b"HTTP/1.1 408")
    assert raw(server, b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5000 + b"\r\n").startswith(b"HTTP/1.1 431")
    body = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True}
    assert server.request("/v1/completions", body, headers=key)[0] in (200, 504)
    status, answer = server.request("/v1/completions", {**body, "logprobs": 20}, headers=key)
    assert status == 400 and b"more than 20000 bytes" in answer
    assert server.request("/health")[0] == 200


def test_sigterm_finishes_what_runs(serve, model):
    server = serve(model(MODEL), "--shutdown-timeout", 60)
    chunks = client_of(server).completions.create(model=MODEL, prompt=PROMPT, max_tokens=60, temperature=0, stream=True,
                                                  extra_body={"ignore_eos": True})
    first = next(chunks)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    if server.process.poll() is None:
        status, _ = server.request("/v1/completions", {"prompt": "x"})
        assert status == 503
    text, finish, _ = stream_text(chunks)
    assert finish == "length" and first.choices[0].text + text
    assert server.stop() == 0


def test_sigterm_has_a_limit(serve, model):
    server = serve(model(MODEL), "--shutdown-timeout", 0.3)
    body = {"prompt": PROMPT, "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(post("/v1/completions", body))
        assert s.recv(100)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10
        answer = b""
        while piece := s.recv(65536):
            answer += piece
    assert b'data: {"error":' in answer


def test_start_errors(ridge, model, tmp_path):
    path = model(MODEL)
    done = ridge("serve", tmp_path / "missing.gguf", status=1)
    assert b"missing.gguf" in done.stderr
    (tmp_path / "cut.gguf").write_bytes(open(path, "rb").read(100000))
    assert b"cut.gguf" in ridge("serve", tmp_path / "cut.gguf", "--port", 0, status=1).stderr
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        done = ridge("serve", path, "--port", s.getsockname()[1], status=1)
        assert b"in use" in done.stderr
    (tmp_path / "bad.jinja").write_text("{% if x %}")
    assert b"bad.jinja" in ridge("serve", path, "--port", 0, "--chat-template", tmp_path / "bad.jinja", status=1).stderr
    (tmp_path / "empty.jinja").write_text("")
    assert b"empty" in ridge("serve", path, "--port", 0, "--chat-template", tmp_path / "empty.jinja", status=1).stderr
    ridge("serve", path, "--port", 70000, status=2)
    ridge("serve", status=2)


def test_template_errors_are_400(serve, model, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ raise_exception('boom') }}")
    server = serve(model(MODEL), "--chat-template", str(tmp_path / "t.jinja"))
    error = server.json("/v1/chat/completions", {"messages": QUESTION}, status=400)["error"]
    assert "boom" in error["message"]
    assert server.json("/v1/completions", {"prompt": "a", "max_tokens": 1})["choices"]


def test_a_huge_prompt_is_refused_at_once(serve, model):
    """Ten megabytes take seconds to tokenize; that they cannot fit is seen without, and nobody waits meanwhile."""
    server = serve(model(MODEL), "--max-num-seqs", 2)
    words = "The quick brown fox jumps over the lazy dog, 12 times. " * 180000
    started = time.monotonic()
    for path, body in (("completions", {"prompt": words}), ("completions", {"prompt": "a" * 10000000, "stream": True}),
                       ("chat/completions", {"messages": [{"role": "user", "content": words}]})):
        message = server.json(f"/v1/{path}", body, status=400)["error"]["message"]
        assert "maximum context length" in message and "at least " in message
    assert time.monotonic() - started < 6
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(server.json, "/tokenize", {"prompt": words}) for _ in range(4)]
        time.sleep(0.3)
        worst = 0
        while not all(f.done() for f in slow):
            started = time.monotonic()
            assert server.request("/health")[0] == 200
            assert server.json("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})["choices"]
            worst = max(worst, time.monotonic() - started)
            time.sleep(0.05)
        assert worst < 3 and all(f.result()["count"] > 2000000 for f in slow)
