"""A short life of a server: scripts/test runs this file against the release, ASan and TSan builds (RIDGE_BIN)."""
import json
import signal
import socket
import threading

SANITIZER_SIGNS = ("Sanitizer", "runtime error:")


def chat(text, **more):
    return {"model": "smollm2-135m", "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0,
            **more}


def hang_up(port, body):
    """Sends a streaming request, reads the first bytes of the answer and goes away."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(data) + data)
        assert s.recv(16)


def test_short_life(serve, model):
    server = serve(model("smollm2-135m"), seconds=300)
    answers = {}

    def ask(key, body):
        answers[key] = server.request("/v1/chat/completions", body, timeout=300)

    asked = {f"plain{i}": chat(f"Count to {i + 2}.") for i in range(3)}
    asked["stream"] = chat("Count to 2.", stream=True)
    asked["bad"] = {"model": "smollm2-135m", "messages": "no list"}
    threads = [threading.Thread(target=ask, args=item) for item in asked.items()]
    for thread in threads:
        thread.start()
    hang_up(server.port, chat("Tell me a long story.", stream=True, max_tokens=200))
    for thread in threads:
        thread.join()

    texts = {}
    for key in ("plain0", "plain1", "plain2"):
        status, body = answers[key]
        assert status == 200, body
        texts[key] = json.loads(body)["choices"][0]["message"]["content"]
    status, body = answers["stream"]
    assert status == 200, body
    events = [line[len(b"data: "):] for line in body.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1].strip() == b"[DONE]"
    deltas = [c["delta"].get("content") or "" for e in events[:-1] for c in json.loads(e)["choices"]]
    assert "".join(deltas) == texts["plain0"]
    assert answers["bad"][0] == 400
    assert server.stop(signal.SIGTERM, timeout=120) == 0, server.stderr()[-2000:]
    assert not any(sign in server.stderr() for sign in SANITIZER_SIGNS), server.stderr()[-4000:]
