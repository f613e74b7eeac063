"""ridge plan --fit: a profile from measured times: what it prints, writes and refuses."""
import json

import pytest

SIZES = [2 ** n for n in range(11, 27)]
HEADER = "time_stats.send_recv.median,num_workers,devices_per_node,size\n"


def send_ms(size, link=0.5 * 450e9, latency_s=10e-6):
    return 1000 * (size / link + latency_s)


@pytest.fixture
def measurements(tmp_path):
    """Sends at half of an H100's link after 10 us, in a folder beside a file of another GPU."""
    rows = "".join(f"{send_ms(size):.9f},2,2,{size}\n" for size in SIZES)
    (tmp_path / "h100-send.csv").write_text(HEADER + rows)
    (tmp_path / "a100-send.csv").write_text("not read\n")
    return tmp_path


def test_profile_and_errors(ridge, measurements, tmp_path):
    profile = tmp_path / "profile.json"
    (send,) = ridge.json("plan", "--fit", "--gpu", "h100", "--test", "every-other", "--output", profile, "--json",
                         measurements)["operations"]
    assert send["name"] == "send"
    assert send["fitted"]["n"] == send["held_out"]["n"] == len(SIZES) // 2
    assert send["held_out"]["median"] < 0.02
    written = json.loads(profile.read_text())
    assert written["name"] == "h100"
    assert written["made"].startswith("ridge plan --fit --gpu h100 --test every-other ")
    numbers = written["kinds"]["send"]
    assert numbers["link"] == pytest.approx(0.5, rel=0.02)
    assert numbers["latency_s"] == pytest.approx(10e-6, rel=0.05)
    assert numbers["sharpness"] == pytest.approx(1, abs=0.05)
    assert written["kinds"]["norm"]["sharpness"] is None  # ideal: nothing measured it


def test_table(ridge, measurements):
    out = ridge.text("plan", "--fit", "--gpu", "h100", measurements / "h100-send.csv")
    assert out.splitlines()[-1].split()[:2] == ["send", "16"]


@pytest.mark.parametrize("args, error", [
    (["--gpu", "h101", "x.csv"], "'h101'"),
    (["--gpu", "h100", "x.csv"], "x.csv"),
    (["--gpu", "h100", "--test", "tp=2", "DIR"], "'tp=2' holds no measurement out"),
    (["--gpu", "h100", "--test", "send", "DIR"], "no measurement to fit on"),
    (["--gpu", "h100", "--base", "h101", "DIR"], "no efficiency profile 'h101'"),
    (["--gpu", "h100", "DIR/a100-send.csv"], "a100-send.csv:1: expected a header"),
    (["--gpu", "h100", "--output", "/nowhere/p.json", "DIR"], "/nowhere/p.json"),
    (["--gpu", "a100-80gb", "tests"], "tests: no file a100*.csv"),
])
def test_faults(ridge, measurements, args, error):
    args = [a.replace("DIR", str(measurements)) for a in args]
    assert error in ridge("plan", "--fit", *args, status=1).stderr.decode()


def test_usage(ridge, measurements):
    ridge("plan", "--fit", "--gpu", "h100", status=2)
    ridge("plan", "--fit", measurements, status=2)


def test_calibrate_faults(ridge, tmp_path):
    ridge("plan", "--calibrate", "x.gguf", "more", status=2)
    (tmp_path / "x.gguf").write_text("no model")
    assert "x.gguf" in ridge("plan", "--calibrate", tmp_path / "x.gguf", status=1).stderr.decode()
