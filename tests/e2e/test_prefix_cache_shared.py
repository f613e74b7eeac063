"""Many hands on one prefix cache: clients that leave in the middle of a prefix that others share; servers that share a
file, one of them killed while it writes."""
import concurrent.futures
import json
import random
import signal
import socket
import threading
import time

from prometheus_client.parser import text_string_to_metric_families

MODEL = "smollm2-135m"
SYSTEM = "You are a patient teacher. Answer in one short sentence. " * 12
SMALL = ("--max-model-len", 1024)


def ask(server, question, system=SYSTEM, **more):
    body = {"prompt": system + question, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    return server.json("/v1/completions", body)


def text(server, *question, **more):
    return ask(server, *question, **more)["choices"][0]["text"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def gauge(server, name):
    families = text_string_to_metric_families(server.request("/metrics")[1].decode())
    return next(s.value for f in families for s in f.samples if s.name == name)


def leave(server, question, system, seconds):
    """Sends a request, takes what comes for a while, and hangs up."""
    body = json.dumps({"prompt": system + question, "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.settimeout(seconds)
        try:
            while s.recv(4096):
                pass
        except TimeoutError:
            pass


def wait_idle(server):
    deadline = time.monotonic() + 20
    while gauge(server, "vllm:num_requests_running") + gauge(server, "vllm:num_requests_waiting") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_clients_that_leave_a_shared_prefix(serve, model):
    """Chunks are small, so that they leave while the prefix is being computed as well as after it; the cache is small, so
    that those who stay preempt each other."""
    server = serve(model(MODEL), *SMALL, "--max-num-batched-tokens", 32, "--max-num-seqs", 6,
                   "--kv-cache-memory-bytes", "25M")
    questions = [f"What is the number {i}?" for i in range(4)]
    chance = random.Random(1)
    for system in (SYSTEM, "Yes. " + SYSTEM):  # which nobody has left behind yet
        alone = [text(server, q, system, cache_prompt=False) for q in questions]
        leavers = [threading.Thread(target=leave, args=(server, q, system, chance.random() * 0.6))
                   for q in questions * 2]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for thread in leavers:
                thread.start()
            got = list(pool.map(lambda q: text(server, q, system), questions))
        for thread in leavers:
            thread.join()
        assert got == alone
        wait_idle(server)
        assert gauge(server, "vllm:kv_cache_usage_perc") == 0  # all blocks are free, or kept for whoever comes
        assert cached(ask(server, questions[0], system)) > 100
        assert [text(server, q, system) for q in questions] == alone


def test_two_servers_with_one_file(serve, model, tmp_path):
    file = tmp_path / "prefixes"
    flags = (*SMALL, "--kv-cache-memory-bytes", "40M", "--prefix-cache-file", file)
    first, second = serve(model(MODEL), *flags), serve(model(MODEL), *flags)
    expected = text(first, "One?")
    assert text(second, "Two?") and cached(ask(second, "One?")) > 0
    first.process.send_signal(signal.SIGTERM)  # both at once
    second.process.send_signal(signal.SIGTERM)
    assert first.stop() == second.stop() == 0
    assert [p.name for p in tmp_path.glob("prefixes*")] == ["prefixes"]
    kept = ["into" in s.stderr() for s in (first, second)]
    refused = ["another process" in s.stderr() for s in (first, second)]
    assert any(kept) and all(k != r for k, r in zip(kept, refused)), (first.stderr(), second.stderr())
    third = serve(model(MODEL), *flags)
    assert "out of" in third.stderr(), third.stderr()
    again = ask(third, "One?")
    assert again["choices"][0]["text"] == expected and cached(again) > 100
    other = serve(model(MODEL), *flags)  # reads while the other has it, and is the last to write
    assert text(third, "Three?") and text(other, "Four?")
    assert third.stop() == other.stop() == 0
    last = serve(model(MODEL), *flags)
    assert text(last, "One?") == expected and cached(ask(last, "Four?")) > 100


def test_killed_while_it_writes(serve, model, tmp_path):
    """The next start has what was there before, and nothing is left of the half-written file."""
    file, beside = tmp_path / "prefixes", tmp_path / "prefixes.new"
    flags = (*SMALL, "--kv-cache-memory-bytes", "40M", "--prefix-cache-file", file)
    server = serve(model(MODEL), *flags)
    expected = text(server, "One?")
    assert server.stop() == 0
    for _ in range(3):
        server = serve(model(MODEL), *flags)
        assert "out of" in server.stderr(), server.stderr()
        again = ask(server, "One?")
        assert again["choices"][0]["text"] == expected and cached(again) > 100
        server.process.send_signal(signal.SIGTERM)
        while not beside.exists() and server.process.poll() is None:
            pass
        server.process.kill()
        server.process.wait()
    beside.write_bytes(b"ridgekv1 and half a header")  # in case it was always quicker
    server = serve(model(MODEL), *flags)
    assert cached(ask(server, "One?")) > 100
    assert server.stop() == 0
    assert [p.name for p in tmp_path.glob("prefixes*")] == ["prefixes"]


def test_a_file_that_could_not_be_kept(ridge, model, tmp_path):
    """Said at the start, not when the server stops."""
    kept = ("--prefix-cache-file", tmp_path / "kept")
    for flags, status, says in (((*kept, "--no-enable-prefix-caching"), 2, "--no-enable-prefix-caching turns off"),
                                ((*kept, "--scheduler", "static"), 2, "--scheduler static turns off"),
                                (("--prefix-cache-file-bytes", "1M"), 2, "needs the file: --prefix-cache-file FILE"),
                                (("--prefix-cache-file", tmp_path / "no" / "folder"), 1, "cannot write"),
                                (("--prefix-cache-file", ""), 1, "cannot write ''")):
        assert says in ridge("serve", model(MODEL), "--port", 0, *flags, status=status, timeout=60).stderr.decode()
    assert not list(tmp_path.iterdir())
