#!/usr/bin/env python3
"""Soak: random traffic through a real server with a small cache; every answer is compared with the same request alone.

    bench/soak.py [--requests N] [--classes N] [--clients N] [--seed N] [--speculative ngram] [MODEL]

Prompts that begin alike, random lengths, ways to draw, priorities and tenants, streams and whole answers; some clients
leave at any moment, most while the prefix is computed or in the middle of a stream; the KV cache holds a few requests, so
that they preempt each other. Checked: the answers (ids, log-probabilities, text, usage) bit for bit; no status but 200; that
memory is flat after the first fifth; that metrics add up; an orderly end. Prints counts as JSON, exits 1 if a check fails.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import random
import signal
import sys
import threading
import time
import urllib.parse

import common
import serving

CACHE_BYTES = "8M"  # of the default model 360 tokens: the longest request and little more
FLAGS = ("--max-model-len", 320, "--max-num-seqs", 12, "--max-num-batched-tokens", 96, "--kv-cache-memory-bytes", CACHE_BYTES)
WORDS = "the cat sat on a mat and then it saw one more red bird in that old tree by our house".split()
MEMORY_SLACK = 4 << 20  # bytes that may come after the first fifth: fragments, not requests


def make_classes(chance, n):
    """Bodies; most prompts begin as an earlier one's does."""
    classes, prompts = [], []
    for _ in range(n):
        start = chance.choice(prompts).split() if prompts and chance.random() < 0.8 else []
        start = start[:chance.randint(0, len(start))]
        words = start + [chance.choice(WORDS) for _ in range(chance.choice((5, 20, 60, 100)))]
        prompts.append(" ".join(words[:210]))
        classes.append({"prompt": prompts[-1], "max_tokens": chance.randint(1, 90), "seed": chance.randint(0, 9),
                        "temperature": chance.choice((0, 0.7, 1.2)), "top_p": chance.choice((1, 0.9)),
                        "presence_penalty": chance.choice((0, 0.5)), "stop": chance.choice((None, [" tree"], ["."])),
                        "ignore_eos": chance.random() < 0.5, "logprobs": chance.choice((0, 2)), "return_token_ids": True})
    return classes


class Left(Exception):
    """The client has hung up, as it meant to."""


def events(response):
    """The chunks of a stream."""
    while line := response.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def joined(chunks, patience):
    """A stream as one answer; gives up after so many chunks."""
    whole = None
    for i, chunk in enumerate(chunks):
        if i >= patience:
            raise Left
        if "error" in chunk:
            raise RuntimeError(chunk)
        for choice in chunk["choices"]:
            if whole is None:
                whole = choice
                continue
            whole["text"] += choice["text"]
            whole["token_ids"] += choice["token_ids"]
            whole["finish_reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                whole["logprobs"][name] += values
        usage = chunk.get("usage")
    return whole, usage


def ask(address, body, patience=float("inf"), seconds=600):
    """(status, what the answer says); raises Left when it has waited long enough."""
    connection = http.client.HTTPConnection(address, timeout=seconds)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return response.status, response.read().decode()
        if body.get("stream"):
            choice, usage = joined(events(response), patience)
        else:
            answer = json.loads(response.read())
            choice, usage = answer["choices"][0], answer["usage"]
        return 200, (choice["text"], choice["token_ids"], choice["logprobs"], choice["finish_reason"],
                     usage["prompt_tokens"], usage["completion_tokens"])
    except TimeoutError:
        raise Left from None
    finally:
        connection.close()


def metrics(server):
    """Sums over each name's series, and the counts of finished requests by reason."""
    sums, finished = {}, {}
    for line in server.get("/metrics").splitlines():
        if line.startswith("#"):
            continue
        series, value = line.rsplit(" ", 1)
        name = series.split("{")[0]
        sums[name] = sums.get(name, 0) + float(value)
        if name == "vllm:request_success_total":
            finished[series.split('finished_reason="')[1].split('"')[0]] = int(float(value))
    return sums, finished


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


class Traffic:
    """The clients: what they have seen, under a lock."""

    def __init__(self, server, classes, alone, seed):
        self.address = urllib.parse.urlsplit(server.url).netloc
        self.classes, self.alone, self.seed = classes, alone, seed
        self.lock = threading.Lock()
        self.counts = {"equal": 0, "differ": 0, "left": 0, "errors": {}}
        self.first_difference = None

    def count(self, name):
        with self.lock:
            self.counts[name] += 1

    def one(self, i):
        chance = random.Random(f"{self.seed} {i}")
        k = chance.randrange(len(self.classes))
        body = {**self.classes[k], "priority": chance.randint(-1, 1), "stream": chance.random() < 0.6,
                "stream_options": {"include_usage": True}}
        if chance.random() < 0.2:
            body["cache_salt"] = chance.choice("AB")
        leaves = chance.random() < 0.2
        patience = chance.randint(0, body["max_tokens"]) if leaves and body["stream"] else float("inf")
        seconds = chance.uniform(0.01, 2) if leaves else 600
        try:
            status, said = ask(self.address, body, patience, seconds)
        except Left:
            return self.count("left")
        if status != 200:
            with self.lock:
                self.counts["errors"][str(status)] = self.counts["errors"].get(str(status), 0) + 1
        elif said == self.alone[k]:
            self.count("equal")
        else:
            self.first_difference = self.first_difference or {"body": body, "alone": self.alone[k], "said": said}
            self.count("differ")
        return None

    def run(self, indices, n_clients):
        with concurrent.futures.ThreadPoolExecutor(n_clients) as pool:
            for _ in pool.map(self.one, indices):
                pass


def wait_idle(server):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        sums, _ = metrics(server)
        if sums["vllm:num_requests_running"] + sums["vllm:num_requests_waiting"] == 0:
            return
        time.sleep(0.05)
    raise SystemExit("the server is not idle a minute after the last client has gone")


def soak(server, args):
    chance = random.Random(args.seed)
    classes = make_classes(chance, args.classes)
    address = urllib.parse.urlsplit(server.url).netloc
    answers = [ask(address, {**body, "cache_prompt": False}) for body in classes]
    if any(status != 200 for status, _ in answers):
        raise SystemExit(f"alone: {next(a for a in answers if a[0] != 200)}")
    traffic = Traffic(server, classes, [said for _, said in answers], args.seed)
    n_warm = args.requests // 5
    traffic.run(range(n_warm), args.clients)
    wait_idle(server)
    before = resident_bytes(server)
    traffic.run(range(n_warm, args.requests), args.clients)
    wait_idle(server)
    after = resident_bytes(server)
    sums, finished = metrics(server)
    counts = traffic.counts
    n_alone, n_answered = len(classes), counts["equal"] + counts["differ"]
    checks = {
        "every answer as alone": counts["differ"] == 0 and counts["equal"] > 0,
        "no errors": counts["errors"] == {},
        "memory is flat": after - before <= MEMORY_SLACK,
        "all blocks are free or kept": sums["vllm:kv_cache_usage_perc"] == 0,
        # Whoever has left may have been answered to the end by then, or not even been heard.
        "answers are counted": n_alone + n_answered <= finished["stop"] + finished["length"] <=
                               n_alone + n_answered + counts["left"],
        "who left is counted": finished["abort"] <= counts["left"] and finished["error"] == 0,
        "each is timed": sums["vllm:e2e_request_latency_seconds_count"] == sum(finished.values()),
        "it was tight": sums["vllm:num_preemptions_total"] > 0 and sums["vllm:prefix_cache_hits_total"] > 0,
    }
    return {"requests": args.requests, **counts, "first_difference": traffic.first_difference, "finished": finished,
            "preemptions": int(sums["vllm:num_preemptions_total"]),
            "prefix_cache_hit_share": round(sums["vllm:prefix_cache_hits_total"] / sums["vllm:prefix_cache_queries_total"], 3),
            "generated_tokens": int(sums["vllm:generation_tokens_total"]),
            "resident_mib": [round(before / 2**20, 1), round(after / 2**20, 1)], "checks": checks}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=48, help="different requests")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speculative", choices=["ngram"])
    args = parser.parse_args()
    flags = FLAGS + (("--speculative", args.speculative) if args.speculative else ())
    path = common.model_path(args.model)
    started = time.monotonic()
    with serving.running([common.BINARY, "serve", path, *flags]) as server:
        result = soak(server, args)
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(Exception):
            result["checks"]["an orderly end"] = server.process.wait(30) == 0
    print(json.dumps({"model": common.short_name(path), "seconds": round(time.monotonic() - started, 1), **result}, indent=1))
    return 0 if all(result["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
