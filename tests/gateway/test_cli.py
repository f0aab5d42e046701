"""The command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx2
import pytest

from gateway.cli import main
from supervisor.version import __version__
from tests.support.server import shared_server
from tests.support.terminal import CTRL_C, Terminal

PATIENCE_S = 30.0  # of a request; only a hang breaks it


def test_version(capsys):
    with pytest.raises(SystemExit) as info:
        main(["--version"])
    assert info.value.code == 0
    assert capsys.readouterr().out == f"ostler {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["serve", "--what"], ["serve", "here"], ["serve", "--port"], ["--port", "1"]]
)
def test_bad_usage_is_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as info:
        main(arguments)
    assert info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ostler")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--host", "a b"], ["--state", ""]])
def test_bad_values_are_one_line(capsys, arguments):
    assert main(["serve", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ostler: {arguments[0]}: ")
    assert captured.err.count("\n") == 1


HEAVY = {"trio", "trio_websocket", "cattrs", "quart", "hypercorn", "attr", "orjson"}


def imported_by(*arguments, **environment):
    """Which of the heavy packages a command has imported at its end."""
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(*({HEAVY} & sys.modules.keys()), file=sys.stderr))\n"
        "from gateway.cli import main\n"
        f"sys.exit(main({list(arguments)}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_help_import_nothing_heavy(argument):
    assert imported_by(argument) == set()


@pytest.mark.parametrize("command", ["ps", "status"])
def test_a_command_that_asks_once_imports_nothing_heavy(tmp_path, command):
    with shared_server(tmp_path) as server:
        assert imported_by(command, OSTLER_URL=server.url) == set()


def test_a_command_that_follows_would_be_noticed(tmp_path):
    with shared_server(tmp_path) as server:
        assert {"trio", "trio_websocket"} <= imported_by("run", "Hello!", OSTLER_URL=server.url)


def environment(home):
    kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
    return {**kept, "HOME": str(home)}


def start(tmp_path, *arguments, **more):
    command = [sys.executable, "-m", "gateway", "serve", "--state", str(tmp_path / "state"), *arguments]
    return subprocess.Popen(
        command,
        env=environment(tmp_path) | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_it_is_told_to_stop(tmp_path, number):
    with start(tmp_path, "--port", "0") as process:
        try:
            line = process.stdout.readline()
            match = re.fullmatch(r"Ostler is listening on (http://127\.0\.0\.1:\d+)\n", line)
            assert match, (line, process.stderr.read() if not line else "")
            assert httpx2.get(f"{match[1]}/ready", timeout=PATIENCE_S).json() == {"status": "ready"}
            assert httpx2.get(f"{match[1]}/api/settings", timeout=PATIENCE_S).status_code == 200
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
            assert process.stdout.read() == ""
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("form", "logged"), [("auto", False), ("lines", True)])
def test_a_person_is_told_what_to_do_next(tmp_path, form, logged):
    env = {**environment(tmp_path), "OSTLER_LOG": form}
    command = [sys.executable, "-m", "gateway", "serve", "--state", "state", "--port", "0"]
    with Terminal(command, env, tmp_path, columns=200) as terminal:
        terminal.wait_for("conversations stay.")
        said = terminal.text
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert "^C\nStopping ...\n" in f"{terminal.text}\n"
    lines = said.splitlines()[-4:] if logged else said.splitlines()
    assert re.fullmatch(r"Ostler is listening on http://127\.0\.0\.1:\d+", lines[0])
    assert lines[1] == f"Talk with an agent, in another terminal: ostler chat --state {tmp_path}/state"
    url = lines[0].rpartition(" ")[2]
    assert lines[2] == f"The console is at {url}/, the description of the interface at {url}/docs."
    assert len(lines) == 4
    assert ("containing agents" in said) is logged


def test_the_log_can_be_json(tmp_path):
    with start(tmp_path, "--port", "0", OSTLER_LOG="json") as process:
        try:
            assert process.stdout.readline().startswith("Ostler is listening")
            process.terminate()
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert out == ""
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert {"containing agents", "stopping"} <= set(events)


def test_a_port_in_use_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start(tmp_path, "--port", str(port)) as process:
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err == f"ostler: port {port} on 127.0.0.1 is in use; choose another one with --port\n"


def test_a_second_server_is_told_who_has_the_state_directory_rather_than_the_port(tmp_path):
    with start(tmp_path, "--port", "0") as first:
        try:
            url = first.stdout.readline().split()[-1]
            with start(tmp_path, "--port", url.rpartition(":")[2]) as second:
                out, err = second.communicate(timeout=60)
            pid = (tmp_path / "state" / "server.pid").read_text().strip()
        finally:
            first.terminate()
    assert (second.returncode, out) == (1, "")
    assert err == (
        f"ostler: the state directory {tmp_path}/state is in use by process {pid}, which serves at {url}; "
        "use that server, or end it, or name another directory with --state\n"
    )


def test_a_state_that_cannot_be_used_is_one_line(tmp_path):
    (tmp_path / "state").write_text("a file")
    with start(tmp_path, "--port", "0") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("ostler: ")
    assert err.count("\n") == 1


def test_two_servers_do_not_share_a_state(tmp_path):
    with start(tmp_path, "--port", "0") as first:
        try:
            assert first.stdout.readline().startswith("Ostler is listening")
            with start(tmp_path, "--port", "0") as second:
                out, err = second.communicate(timeout=60)
            assert (second.returncode, out) == (1, "")
            assert err.startswith("ostler: ")
            assert err.count("\n") == 1
        finally:
            first.terminate()
            first.wait(timeout=30)
