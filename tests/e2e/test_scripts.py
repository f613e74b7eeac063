"""The program's outermost shell: version, usage, exit statuses."""


def test_version(ridge):
    assert ridge.text("--version").startswith("ridge ")


def test_usage_errors_exit_2(ridge):
    for args in ([], ["no-such-command"]):
        done = ridge(*args, status=2)
        assert done.stdout == b"" and b"usage: ridge" in done.stderr
