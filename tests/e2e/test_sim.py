"""`ridge sim`: what its JSON says against counts made here, and what it refuses."""
import json
import xml.etree.ElementTree

import pytest

from conftest import model_path, text_boxes

BASE = ("sim", "--model", "llama-3.1-8b", "--gpu", "h100")
BLOCK = 512


@pytest.fixture(scope="module")
def sim(ridge):
    return lambda *args: json.loads(ridge(*BASE, *args, "--json").stdout)


@pytest.fixture(scope="module")
def traces(shared):
    folder = shared / "data" / "traces"
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    return folder


def mooncake(traces, n):
    with open(traces / "mooncake-conversation.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for _, line in zip(range(n), f)]


def test_one_request_takes_what_the_roofline_says(sim):
    """Published shapes: 8.03 B parameters, of which the embedding table (0.53 B) isn't streamed; 131,072 bytes
    of cache a token; 989 TFLOP/s and 3.35 TB/s."""
    r = sim("--num-prompts", 1, "--input-len", 1000, "--output-len", 3)
    streamed = 8.03026e9 - 128256 * 4096
    body = streamed - 128256 * 4096  # the head goes over the last row alone
    attention = 4 * 32 * 32 * 128 * (1000 * 1001 / 2)
    prefill = (2 * body * 1000 + attention) / 989e12
    assert r["ttft_ms"]["p50"] == pytest.approx(1e3 * prefill, rel=0.05)  # and what memory bounds: norms, the head
    decode = (2 * streamed + 131072 * 1001.5) / 3.35e12
    assert r["tpot_ms"]["p50"] == pytest.approx(1e3 * decode, rel=0.01)
    assert r["kv"]["bytes_per_token"] == 131072
    assert r["weight_bytes"] == pytest.approx(16.06e9, rel=0.001)
    assert r["kv"]["tokens"] == pytest.approx((72e9 - r["weight_bytes"]) / 131072, abs=16)


@pytest.mark.parametrize("model, args", [
    ("llama-3.1-8b", ()), ("gemma-3-4b", ()), ("mixtral-8x7b", ()), ("deepseek-v2-lite", ()),
    ("llama-3.1-8b", ("--tensor-parallel-size", 4)), ("llama-3.1-8b", ("--tensor-parallel-size", 16)),
    ("mixtral-8x7b", ("--tensor-parallel-size", 2, "--profile", "h100")),
    ("deepseek-v2-lite", ("--tensor-parallel-size", 8, "--dtype", "fp8")),
    ("llama-3.1-8b", ("--pipeline-parallel-size", 3)),
    ("gpt-oss-20b", ("--pipeline-parallel-size", 4, "--tensor-parallel-size", 4, "--profile", "h100")),
])
def test_one_request_takes_what_the_plan_says(ridge, model, args):
    """A prompt in one step, and three steps after it, at contexts from the prompt's on."""
    args = ("--model", model, "--gpu", "h200", *args, "--json")
    r = ridge.json("sim", *args, "--num-prompts", 1, "--input-len", 1000, "--output-len", 4)
    p = [ridge.json("plan", *args, "--prompt", 1000, "--context", 1001 + i) for i in range(3)]
    assert r["ttft_ms"]["p50"] == pytest.approx(1e3 * p[0]["latency"]["ttft_seconds"], rel=1e-9)
    decode = sum(x["latency"]["tpot_seconds"] for x in p) / 3
    assert r["tpot_ms"]["p50"] == pytest.approx(1e3 * decode, rel=1e-9)


def test_a_model_of_the_cache_by_its_short_name(ridge):
    args = ("sim", "--gpu", "l4", "--dtype", "auto", "--num-requests", 2, "--json", "--model")
    path = model_path("smollm2-135m")
    named, found = ridge.json(*args, "smollm2-135m"), ridge.json(*args, path)
    assert named.pop("model") == "smollm2-135m" and found.pop("model") == path
    assert named == found and named["weight_bytes"] == 96576768


def test_a_step_of_ranks_that_share_experts(ridge):
    """One that decodes, and on each of the others a row that nobody wants."""
    args = ("--model", "deepseek-v3", "--gpu", "h800", "--dtype", "fp8", "--expert-parallel-size", 144,
            "--num-redundant-experts", 32, "--json")
    r = ridge.json("sim", *args, "--num-prompts", 1, "--input-len", 1000, "--output-len", 2)
    p = ridge.json("plan", *args, "--prompt", 1000, "--context", 1001, "--batch", 144)
    assert r["tpot_ms"]["p50"] == pytest.approx(1e3 * p["latency"]["tpot_seconds"], rel=1e-9)
    assert r["gpus"] == 144


def test_stages_work_at_once(sim):
    """As many batches as stages: one alone waits for all stages, many together for one."""
    args = ("--model", "llama-3.1-70b", "--input-len", 10, "--output-len", 400, "--max-model-len", 4096)
    one = sim(*args, "--pipeline-parallel-size", 4, "--num-prompts", 16)
    many = sim(*args, "--pipeline-parallel-size", 4, "--num-prompts", 64)
    tensor = sim(*args, "--tensor-parallel-size", 4, "--num-prompts", 64)
    alone = sim(*args, "--pipeline-parallel-size", 4, "--num-prompts", 1)
    assert alone["tpot_ms"]["p50"] == pytest.approx(4 * tensor["tpot_ms"]["p50"], rel=0.1)
    assert alone["busy"] == pytest.approx(0.25, rel=0.01) and one["busy"] > 0.9
    assert many["output_tokens_per_s"] == pytest.approx(4 * one["output_tokens_per_s"], rel=0.1)
    # With the head in the last stage it is the longest: 20 layers of 80 and 1 of 17 GB.
    assert many["kv"]["tokens"] == pytest.approx(tensor["kv"]["tokens"], rel=1e-3)


def test_pools_of_their_own(sim):
    """DeepSeek-V3's deployment: prompts on four nodes, answers on eighteen."""
    args = ("--model", "deepseek-v3", "--gpu", "h800", "--dtype", "fp8", "--expert-parallel-size", 32,
            "--num-redundant-experts", 32, "--disaggregate", "2P1D", "--num-prompts", 50, "--output-len", 20)
    r = sim(*args, "--decode-expert-parallel-size", 144)
    assert r["gpus"] == 2 * 32 + 144 and r["transfers"] == 50
    same = sim(*args, "--compare", "decode-ep=144,decode-ep=32")["compare"]
    assert [x["gpus"] for x in same] == [208, 96] and same[0]["tpot_ms"] == r["tpot_ms"]


def test_twice_the_bandwidth_halves_a_memory_bound_step(sim):
    args = ("--num-prompts", 1, "--input-len", 100, "--output-len", 50)
    one, two = (sim(*args, "--bandwidth", b)["tpot_ms"]["p50"] for b in (1e12, 2e12))
    assert one == pytest.approx(2 * two, rel=1e-9)


@pytest.mark.parametrize("model, ranks, rank_token, token", [
    ("llama-3.1-8b", 4, 131072 // 4, 131072), ("llama-3.1-8b", 16, 131072 // 8, 131072),  # 8 KV heads
    ("deepseek-v2-lite", 8, 27 * 576 * 2, 27 * 576 * 2),
])
def test_ranks_that_keep_the_same_keys(sim, model, ranks, rank_token, token):
    """More ranks than KV heads, and latents: each rank has a copy, so that more of them hold no more tokens."""
    r = sim("--model", model, "--tensor-parallel-size", ranks, "--num-prompts", 1)
    assert r["kv"]["bytes_per_token"] == token
    assert r["kv"]["tokens"] == pytest.approx((72e9 - r["weight_bytes"] / ranks) / rank_token, abs=17)


def test_a_static_batch_holds_no_more_than_there_is(sim):
    """Of layers with a window, too, whose pools are small."""
    r = sim("--model", "gpt-oss-20b", "--scheduler", "static", "--num-prompts", 50)
    assert 0.5 < r["kv"]["held"] <= 1


def test_what_sequences_share_is_held_once(sim):
    """50 of them decode on one beginning of 3,200 tokens, with 1 to 201 of their own and half of a block."""
    r = sim("--num-prompts", 50, "--prefix-tokens", 3200, "--input-len", 1, "--output-len", 200)
    assert r["kv"]["held"] * r["kv"]["tokens"] == pytest.approx(3200 + 50 * (101 + 8), rel=0.05)


def test_variants_are_read_before_any_runs(ridge):
    assert ridge(*BASE, "--compare", "static,fast", status=2).stdout == b""


def test_the_same_seed_is_the_same_document(ridge):
    args = (*BASE, "--rate", 30, "--num-prompts", 200, "--output-len", "exp:100", "--num-speculative-tokens", 3,
            "--acceptance", 0.6, "--json")
    one, two = ridge(*args).stdout, ridge(*args).stdout
    other = ridge(*args, "--seed", 1).stdout
    assert one == two and one != other


def test_prefix_hits_are_those_of_an_endless_cache(sim, traces):
    """One request after the other, and a cache that forgets nothing: the longest beginning of known names."""
    n, known, hits, total = 300, set(), 0, 0
    for r in mooncake(traces, n):
        length, path, found, open_ = r["input_length"], (), 0, True
        for i, name in enumerate(r["hash_ids"]):
            path += (name, min(BLOCK, length - i * BLOCK))
            open_ = open_ and path in known
            if open_:
                found = min(length, (i + 1) * BLOCK)
            known.add(path)
        hits += min(found, length - 1)
        total += length
    r = sim("--trace", traces / "mooncake-conversation.jsonl", "--num-prompts", n, "--max-num-seqs", 1, "--trace-speed",
            0.01, "--memory", "2T", "--max-output-len", 1)
    assert r["input_tokens"] == total
    # Beyond the names: a last block's tokens begin those of a longer block of the same name.
    assert hits <= r["cached_tokens"] <= hits * 1.01


def test_everything_of_a_trace_is_answered(sim, traces):
    r = sim("--trace", traces / "azure-2023-conversation.csv", "--num-prompts", 2000, "--trace-speed", 4)
    with open(traces / "azure-2023-conversation.csv", encoding="utf-8") as f:
        rows = [line.split(",") for line in f.read().splitlines()[1:2001]]
    assert r["requests"] == r["completed"] == 2000
    assert r["input_tokens"] == sum(int(x[1]) for x in rows)
    assert r["output_tokens"] == sum(int(x[2]) for x in rows)


def test_what_is_beyond_the_context(sim, ridge, tmp_path):
    """As by the server: a prompt that leaves no room is refused, an answer ends where the room does."""
    lengths = [(100, 10), (1000, 10), (999, 10), (1500, 10), (600, 500), (600, 400)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"timestamp":{i},"input_length":{a},"output_length":{b}}}\n'
                            for i, (a, b) in enumerate(lengths)))
    args = ("--trace", path, "--max-model-len", 1000)
    r = sim(*args)
    assert (r["requests"], r["completed"], r["refused"], r["cut"]) == (6, 4, 2, 2)
    assert r["input_tokens"] == 100 + 999 + 600 + 600 and r["output_tokens"] == 10 + 1 + 400 + 400
    assert "beyond a context of 1000: 2 more requests were refused, 2 answers were cut" in ridge(
        *BASE, *args).stdout.decode()


def test_a_draft_model_takes_time_and_memory(ridge):
    """All of its guesses come true: five tokens for four of its forwards and one of the model's, with five rows."""
    args = ("--gpu", "h100", "--json")
    asked = ("--num-prompts", 1, "--input-len", 100, "--output-len", 1001, "--num-speculative-tokens", 4, "--acceptance", 1)
    one = ("--prompt", 100, "--context", 600)
    small, large = (ridge.json("plan", "--model", m, *args, *one) for m in ("qwen2.5-0.5b", "qwen2.5-14b"))
    r = ridge.json("sim", "--model", "qwen2.5-14b", *args, *asked, "--speculative-model", "qwen2.5-0.5b")
    five = 4 * small["latency"]["tpot_seconds"] + large["latency"]["tpot_seconds"]
    assert r["tpot_ms"]["p50"] == pytest.approx(1e3 * five / 5, rel=0.02)
    free = ridge.json("sim", "--model", "qwen2.5-14b", *args, *asked)
    assert free["tpot_ms"]["p50"] == pytest.approx(1e3 * large["latency"]["tpot_seconds"] / 5, rel=0.02)
    weights, tokens = 2 * 494032768, 2 * 2 * 24 * 2 * 64  # of qwen2.5-0.5b: parameters, a token's keys and values
    assert r["weight_bytes"] == pytest.approx(free["weight_bytes"] + weights, rel=1e-3)
    own = free["kv"]["bytes_per_token"]
    assert r["kv"]["tokens"] == pytest.approx((72e9 - r["weight_bytes"]) / (own + tokens), rel=1e-3)
    two = ridge.json("sim", "--model", "qwen2.5-14b", *args, *asked, "--speculative-model", "qwen2.5-0.5b",
                     "--pipeline-parallel-size", 2)  # the first stage guesses for both of the caches that it has a half of
    assert two["weight_bytes"] == r["weight_bytes"]
    room = 72e9 - free["weight_bytes"] / 2 - weights
    assert two["kv"]["tokens"] == pytest.approx(room / (own / 2 + tokens), rel=1e-3)
    done = ridge("sim", "--model", "llama-3.1-8b", *args, *asked, "--speculative-model", "qwen2.5-0.5b", status=2)
    assert b"--speculative-model: the draft model has 151936 tokens and the model 128256" in done.stderr


def test_windows_stay_behind(sim):
    """Of gemma-3-4b's 34 layers five see everything, the others the last 1,024 tokens; 4 heads of 256."""
    args = ("--model", "gemma-3-4b", "--disaggregate", "1P1D", "--num-prompts", 1, "--input-len", 8000, "--output-len", 2,
            "--link-gbps", 0.008)
    r = sim(*args)
    token = 2 * 4 * 256 * 2
    assert r["itl_ms"]["max"] == pytest.approx(token * (5 * 8000 + 29 * 1023) / 1e6 * 1e3, rel=1e-4)


def test_pace(sim):
    """Prompts keep the time per token within the target that they break otherwise."""
    args = ("--rate", 4, "--num-prompts", 200, "--input-len", 3000, "--output-len", 200, "--slo-tpot", 20,
            "--max-num-batched-tokens", 8192)
    r = {x["name"]: x for x in sim(*args, "--compare", "no-pace,pace")["compare"]}
    assert r["no-pace"]["itl_ms"]["p99"] > 40
    assert r["pace"]["itl_ms"]["p99"] < 1.1 * 20  # what is learned of steps errs by some percent
    assert r["pace"]["output_tokens"] == r["no-pace"]["output_tokens"]
    assert sim(*args, "--pace")["itl_ms"] == r["pace"]["itl_ms"]


def test_exchanges_behind_the_other_half(ridge, sim):
    """128 requests on 2 GPUs, 64 each, over a slow network: steps take what the plan says."""
    args = ("--model", "mixtral-8x7b", "--gpu", "h200", "--dtype", "fp8", "--expert-parallel-size", 2, "--gpus-per-node", 1,
            "--network-bandwidth", 1e9)
    asked = ("--num-prompts", 128, "--input-len", 500, "--output-len", 200)
    r = {x["name"]: x for x in sim(*args, *asked, "--compare", "no-dbo,dbo")["compare"]}
    for name, dbo in (("no-dbo", ()), ("dbo", ("--enable-dbo",))):
        step = ridge.json("plan", *args, "--batch", 128, "--context", 600, *dbo, "--json")["counted"]["decode"]["seconds"]
        assert r[name]["itl_ms"]["p50"] == pytest.approx(1e3 * step, rel=0.03)
    assert r["dbo"]["itl_ms"]["p50"] < 0.9 * r["no-dbo"]["itl_ms"]["p50"]
    assert sim(*args, *asked, "--enable-dbo")["itl_ms"] == r["dbo"]["itl_ms"]


def test_compare(sim):
    names = ["static", "continuous", "unchunked", "chunked=256", "no-prefix-cache", "prefix-cache", "speculation=0.8",
             "disagg=1P1D", "tp=2", "pp=2", "replicas=2+router=prefix"]
    r = sim("--rate", 30, "--num-prompts", 300, "--input-len", "uniform:200:3000", "--output-len", "exp:150:600",
            "--prefix-tokens", 1000, "--max-model-len", 5000, "--compare", ",".join(names))
    got = {x["name"]: x for x in r["compare"]}
    assert list(got) == names
    assert len({(x["input_tokens"], x["output_tokens"]) for x in got.values()}) == 1
    assert got["static"]["kv"]["used_of_held"] < 0.6 < 0.96 < got["continuous"]["kv"]["used_of_held"]
    assert got["static"]["e2e_ms"]["mean"] > 2 * got["continuous"]["e2e_ms"]["mean"]
    assert got["chunked=256"]["itl_ms"]["p99"] < got["unchunked"]["itl_ms"]["p99"] / 2
    assert got["no-prefix-cache"]["cached_tokens"] == 0 < got["prefix-cache"]["cached_tokens"]
    assert got["speculation=0.8"]["tpot_ms"]["p50"] < got["continuous"]["tpot_ms"]["p50"] / 1.5
    assert got["disagg=1P1D"]["transfers"] > 0 and got["disagg=1P1D"]["gpus"] == got["tp=2"]["gpus"] == 2
    assert got["pp=2"]["gpus"] == 2 and got["pp=2"]["tpot_ms"]["p50"] > got["tp=2"]["tpot_ms"]["p50"]
    assert got["tp=2"]["bound"]["link"] > 0 == got["continuous"]["bound"]["link"]


def test_a_context_reserved_whole(ridge):
    """vLLM (arXiv 2309.06180), figures 2 and 13: OPT-13B on an A100 40 GB with 15.7K places in the cache (table 1),
    prompts of 161 and answers of 338 tokens on average: with 2,048 reserved for each 7.00 requests run at once, and
    20.4 % of what is reserved holds a token; 96.3 % with blocks of 16. Llama 2 13B has the same cache per token."""
    r = ridge.json("sim", "--model", "llama-2-13b", "--gpu", "a100-40gb", "--gpu-memory-utilization", 0.972,
                   "--max-model-len", 2048, "--input-len", "exp:208:512", "--output-len", "exp:363:1536", "--rate", 2,
                   "--num-prompts", 500, "--compare", "block=2048,block=16", "--json")["compare"]
    assert [x["kv"]["tokens"] for x in r] == [7 * 2048, pytest.approx(15700, rel=0.005)]
    running = [x["requests_per_s"] * (x["e2e_ms"]["mean"] - x["queue_ms"]["mean"]) / 1e3 for x in r]
    assert running[0] == pytest.approx(7, rel=0.03) and running[1] > 14  # and 30.42 with a slower machine
    assert r[0]["kv"]["used_of_held"] == pytest.approx(0.204, abs=0.03)
    assert r[1]["kv"]["used_of_held"] == pytest.approx(0.963, abs=0.03)


def test_a_picture_of_several_rates(ridge, tmp_path):
    """Each variant at each rate as alone; two panels of two curves, each with a dot a rate; no text on another."""
    path, names, rates = tmp_path / "x.svg", ["static", "continuous+chunked=512"], [2, 10, 30]
    args = (*BASE, "--num-prompts", 100, "--slo-tpot", 30, "--compare", ",".join(names))
    r = ridge.json(*args, "--rates", "2,10,30", "--plot", path, "--json")["compare"]
    assert [(x["name"], x["rate"]) for x in r] == [(n, rate) for rate in rates for n in names]
    alone = ridge.json(*args, "--rate", 10, "--json")["compare"]
    assert [x["itl_ms"] for x in r[2:4]] == [x["itl_ms"] for x in alone]
    svg = xml.etree.ElementTree.parse(path).getroot()
    assert len(svg.findall("{*}circle")) == 2 * 2 * 3
    good = [float(e.get("cy")) for e in svg.findall("{*}circle")][6:]  # 0 to 100 % on 340 to 60 pixels
    shares = [x["goodput"]["share"] for x in r]
    assert good == pytest.approx([340 - 280 * s for s in shares[::2] + shares[1::2]], abs=0.06)
    texts = text_boxes(svg)
    assert {"static", "continuous+chunked=512", "requests within the targets, %"} <= {t[0] for t in texts}
    for i, (text, left, right, top, bottom) in enumerate(texts):
        assert 0 <= left and right <= 960, text
        for other, left2, right2, top2, bottom2 in texts[:i]:
            assert right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top, (text, other)


def test_max_rate(sim):
    """Every request is one step of the same time: with a target, the rate of a queue. Near it, within it; 5 % over
    it, not."""
    args = ("--input-len", 2000, "--output-len", 20, "--num-prompts", 300, "--slo-ttft", 200, "--slo-tpot", 20)
    found = sim(*args, "--find", "max-rate")
    assert found["goodput"]["share"] >= 0.99
    assert sim(*args, "--rate", found["rate"])["goodput"]["share"] >= 0.99
    assert sim(*args, "--rate", found["rate"] * 1.05)["goodput"]["share"] < 0.99
    assert sim(*args, "--find", "max-rate", "--replicas", 2)["rate"] > 1.7 * found["rate"]
    assert not found["at_least"]


def test_max_rate_of_requests_that_are_refused(sim, ridge, tmp_path):
    """Two of five prompts don't fit the context: within targets are at best three of five."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": 1000 * i, "input_length": n, "output_length": 3}) + "\n"
                            for i, n in enumerate((100, 2000, 100, 2000, 100))))
    args = ("--trace", path, "--max-model-len", 1000, "--slo-ttft", 1000)
    assert sim(*args)["goodput"]["share"] == pytest.approx(0.6)
    found = sim(*args, "--find", "max-rate", "--goodput-target", 0.6)
    assert found["trace_speed"] > 1 and found["goodput"]["share"] == pytest.approx(0.6)
    assert sim(*args, "--find", "max-rate", "--goodput-target", 0.61)["trace_speed"] == 0
    said = ridge.text(*BASE, *args, "--find", "max-rate", "--goodput-target", 0.61)
    assert "no rate keeps 61.0 % within the targets" in said and "2 more requests were refused" in said


def test_max_rate_without_a_bound(sim, ridge):
    args = ("--input-len", 10, "--output-len", 2, "--num-prompts", 20, "--slo-ttft", 1e6, "--find", "max-rate")
    found = sim(*args)
    assert found["at_least"] and found["rate"] > 1e5
    assert ridge.text(*BASE, *args).startswith("at least ")


def test_redundant_experts_of_answers_are_their_own(ridge):
    """9 experts, one of 8 being there twice, are shared by 3 ranks, but not by 2."""
    args = ("sim", "--model", "mixtral-8x7b", "--gpu", "h200", "--num-prompts", 2, "--disaggregate", "1P1D", "--json",
            "--expert-parallel-size", 3, "--num-redundant-experts", 1, "--decode-expert-parallel-size", 2)
    assert b"experts" in ridge(*args, status=2).stderr
    assert ridge.json(*args, "--decode-num-redundant-experts", 0)["gpus"] == 5
    varied = ridge.json(*args, "--compare", "decode-redundant=0")["compare"]
    assert varied[0]["gpus"] == 5


def test_16_variants_look_different(ridge, tmp_path):
    path = tmp_path / "x.svg"
    ridge(*BASE, "--num-prompts", 5, "--compare", ",".join(f"chunked={256 + i}" for i in range(16)), "--rates", "1,2",
          "--plot", path)
    keys = [p for p in xml.etree.ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}path")
            if p.get("d", "").endswith("h16")]
    assert len(keys) == len({p.get("class") for p in keys}) == 16
    marks = [m for m in xml.etree.ElementTree.parse(path).iter()
             if m.tag.endswith("circle") or m.tag.endswith("rect") and "curve" in m.get("class", "")]
    assert len({(m.tag, m.get("class")) for m in marks}) == 16


@pytest.mark.parametrize("args, said", [
    (("--gpu", "h1000"), "h1000"),
    (("--model", "llama-9"), "llama-9"),
    (("--model", "llama-3.1-70b"), "--tensor-parallel-size 2 would do, or --gpu b200"),
    (("--router", "random"), "round-robin, least-loaded or prefix"),
    (("--disaggregate", "2D1P"), "xPyD"),
    (("--disaggregate", "2P1D+static"), "xPyD"),
    (("--disaggregate", "2P1D", "--replicas", "4"), "--replicas and --disaggregate exclude each other"),
    (("--decode-tensor-parallel-size", "2"), "--disaggregate xPyD"),
    (("--pipeline-parallel-size", "32", "--replicas", "513"), "16416 schedulers (of each replica one for each stage"),
    (("--tensor-parallel-size", "8", "--replicas", "1024"), "blocks in all; at most 16384 and 268435456"),
    (("--num-redundant-experts", "1"), "1 of 0 experts twice, on 1 ranks"),
    (("--compare", "static,fast"), "--compare: expected one of static,"),
    (("--compare", "static,fast"), "found 'fast'"),
    (("--compare", "tp=2,tp=3"), "--compare tp=3: 32 heads cannot be divided among 3 ranks"),
    (("--scheduler", "best"), "continuous or static"),
    (("--find", "max-rate"), "--slo-ttft"),
    (("--rate", "0"), "a rate of 0"),
    (("--pace",), "--pace needs a target: --slo-tpot MS"),
    (("--compare", "pace"), "--compare pace: --pace needs a target: --slo-tpot MS"),
    (("--speculative-model", "llama-3.1-8b"), "--num-speculative-tokens N"),
    (("--num-prompts", "0"), "at least one request"),
    (("--prefix-groups", "0"), "--prefix-groups: expected 1 to"),
    (("--slo-tpot", "-1"), "--slo-tpot: expected 0 to"),
    (("--rates", "1,2"), "--rates goes with --compare"),
    (("--find", "max-rate", "--slo-ttft", "9", "--rate", "1"), "--rate and --find max-rate exclude each other"),
    (("--goodput-target", "0.5"), "--goodput-target goes with --find"),
    (("--link-gbps", "5"), "--link-... is of --disaggregate xPyD"),
    (("--link-latency-us", "5"), "--link-... is of --disaggregate xPyD"),
    (("--acceptance", "0.5"), "--num-speculative-tokens N"),
    (("--expert-imbalance", "2"), "--expert-imbalance is of --expert-parallel-size N"),
    (("--enable-dbo",), "--enable-dbo is of --expert-parallel-size N"),
    (("--trace-speed", "2"), "--trace-speed is of a --trace"),
    (("--prefix-groups", "2"), "--prefix-groups are of --prefix-tokens N"),
    (("--compare", "static", "--rates", "2,1"), "growing numbers"),
    (("--compare", "static", "--rates", "0"), "growing numbers"),
    (("--compare", "static", "--rates", "1,x"), "growing numbers"),
    (("--compare", "static", "--rates", "1", "--rate", "1"), "exclude each other"),
    (("--compare", "static", "--plot", "x.svg"), "--compare and --rates"),
    (("--compare", ",".join(["static"] * 17)), "more than 16 variants"),
    (("--trace", "x", "--input-len", "3"), "the lengths are the trace's"),
    (("--input-len", "x"), "--input-len"),
    (("--max-num-seqs", "0"), "--max-num-seqs"),
    (("--input-len", "1000000"), "request 0: 1000000 tokens of prompt"),
    (("--trace", "/nonexistent"), "/nonexistent"),
    (("--trace", "-", "--compare", "static,continuous"), "several times"),
    (("--tensor-parallel-size", "3"), "32 heads cannot be divided among 3 ranks"),
    (("--expert-parallel-size", "2"), "no experts to divide among 2 ranks"),
    (("--pipeline-parallel-size", "33"), "32 layers in 33 stages"),
    (("--pipeline-parallel-size", "0"), "--pipeline-parallel-size: expected 1 to 64, found 0"),
    (("--decode-expert-parallel-size", "5000"), "--decode-expert-parallel-size: expected 1 to 1024"),
    (("--decode-tensor-parallel-size", "0"), "--decode-tensor-parallel-size: expected 1 to"),
    (("--decode-num-redundant-experts", "0"), "--disaggregate xPyD"),
    (("--compare", "static,continuous", "--rates", "1,2", "--plot", "/nowhere/x.svg"), "/nowhere/x.svg"),
    (("--compare", "static,continuous", "--rates", "1,2", "--plot", "/tmp"), "cannot write '/tmp'"),
    (("--gpu", "m3-max", "--tensor-parallel-size", "2"), "2 GPUs: how fast those of 'm3-max' reach each other is not known: "
     "--link-bandwidth BYTES/s (in the file of a machine \"link_bytes_per_s\")"),
    (("--gpu", "m3-max", "--pipeline-parallel-size", "2"), "--link-bandwidth BYTES/s"),
    (("--gpu", "m3-max", "--model", "mixtral-8x7b", "--expert-parallel-size", "2"), "--link-bandwidth BYTES/s"),
    (("--gpu", "l40s", "--tensor-parallel-size", "16"), "16 GPUs, 8 to a node: how fast those of 'l40s' reach other nodes "
     "is not known: --network-bandwidth BYTES/s"),
    (("--gpu", "l40s", "--pipeline-parallel-size", "2", "--gpus-per-node", "1"), "\"network_bytes_per_s\""),
    (("--gpu", "l40s", "--disaggregate", "1P1D"), "get from one 'l40s' to another is not known: --link-gbps N"),
    (("--gpu", "l40s", "--compare", "continuous,disagg=1P1D"), "--compare disagg=1P1D: how fast keys and values"),
    (("--link-bandwidth", "0"), "--link-bandwidth: expected 1e+06 to"),
    (("--network-bandwidth", "-1"), "--network-bandwidth: expected 1e+06 to"),
    (("--model", "deepseek-v3", "--expert-parallel-size", "144"), "(--num-redundant-experts)"),
    (("--expert-imbalance", "0.5"), "--expert-imbalance: expected 1 to"),
    (("--compare", "tp=3"), "32 heads cannot be divided among 3 ranks"),
    (("--bandwidth", "-1"), "--bandwidth: expected 1e+06 to 1e+18, found -1"),
    (("--bandwidth", "1e-320"), "--bandwidth: expected 1e+06"),
    (("--peak-flops", "0"), "--peak-flops: expected 1e+06"),
    (("--memory", "0"), "--memory: expected 1e+06"),
    (("--weight-bits", "0"), "--weight-bits: expected 0.1 to 64"),
    (("--price-per-hour", "h200=3"), "with one for h100, found 'h200=3'"),
    (("--price-per-hour", "2,x"), "--price-per-hour: expected a number, or GPU=NUMBER"),
    (("--gpu", "h100,x", "--price-per-hour", "2", "--find", "cheapest", "--rate", "1", "--slo-ttft", "500"), "GPU 'x'"),
])
def test_what_is_refused(ridge, args, said):
    done = ridge(*BASE, *args, status=None)
    assert done.returncode in (1, 2)
    assert done.stdout == b"" or "--compare" in args and "--plot" not in args
    assert said in done.stderr.decode()


def test_what_the_command_line_says_wrong_has_one_status(ridge):
    for command in "plan", "sim":
        ridge(command, "--model", "llama-3.1-8b", "--gpu", "nope", status=2)
        ridge(command, "--model", "nope", "--gpu", "h100", status=2)
        ridge(command, "--model", "llama-3.1-8b", "--gpu", "h100", "--profile", "nope", status=2)


def test_links_that_are_given(ridge):
    """Over links as fast as an L40S has its bus, 16 GPUs of one node, or of two that are as far as its bus is."""
    args = ("--model", "llama-3.1-8b", "--json", "--num-prompts", 1, "--input-len", 2000, "--output-len", 2)
    m3 = ("--peak-flops", 362e12, "--bandwidth", 864e9, "--memory", 48 * 10**9)
    bus = ridge.json("sim", *args, "--gpu", "l40s", "--tensor-parallel-size", 2)
    same = ridge.json("sim", *args, "--gpu", "m3-max", "--tensor-parallel-size", 2, *m3, "--link-bandwidth", 31.5e9)
    assert same["ttft_ms"] == bus["ttft_ms"] and same["itl_ms"] == bus["itl_ms"]
    apart = ridge.json("sim", *args, "--gpu", "m3-max", "--tensor-parallel-size", 2, *m3, "--gpus-per-node", 1,
                       "--network-bandwidth", 31.5e9)
    assert apart["ttft_ms"] == bus["ttft_ms"]
    # sums of the embedding's rows and two a layer of 2,000 rows of 4,096 values, of which each of two ranks sends all once
    # (a ring: 2 x 1/2), and half of a row of logits
    ttft = ridge.json("sim", *args, "--gpu", "l40s", "--tensor-parallel-size", 2, "--link-bandwidth", 31.5e10)["ttft_ms"]
    sent = (1 + 2 * 32) * 2000 * 4096 * 2 + 128256
    assert bus["ttft_ms"]["p50"] - ttft["p50"] == pytest.approx(1e3 * sent * (1 / 31.5e9 - 1 / 31.5e10), rel=1e-6)


def test_keys_and_values_go_over_the_network_of_the_gpu(sim):
    """An H100's is 50 GB/s, an A100's 25: 131,072 bytes a token."""
    args = ("--num-prompts", 1, "--input-len", 4000, "--output-len", 2, "--disaggregate", "1P1D")
    for gpu, speed in ("h100", 50e9), ("a100", 25e9):
        known, free = (sim("--gpu", gpu, *args, *more)["itl_ms"]["p50"] for more in ((), ("--link-gbps", 1e9)))
        assert known - free == pytest.approx(1e3 * 4000 * 131072 / speed, rel=1e-6)
    assert sim("--gpu", "l40s", "--network-bandwidth", 50e9, *args)["transfers"] == 1
    for more, ports in ((), 4), (("--decode-tensor-parallel-size", 2), 2):  # a port for each GPU, the fewer count
        four = ("--gpu", "h100", "--tensor-parallel-size", 4, *more, *args)
        known, free = (sim(*four, *more)["itl_ms"]["p50"] for more in ((), ("--link-gbps", 1e9)))
        assert known - free == pytest.approx(1e3 * 4000 * 131072 / (ports * 50e9), rel=1e-5)


def test_a_bad_line_is_named(ridge, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp":0,"input_length":5,"output_length":5}\n{"timestamp":1,"input_length":-5}\n')
    done = ridge(*BASE, "--trace", path, status=1)
    assert f"{path}:2: \"input_length\" is -5" in done.stderr.decode()


def test_the_cheapest_bears_the_load(sim, ridge):
    prices = {"h100": 2.5, "a100-80gb": 1.6, "l4": 0.7}
    args = ("--rate", 20, "--num-prompts", 200, "--slo-ttft", 500, "--slo-tpot", 30)
    r = sim("--gpu", "h100,a100-80gb,l4", "--price-per-hour", ",".join(f"{k}={v}" for k, v in prices.items()),
            "--find", "cheapest", *args)
    bearing = [c for c in r["candidates"] if "replicas" in c]
    for c in bearing:
        assert c["price_per_hour"] == pytest.approx(prices[c["gpu"]] * c["tensor_parallel_size"] * c["replicas"])
        if c["replicas"] > 1:
            fewer = ("--gpu", c["gpu"], "--tensor-parallel-size", c["tensor_parallel_size"], "--replicas",
                     c["replicas"] - 1)
            assert sim(*fewer, *args)["goodput"]["share"] < 0.99
    assert len(r["candidates"]) == 12 and r["goodput"]["share"] >= 0.99
    assert r["price_per_hour"] == min(c["price_per_hour"] for c in bearing)
    assert b"--price-per-hour" in ridge(*BASE, "--find", "cheapest", *args, status=2).stderr
    nobody = ("--find", "cheapest", "--price-per-hour", 1, "--rate", 1, "--num-prompts", 1, "--slo-ttft", "1e-6",
              "--model", "qwen2.5-0.5b", "--memory", "1500M", "--max-model-len", 2000)
    assert b"none bears the load" in ridge(*BASE, *nobody).stdout
    assert "gpu" not in {k for k in sim(*nobody) if k != "candidates"}
