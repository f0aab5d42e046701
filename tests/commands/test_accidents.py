"""Every command of the parser with accidents: a dead server, a dead registry, a full disk, Ctrl-C. None of
them prints a traceback."""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.cli.arguments import SECRETS
from gateway.cli.parser import build_parser
from gateway.cli.suggest import main_names, subparsers_of
from tests.commands.harness import Place
from tests.support.forked import Forks

DEAD = "http://127.0.0.1:1"
"""Port 1 has no server, and nobody can have one there by chance."""

WORDS = {
    "ID": "0f8f",
    "AGENT": "gemini-cli",
    "KEY": "acp_model",
    "VALUE": "m",
    "PROMPT": "hello",
    "SHELL": "bash",
}
"""What the arguments of these names are; others are a word."""

NAMES = {"agents": "gemini-cli", SECRETS: "OPENAI_API_KEY"}
"""NAME of these commands."""

MORE = {
    ("mcp", "add"): ["https://mcp.example"],
    ("conversations", "delete"): ["--yes"],
    ("conversations", "export"): ["--output", "file"],
}

BADLY_USED = 2

DEAD_NPM = """#!/bin/sh
echo 'npm error code ECONNREFUSED' >&2
echo 'npm error FetchError: request to http://r/x failed, reason: connect ECONNREFUSED 127.0.0.1:9' >&2
exit 1
"""


def leaves(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The commands, and their arguments."""
    below = subparsers_of(parser)
    if below is not None:
        for name in main_names(list(below.choices)):
            yield from leaves(below.choices[name], (*path, name))
        return
    words = []
    for action in parser._actions:
        if not action.option_strings and action.help != argparse.SUPPRESS:
            metavar = str(action.metavar)
            known = NAMES.get(path[0], "x") if metavar == "NAME" else WORDS.get(metavar, "x")
            words.append(str(next(iter(action.choices))) if action.choices else known)
    yield (*path, *words, *MORE.get(path[:2], ()))


COMMANDS = list(leaves(build_parser()))

commands = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture
def dead(place: Place) -> Place:
    """A place without a server, and with an npm whose registry is dead."""
    programs = place.directory / "programs"
    programs.mkdir()
    for name, text in (("npm", DEAD_NPM), ("node", "#!/bin/sh\necho v24.0.0\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    place.env |= {"PATH": f"{programs}:/usr/bin:/bin", "OSTLER_URL": DEAD}
    return place


def assert_told(command: Sequence[str], stderr: str) -> None:
    """What went wrong is one line, without traceback and without numbers of the system."""
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr
    assert "[Errno" not in stderr
    assert "bug of Ostler" not in stderr
    said = [line for line in stderr.splitlines() if line.startswith(("ostler: ", "ostler "))]
    assert len(said) <= 1 or command[0] in ("doctor", "mcp"), stderr


@commands
def test_a_dead_server_and_a_dead_registry(forks, dead, command):
    if command[0] == "serve":
        _serve_with_both_dead(dead)
        return
    done = forks.run([*command], dead.env, dead.work)
    assert_told(command, done.stderr)
    assert done.returncode in (0, 1, BADLY_USED, 3)
    parsed = build_parser().parse_args([*command])
    if parsed.remote and command[:2] != (SECRETS, "set"):  # which misses its value first
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert "no server at http://127.0.0.1:1" in done.stderr
    if command[:2] == ("agents", "install"):
        assert done.returncode == 1
        assert "npm cannot reach its registry (connect ECONNREFUSED" in done.stderr


def _serve_with_both_dead(dead):
    """It needs neither: it serves, and says of an agent that there is no registry, to the client."""
    with dead.going_on("serve", "--port", "0", OSTLER_SECRET_GEMINI_API_KEY="no-real-key-0123") as process:
        url = process.stdout.readline().split()[-1]
        done = dead.process("run", "--agent", "gemini-cli", "hi", OSTLER_URL=url)
        assert done.returncode == 1
        assert "npm cannot reach its registry (connect ECONNREFUSED" in done.stderr
        process.terminate()
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert_told(("serve",), said)


@commands
def test_a_full_disk(forks, dead, command):
    done = forks.run([*command], dead.env, dead.work, "full disk")
    assert_told(command, done.stderr)
    assert done.returncode in (0, 1, BADLY_USED, 3)


@commands
def test_ctrl_c(forks, dead, command):
    done = forks.run([*command], dead.env, dead.work, "Ctrl-C")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# -- what is wrong, by its name


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["run", "hello"]])
@pytest.mark.parametrize(
    ("state", "reason"), [("/proc/x", "No such file or directory"), ("{file}", "Not a directory")]
)
def test_a_state_directory_that_cannot_be(forks, place, command, state, reason):
    file = place.directory / "file"
    file.write_text("")
    state = state.format(file=file)
    done = forks.run([*command, "--state", state], place.env, place.work)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"ostler: the state directory {state} cannot be used: {reason}; name another one with --state\n"
    )


def test_a_locked_state_directory_names_who_has_it(forks, served):
    state = str(served.server.state)
    done = forks.run(["serve", "--port", "0", "--state", state], served.env, served.work)
    pid = (served.server.state / "server.pid").read_text().strip()
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        f"ostler: the state directory {state} is in use by process {pid}, which serves at "
        f"{served.server.url}; use that server, or end it, or name another directory with --state",
    )


def test_what_is_wrong_has_its_name(served, place):
    done = place.run("ps", OSTLER_PORT="x")
    assert (done.returncode, done.stderr) == (
        2,
        "ostler: OSTLER_PORT: 'x' is not a port number; give one from 0 to 65535\n",
    )
    done = served.run("conversations", "list", "--status", "bad")
    assert done.returncode == 2
    assert done.stderr.startswith("ostler: --status must be 'idle'")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("settings set acp_prompt_timeout abc", "acp_prompt_timeout must be a number"),
        ("settings set acp_prompt_timeout -- -1", "acp_prompt_timeout must be greater than 0"),
        ("settings set acp_env x", "acp_env must be a JSON object"),
        ("settings set mcp_config {", "mcp_config must be a JSON object"),
        ("settings set foo 1", "there is no setting 'foo' (`ostler settings get` shows them)"),
        ("settings get foo", "there is no setting 'foo' (`ostler settings get` shows them)"),
        ("settings set acp_server nonsense", "acp_server: there is no agent 'nonsense'"),
        ("run --agent nonsense hello", "there is no agent 'nonsense'"),
        ("run --mode plan hello", "unrecognized arguments: --mode; did you mean --model?"),
        ("secrets unset NOPE", "there is no secret NOPE; `ostler secrets list` shows them"),
        ("mcp remove nope", "there is no MCP server nope (`ostler mcp list` shows them)"),
        ("agents probe nope", "there is neither an agent nor a program 'nope' (`ostler agents list` shows"),
    ],
)
def test_what_was_named_wrongly_and_where_the_right_names_are(served, command, message):
    done = served.run(*command.split())
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"ostler: {message}"), done.stderr


def test_another_server_at_the_address(place):
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"

        def answer():
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        thread = threading.Thread(target=answer)
        thread.start()
        done = place.run("ps", "--url", url)
        thread.join()
    assert done.stderr == (
        f"ostler: {url} answers, but is not an Ostler server (status 200); check --url and OSTLER_URL\n"
    )
    assert done.returncode == 3


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    """The address of a server that answers every request with an empty object."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815 - the base class looks for these

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{other.server_address[1]}"
        other.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "command",
    [
        "ps", "run hi", "run --detach hi", "settings get", "conversations list", "secrets list", "status",
        "stop", "wait 0f8f", "wait", "approve", "events 0f8f", "logs", "restart --all",
    ],
)  # fmt: skip
def test_the_answers_of_another_program_are_no_bug(place, stranger, command):
    done = place.run(*command.split(), "--url", stranger)
    assert (done.returncode, done.stderr) == (
        3,
        f"ostler: {stranger} answers, but is not an Ostler server; check --url and OSTLER_URL\n",
    )


@pytest.mark.parametrize(
    ("program", "mode", "said"),
    [
        ("no-such-program", None, "No such file or directory. Correct the agent's command"),
        ("plain", 0o600, "Permission denied. Correct the agent's command"),
        ("plain", 0o700, "Exec format error. Correct the agent's command"),
        ("/bin/cat", None, "Is its command that of an ACP agent? Some speak ACP only with an argument"),
    ],
)
def test_a_command_that_is_no_agent(served, tmp_path, program, mode, said):
    if mode is not None:
        program = tmp_path / program
        program.write_text("plain")
        program.chmod(mode)
    done = served.run("settings", "set", "acp_command", json.dumps([str(program)]))
    assert done.returncode == 0, done.stderr
    done = served.run("run", "hello")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Errno" not in done.stderr


def test_a_journal_that_is_none(forks, place):
    state = place.directory / "damaged"
    state.mkdir(mode=0o700)
    (state / "journal.sqlite3").write_text("junk\n" * 2000)
    done = forks.run(["serve", "--port", "0", "--state", str(state)], place.env, place.work)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ostler: cannot open the journal {state}/journal.sqlite3: file is not a database. Mend it, restore "
        "it from a backup, or name another state directory with --state"
    )


def test_a_probe_tells_a_person_no_codes(place):
    done = place.run("agents", "probe", "--", "/bin/cat")
    assert "Method not found: initialize" in done.stdout
    assert "-32601" not in done.stdout
