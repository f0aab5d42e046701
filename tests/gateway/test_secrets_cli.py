"""`ostler secrets`, run against a gateway on a real port."""

from __future__ import annotations

import getpass
import io
import json
import os
import pty
import subprocess
import sys

import pytest
import trio

from gateway.cli import main
from gateway.cli.operate import secrets
from supervisor.credentials.secret import SECRET_NAME
from supervisor.credentials.store import SecretStore

VALUE = "sk-typed-by-a-person"
pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture
def stdin(monkeypatch):
    def put(data):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    put(b"")
    return put


@pytest.fixture
def ostler(capsys, server):
    """Runs `ostler secrets` in a thread beside the server; its status, output and errors."""

    async def run(*arguments):
        command = ("secrets", *arguments, "--url", server.url)
        status = await trio.to_thread.run_sync(main, command)
        captured = capsys.readouterr()
        assert VALUE not in captured.out + captured.err
        return status, captured.out, captured.err

    return run


def one_line(errors):
    assert errors.startswith("ostler: ")
    assert errors.count("\n") == 1
    return errors


async def test_which_credential_an_agent_would_use(ostler, server, tmp_path):
    store = server.services.secrets
    await store.set("OPENAI_API_KEY", VALUE)
    status, out, err = await ostler("check", "codex")
    assert (status, out) == (
        0,
        "AGENT  CREDENTIAL  NAME            SOURCE  BASE URL\ncodex  API key     OPENAI_API_KEY  store   -\n",
    )
    assert err == ""
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text('{"tokens": {"refresh_token": "r"}}')
    await store.set("OPENAI_BASE_URL", "http://url.example")
    status, out, err = await ostler("check", "codex")
    assert out.splitlines()[1].split() == [
        "codex", "login", str(tmp_path / ".codex" / "auth.json"), "machine", "OPENAI_BASE_URL",
    ]  # fmt: skip
    assert one_line(err).startswith("ostler: codex is not given OPENAI_API_KEY: a login takes priority")


async def test_without_a_credential_it_is_said_what_would_help(ostler):
    status, out, err = await ostler("check", "gemini-cli")
    assert (status, out.splitlines()[1].split()) == (0, ["gemini-cli", "none", "-", "-", "-"])
    assert "GEMINI_API_KEY" in one_line(err)


async def test_the_credentials_of_all_agents(ostler, server):
    await server.services.secrets.set("GROQ_API_KEY", VALUE)
    status, out, _ = await ostler("check")
    assert status == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(server.services.launcher.catalog)
    assert any(line.split()[:4] == ["opencode", "API", "key", "GROQ_API_KEY"] for line in out.splitlines())
    status, out, _ = await ostler("check", "--json")
    assert {each["agent"] for each in json.loads(out)["agents"]} == set(server.services.launcher.catalog)


async def test_an_agent_that_nobody_knows(ostler):
    status, out, err = await ostler("check", "nobody/../x?y")
    assert (status, out) == (1, "")
    assert "no agent" in one_line(err)


@pytest.mark.parametrize(
    ("given", "value"), [(VALUE, VALUE), (f"{VALUE}\n", VALUE), ("a\nb\r\n", "a\nb"), ("é\n\n", "é\n")]
)
async def test_a_value_is_read_from_stdin(ostler, server, stdin, given, value):
    stdin(given.encode())
    assert await ostler("set", "API_KEY", "--description", "for the model") == (0, "stored API_KEY\n", "")
    assert await server.services.secrets.get("API_KEY") == value
    (secret,) = await server.services.secrets.list()
    assert secret.description == "for the model"


async def test_a_value_is_asked_for_without_echo(ostler, server, stdin, monkeypatch):
    asked = []

    def ask(prompt):
        asked.append(prompt)
        return VALUE

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", ask)
    status, out, _ = await ostler("set", "API_KEY", "--json")
    assert (status, json.loads(out)) == (0, {"name": "API_KEY", "description": None})
    assert asked == ["Value of API_KEY: "]
    assert await server.services.secrets.get("API_KEY") == VALUE


async def test_a_terminal_does_not_show_what_is_typed(server):
    """The whole command on a terminal of its own."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "gateway", "secrets", "set", "API_KEY", "--url", server.url]
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True, close_fds=True
    )
    os.close(follower)
    shown = b""

    def read():
        try:
            return os.read(leader, 1000)
        except OSError:  # the command has ended
            return b""

    with process, trio.fail_after(20):
        while b"Value of API_KEY: " not in shown:
            shown += await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        os.write(leader, f"{VALUE}\n".encode())
        while piece := await trio.to_thread.run_sync(read, abandon_on_cancel=True):
            shown += piece
    os.close(leader)
    assert process.returncode == 0, shown
    assert b"stored API_KEY" in shown
    assert VALUE.encode() not in shown
    assert await server.services.secrets.get("API_KEY") == VALUE


@pytest.mark.parametrize("data", [b"", b"\n", b"  \n", b"a\0b", b"\xff", b"x" * 200_000])
async def test_a_value_that_cannot_be_stored(ostler, server, stdin, data):
    stdin(data)
    status, out, errors = await ostler("set", "API_KEY")
    assert (status, out) == (2, "")
    assert "value" in one_line(errors)
    assert await server.services.secrets.list() == []


@pytest.mark.parametrize("arguments", [("set",), ("unset",)])
@pytest.mark.parametrize("name", ["1A", "A-B", "A" * 65, f"API_KEY={VALUE}", ""])
async def test_a_bad_name_is_told_before_anything_is_asked(ostler, stdin, arguments, name):
    stdin(VALUE.encode())
    status, out, errors = await ostler(*arguments, name)
    assert (status, out) == (2, "")
    assert "name" in one_line(errors)
    assert sys.stdin.buffer.read() == VALUE.encode()


def test_names_are_judged_as_the_store_judges_them():
    assert secrets.NAME.pattern == SECRET_NAME.pattern


@pytest.mark.parametrize(
    "arguments",
    [["set", "A", VALUE], ["set", "A", "--description", "d", VALUE], ["set", VALUE, "--x", VALUE]],
)
def test_a_value_on_the_command_line_is_refused_and_not_repeated(capsys, arguments):
    with pytest.raises(SystemExit) as info:
        main(["secrets", *arguments])
    assert info.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert VALUE not in captured.out + captured.err


@pytest.mark.parametrize("arguments", [[], ["fly"], ["set"], ["unset"], ["list", "x"], ["rotate", "x"]])
def test_bad_usage(capsys, arguments):
    with pytest.raises(SystemExit) as info:
        main(["secrets", *arguments])
    assert info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
async def given(server, tmp_path):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "FILE").write_text(VALUE)
    (mounted / "not-a-name").write_text(VALUE)
    environ = {"OSTLER_SECRETS_DIR": str(mounted), "OSTLER_SECRET_VAR": VALUE}
    store = await SecretStore.open(tmp_path, environ)
    object.__setattr__(server.services, "secrets", store)
    return mounted


async def test_the_list(ostler, server, given):
    await server.services.secrets.set("FILE", VALUE, "an \x1b[31mimportant\x1b[0m one")
    status, out, errors = await ostler("list")
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "SOURCE", "WHERE", "DESCRIPTION"],
        ["FILE", "store", "-", "an", "important", "one"],
        ["VAR", "variable", "OSTLER_SECRET_VAR"],
    ]
    hidden, problem = errors.splitlines()
    assert hidden == f"ostler: FILE of {given / 'FILE'} is not used: the store takes precedence"
    assert str(given / "not-a-name") in problem
    status, out, errors = await ostler("list", "--json")
    assert (status, errors) == (0, "")
    assert [secret["name"] for secret in json.loads(out)["secrets"]] == ["FILE", "VAR"]


async def test_an_empty_list(ostler):
    assert await ostler("list") == (0, "no secrets\n", "")


async def test_a_secret_is_removed(ostler, server, given):
    await server.services.secrets.set("A", VALUE)
    await server.services.secrets.set("FILE", VALUE)
    assert await ostler("unset", "A") == (0, "removed A\n", "")
    status, out, errors = await ostler("unset", "A")
    assert (status, out) == (1, "")
    assert "no secret A" in one_line(errors)
    status, out, errors = await ostler("unset", "FILE")
    assert (status, out) == (0, "removed FILE\n")
    assert str(given / "FILE") in one_line(errors)
    status, out, errors = await ostler("unset", "VAR")
    assert status == 1
    assert "OSTLER_SECRET_VAR" in one_line(errors)
    await server.services.secrets.set("A", VALUE)
    status, out, _ = await ostler("unset", "A", "--json")
    assert (status, json.loads(out)) == (0, {"deleted": True})


async def test_rotation(ostler, server, tmp_path):
    await server.services.secrets.set("A", VALUE)
    path = str(tmp_path / "master.key")
    status, out, errors = await ostler("rotate")
    assert (status, errors) == (0, "")
    assert out == f"1 secret is encrypted under a new key, which is in {path}\n"
    status, out, _ = await ostler("rotate", "--json")
    assert (status, json.loads(out)) == (0, {"key": path, "before": path, "secrets": 1})


async def test_a_rotation_that_cannot_be(ostler, server, tmp_path):
    other = await SecretStore.open(tmp_path / "other", {"OSTLER_MASTER_KEY": VALUE})
    object.__setattr__(server.services, "secrets", other)
    status, out, errors = await ostler("rotate")
    assert (status, out) == (1, "")
    assert "OSTLER_PREVIOUS_MASTER_KEYS" in one_line(errors)
