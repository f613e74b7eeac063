"""Fixtures of the end-to-end tests: the program, the models, the golden files, a running server.

Nothing here builds or fetches: scripts/test does that first. What is absent (a model that could not be
fetched, ../shared) makes the tests that need it skip, saying so.

    RIDGE_BIN      the program under test; default build/release/ridge
    RIDGE_HOME     the model cache; default ~/.cache/ridge
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED = ROOT.parent / "shared"
BINARY = pathlib.Path(os.environ.get("RIDGE_BIN") or ROOT / "build" / "release" / "ridge")
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")


def model_cache():
    home = os.environ.get("RIDGE_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".cache" / "ridge") / "models"


def model_path(name):
    """The path of a cached model, as str; skips the test where it is not in the cache."""
    path = model_cache() / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"model {name} is not in the cache: scripts/get-model {name}")
    return str(path)


def text_boxes(svg):
    """Around each text of a picture, by its anchor, at 7 pixels a letter of 12 and 9 of the title's."""
    found = []
    for e in svg.findall("{*}text"):
        x, y, classes = float(e.get("x")), float(e.get("y")), (e.get("class") or "").split()
        width = len(e.text) * (9 if "title" in classes else 7)
        left = x - width if "end" in classes else x - width / 2 if "middle" in classes else x
        found.append((e.text, left, left + width, y - 10, y + 2))
    return found


class Ridge:
    """Runs the program once per call, from the root of the checkout."""

    def __init__(self, binary):
        self.path = str(binary)

    def __call__(self, *args, stdin=b"", status=0, timeout=300, env=None):
        """The finished process, stdout and stderr as bytes; fails the test on another exit status.

        stdin is bytes or str; status None accepts any; env adds to the environment.
        """
        done = subprocess.run([self.path, *map(str, args)], cwd=ROOT, timeout=timeout, capture_output=True,
                              input=stdin.encode() if isinstance(stdin, str) else stdin,
                              env={**os.environ, **(env or {})})
        if status is not None and done.returncode != status:
            pytest.fail(f"ridge {' '.join(map(str, args))}: exit {done.returncode}, expected {status}\n"
                        f"{done.stderr.decode(errors='replace')[-2000:]}")
        return done

    def text(self, *args, **kw):
        return self(*args, **kw).stdout.decode("utf-8")

    def json(self, *args, **kw):
        return json.loads(self(*args, **kw).stdout)

    def jsonl(self, *args, lines=(), **kw):
        """One process for all `lines` (JSON values); the output documents in order."""
        stdin = "".join(json.dumps(line) + "\n" for line in lines)
        out = self(*args, "--jsonl", stdin=stdin, **kw).stdout.decode("utf-8")
        return [json.loads(line) for line in out.split("\n") if line]


class Server:
    """A running `ridge serve`; `url` has no trailing slash. stop() sends SIGTERM and returns the exit status."""

    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log
        self.url = f"http://127.0.0.1:{port}"

    def request(self, path, body=None, timeout=120, method=None, headers=None):
        """(status, body bytes): GET without a body, else POST of JSON (dict, list) or of raw bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        head = {"Content-Type": "application/json", **(headers or {})}
        req = urllib.request.Request(self.url + path, data=data, headers=head, method=method)
        try:
            with urllib.request.urlopen(req, timeout=timeout) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path, body=None, status=200, **kw):
        got, text = self.request(path, body, **kw)
        assert got == status, f"{path}: HTTP {got}, expected {status}: {text[:500]!r}"
        return json.loads(text)

    def stderr(self):
        return self.log.read_text(errors="replace")

    def stop(self, sig=signal.SIGTERM, timeout=30):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(timeout)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_healthy(server, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"ridge serve ended with {server.process.returncode}\n{server.stderr()[-2000:]}")
        with contextlib.suppress(OSError):
            if server.request("/health", timeout=5)[0] == 200:
                return
        time.sleep(0.05)
    pytest.fail(f"ridge serve: not healthy after {seconds} s\n{server.stderr()[-2000:]}")


@pytest.fixture(scope="session")
def ridge():
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not built: cmake --preset release && ninja -C build/release")
    return Ridge(BINARY)


@pytest.fixture(scope="session")
def model():
    """model("smollm2-135m"): its path, or the test skips."""
    return model_path


@pytest.fixture(scope="session", params=MODELS)
def each_model(request):
    """(short name, path): the test runs once per model."""
    return request.param, model_path(request.param)


@pytest.fixture(scope="session")
def shared():
    """The folder ../shared, or the test skips."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("../shared is absent")
    return SHARED


@pytest.fixture(scope="session")
def golden(shared):
    """golden("logits-gemma3-270m.json"): the parsed file."""
    return lambda name: json.loads((shared / "golden" / name).read_text(encoding="utf-8"))


@contextlib.contextmanager
def running_server(ridge, log, model, *flags, seconds=120, env=None):
    port = free_port()
    with open(log, "wb") as out:
        process = subprocess.Popen([ridge.path, "serve", model, "--port", str(port), *map(str, flags)], cwd=ROOT,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   env={**os.environ, **(env or {})})
    server = Server(process, port, log)
    try:
        wait_healthy(server, seconds)
        yield server
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.stop(timeout=10)
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def serve(ridge, tmp_path):
    """serve(MODEL, FLAG, ...): a server of its own for one test, healthy when returned, ended with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda model, *flags, **kw: stack.enter_context(
            running_server(ridge, tmp_path / f"server-{free_port()}.log", model, *flags, **kw))


@pytest.fixture(scope="session")
def server(ridge, tmp_path_factory):
    """One server of the default model for all tests that need no flags of their own."""
    with running_server(ridge, tmp_path_factory.mktemp("server") / "log", model_path("smollm2-135m")) as s:
        yield s
