"""`ridge bench`: the picture of the roofline shows what the same run printed as JSON."""
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"
PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
QUICK = ("--prompt", 16, "--gen", 2, "--repeat", 1, "--threads", 1)


def with_class(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


def tick_value(text):
    number, _, prefix = text.partition(" ")
    return float(number) * PREFIXES[prefix]


def axis(root, name, attribute):
    """From a value to its place, by two of the axis's ticks; the others must agree."""
    ticks = sorted((math.log10(tick_value(e.text)), float(e.get(attribute))) for e in with_class(root, name))
    (low, at_low), (high, at_high) = ticks[0], ticks[-1]
    place = lambda value: at_low + (math.log10(value) - low) / (high - low) * (at_high - at_low)
    assert len(ticks) >= 3
    for tick, at in ticks:
        assert abs(place(10**tick) - at) < 0.2
    return place


def test_peaks_that_were_higher_stay(ridge, model, tmp_path):
    """What is lower was measured while something else computed."""
    def measured():
        ridge("bench", model("smollm2-135m"), *QUICK, env={"RIDGE_HOME": str(tmp_path)})
        (entry,) = json.loads((tmp_path / "peaks.json").read_text()).values()
        return entry

    first = measured()
    (key,) = json.loads((tmp_path / "peaks.json").read_text())
    (tmp_path / "peaks.json").write_text(json.dumps({key: {**first, "read_bytes_per_s": 1e15, "int8_ops_per_s": 1.0}}))
    second = measured()
    assert second["read_bytes_per_s"] == 1e15 and second["int8_ops_per_s"] > 1e6


def translation(element):
    return tuple(map(float, re.match(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform")).groups()))


@pytest.fixture(scope="module")
def bench(ridge, model, tmp_path_factory):
    """(JSON, root of the picture): one run, with a name that has to be escaped."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "a&b<c>\x01.gguf").symlink_to(model("smollm2-135m"))
    out = ridge.json("bench", folder / "a&b<c>\x01.gguf", *QUICK, "--batch", "1,3", "--json", "--profile",
                     "--svg", folder / "roof.svg")
    return out, ElementTree.parse(folder / "roof.svg").getroot()


def test_every_operation_is_a_dot_at_its_place(bench):
    out, root = bench
    x, y = axis(root, "x-tick", "x"), axis(root, "y-tick", "y")
    dots = {(int(d.get("data-series")), d.find(f"{SVG}title").text.split(": ", 1)[1].split("\n")[0]): d
            for d in with_class(root, "dot")}
    expected = {(i, row["operation"]): row for i, result in enumerate(out["results"])
                for row in result["profile"] if row["flops"] > 0}
    assert len(out["results"]) == 3 and dots.keys() == expected.keys()
    assert len(dots) == len(with_class(root, "dot"))
    for key, row in expected.items():
        at_x, at_y = translation(dots[key])
        assert abs(at_x - x(row["flops"] / row["bytes"])) < 0.5, key
        assert abs(at_y - (y(row["flops"] / row["seconds"]) - 4)) < 0.5, key  # a tick's text hangs 4 below its line
        assert (dots[key].find(f"{SVG}circle") is not None) == (row["unit"] == "int8"), key


def test_area_is_the_share_of_the_time(bench):
    out, root = bench
    sizes = {}
    for d in with_class(root, "dot"):
        circle = d.find(f"{SVG}circle")
        name = d.find(f"{SVG}title").text.split(": ", 1)[1].split("\n")[0]
        if circle is not None and float(circle.get("r")) > 2.5:  # the least, to be seen at all
            sizes[int(d.get("data-series")), name] = float(circle.get("r"))**2
    shares = {(i, r["operation"]): r["share"] for i, result in enumerate(out["results"]) for r in result["profile"]}
    assert sizes
    for key, size in sizes.items():
        assert size == pytest.approx(400 * shares[key], rel=0.05)


def test_of_roof_of_a_phase_is_that_of_its_operations(bench):
    out, _ = bench
    for result in out["results"]:
        peaks = {"int8": result["peak_int8_ops_per_s"], "f32": result["peak_f32_flops_per_s"]}
        rows = result["profile"]
        least = sum(max(row["flops"] / peaks[row["unit"]], row["bytes"] / result["peak_read_bytes_per_s"]) for row in rows)
        assert result["of_roof"] == pytest.approx(least / sum(row["seconds"] for row in rows), rel=1e-6)


def test_each_result_has_the_peaks_of_its_own_run(bench):
    out, _ = bench
    names = [f"peak_{what}_per_s" for what in ("read_bytes", "int8_ops", "f32_flops")]
    measured = [tuple(r[name] for name in names) for r in out["results"]]
    assert len(set(measured)) == len(measured) == 3
    for r in out["results"]:
        assert r["mbu"] == pytest.approx(r["bytes_per_s"] / r["peak_read_bytes_per_s"], rel=1e-6)
        assert r["mfu"] == pytest.approx(r["flops_per_s"] / r["peak_int8_ops_per_s"], rel=1e-6)
        for name in names:
            assert 1 / 20 < r[name] / out["machine"][name] < 20


def test_table_has_the_peaks_that_its_parts_are_of(ridge, model):
    lines = ridge.text("bench", model("smollm2-135m"), *QUICK).splitlines()
    assert lines[0].endswith("at best")
    head = lines[1].split()
    for line in lines[2:]:
        row = line.split()
        assert len(row) == len(head) == 10
        gbytes, bandwidth, mbu, gflops, peak, mfu = (float(x.rstrip("%")) for x in row[3:9])
        assert mbu == pytest.approx(100 * gbytes / bandwidth, rel=0.05, abs=0.6 + 100 * 0.05 / bandwidth)
        assert mfu == pytest.approx(100 * gflops / peak, rel=0.05, abs=0.6)


def test_profile_ends_with_the_whole_phase(ridge, model):
    lines = ridge.text("bench", model("smollm2-135m"), *QUICK, "--profile").splitlines()
    phases = [i for i, line in enumerate(lines) if line.startswith(("prefill", "decode"))]
    ends = [lines[i - 1].split() for i in [*phases[1:], len(lines)]]
    assert len(ends) == 2 and all(end[0] == "100.0%" and end[-1] == "all" and len(end) == 3 for end in ends)


def test_roofs_and_ridges(bench):
    out, root = bench
    x, y = axis(root, "x-tick", "x"), axis(root, "y-tick", "y")
    highest = lambda name: max(result[name] for result in out["results"])
    peaks = {"int8": highest("peak_int8_ops_per_s"), "f32": highest("peak_f32_flops_per_s")}
    bandwidth = highest("peak_read_bytes_per_s")
    ridges = {e.get("data-unit"): (float(e.get("cx")), float(e.get("cy"))) for e in with_class(root, "ridge")}
    assert ridges.keys() == peaks.keys()
    for unit, peak in peaks.items():
        assert abs(ridges[unit][0] - x(peak / bandwidth)) < 0.5
        assert abs(ridges[unit][1] - (y(peak) - 4)) < 0.5
    slope, = with_class(root, "memory")
    for end in "12":  # every point of the slope is FLOPs per byte times the bandwidth
        at_x, at_y = float(slope.get("x" + end)), float(slope.get("y" + end))
        decades = (at_x - x(1)) / (x(10) - x(1))
        assert abs(at_y - (y(10**decades * bandwidth) - 4)) < 0.5


def test_it_says_what_and_where(bench):
    out, root = bench
    text = "\n".join(root.itertext())
    assert "a&b<c>\ufffd" in text and out["machine"]["cpu"] in text and "1 thread," in text
    assert out["machine"]["isa"] in text
    for name in ("prefill 16", "decode x1", "decode x3"):
        assert name in text
    assert "prefers-color-scheme:dark" in text


def test_picture_alone_prints_the_usual_table(ridge, model, tmp_path):
    out = ridge.text("bench", model("smollm2-135m"), *QUICK, "--svg", tmp_path / "roof.svg")
    assert len(out.splitlines()) == 4
    assert with_class(ElementTree.parse(tmp_path / "roof.svg").getroot(), "dot")


@pytest.mark.parametrize("path", ["no/such/folder/roof.svg", "/dev/full"])
def test_picture_that_cannot_be_written(ridge, model, path):
    assert path in ridge("bench", model("smollm2-135m"), *QUICK, "--svg", path, status=1).stderr.decode()


# --- what does not fit ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("args, says", [
    (["--prompt", 8192], "--prompt: 8192 tokens and an answer do not fit a context of 8192"),
    (["--prompt", 4 * 10**9], "do not fit a context of 8192"),
    (["--prompt", 8191, "--gen", 1], "decode of 1: a prompt of 8191"),
    (["--prompt", 16, "--gen", 2**64 - 1], "do not fit a context of 8192"),
    (["--prompt", 1000, "--batch", "1,32", "--kv-cache-memory-bytes", "300M"], "decode of 32: contexts of"),
])
def test_what_does_not_fit_is_said_at_once(ridge, model, args, says):
    assert says in ridge("bench", model("smollm2-135m"), *args, status=1, timeout=20).stderr.decode()


def test_prompt_that_just_fits(ridge, model):
    out = ridge.json("bench", model("smollm2-135m"), "--max-model-len", 64, "--prompt", 58, "--gen", 3, "--repeat", 1,
                     "--json")
    assert [r["tokens"] for r in out["results"]] == [58, 3]


# --- the products alone ---------------------------------------------------------------------------------------------

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "F16", "BF16", "F32"]
BITS = {"Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5,
        "Q5_K": 5.5, "Q6_K": 6.5625, "IQ4_NL": 4.5, "F16": 16, "BF16": 16, "F32": 32}


def test_kernels_of_every_type(ridge):
    out = ridge.json("bench", "--kernels", "--bytes", "1M", "--batch", "1,5", "--threads", 1, "--repeat", 2, "--json")
    assert [(r["type"], r["batch"]) for r in out["results"]] == [(t, b) for t in TYPES for b in (1, 5)]
    assert out["machine"]["threads"] == 1
    for r in out["results"]:
        assert r["bytes"] == r["matrices"] * r["rows"] * r["cols"] * BITS[r["type"]] / 8
        assert (1 << 20) * 3 / 4 < r["bytes"] <= 1 << 20
        assert r["flops"] == 2 * r["matrices"] * r["rows"] * r["cols"] * r["batch"]
        assert r["mbu"] == pytest.approx(r["bytes"] / r["seconds"] / r["peak_read_bytes_per_s"])
        assert r["mfu"] == pytest.approx(r["flops"] / r["seconds"] / r["peak_flops_per_s"])
        assert r["unit"] == ("f32" if r["type"] in ("F16", "BF16", "F32") else "int8")


def test_kernels_in_many_matrices(ridge):
    out = ridge.json("bench", "--kernels", "--bytes", "100M", "--batch", 1, "--threads", 2, "--repeat", 1, "--json")
    shapes = {r["type"]: (r["matrices"], r["rows"]) for r in out["results"]}
    assert shapes["Q2_K"][0] == 2 and shapes["F32"] == (1, 6400)


def test_kernels_as_a_table_and_less_than_a_panel(ridge):
    lines = ridge.text("bench", "--kernels", "--bytes", "1K", "--batch", "1,40", "--repeat", 1).splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [[t, b] for t in TYPES for b in ("1", "40")]


@pytest.mark.parametrize("args, status, says", [
    (["--svg", "x.svg"], 2, "--profile and --sampler are of a MODEL"),
    (["--profile"], 2, "are of a MODEL, not of --kernels"), (["--precise"], 2, "are of a MODEL, not of --kernels"),
    (["--bytes", "100000G"], 1, "bytes of memory are free"),
    (["--bytes", "16777215T"], 1, "bytes of memory are free"), (["--threads", "-1"], 2, "--threads: expected"),
])
def test_kernels_refuse(ridge, args, status, says):
    assert says in ridge("bench", "--kernels", *args, status=status).stderr.decode()
