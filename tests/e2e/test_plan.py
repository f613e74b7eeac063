"""ridge plan: the numbers that people work out by hand, each from the issue, a data sheet or a paper."""
import json
import os
import re
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import ROOT, model_path, text_boxes


def plan(ridge, model, gpu, *args):
    return ridge.json("plan", "--model", model, "--gpu", gpu, *args, "--json")


def near(x, tolerance=0.005):
    return pytest.approx(x, rel=tolerance)


def test_ridge_points(ridge):
    p = plan(ridge, "llama-2-7b", "a100-80gb", "--bandwidth", "1.5e12")
    assert p["gpu"]["peak_flops"] == 312e12
    assert p["gpu"]["ridge_flops_per_byte"] == pytest.approx(208)
    assert plan(ridge, "llama-2-7b", "a100-40gb")["gpu"]["bandwidth"] == 1.555e12
    assert plan(ridge, "llama-2-7b", "a100-80gb")["gpu"]["bandwidth"] == 2.039e12
    gpu = plan(ridge, "llama-2-7b", "h100")["gpu"]
    assert (gpu["peak_flops"], gpu["bandwidth"]) == (989e12, 3.35e12)
    assert round(gpu["ridge_flops_per_byte"]) == 295
    assert plan(ridge, "llama-2-7b", "h100", "--peak-flops", 1e15)["gpu"]["peak_flops"] == 1e15


def test_llama_8b_on_one_h100(ridge):
    p = plan(ridge, "llama-3.1-8b", "h100", "--prompt", 1000)
    assert p["model"]["parameters"] == p["model"]["active_parameters"] == 8030261248
    assert p["model"]["weight_bytes"] == near(16.06e9, 1e-4)
    assert p["prefill"]["tokens"] == 1000
    assert p["prefill"]["flops"] == near(16.06e12, 1e-4)
    assert p["prefill"]["seconds"] == near(16.2e-3)
    assert p["prefill"]["bound"] == "compute"
    d = p["decode"]
    assert d["seconds"] == near(4.794e-3, 1e-4)
    assert d["tokens_per_s"] == d["tokens_per_s_per_user"] == pytest.approx(208.6, abs=0.05)
    assert d["compute_seconds"] == near(0.01624e-3, 1e-3)
    assert d["flops_per_byte"] == 1 and d["bound"] == "memory"
    assert d["arithmetic_idle"] > 0.996


def test_weights_alone_serve_many_users_in_the_same_time(ridge):
    seconds = {n: plan(ridge, "llama-3.1-8b", "h100", "--batch", n)["decode"] for n in (1, 64, 295, 296, 400)}
    assert seconds[64]["tokens_per_s"] == near(13350, 1e-3)
    assert seconds[64]["seconds"] == seconds[295]["seconds"] == seconds[1]["seconds"]
    assert seconds[1]["seconds"] < seconds[296]["seconds"] < seconds[400]["seconds"]
    assert seconds[295]["bound"] == "memory" and seconds[296]["bound"] == "compute"


@pytest.mark.parametrize("model, token, gib", [("llama-3.1-8b", 131072, 0.5), ("llama-2-7b", 524288, 2)])
def test_cache_per_token(ridge, model, token, gib):
    p = plan(ridge, model, "h100", "--context", 4096)
    assert p["model"]["kv_bytes_per_token"] == token
    assert p["decode"]["kv_bytes_read"] == gib * 2**30


@pytest.mark.parametrize("model, token", [
    ("deepseek-v3", 70272), ("qwen2.5-72b", 327680), ("llama-3.1-405b", 516096),
])
def test_cache_per_token_as_published(ridge, model, token):
    """arXiv 2505.09343, table 1: KV cache per token in 16 bits."""
    assert plan(ridge, model, "b200")["model"]["kv_bytes_per_token"] == token


def test_what_fits(ridge):
    p = plan(ridge, "llama-3.1-8b", "h100", "--context", 4096)
    assert p["fit"]["kv_tokens"] == near(488000, 1e-3)
    assert p["fit"]["users"] == 119
    assert plan(ridge, "llama-3.1-8b", "h100", "--context", 131072)["decode"]["kv_bytes_read"] == 16 * 2**30


def test_64_users_at_4096(ridge):
    d = plan(ridge, "llama-3.1-8b", "h100", "--batch", 64, "--context", 4096)["decode"]
    assert d["kv_bytes_read"] == near(34.4e9, 2e-3)
    assert d["seconds"] == near(15.05e-3)
    assert d["tokens_per_s"] == near(4252, 1e-3)


def test_h200(ridge):
    p = plan(ridge, "llama-3.1-8b", "h200")
    assert (p["gpu"]["bandwidth"], p["gpu"]["memory_bytes"]) == (4.8e12, 141e9)
    assert p["decode"]["tokens_per_s"] == near(298.9, 1e-3)


def test_seven_billion_at_16_bits(ridge):
    assert plan(ridge, "llama-2-7b", "h100")["model"]["weight_bytes"] == near(13.48e9, 1e-3)


def test_grouped_heads_of_llama_70b(ridge):
    """8 KV heads serve 64: an eighth of what the 13B's 40 would have at 128 columns and 80 layers."""
    token = plan(ridge, "llama-2-70b", "mi300x")["model"]["kv_bytes_per_token"]
    assert token == 2 * 80 * 8 * 128 * 2


def test_latent_cache_of_deepseek(ridge):
    """82.2 % smaller by shape; 93.3 % in the paper (arXiv 2405.04434), whose cache has 6 bits."""
    dense = plan(ridge, "deepseek-67b", "b200")["model"]["kv_bytes_per_token"]
    latent = plan(ridge, "deepseek-v2", "b200")["model"]["kv_bytes_per_token"]
    six = plan(ridge, "deepseek-v2", "b200", "--kv-cache-dtype", "fp6")["model"]["kv_bytes_per_token"]
    assert dense == 2 * 95 * 8 * 128 * 2 and latent == 60 * (512 + 64) * 2
    assert round(100 * (1 - latent / dense), 1) == 82.2
    assert round(100 * (1 - six / dense), 1) == 93.3
    text = ridge.text("plan", "--model", "deepseek-67b", "--gpu", "b200", "--what-if", "model=deepseek-v2", status=0)
    assert "82.2 % less" in text


def test_both_counts(ridge):
    """Counted: no embedding table (128,256 x 4,096), a row of it; the cache read and written; attention's FLOPs."""
    p = plan(ridge, "llama-3.1-8b", "h100", "--batch", 64, "--context", 4096)
    d, c = p["decode"], p["counted"]["decode"]
    table = 128256 * 4096 * 2
    assert c["weight_bytes_read"] == d["weight_bytes_read"] - table + 64 * 4096 * 2
    assert c["kv_bytes_read"] == d["kv_bytes_read"] + 64 * 131072
    norms = 65 * 4096
    assert c["flops"] == d["flops"] - 64 * (table + 2 * norms) + 64 * 4096 * 32 * 4 * 4096
    prompt = p["counted"]["prefill"]
    assert prompt["flops"] < p["prefill"]["flops"]  # the head works on the last row alone


def test_experts(ridge):
    """Mixtral 8x7B takes 2 of 8: one token reads 12.9 B of 46.7 B parameters, 64 read nearly all."""
    one = plan(ridge, "mixtral-8x7b", "mi300x")
    assert one["model"]["parameters"] == 46702792704
    assert one["model"]["active_parameters"] == near(12.88e9, 1e-3)
    assert one["decode"]["weight_bytes_read"] == near(2 * 12.88e9, 1e-3)
    many = plan(ridge, "mixtral-8x7b", "mi300x", "--batch", 64)
    assert many["decode"]["weight_bytes_read"] == near(2 * 46.7e9, 1e-3)
    assert many["decode"]["flops"] == 64 * one["decode"]["flops"]
    four = plan(ridge, "mixtral-8x7b", "mi300x", "--batch", 4)["decode"]["weight_bytes_read"] / 2
    experts = 32 * 8 * 3 * 4096 * 14336
    assert four == near(46702792704 - experts * 0.75**4, 1e-6)


def test_types_of_weights(ridge):
    p = plan(ridge, "llama-3.1-8b", "h100", "--dtype", "fp8")
    assert p["model"]["weight_bytes"] == 8030261248 and p["gpu"]["peak_flops"] == 1979e12
    p = plan(ridge, "llama-3.1-8b", "h100", "--weight-bits", 4.5)
    assert p["model"]["weight_bytes"] == 8030261248 * 4.5 / 8 and p["gpu"]["peak_flops"] == 989e12


GIB = 2**30


@pytest.mark.parametrize("model, dtype, gib", [
    # arXiv 2508.10925, table 1: checkpoint sizes
    ("gpt-oss-20b", "mxfp4", 12.8), ("gpt-oss-120b", "mxfp4", 60.8),
    # 671.03 B parameters, of which table and head (129,280 x 7,168 each) have 16 bits, all else 8
    ("deepseek-v3", "fp8", (671.03e9 + 2 * 129280 * 7168) / GIB),
    ("deepseek-r1", "fp8", (671.03e9 + 2 * 129280 * 7168) / GIB),
    ("deepseek-v2", "bf16", 2 * 235.74e9 / GIB),
])
def test_weights_as_published(ridge, model, dtype, gib):
    p = plan(ridge, model, "b200")["model"]
    assert p["dtype"] == dtype and p["weight_bytes"] / GIB == near(gib, 0.004)
    assert ("as published" in p.get("dtype_note", "")) == (dtype != "bf16")
    whole = plan(ridge, model, "b200", "--dtype", "bf16")["model"]
    assert whole["weight_bytes"] == 2 * whole["parameters"] and "dtype_note" not in whole


def test_experts_in_4_bits_among_others_in_16(ridge):
    """gpt-oss-20b by hand: of 24 layers with 32 experts of 3 x 2,880 x 2,880, one token takes 4, on any number of
    GPUs; attention, router, table and head have 16 bits."""
    experts = 24 * 32 * 3 * 2880 * 2880
    one = plan(ridge, "gpt-oss-20b", "h100")
    rest = one["model"]["parameters"] - experts
    assert one["model"]["weight_bytes"] == near(experts * 4.25 / 8 + rest * 2, 1e-6)
    assert one["decode"]["weight_bytes_read"] == near(experts / 8 * 4.25 / 8 + rest * 2, 1e-3)
    counted = one["counted"]["decode"]["weight_bytes_read"]
    idle_biases = 24 * 28 * 3 * 2880
    assert counted == near(experts / 8 * 4.25 / 8 + (rest - idle_biases - 201088 * 2880) * 2, 1e-3)
    assert one["gpu"]["peak_flops"] == 989e12  # multiplied in 16 bits
    two = plan(ridge, "gpt-oss-20b", "h100", "--tensor-parallel-size", 2)
    assert two["counted"]["decode"]["weight_bytes_read"] == near(counted / 2, 5e-3)
    assert two["fit"]["weight_bytes"] == near(one["fit"]["weight_bytes"], 5e-3)
    text = ridge.text("plan", "--model", "gpt-oss-20b", "--gpu", "h100", "--explain")
    assert "weights mxfp4 (as published: experts; all else bf16)" in text
    assert "201088 x 2880, 1.158 GB" in text


def test_a_model_that_takes_images(ridge, tmp_path):
    """Mistral Small 3.1: its config.json; 24 B as published, of which its text part, that of Mistral Small 3, has 23.6."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}, "text_config": {
        "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "sliding_window": None, "vocab_size": 131072}}))
    assert plan(ridge, path, "h100")["model"]["parameters"] == near(23.57e9, 1e-3)
    assert "(for text; what takes images is left out)" in ridge.text("plan", "--model", path, "--gpu", "h100")


@pytest.mark.parametrize("config, parameters, token", [
    # Gemma 2 9B (report, arXiv 2408.00118: 9.24 B), Mistral Nemo (12.2 B), Qwen1.5-MoE-A2.7B (14.3 B), Moonlight-16B-A3B
    # (15.96 B), Llama 3.2 1B (1.24 B); bytes per token: 2 x layers x heads x columns x 2, of latents layers x 576 x 2
    ({"model_type": "gemma2", "head_dim": 256, "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
      "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 256000}, 9.24e9, 2 * 42 * 8 * 512),
    ({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336, "num_hidden_layers": 40, "head_dim": 128,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072, "sliding_window": None}, 12.25e9, 2 * 40 * 8 * 256),
    ({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
      "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
      "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "use_sliding_window": False,
      "vocab_size": 151936}, 14.3e9, 2 * 24 * 16 * 256),
    ({"model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408,
      "num_hidden_layers": 27, "num_attention_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
      "num_experts_per_tok": 6, "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
      "v_head_dim": 128, "first_k_dense_replace": 1, "vocab_size": 163840, "topk_method": "noaux_tc"}, 15.96e9, 27 * 576 * 2),
    ({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True}, 1.236e9,
     2 * 16 * 8 * 128),
])
def test_models_that_are_not_in_the_table(ridge, tmp_path, config, parameters, token):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    m = plan(ridge, path, "h200")["model"]
    assert m["parameters"] == near(parameters, 5e-3) and m["kv_bytes_per_token"] == token


@pytest.mark.parametrize("name", ["phi3", "llama4", "qwen3_next", "gemma3n", "deepseek_v32"])
def test_models_of_unknown_kinds(ridge, tmp_path, name):
    path = tmp_path / "config.json"
    for config in {"model_type": name, "hidden_size": 3072}, {"model_type": "x", "text_config": {"model_type": name}}:
        path.write_text(json.dumps(config))
        for command in "plan", "sim":
            said = ridge(command, "--model", path, "--gpu", "h100", status=1).stderr.decode()
            assert f"config.json: model_type '{name}' is not known; known are llama" in said


def test_a_config_says_its_precision(ridge, tmp_path):
    path = tmp_path / "config.json"
    for method, bits in (("fp8", 8), ("mxfp4", 16)):  # there are no experts
        path.write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": method}}))
        m = plan(ridge, path, "h100")["model"]
        tables = 2 * 32000 * 4096
        assert m["dtype"] == method
        assert m["weight_bytes"] == near(tables * 2 + (m["parameters"] - tables) * bits / 8, 1e-9)
    path.write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "awq"}}))
    for command in "plan", "sim":
        said = ridge(command, "--model", path, "--gpu", "h100", status=1).stderr.decode()
        assert "quantization_config.quant_method 'awq' is not known" in said and "--dtype or --weight-bits" in said
    assert plan(ridge, path, "h100", "--dtype", "int4")["model"]["dtype"] == "int4"


def test_largest_batch_and_cost(ridge):
    """Textbook by hand: (15.01 GB + n * 4096 * 131072 B) / 3.35 TB/s <= 20 ms gives n = 96."""
    p = plan(ridge, "llama-3.1-8b", "h100", "--context", 4096, "--slo-tpot", 20, "--price-per-hour", 3.6, "--batch", 64)
    assert p["slo"]["largest_batch"] == int((20e-3 * 3.35e12 - 15.01e9) / (4096 * 131072 + 131072))
    for args in (("--context", 4096), (), ("--batch", 8)):  # weights that don't fit leave room for none
        p70 = plan(ridge, "llama-3.1-70b", "h100", "--slo-tpot", 1000, *args)
        assert p70["slo"]["largest_batch"] == 0
    full = plan(ridge, "llama-3.1-8b", "h100", "--context", 1000000, "--slo-tpot", 1000)
    assert full["fit"]["users"] == full["slo"]["largest_batch"] == 0
    assert p["cost"]["per_million_output_tokens"] == near(1e6 * 0.001 * p["counted"]["decode"]["seconds"] / 64, 1e-9)


def test_tensor_parallel(ridge):
    """Four GPUs read a quarter each; sums of 8,192 values of 16 bits over NVLink, two a layer and the embedding's."""
    one, four = (plan(ridge, "llama-2-70b", "a100-80gb", "--tensor-parallel-size", n) for n in (1, 4))
    assert one["fit"]["fits"] is False and four["fit"]["fits"] is True
    assert four["gpu"]["count"] == 4 and four["fit"]["memory_bytes"] == 320e9
    assert four["decode"]["seconds"] == near(one["decode"]["seconds"] / 4, 1e-9)
    link = four["counted"]["decode"]["seconds_by_bound"]["link"]
    assert link == near((161 * 2 * 0.75 * 8192 * 2 + 0.75 * 32000 * 2) / 300e9, 1e-9)
    assert four["counted"]["decode"]["weight_bytes_read"] == near(one["counted"]["decode"]["weight_bytes_read"] / 4, 1e-3)


def test_pipeline_parallel(ridge):
    """Two stages of half the layers: no faster for one user, twice the throughput for two."""
    one = plan(ridge, "llama-2-70b", "mi300x", "--batch", 8)
    two = plan(ridge, "llama-2-70b", "mi300x", "--batch", 16, "--pipeline-parallel-size", 2)
    assert two["decode"]["seconds"] == one["decode"]["seconds"]
    assert two["decode"]["tokens_per_s"] == 2 * one["decode"]["tokens_per_s"]


def test_expert_parallel(ridge):
    """DeepSeek-V3 in fp8 on 32 H800s with 128 sequences: each has 8 of 256 experts, and four sequences."""
    p = plan(ridge, "deepseek-v3", "h800", "--dtype", "fp8", "--expert-parallel-size", 32, "--batch", 128)
    c = p["counted"]["decode"]
    touched = 8 * (1 - (1 - 8 / 256) ** 128)
    rest = 37.55e9 - 58 * 8 * 3 * 7168 * 2048 - 129280 * 7168  # active without routed experts and the table
    assert c["weight_bytes_read"] == near(rest + 58 * touched * 3 * 7168 * 2048, 0.01)
    # Four rows there in 8 bits and back in 16, once to each of the three other nodes with any of a row's eight experts.
    link = 58 * 4 * 7168 * 3 * 3 * (1 - (3 / 4) ** 8) / 50e9
    assert c["seconds_by_bound"]["link"] == near(link, 1e-9)
    one_node = plan(ridge, "deepseek-v3", "h800", "--dtype", "fp8", "--expert-parallel-size", 32, "--batch", 128,
                    "--gpus-per-node", 32)
    link = 58 * 4 * 7168 * 3 * 31 * (1 - (31 / 32) ** 8) / 200e9
    assert one_node["counted"]["decode"]["seconds_by_bound"]["link"] == near(link, 1e-9)


@pytest.mark.parametrize("network", [50e9, 5e9])
def test_exchanges_behind_the_other_half(ridge, network):
    """128 sequences on each of 32 GPUs: each half of 64 reads the weights, and what takes longer hides the other."""
    def decode(n, *dbo):
        return plan(ridge, "deepseek-v3", "h800", "--dtype", "fp8", "--expert-parallel-size", 32, "--context", 1000, "--batch",
                    32 * n, "--network-bandwidth", network, *dbo)["counted"]["decode"]

    half, cut = decode(64), decode(128, "--enable-dbo")
    head = 129280 * 7168  # once a step
    assert cut["weight_bytes_read"] == near(2 * half["weight_bytes_read"] - head, 1e-3)
    link = 58 * 128 * 7168 * 3 * 3 * (1 - (3 / 4) ** 8) / network
    head_s = head / 3.35e12
    computed = 2 * (half["seconds"] - link / 2 - head_s)
    assert (network == 5e9) == (link > computed)
    expected = max(link, computed * 58 / 61) + computed * 3 / 61 + head_s
    assert cut["seconds"] == near(expected, 0.01)  # and one piece of 232 before or after all others
    assert decode(31, "--enable-dbo") == decode(31)  # as few as this are not cut
    said = ridge("plan", "--model", "deepseek-v3", "--gpu", "h800", "--enable-dbo", status=2).stderr.decode()
    assert "--enable-dbo is of --expert-parallel-size N" in said


def test_redundant_experts(ridge):
    """288 experts, two on each of 144 GPUs, with all that is not an expert's on each."""
    p = plan(ridge, "deepseek-v3", "h800", "--dtype", "fp8", "--expert-parallel-size", 144, "--num-redundant-experts", 32)
    expert = 58 * 3 * 7168 * 2048
    assert p["fit"]["weight_bytes"] == near(144 * (671e9 - 256 * expert + 2 * expert), 0.01)


def test_prompts_under_expert_parallelism(ridge):
    """Each of 32 ranks has a prompt of its own: 32 times the work of one on 32 times the GPUs, all parameters read
    once; a stage has one, too. By hand: 2 x 37.55 B x 1,000 / 1,979 TFLOP/s."""
    args = ("deepseek-v3", "h800", "--dtype", "fp8", "--prompt", 1000)
    one = plan(ridge, *args)["prefill"]
    p = plan(ridge, *args, "--expert-parallel-size", 32)["prefill"]
    assert (one["prompts_at_once"], p["prompts_at_once"]) == (1, 32)
    assert p["flops"] == near(32 * one["flops"], 1e-9)
    assert p["compute_seconds"] == near(2 * 37.55e9 * 1000 / 1979e12, 1e-3)
    assert p["memory_seconds"] == near(671.03e9 / 32 / 3.35e12, 1e-3)
    assert p["tokens_per_s"] == near(32000 / p["seconds"], 1e-9)
    stages = plan(ridge, "llama-3.1-8b", "h100", "--pipeline-parallel-size", 4)
    assert stages["counted"]["prefill"]["tokens_per_s"] == near(4000 / stages["latency"]["ttft_seconds"], 1e-9)


def test_what_a_profile_assumes(ridge, tmp_path):
    """Only of what the model has: no experts in Llama, no all-reduce on one GPU."""
    def assumed(*args):
        return plan(ridge, *args)["profile"]["assumed"]
    base = {"attention_prefill": "as linear", "attention_decode": "as linear", "cache_write": "as add", "rows": "as add"}
    assert assumed("llama-3.1-8b", "h100") == {}
    assert assumed("llama-3.1-8b", "h100", "--profile", "h100") == base
    assert assumed("mixtral-8x7b", "h100", "--profile", "h100") == {**base, "experts": "as linear"}
    two = assumed("llama-3.1-8b", "a100", "--profile", "a100", "--tensor-parallel-size", 2)
    assert two == {**base, "all_reduce": "as of h100", "all_gather": "as of h100"}
    text = ridge.text("plan", "--model", "mixtral-8x7b", "--gpu", "h100", "--profile", "h100")
    assert "not measured    experts as linear, attention_prefill as linear" in text and "(profile h100)" in text
    assert "not measured" not in ridge.text("plan", "--model", "mixtral-8x7b", "--gpu", "h100")
    own = tmp_path / "own.json"
    own.write_text('{"format": "ridge efficiency profile", "version": 1, "name": "own", "made": "", "activations": 1.0, '
                   '"kinds": {}}')
    assert assumed("llama-3.1-8b", "h100", "--profile", own)["linear"] == "as ideal"


def test_what_if(ridge):
    p = plan(ridge, "llama-3.1-8b", "h100", "--what-if", "gpu=h200", "--what-if", "batch=64")
    assert [w["change"] for w in p["what_if"]] == ["gpu=h200", "batch=64"]
    assert p["what_if"][0]["decode"] == plan(ridge, "llama-3.1-8b", "h200")["decode"]
    assert p["what_if"][1]["decode"] == plan(ridge, "llama-3.1-8b", "h100", "--batch", 64)["decode"]


def test_what_if_of_a_long_name(ridge, tmp_path):
    folder = tmp_path / ("a" * 200)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    changed = plan(ridge, "llama-3.1-8b", "a10", "--what-if", f"model={folder}")["what_if"][0]
    assert changed["change"] == f"model={folder}" and changed["model"]["parameters"] == 6738415616


def test_explain(ridge):
    """The working of each number, to be checked by whoever reads it."""
    args = ("--model", "llama-3.1-8b", "--gpu", "h100", "--batch", 64, "--context", 4096, "--explain")
    p = ridge.json("plan", *args, "--json")
    lines = {line["name"]: line for line in p["explain"]}
    assert lines["weights"]["working"] == "8030261248 x 16 / 8" and lines["weights"]["value"] == "16.06 GB"
    assert lines["cache per token"]["working"] == "2 x 32 x 8 x 128 x 2"
    assert lines["tokens that fit"]["working"] == "(80 GB - 16.06 GB) / 131072"
    assert lines["ridge point"]["working"] == "989 TFLOP/s / 3.35 TB/s"
    assert lines["step, memory"]["working"] == "16.06 GB + 64 x 4096 x 131072 B = 50.42 GB"
    assert "meta-llama/Llama-3.1-8B" in lines["parameters"]["source"]
    assert "data sheet" in lines["ridge point"]["source"]
    assert "128256 x 4096, 1.051 GB" in p["difference"]
    counted = p["counted"]["decode"]
    assert sum(o["seconds"] for o in p["operations"]) == near(counted["seconds"], 1e-9)
    assert sum(o["bytes"] for o in p["operations"]) == near(counted["weight_bytes_read"] + counted["kv_bytes_read"], 1e-9)
    halved = ridge.json("plan", "--model", "deepseek-v3", "--gpu", "h800", "--expert-parallel-size", 32, "--batch", 4096,
                        "--context", 1000, "--enable-dbo", "--explain", "--json")
    assert sum(o["seconds"] for o in halved["operations"]) == near(halved["counted"]["decode"]["seconds"], 1e-9)
    assert halved["operations"][-1]["name"] == "hidden behind the other half" and halved["operations"][-1]["seconds"] < 0
    text = ridge.text("plan", *args)
    for part in ("2 x 32 x 8 x 128 x 2", "attention 32 heads of 128 on 8", "is not streamed"):
        assert part in text
    latent = ridge.json("plan", "--model", "deepseek-v2", "--gpu", "b200", "--explain", "--json")["explain"]
    assert "60 x (512 + 64) x 2" in [line["working"] for line in latent]


def test_plot(ridge, tmp_path):
    """Well-formed, with the roof, four dots, and two curves of 13 points that never fall."""
    path = tmp_path / "plan.svg"
    ridge("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--context", 1000, "--plot", path)
    svg = xml.etree.ElementTree.parse(path).getroot()
    assert len(svg.findall("{*}circle")) == 4
    curves = [e.get("d") for e in svg.findall("{*}path") if e.get("class") in ("textbook", "counted")]
    assert len(curves) == 2
    for curve in curves:
        heights = [float(point.split()[1]) for point in curve[1:].split("L")]
        assert len(heights) == 13 and heights == sorted(heights, reverse=True) and heights[0] > heights[-1]
    done = ridge("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--plot", tmp_path / "no" / "x.svg", status=1)
    assert "cannot write" in done.stderr.decode()


UNITS = {"GB": "e9", "B": "", "TFLOP": "e12", "TFLOP/s": "e12", "TB/s": "e12", "ms": ""}


def work_out(text):
    """What a working says, as a calculator has it."""
    text = re.sub(r"(?<=\d) (TFLOP/s|TFLOP|TB/s|GB|ms|B)\b", lambda m: UNITS[m[1]], text)
    return eval(text.replace(" x ", " * ").replace("(within windows)", ""))


@pytest.mark.parametrize("args", [
    ("llama-3.1-8b", "h100", "--batch", 64, "--context", 4096, "--price-per-hour", 3),
    ("llama-3.1-8b", "h100", "--context", 100, "--kv-cache-dtype", "q8_0"),
    ("gemma-3-4b", "h100", "--context", 100000, "--batch", 2),
    ("llama-3.1-8b", "h100", "--context", 1000, "--tensor-parallel-size", 16),
    ("llama-3.1-8b", "h100", "--context", 1000, "--pipeline-parallel-size", 4, "--batch", 8),
    ("deepseek-v3", "h800", "--dtype", "fp8", "--context", 1000, "--tensor-parallel-size", 8,
     "--expert-parallel-size", 4, "--batch", 9),
])
def test_workings_come_to_their_values(ridge, args):
    lines = {x["name"]: x for x in plan(ridge, args[0], args[1], *args[2:], "--explain")["explain"]}
    scale = {"GB": 1e9}
    for name in ("weights", "cache per token", "tokens that fit", "ridge point", "prompt, time", "step, time"):
        value, *unit = lines[name]["value"].split()
        assert work_out(lines[name]["working"]) == near(float(value) * scale.get(unit[0] if unit else "", 1)), name
    for name in ("prompt, arithmetic", "step, arithmetic", "step, memory"):
        left, right = lines[name]["working"].split(" = ")
        assert work_out(left) == near(work_out(right)), name


@pytest.mark.parametrize("args", [
    ("llama-3.1-8b", "h100"), ("llama-3.1-8b", "h100", "--batch", 64, "--context", 4096),
    ("llama-3.1-8b", "h100", "--prompt", 1), ("deepseek-v3", "epyc-9654", "--context", 100000000),
    ("deepseek-v3", "h800", "--dtype", "fp8", "--expert-parallel-size", 32, "--batch", 4096, "--context", 100000),
    ("llama-3.1-8b", "a100-80gb", "--bandwidth", 1e6, "--context", 1000000),
    ("llama-3.1-8b", "a100-80gb", "--bandwidth", 1e18, "--peak-flops", 1e6),
])
def test_a_plot_is_legible(ridge, tmp_path, args):
    """No text on another or off the page; the roof on its panel, which is 70 to 450 pixels from the left."""
    path = tmp_path / "plan.svg"
    ridge("plan", "--model", args[0], "--gpu", *args[1:], "--plot", path, status=None)
    svg = xml.etree.ElementTree.parse(path).getroot()
    texts = text_boxes(svg)
    for i, (text, left, right, top, bottom) in enumerate(texts):
        assert 0 <= left and right <= 960, text
        for other, left2, right2, top2, bottom2 in texts[:i]:
            assert right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top, (text, other)
    roof = next(e.get("d") for e in svg.findall("{*}path") if e.get("class") == "roof")
    start, bend = (float(point.split()[0]) for point in roof[1:].split("H")[0].split("L"))
    assert 70 <= start <= bend <= 450


def test_a_plot_of_any_name(ridge, tmp_path):
    """Of a file whose name is long, not all letters, or not even UTF-8."""
    for name in (b"a&b<c>\x01.json", 60 * "\u00e9".encode() + b".json", b"\xff\xfe.json"):
        model, path = tmp_path / os.fsdecode(name), tmp_path / "plan.svg"
        with open(model, "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)
        ridge("plan", "--model", model, "--gpu", "h100", "--plot", path)
        assert len(xml.etree.ElementTree.parse(path).getroot().findall("{*}circle")) == 4


def test_what_does_not_fit(ridge):
    """An answer, not a failure: the same status, and the same words, in text and in JSON."""
    done = ridge("plan", "--model", "llama-3.1-405b", "--gpu", "h100", status=0)
    reason = plan(ridge, "llama-3.1-405b", "h100")["fit"]["reason"]
    for part in ("811.7 GB", "80.0 GB", "12 GPUs", "--tensor-parallel-size 16"):  # 128 heads on 12 do not go
        assert part in done.stderr.decode() and part in done.stdout.decode() and part in reason
    assert plan(ridge, "llama-3.1-405b", "h100", "--tensor-parallel-size", 16)["fit"]["fits"]
    p = plan(ridge, "llama-3.1-405b", "h100")
    assert p["fit"]["fits"] is False and p["fit"]["kv_tokens"] == 0
    done = ridge("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--batch", 200, "--context", 4096, status=0)
    assert "119 such sequences fit" in done.stderr.decode()


CONFIG = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
          "num_hidden_layers": 32, "num_attention_heads": 32}


def test_config_of_a_folder_or_file(ridge, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    for name in (path, tmp_path):
        assert plan(ridge, name, "a10")["model"]["parameters"] == 6738415616
    path.write_text(json.dumps({**CONFIG, "num_hidden_layers": -1}))
    done = ridge("plan", "--model", path, "--gpu", "a10", status=1)
    assert f"{path}: num_hidden_layers: is -1, must be between 1 and 1024" in done.stderr.decode()


def test_a_file_counts_its_own_types(ridge):
    """smollm2's file has 96,576,768 bytes of weights; a cache of 30 layers with 3 heads of 64."""
    p = plan(ridge, model_path("smollm2-135m"), "epyc-9654", "--context", 100)
    assert (p["model"]["parameters"], p["model"]["weight_bytes"]) == (134515008, 96576768)
    assert p["model"]["dtype"] == "file"
    assert p["model"]["kv_bytes_per_token"] == 30 * 3 * 64 * 4


@pytest.mark.parametrize("args, says", [
    ([], "usage: ridge plan"), (["--model", "llama-2-7b"], "usage: ridge plan"),
    (["--model", "gpt-5", "--gpu", "h100"], "model 'gpt-5': no such file, and known by name are llama-2-7b/13b/70b"),
    (["--model", "llama-2-7b", "--gpu", "h101"], "GPU 'h101' is not known; known are a100-40gb"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--dtype", "q9"], "type 'q9' is not known; known are bf16"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--batch", "0"], "--batch: expected 1 to"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--bandwidth", "-1"], "--bandwidth: expected 1e+06 to 1e+18, found -1"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--bandwidth", "0"], "--bandwidth: expected 1e+06 to 1e+18, found 0"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--bandwidth", "1e-320"], "--bandwidth: expected 1e+06"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--peak-flops", "0"], "--peak-flops: expected 1e+06"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--memory", "0"], "--memory: expected 1e+06"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--weight-bits", "0"], "--weight-bits: expected 0.1 to 64"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--kv-cache-dtype", "f17"], "--kv-cache-dtype: expected f16"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--what-if", "speed=9"], "unknown option '--speed'"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--what-if", "gpu=x"], "GPU 'x' is not known"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--what-if", "gpu"], "--what-if: expected OPTION=VALUE, found 'gpu'"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--what-if", ""], "--what-if: expected OPTION=VALUE, found ''"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--what-if", "=3"], "--what-if: expected OPTION=VALUE, found '=3'"),
    (["--model", "deepseek-v3", "--gpu", "h100", "--num-redundant-experts", "3"], "3 of 256 experts twice, on 1 ranks"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--tensor-parallel-size", "3"], "32 heads cannot be divided among 3"),
    (["--model", "llama-2-7b", "--gpu", "m2-ultra", "--tensor-parallel-size", "2"],
     "2 GPUs: how fast those of 'm2-ultra' reach each other is not known: --link-bandwidth"),
    (["--model", "llama-2-7b", "--gpu", "l4", "--pipeline-parallel-size", "16"], "--network-bandwidth BYTES/s"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--what-if", "gpu=m2-ultra", "--tensor-parallel-size", "2"],
     "'m2-ultra' reach each other is not known"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--link-bandwidth", "0"], "--link-bandwidth: expected 1e+06 to"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--network-bandwidth", "0"], "--network-bandwidth: expected 1e+06"),
    (["--model", "llama-2-7b", "--gpu", "h100", "--profile", "x"], "no efficiency profile 'x': expected ideal, a100, h100 or a file"),
])
def test_usage(ridge, args, says):
    assert says in ridge("plan", *args, status=2).stderr.decode()


@pytest.mark.parametrize("args", [["--context", 4097], ["--prompt", 5000]])
def test_a_context_that_the_model_was_not_made_for(ridge, args):
    """Llama 2's is 4,096."""
    command = ("plan", "--model", "llama-2-7b", "--gpu", "h100")
    said = ridge(*command, *args, status=0).stderr.decode()
    assert f"a context of {args[1]} is more than the 4096 that the model was made for" in said
    assert ridge(*command, "--context", 4096, "--prompt", 4096, status=0).stderr == b""
    text = ridge.text("sim", *command[1:], "--num-prompts", 1, "--max-model-len", 5000)
    assert "a context of 5000 is more than the 4096 that the model was made for" in text


def test_a_profile_is_a_file_of_any_name(ridge, tmp_path):
    (tmp_path / "measured").write_text((ROOT / "data" / "profiles" / "h100.json").read_text())
    args = ("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--json", "--profile")
    done = subprocess.run([ridge.path, *args, "measured"], cwd=tmp_path, capture_output=True, check=True)
    assert json.loads(done.stdout) == ridge.json(*args, "h100")


def test_lists(ridge):
    models, gpus = ridge.text("plan", "--models"), ridge.text("plan", "--gpus")
    assert "deepseek-v3 " in models and "https://huggingface.co/openai/gpt-oss-20b" in models
    for name in ("h100-pcie", "h800", "gb200", "mi300x", "l40s", "rtx-4090", "tpu-v5e", "m3-max"):
        assert f"{name} " in gpus
