"""bench/serving.py, bench/simulate.py and bench/speculation.py: their arithmetic, what is skipped, and a little for real;
a short bench/soak.py."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import serving  # noqa: E402
import simulate  # noqa: E402


def bench(ridge, *args, status=None):
    done = subprocess.run([sys.executable, ROOT / "bench" / "serving.py", *map(str, args)], capture_output=True, text=True,
                          timeout=300, env={"PATH": "/usr/bin:/bin", "RIDGE_BIN": ridge.path})
    assert status is None or done.returncode == status, done.stderr
    return done


def test_percentile():
    assert serving.percentile([4, 1, 3, 2], 0.5) == 2.5
    assert serving.percentile([7], 0.99) == 7
    assert serving.percentile(range(101), 0.99) == pytest.approx(99)


def stream(due_s, ttft_ms, *gaps):
    return {"due_s": due_s, "ttft_ms": ttft_ms, "itl_ms": list(gaps)}


def test_which_gaps_a_long_prompt_touches():
    """It comes at 100 ms, its first token at 150."""
    long = stream(0.1, 50, 1)
    lines = [stream(0, 60, 10, 10, 10, 10, 30, 30, 10, 10), stream(0.02, 70, 5, 50, 20), long]
    quiet, touched = serving.gaps_of(lines)
    assert quiet == [10, 5]  # while the second stream's prompt was computed the first one's gaps are neither
    assert touched == [30, 30, 50, 20]
    with pytest.raises(SystemExit, match="ended before"):
        serving.gaps_of([stream(0, 60, 10, 10, 10), long])


def test_what_cannot_be_measured_is_skipped(ridge, model):
    model("smollm2-135m")
    done = bench(ridge, "--bar", "5", "--json", model("smollm2-135m"), status=1)
    (result,) = json.loads(done.stdout)["results"]
    assert result["skipped"] == "no --llama-server"
    assert "expected a list such as 1,3" in bench(ridge, "--bar", "9", status=2).stderr


def test_prefix_reuse(ridge, model):
    done = bench(ridge, "--bar", "2", "--rounds", "1", "--requests", "3", "--json", model("smollm2-135m"))
    (result,) = json.loads(done.stdout)["results"]
    assert result["answers_equal"]
    assert result["kinds"]["on"]["cached"]["median"] > 0.5
    assert result["kinds"]["off"]["cached"]["median"] == 0


def test_a_short_soak(ridge, model):
    done = subprocess.run([sys.executable, ROOT / "bench" / "soak.py", "--requests", "20", "--classes", "6",
                           model("smollm2-135m")], capture_output=True, text=True, timeout=300,
                          env={"PATH": "/usr/bin:/bin", "RIDGE_BIN": ridge.path})
    result = json.loads(done.stdout)
    assert result["equal"] > 0 and result["equal"] + result["left"] == 20
    assert [name for name, held in result["checks"].items() if not held] in ([], ["it was tight"])


def test_speculation(ridge, model):
    done = subprocess.run([sys.executable, ROOT / "bench" / "speculation.py", "--prompts", "numbers,rename a field", "--pairs",
                           "2", "--tokens", "12", model("smollm2-135m")], capture_output=True, text=True, timeout=300,
                          env={"PATH": "/usr/bin:/bin", "RIDGE_BIN": ridge.path})
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    said = json.loads(last)
    assert [r["prompt"] for r in said["results"]] == ["numbers", "rename a field"] and len(table) == 4
    for r in said["results"]:
        assert r["answers_equal"] and r["least"] == 0.97
        assert r["ratio"]["min"] <= r["ratio"]["median"] <= r["ratio"]["max"] and r["plain"]["min"] > 0
    assert said["holds"] == all(r["ratio"]["median"] >= 0.97 for r in said["results"])


def test_simulated_over_measured():
    """Of ratios 1.2, 0.9 and 1.1 the median is within 15 %; of 1.2, 0.9 and 1.3 it isn't."""
    measured = {name: 10.0 for name in simulate.METRICS}
    rounds = [{"measured": measured, "simulated": {name: 20.0 for name in simulate.METRICS},
               "paced": {name: 10 * x for name in simulate.METRICS}} for x in (1.2, 0.9, 1.1)]
    rounds[2]["paced"]["TPOT p50, ms"] = 13.0
    result = simulate.compare(rounds)
    assert result["TTFT p50, ms"]["paced_ratio"] == pytest.approx({"median": 1.1, "min": 0.9, "max": 1.2})
    assert result["TTFT p50, ms"]["ratio"] == {"median": 2, "min": 2, "max": 2}
    assert result["TTFT p50, ms"]["holds"] and not result["TPOT p50, ms"]["holds"]


MACHINE = {"format": "ridge efficiency profile", "version": 1, "name": "here", "made": "by hand", "activations": 0,
           "machine": {"title": "A CPU", "flops_per_s": 2e11, "bytes_per_s": 1e10, "memory_bytes": 4e9},
           "kinds": {"linear": {"overhead_s": 1e-5}}}


def test_the_pace_of_a_run(ridge, model, tmp_path, monkeypatch):
    """A machine three times as slow is found again by the seconds of its steps, and simulated as it is."""
    monkeypatch.setattr(simulate.common, "BINARY", ridge.path)
    here, slow = tmp_path / "here.json", tmp_path / "slow.json"
    here.write_text(json.dumps(MACHINE))
    slow.write_text(json.dumps(simulate.slower(MACHINE, 3)))
    traffic = ("--rate", 1, "--input-len", 100, "--output-len", 20, "--num-requests", 10)
    path = str(model("smollm2-135m"))
    at_rest, measured = (simulate.simulate(path, p, *traffic) for p in (here, slow))
    assert measured["ttft_ms"]["p50"] > 2.5 * at_rest["ttft_ms"]["p50"]
    paced, factor = simulate.simulate_at_pace(path, here, simulate.busy_seconds(measured), traffic)
    assert factor == pytest.approx(3, rel=0.01)
    assert paced["tpot_ms"]["p90"] == pytest.approx(measured["tpot_ms"]["p90"], rel=0.02)


def test_a_short_simulation(ridge, model, tmp_path):
    """The same requests on both sides: as many tokens, and about as many steps, whatever they take."""
    profile = tmp_path / "here.json"
    profile.write_text(json.dumps(MACHINE))
    done = subprocess.run([sys.executable, ROOT / "bench" / "simulate.py", "--rounds", "1", "--profile", profile, "--seconds",
                           "1", "--load", "0.9", "--traffic", "poisson", "--json", model("smollm2-135m")],
                          capture_output=True, text=True,
                          timeout=300, env={"PATH": "/usr/bin:/bin", "RIDGE_BIN": ridge.path})
    assert done.returncode in (0, 1), done.stderr
    (result,) = json.loads(done.stdout)["results"]
    (r,) = result["rounds"]
    assert r["measured"]["output_tokens"] == r["simulated"]["output_tokens"] > 0
    assert r["busy"] == pytest.approx(0.9, abs=0.05)
    assert set(result["metrics"]) == set(simulate.METRICS)
