"""Shared by the scripts of bench/: the program, the model cache, tables."""
import json
import os
import pathlib
import resource
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT.parent / "shared" / "golden"
BINARY = os.environ.get("RIDGE_BIN") or str(ROOT / "build" / "release" / "ridge")
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")


def model_path(name):
    """A file as it is, else a model of the cache by its short name."""
    if os.path.exists(name):
        return name
    home = pathlib.Path(os.environ.get("RIDGE_HOME") or pathlib.Path.home() / ".cache" / "ridge")
    path = home / "models" / f"{name}.gguf"
    if not path.exists():
        raise SystemExit(f"no model {name}: scripts/get-model {name}")
    return str(path)


def short_name(path):
    return pathlib.Path(path).name.removesuffix(".gguf")


def run(command, **kw):
    """What came of a command; ends the program where it cannot be started or has no end within `timeout` seconds."""
    command = list(map(str, command))
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", **kw)
    except OSError as error:
        raise SystemExit(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired as late:
        raise SystemExit(f"{' '.join(command)}: no end within {late.timeout:g} s") from None


def fail(done):
    """Ends the program with what a command that failed said."""
    raise SystemExit(f"{' '.join(done.args)}: exit {done.returncode}\n{done.stderr[-2000:]}")


def json_of(done, use):
    """use(the JSON that a command printed); ends the program where that cannot be."""
    try:
        return use(json.loads(done.stdout))
    except (ValueError, LookupError, TypeError):
        raise SystemExit(f"{' '.join(done.args)}: unexpected output: {done.stdout[:200]!r}") from None


def run_json(command, use=lambda out: out, **kw):
    """use(the JSON that a command prints); ends the program with the command's stderr where it fails."""
    done = run(command, **kw)
    if done.returncode != 0:
        fail(done)
    return json_of(done, use)


def taken_seconds():
    """Of all processors, since they were started: by programs, and by the host of a virtual machine."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    """Of this script's ended children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def print_table(head, rows):
    """GitHub's tables, as the pages in docs/ use them."""
    cells = [list(map(str, row)) for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    cells.insert(1, ["-" * w for w in widths])
    for row in cells:
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |")
