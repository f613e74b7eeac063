"""/metrics, read with Prometheus's own parser: all series at 0 from the start, right values after known requests and
while one streams, and bug cases 101 and 103 (health and metrics of a busy server)."""
import concurrent.futures
import json
import math
import socket
import time

import pytest

parser = pytest.importorskip("prometheus_client.parser")

MODEL = "smollm2-135m"
N_POSITIONS = 16  # the longest draft
FIRST_TOKEN = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
               640, 2560]
TOKEN_GAP = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
REQUEST = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
LENGTH = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
HISTOGRAMS = {
    "time_to_first_token_seconds": FIRST_TOKEN, "inter_token_latency_seconds": TOKEN_GAP,
    "request_time_per_output_token_seconds": TOKEN_GAP, "e2e_request_latency_seconds": REQUEST,
    "request_queue_time_seconds": REQUEST, "request_inference_time_seconds": REQUEST,
    "request_prefill_time_seconds": REQUEST, "request_decode_time_seconds": REQUEST, "request_prompt_tokens": LENGTH,
    "request_generation_tokens": LENGTH, "request_max_num_generation_tokens": LENGTH,
    "request_params_max_tokens": LENGTH, "request_prefill_kv_computed_tokens": LENGTH,
    "request_params_n": [1, 2, 5, 10, 20], "iteration_tokens_total": [1] + [2**i for i in range(3, 15)]}
REASONS = [{"finished_reason": r} for r in ("stop", "length", "abort", "error", "repetition")]
COUNTERS = {
    "prompt_tokens": [{}], "generation_tokens": [{}], "prompt_tokens_cached": [{}],
    "prompt_tokens_by_source": [{"source": s} for s in ("local_compute", "local_cache_hit", "external_kv_transfer")],
    "prefix_cache_queries": [{}], "prefix_cache_hits": [{}], "external_prefix_cache_queries": [{}],
    "external_prefix_cache_hits": [{}], "mm_cache_queries": [{}], "mm_cache_hits": [{}], "num_preemptions": [{}],
    "request_success": REASONS, "corrupted_requests": [{}],
    "admission_rejections": [{"reason": r} for r in ("queue_full", "slo")], "spec_decode_num_drafts": [{}],
    "spec_decode_num_draft_tokens": [{}], "spec_decode_num_accepted_tokens": [{}],
    "spec_decode_num_accepted_tokens_per_pos": [{"position": str(i)} for i in range(N_POSITIONS)]}
GAUGES = {"num_requests_running": [{}], "num_requests_waiting": [{}], "kv_cache_usage_perc": [{}],
          "num_requests_waiting_by_reason": [{"reason": "capacity"}, {"reason": "deferred"}],
          "engine_sleep_state": [{"sleep_state": s} for s in ("weights_offloaded", "discard_all")]}


class Scrape:
    """One answer of /metrics: every number finite, every family with its help; [name, **labels] is a value."""

    def __init__(self, server, model=MODEL):
        status, text = server.request("/metrics", timeout=10)
        assert status == 200
        self.text, self.model, self.families, self.values = text.decode(), model, {}, {}
        for family in parser.text_string_to_metric_families(self.text):
            assert family.name not in self.families and family.documentation
            self.families[family.name] = family
            for sample in family.samples:
                assert math.isfinite(sample.value), sample
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.values, "a series twice"
                self.values[key] = sample.value

    def get(self, name, **labels):
        return self.values[name, tuple(sorted({"model_name": self.model, "engine": "0", **labels}.items()))]

    def histogram(self, name):
        """(bounds, how many up to each, count, sum), checked to be a histogram."""
        family = self.families[name]
        assert family.type == "histogram"
        buckets = [(s.labels["le"], s.value) for s in family.samples if s.name == name + "_bucket"]
        counts = [v for _, v in buckets]
        assert counts == sorted(counts) and buckets[-1][0] == "+Inf"
        assert counts[-1] == self.get(name + "_count")
        return [le for le, _ in buckets[:-1]], counts, counts[-1], self.get(name + "_sum")


@pytest.fixture
def own(serve, model):
    """A server of its own, so that the counts are this test's."""
    return serve(model(MODEL), "--max-model-len", 2048, "--max-num-seqs", 4, "--max-waiting", 20)


def complete(server, prompt, n_tokens, **more):
    body = {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0, **more}
    return server.json("/v1/completions", body)


def test_all_series_at_zero_from_the_start(own):
    """Bug case 101: nothing has happened yet, and no value is NaN."""
    scrape = Scrape(own)
    for name, bounds in HISTOGRAMS.items():
        texts, counts, count, total = scrape.histogram(f"vllm:{name}")
        assert texts == [f"{float(b)!r}" for b in bounds], name
        assert count == total == 0 and set(counts) == {0}
    for name, children in COUNTERS.items():
        assert scrape.families[f"vllm:{name}"].type == "counter"
        assert all(scrape.get(f"vllm:{name}_total", **labels) == 0 for labels in children), name
        assert len(scrape.families[f"vllm:{name}"].samples) == len(children)
    for name, children in GAUGES.items():
        assert scrape.families[f"vllm:{name}"].type == "gauge"
        assert all(scrape.get(f"vllm:{name}", **labels) == 0 for labels in children), name
    assert scrape.get("vllm:engine_sleep_state", sleep_state="awake") == 1
    info, = scrape.families["vllm:cache_config_info"].samples
    assert info.labels["block_size"] == "16" and int(info.labels["num_gpu_blocks"]) >= 128 and info.value == 1
    lora, = scrape.families["vllm:lora_requests_info"].samples
    assert set(lora.labels) == {"max_lora", "waiting_lora_adapters", "running_lora_adapters"}
    ours = [f for name, f in scrape.families.items() if name.startswith("ridge:")]
    assert len(ours) > 15 and all(f.samples for f in ours)
    assert all(name.startswith(("ridge:", "vllm:")) for name in scrape.families)
    assert scrape.get("ridge:engine_ready") == 1 and scrape.get("ridge:steps_total") == 0
    assert "gpu_cache_usage_perc" not in scrape.text


def test_values_after_known_requests(own):
    prompts = ["One two three.", "Red, green", "The quick brown fox jumps over the lazy dog."]
    lengths = [1, 6, 11]
    usages = [complete(own, p, n)["usage"] for p, n in zip(prompts, lengths)]
    n_prompt = sum(u["prompt_tokens"] for u in usages)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    scrape = Scrape(own)
    for name in HISTOGRAMS:
        if name not in ("inter_token_latency_seconds", "iteration_tokens_total"):
            assert scrape.histogram(f"vllm:{name}")[2] == 3, name
    assert scrape.histogram("vllm:inter_token_latency_seconds")[2] == 5 + 10
    assert scrape.histogram("vllm:request_prompt_tokens")[3] == n_prompt
    assert scrape.histogram("vllm:request_prefill_kv_computed_tokens")[3] == n_prompt - cached
    assert scrape.histogram("vllm:request_generation_tokens")[3] == 18
    assert scrape.histogram("vllm:request_params_max_tokens")[3] == 18
    assert scrape.histogram("vllm:request_params_n")[3] == 3
    assert scrape.get("vllm:request_generation_tokens_bucket", le="5.0") == 1
    assert scrape.get("vllm:request_generation_tokens_bucket", le="10.0") == 2
    assert scrape.get("vllm:prompt_tokens_total") == n_prompt
    assert scrape.get("vllm:prompt_tokens_cached_total") == cached
    assert sum(s.value for s in scrape.families["vllm:prompt_tokens_by_source"].samples) == n_prompt
    assert scrape.get("vllm:generation_tokens_total") == 18
    assert scrape.get("vllm:prefix_cache_queries_total") == n_prompt
    assert scrape.get("vllm:prefix_cache_hits_total") == cached
    assert scrape.get("vllm:request_success_total", finished_reason="length") == 3
    assert sum(s.value for s in scrape.families["vllm:request_success"].samples) == 3
    assert scrape.get("vllm:num_requests_running") == scrape.get("vllm:num_requests_waiting") == 0
    e2e, queue, inference, prefill, decode = (
        scrape.histogram(f"vllm:{n}_seconds")[3] for n in
        ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_prefill_time",
         "request_decode_time"))
    assert queue + inference < e2e and prefill + decode == pytest.approx(inference)
    assert scrape.histogram("vllm:inter_token_latency_seconds")[3] == pytest.approx(decode, rel=.2, abs=.05)
    # The steps computed every token that wasn't cached, but no answer's last.
    steps = scrape.histogram("vllm:iteration_tokens_total")
    assert steps[2] == scrape.get("ridge:steps_total") >= 18
    assert steps[3] == n_prompt - cached + 18 - 3
    seconds = sum(s.value for s in scrape.families["ridge:step_seconds"].samples)
    assert 0 < seconds < e2e
    assert scrape.get("ridge:flops_total") > 0 and scrape.get("ridge:bytes_total", kind="weights") > 0
    assert scrape.get("ridge:achieved_bytes_per_second") > 0


def test_choices_refusals_and_clients_that_leave(own):
    complete(own, ["A", "B"], 3, n=2, seed=1)
    assert own.request("/v1/completions", {"prompt": ""})[0] == 400
    body = json.dumps({"prompt": "A long", "max_tokens": 1900, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", own.port)) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert s.recv(10)
        while Scrape(own).histogram("vllm:inter_token_latency_seconds")[2] < 20:
            time.sleep(.01)
        during = Scrape(own)
        assert own.request("/v1/completions", {"prompt": "x", "n": 24})[0] == 429  # there is room for one less
    assert during.get("vllm:num_requests_running") == 1
    assert during.get("vllm:kv_cache_usage_perc") > 0
    room, used = during.get("ridge:kv_cache_tokens_reserved"), during.get("ridge:kv_cache_tokens_used")
    assert 10 <= used <= room < used + 16 and room % 16 == 0
    assert during.get("ridge:kv_cache_waste") == pytest.approx(1 - used / room)
    assert during.histogram("vllm:time_to_first_token_seconds")[2] == 5
    assert during.histogram("vllm:e2e_request_latency_seconds")[2] == 4  # none of the refused one
    deadline = time.monotonic() + 10
    while (after := Scrape(own)).get("vllm:num_requests_running") > 0 and time.monotonic() < deadline:
        time.sleep(.02)
    assert after.get("vllm:num_requests_running") == 0
    assert after.get("vllm:request_success_total", finished_reason="length") == 4
    assert after.get("vllm:request_success_total", finished_reason="abort") == 1
    assert after.get("vllm:admission_rejections_total", reason="queue_full") == 1
    n, total = after.histogram("vllm:request_params_n")[2:]
    assert n == 3 and total == 5


def test_old_names_and_labels(model, serve):
    server = serve(model(MODEL), "--metrics-legacy-names", "--served-model-name", 'a"b\\c')
    complete(server, "A", 3)
    scrape = Scrape(server, 'a"b\\c')
    assert scrape.histogram("vllm:time_per_output_token_seconds")[2] == 2
    for name in ("gpu_cache_usage_perc", "cpu_cache_usage_perc", "num_requests_swapped", "gpu_prefix_cache_hit_rate"):
        assert 0 <= scrape.get(f"vllm:{name}") <= 1
    assert scrape.get("vllm:gpu_prefix_cache_hits_total") <= scrape.get("vllm:gpu_prefix_cache_queries_total") + 1


def test_busy_server_stays_well(serve, model):
    """Bug case 103: long prompts, a queue, and a client that reads nothing; /health and /metrics answer all the while."""
    server = serve(model(MODEL), "--max-num-seqs", 2)
    body = {"prompt": "word " * 60, "max_tokens": 10, "ignore_eos": True}
    stuck = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps({**body, "prompt": "word " * 700, "stream": True}).encode()
    stuck.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    worst, most_waiting = 0, 0
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(server.json, "/v1/completions", body) for _ in range(12)]
        while not all(f.done() for f in asked):
            for path in ("/health", "/metrics"):
                started = time.monotonic()
                assert server.request(path)[0] == 200
                worst = max(worst, time.monotonic() - started)
            most_waiting = max(most_waiting, Scrape(server).get("vllm:num_requests_waiting"))
            time.sleep(.05)
    assert all(f.result()["usage"]["completion_tokens"] == 10 for f in asked)
    assert most_waiting >= 5
    assert worst < 5  # far less than a step of the queue takes; a few ms on an idle machine
    stuck.close()
    deadline = time.monotonic() + 10
    while (after := Scrape(server)).get("vllm:num_requests_running") > 0 and time.monotonic() < deadline:
        time.sleep(.02)
    assert after.get("vllm:num_requests_running") == after.get("vllm:num_requests_waiting") == 0
    assert after.get("ridge:engine_silent_seconds") == 0 and server.request("/health")[0] == 200


def test_explained_answers(own):
    """Alone, and in a queue behind another: the parts add up, and the reason is the right one."""
    ask = {"ridge": {"explain": True}, "prompt": "The quick brown fox", "ignore_eos": True, "temperature": 0}
    assert "ridge" not in complete(own, "x", 2)
    alone = own.json("/v1/completions", {**ask, "max_tokens": 30})
    said = alone["ridge"]
    assert said["computed_tokens"] + said["cached_tokens"] == alone["usage"]["prompt_tokens"]
    assert said["cached_tokens"] == alone["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert said["mean_batch"] == 1 and said["steps"] >= 2 and said["preemptions"] == said["requests_ahead"] == 0
    assert said["main_reason"] == max(said["parts_ms"], key=said["parts_ms"].get)
    assert sum(said["parts_ms"].values()) == pytest.approx(said["total_ms"])
    assert said["queue_ms"] + said["prefill_ms"] + said["decode_ms"] <= said["total_ms"] * 1.001
    digits = 0 if said["total_ms"] >= 100 else 1 if said["total_ms"] >= 10 else 2
    assert said["explanation"].endswith(".") and f"of {said['total_ms']:.{digits}f} ms" in said["explanation"]
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        first = [pool.submit(own.json, "/v1/completions", {**ask, "max_tokens": 60}) for _ in range(8)]
        while Scrape(own).get("vllm:num_requests_waiting") < 4:
            time.sleep(.005)
        late = pool.submit(own.json, "/v1/completions", {**ask, "max_tokens": 1, "ridge": None},
                           headers={"X-Ridge-Explain": "1"})
        said = late.result()["ridge"]
        assert said["main_reason"] == "queue" and said["requests_ahead"] >= 5
        assert "Waiting in the queue" in said["explanation"]
        assert max(f.result()["ridge"]["mean_batch"] for f in first) > 2


def test_record_and_replay(ridge, serve, model, tmp_path):
    """--record writes a Mooncake trace: equal prefixes, equal names, a tenant's own; no text; and it can be replayed."""
    path = tmp_path / "trace.jsonl"
    server = serve(model(MODEL), "--record", path)
    ids = [server.json("/tokenize", {"prompt": w, "add_special_tokens": False})["tokens"][0] for w in ("one", " two")]
    system = ids * 256  # a block of 512
    complete(server, system + ids, 2)
    complete(server, system + ids[:1], 3, priority=2)
    complete(server, system + ids, 1, cache_salt="other")
    complete(server, ids, 4, n=2, seed=3)
    body = json.dumps({"prompt": ids, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert s.recv(10)
    deadline = time.monotonic() + 20
    while Scrape(server).get("ridge:recorded_total") < 6 and time.monotonic() < deadline:
        time.sleep(.05)
    assert server.stop() == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["hash_ids"] for line in lines] == [[0, 1], [0, 2], [3, 4], [5], [5], [5]]
    assert [line["input_length"] for line in lines] == [514, 513, 514, 2, 2, 2]
    assert [line["output_length"] for line in lines[:5]] == [2, 3, 1, 4, 4]
    assert [line["finish_reason"] for line in lines] == ["length"] * 5 + ["abort"]
    assert [line["priority"] for line in lines] == [0, 2, 0, 0, 0, 0]
    assert [line["request"] for line in lines] == [0, 1, 2, 3, 3, 4]
    times = [line["timestamp"] for line in lines]
    assert times == sorted(times) and all(isinstance(t, int) for t in times)
    assert all(0 <= line["queue_ms"] <= line["ttft_ms"] <= line["e2e_ms"] for line in lines)
    assert all(set(line) == set(lines[0]) for line in lines)
    assert "two" not in path.read_text()
    again = serve(model(MODEL))
    done = ridge.json("load", again.url, "--trace", path, "--trace-speed", 10, "--max-output-len", 20, "--json")
    assert done["completed"] == 6, done


def test_why_a_prompt_was_not_in_the_cache(own):
    """A date at the beginning: how much it costs, and the text around it; another tenant is told nothing of it."""
    rules = " Be brief, be kind, and never answer with more than is asked." * 8
    ask = {"max_tokens": 1, "ridge": {"explain": True}}

    def explain(prompt, **more):
        answer = own.json("/v1/completions", {**ask, "prompt": prompt, **more})
        cache = answer["ridge"]["prefix_cache"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["ridge"]["cached_tokens"]
        return answer["ridge"]["cached_tokens"], answer["usage"]["prompt_tokens"], cache

    cached, n, cache = explain("On Monday morning:" + rules)
    assert (cached, cache["miss"], cache["saveable_tokens"]) == (0, "cold", 0)
    cached, n, cache = explain("On Monday morning:" + rules)
    assert cached == n - 1 and cache["miss"] == "none"
    cached, n, cache = explain("On Tuesday morning:" + rules)
    assert cache["miss"] == "differs" and cached == cache["left_at"] == 1
    assert "On Tuesday" in cache["prompt_text"] and "On Monday" in cache["cached_text"]
    assert cache["saveable_tokens"] >= n - 5
    assert cache["saveable_part"] == pytest.approx(cache["saveable_tokens"] / (n - cached))
    cached, n, cache = explain("On Monday morning:" + rules + " What is new?")
    assert cache["miss"] == "new" and cached > n - 10 and cache["saveable_tokens"] == 0
    for cold in ({"cache_salt": "another"}, {"cache_salt": "third"}):
        cached, n, cache = explain("On Wednesday morning:" + rules, **cold)
        assert cached == 0 and cache["miss"] == "cold" and "cached_text" not in cache
    cached, n, cache = explain("On Monday morning:" + rules, cache_prompt=False)
    assert cached == 0 and cache["miss"] == "off"
