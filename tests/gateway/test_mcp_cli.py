"""`ostler mcp`: every row of its table, and everything that can be wrong with one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.inside import run_inside

SECRET = "s3cr3t-value-of-a-header"


@attrs.frozen
class Ran:
    status: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The one line of a failure."""
        assert self.out == ""
        assert self.err.startswith("ostler")
        assert self.err.count("\n") == 1, self.err
        return self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@attrs.define
class Machine:
    state: Path

    @property
    def file(self) -> Path:
        return self.state / "mcp.json"

    @property
    def servers(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())["mcpServers"]

    def write(self, servers: Any, **more: Any) -> None:
        self.state.mkdir(exist_ok=True)
        self.file.write_text(json.dumps({"mcpServers": servers, **more}))

    def __call__(self, *arguments: str, **variables: str) -> Ran:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.state.parent),
            "OSTLER_STATE": str(self.state),
            **variables,
        }
        done = run_inside(("mcp", *arguments), environment)
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def mcp(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


def test_add_list_get_disable_enable_remove(mcp: Machine) -> None:
    done = mcp(
        "add", "files", "--transport", "stdio", "--env", "KEY=a=b", "npx", "--", "-y", "pkg", "--", "--env"
    )
    assert (done.status, done.err) == (0, "")
    assert "files" in done.out
    assert mcp.servers == {
        "files": {
            "command": "npx",
            "args": ["-y", "pkg", "--", "--env"],
            "env": {"KEY": "a=b"},
            "enabled": True,
        }
    }
    assert stat.S_IMODE(mcp.file.stat().st_mode) == 0o600
    assert mcp(
        "add", "web", "https://mcp.example/x", "--transport", "http",
        "--header", f"Authorization: Bearer {SECRET}",
        "--header", "X-Key:  v:1 ", "--disabled",
    ).status == 0  # fmt: skip
    assert mcp.servers["web"] == {
        "transport": "http",
        "url": "https://mcp.example/x",
        "headers": {"Authorization": f"Bearer {SECRET}", "X-Key": "v:1"},
        "enabled": False,
    }
    assert mcp("add", "--transport", "sse", "--enabled", "old", "http://127.0.0.1:1/sse").status == 0
    assert mcp.servers["old"] == {"transport": "sse", "url": "http://127.0.0.1:1/sse", "enabled": True}

    listed = mcp("list")
    assert listed.status == 0
    assert [line.split()[:4] for line in listed.out.splitlines()] == [
        ["NAME", "STATE", "TRANSPORT", "SOURCE"],
        ["files", "enabled", "stdio", "file"],
        ["web", "disabled", "http", "file"],
        ["old", "enabled", "sse", "file"],
    ]
    shown = mcp("get", "web")
    assert shown.status == 0
    assert "Authorization: **********" in shown.out
    assert SECRET not in listed.out + shown.out
    assert SECRET not in mcp("get", "web", "--json").out + mcp("list", "--json").out
    assert f"Authorization: Bearer {SECRET}" in mcp("get", "web", "--show-secrets").out
    assert mcp("get", "web", "--show-secrets", "--json").json["entry"] == mcp.servers["web"]

    assert mcp("enable", "web").status == 0
    assert mcp.servers["web"]["enabled"] is True
    assert "already" in mcp("enable", "web").out
    assert mcp("disable", "files").status == 0
    assert mcp.servers["files"]["enabled"] is False
    assert mcp("remove", "web").status == 0
    assert list(mcp.servers) == ["files", "old"]


def test_oauth_is_an_authentication_method(mcp: Machine) -> None:
    done = mcp("add", "web", "--transport", "http", "https://mcp.example/x", "--auth", "oauth")
    assert done.status == 0
    assert mcp.servers["web"]["auth"] == "oauth"
    assert "ostler mcp login web" in done.err


def test_an_empty_machine(mcp: Machine) -> None:
    done = mcp("list")
    assert (done.status, done.out, done.err) == (0, "no MCP servers\n", "")
    assert mcp("list", "--json").json == {"path": str(mcp.file), "servers": [], "problems": []}
    assert not mcp.state.exists()


def test_where_the_file_is(mcp: Machine, tmp_path: Path) -> None:
    assert mcp("add", "a", "--transport", "stdio", "c", OSTLER_STATE="").status == 0
    assert (tmp_path / ".ostler" / "mcp.json").exists()
    assert mcp("add", "a", "--transport", "stdio", "c", "--state", str(tmp_path / "other")).status == 0
    assert (tmp_path / "other" / "mcp.json").exists()
    assert not mcp.state.exists()


def test_json_for_programs(mcp: Machine) -> None:
    added = mcp("add", "a", "--transport", "stdio", "c", "--env", f"K={SECRET}", "--json").json
    assert added == {
        "name": "a",
        "source": "file",
        "enabled": True,
        "transport": "stdio",
        "hidden": False,
        "problem": None,
        "entry": {"command": "c", "args": [], "env": {"K": "**********"}, "enabled": True},
    }
    assert mcp("disable", "a", "--json").json == {"name": "a", "enabled": False}
    assert mcp("remove", "a", "--json").json == {"name": "a", "removed": True}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add"], ["NAME"]),
        (["add", "a"], ["TARGET", "URL", "ostler mcp add a -- npx"]),
        (["add", "a", "--"], ["TARGET", "URL"]),
        (["add", "https://x/mcp"], ["NAME", "a name stands before the URL"]),
        (["add", "B=s3", "a", "--", "c"], ["NAME", "--env takes one KEY=value"]),
        (["add", "a", "wss://x/mcp"], ["TARGET", "https://"]),
        (["add", "a", "https://x", "-e", "A=b"], ["--env", "stdio", "--header"]),
        (["add", "a", "-H", "A: b", "--", "npx"], ["http and sse", "--env"]),
        (["add", "a", "-s", "local", "--", "npx"], ["--scope local", "leave --scope out"]),
        (["add", "a", "--scope", "project", "--", "npx"], ["--scope project", "ostler mcp import"]),
        (["add", "a", "--scope", "moon", "--", "npx"], ["--scope", "user"]),
        (["add", "a", "https://x", "--client-id", "y"], ["--client-id", "add-json"]),
        (["add", "a", "https://x", "--callback-port", "8080"], ["--callback-port", "free port"]),
        (["add-json", "a"], ["JSON"]),
        (["add-json", "a", "{command:", "npx}"], ["JSON must be one argument", "single quotes"]),
        (["add-json", "a", "{command: npx}"], ["JSON: it is not valid", "single quotes"]),
        (["add-json", "a", "[]"], ["JSON: it is not an object"]),
        (["add-json", "a", "{}"], ["JSON: ", "command"]),
        (["add-json", "a", '{"mcpServers": {}}'], ["the object of one server"]),
        (["add-json", "a", '{"url": "https://x", "type": "pigeon"}'], ["JSON: transport"]),
        (["add-json", "a", '{"command": "c", "args": ["${command:x}"]}'], ["its own client knows"]),
        (["add-json", "a", '{"command": "${C}"}'], ["command or cwd"]),
        (["add-json", "a", '{"command": "c", "env": {"K": ""}}'], ["env.K", "single quotes"]),
        (["add-json", "a", '{"url": "https://x?key="}'], ["url", "single quotes"]),
        (
            ["add-json", "a", '{"url": "https://x", "headers": {"Authorization": "Bearer "}}'],
            ["headers.Authorization", "single quotes"],
        ),
        (["add", "a", "--transport"], ["--transport"]),
        (["add", "a", "--transport", "pigeon", "c"], ["--transport", "pigeon", "http, sse, stdio"]),
        (["add", "a", "--transport", "stdio"], ["TARGET", "command"]),
        (["add", "a", "--transport", "http"], ["TARGET", "URL"]),
        (["add", "a", "--transport", "http", "npx"], ["TARGET", "URL"]),
        (["add", "a", "--transport", "http", "ftp://x"], ["TARGET", "URL"]),
        (["add", "a", "--transport", "http", "http://"], ["TARGET", "URL"]),
        (["add", "a", "--transport", "http", "http://x:99999/"], ["TARGET", "URL"]),
        (["add", "a", "--transport", "sse", "http://x/a b"], ["TARGET", "white space"]),
        (["add", "a", "--transport", "stdio", "https://x"], ["TARGET", "stdio", "http or sse"]),
        (["add", "a", "--transport", "http", "http://x", "--env", "A=b"], ["--env", "stdio", "--header"]),
        (["add", "a", "--transport", "sse", "http://x", "--env", "A=b"], ["--env", "stdio"]),
        (["add", "a", "--transport", "stdio", "c", "--header", "A: b"], ["http and sse", "--env"]),
        (["add", "a", "--transport", "stdio", "c", "--auth", "oauth"], ["--auth", "http and sse"]),
        (["add", "a", "--transport", "http", "http://x", "--", "y"], ["--", "stdio"]),
        (["add", "a", "--transport", "http", "http://x", "--auth", "magic"], ["--auth", "magic", "oauth"]),
        (
            ["add", "a", "--transport", "http", "http://x", "--auth", "oauth",
             "--header", "authorization: x"],
            ["--auth", "--header", "exclude"],
        ),
        (["add", "a", "--transport", "stdio", "c", "--enabled", "--disabled"], ["--enabled", "--disabled"]),
        (["add", "a", "--transport", "stdio", "c", "-y"], ["-y", "--"]),
        (["add", "a", "--transport", "stdio", "c", "pkg"], ["pkg", "after --"]),
        (["add", "a", "--transport", "http", "http://x", "--header", "nocolon"], ["--header", "Key: Value"]),
        (["add", "a", "--transport", "http", "http://x", "--header", "a b: c"], ["--header", "Key: Value"]),
        (["add", "a", "--transport", "sse", "http://x", "--header", "A: b\r\nC: d"], ["--header", "control"]),
        (
            ["add", "a", "--transport", "http", "http://x", "--header", "A: b", "--header", "a: c"],
            ["--header", "twice"],
        ),
        (
            ["add", "a", "--transport", "http", "http://x", "--header", "Authorization: Bearer "],
            ["--header Authorization", "single quotes", "${NAME}"],
        ),
        (["add", "a", "--transport", "http", "http://x", "--header", "X-Key:"], ["X-Key", "single quotes"]),
        (["add", "a", "--transport", "stdio", "c", "--env", "KEY="], ["--env KEY", "single quotes"]),
        (["add", "a", "http://x", "--header", "Authorization: ApiKey "], ["Authorization", "single quotes"]),
        (["add", "a", "http://x", "--header", "Authorization: Own "], ["Authorization", "single quotes"]),
        (["add", "a", "http://x", "--header", "Authorization: Token token="], ["single quotes"]),
        (["add", "a", "http://x/?key="], ["TARGET: key", "single quotes"]),
        (["add", "a", "http://x/?a=b&k="], ["TARGET: k ", "single quotes"]),
        (["add", "a", "http://u:@x/"], ["TARGET", "password", "single quotes"]),
        (["add", "a", "http://x//mcp"], ["TARGET", "path", "single quotes"]),
        (["add", "a", "http://.x.example/mcp"], ["TARGET", "host", "single quotes"]),
        (["add", "a", "-e", "URL=https://u:@h", "--", "c"], ["--env URL", "single quotes"]),
        (["add", "a", "-e", "DSN=Server=h;Password=;", "--", "c"], ["--env DSN", "single quotes"]),
        (["add", "a", "-e", 'H={"Authorization": "Bearer "}', "--", "c"], ["--env H", "single quotes"]),
        (["add", "a", "--", "c", "--header", "Authorization: Bearer "], ["argument 2", "single quotes"]),
        (["add", "a", "--", "c", "--api-key="], ["argument 1", "single quotes"]),
        (["add", "a", "--", "c", "--token", ""], ["argument 2", "empty", "single quotes"]),
        (["add", "a", "--transport", "stdio", "c", "--env", "noequals"], ["--env", "KEY=value"]),
        (["add", "a", "--transport", "stdio", "c", "--env", "1A=b"], ["--env", "KEY=value"]),
        (["add", "a", "--transport", "stdio", "c", "--env", "A=b", "--env", "A=c"], ["--env", "twice"]),
        (["add", "a b", "--transport", "stdio", "c"], ["NAME", "64"]),
        (["add", "../a", "--transport", "stdio", "c"], ["NAME", "64"]),
        (["add", "a", "--transport", "stdio", "c", "--state", " "], ["--state"]),
        ([], ["ACTION"]),
        (["fly"], ["fly"]),
        (["list", "a"], ["a"]),
        (["list", "--", "a"], ["--"]),
        (["get"], ["NAME"]),
        (["get", "a", "b"], ["b"]),
        (["remove"], ["NAME"]),
        (["enable"], ["NAME"]),
        (["disable", "a", "--what"], ["--what"]),
        (["test"], ["NAME"]),
        (["test", "a", "--timeout", "0"], ["--timeout"]),
        (["login"], ["NAME"]),
        (["logout"], ["NAME"]),
    ],
)  # fmt: skip
def test_called_wrongly(mcp: Machine, arguments: list[str], words: list[str]) -> None:
    done = mcp(*arguments)
    assert done.status == 2, done
    for word in words:
        assert word in done.reason
    assert not mcp.file.exists()


def test_a_wrong_call_repeats_no_value(mcp: Machine) -> None:
    for bad in (["--header", SECRET], ["--header", f"A: {SECRET}\nB: c"], ["--env", f"1={SECRET}"]):
        assert SECRET not in mcp("add", "a", "--transport", "http", "http://x", *bad).reason


@pytest.mark.parametrize("action", ["get", "remove", "enable", "disable", "test", "login", "logout"])
def test_a_server_that_is_not_there(mcp: Machine, action: str) -> None:
    mcp.write({"files": {"command": "c"}})
    before = mcp.file.read_bytes()
    done = mcp(action, "fils")
    assert done.status == 1
    assert "there is no MCP server fils; did you mean files? (`ostler mcp list` shows them)" in done.reason
    assert mcp(action, "x\x1b[2J").reason.count("\x1b") == 0
    assert mcp.file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--", "npx", "-y", "srv"], {"command": "npx", "args": ["-y", "srv"]}),
        (["-t", "stdio", "--", "npx"], {"command": "npx", "args": []}),
        (
            ["--env", "AUTH_TYPE=token", "-e", "K=${K}", "-s", "user", "--", "npx", "--header", "A: ${K}"],
            {"command": "npx", "args": ["--header", "A: ${K}"], "env": {"AUTH_TYPE": "token", "K": "${K}"}},
        ),
        (["https://x/mcp"], {"transport": "http", "url": "https://x/mcp"}),
        (["https://x/sse"], {"transport": "sse", "url": "https://x/sse"}),
        (["https://x/sse/?k=${K}"], {"transport": "sse", "url": "https://x/sse/?k=${K}"}),
        (["https://x/a?to=/sse"], {"transport": "http", "url": "https://x/a?to=/sse"}),
        (["-t", "http", "https://x/sse"], {"transport": "http", "url": "https://x/sse"}),
        (["-t", "streamable-http", "https://x"], {"transport": "http", "url": "https://x"}),
        (
            ["https://u:${K}@x/?flag", "-H", "Authorization: ApiKey ${K}"],
            {
                "transport": "http",
                "url": "https://u:${K}@x/?flag",
                "headers": {"Authorization": "ApiKey ${K}"},
            },
        ),
        (["-H", "Authorization: a-raw-key", "https://x"], {
            "transport": "http", "url": "https://x", "headers": {"Authorization": "a-raw-key"},
        }),
    ],
)  # fmt: skip
def test_the_target_says_the_transport(mcp: Machine, arguments: list[str], wanted: dict[str, Any]) -> None:
    done = mcp("add", "a", *arguments)
    assert done.status == 0, done
    assert mcp.servers == {"a": {**wanted, "enabled": True}}


def test_a_server_in_json(mcp: Machine) -> None:
    text = json.dumps({"type": "sse", "url": "https://x/y", "headers": {"A": "${env:K}"}, "envFile": "x"})
    done = mcp("add-json", "web", text)
    assert (done.status, done.out.split(";")[0]) == (0, "added web (sse, enabled)")
    assert "web: envFile is left out" in done.err
    assert mcp.servers["web"] == {
        "transport": "sse", "url": "https://x/y", "headers": {"A": "${K}"}, "enabled": True,
    }  # fmt: skip
    oauth = {"url": "https://x", "auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${S}", "scopes": ["a"]}}
    done = mcp("add-json", "tracker", json.dumps(oauth))
    assert "ostler mcp login tracker" in done.err
    assert mcp.servers["tracker"]["auth"] == {
        "strategy": "oauth2",
        "authentication": {"type": "oauth", "client_id": "me", "client_secret": "${S}", "scopes": ["a"]},
    }
    before = mcp.file.read_bytes()
    assert "already" in mcp("add-json", "web", '{"command": "c"}').reason
    wrong = mcp("add-json", "bad", f'{{"command": "{SECRET}')
    assert wrong.status == 2
    assert SECRET not in wrong.reason
    assert mcp.file.read_bytes() == before


def test_secrets_in_arguments_are_masked(mcp: Machine) -> None:
    args = [
        "-y", "srv", "--api-key", SECRET, f"--token={SECRET}", "-e", f"MY_PASSWORD={SECRET}", "--verbose",
        "--header", f"Authorization: Bearer {SECRET}", f"postgres://u:{SECRET}@h/db", "--key", "${KEY}",
        "last",
    ]  # fmt: skip
    mcp.write({"a": {"command": "npx", "args": args}})
    for arguments in (["get", "a"], ["list"], ["list", "--json"]):
        assert SECRET not in mcp(*arguments).out
    shown = mcp("get", "a", "--json").json["entry"]["args"]
    assert shown[:3] == args[:3]
    assert shown[-3:] == args[-3:]
    assert [shown[number] for number in (4, 6, 7)] == [
        "--token=**********",
        "MY_PASSWORD=**********",
        "--verbose",
    ]
    assert mcp("get", "a", "--json", "--show-secrets").json["entry"]["args"] == args


def test_a_server_that_is_there_already(mcp: Machine) -> None:
    mcp.write({"a": {"command": "mine", "note": 1}})
    done = mcp("add", "a", "--transport", "stdio", "other")
    assert done.status == 1
    assert "already" in done.reason
    assert mcp.servers == {"a": {"command": "mine", "note": 1}}


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"], ["get", "a"], ["remove", "a"], ["enable", "a"], ["disable", "a"], ["test", "a"],
        ["login", "a"],
        ["add", "b", "--transport", "stdio", "c"],
    ],
)  # fmt: skip
def test_a_broken_file(mcp: Machine, arguments: list[str]) -> None:
    mcp.state.mkdir()
    mcp.file.write_text('{"mcpServers": {\n  "a": {"command": "c"},\n}}')
    before = mcp.file.read_bytes()
    done = mcp(*arguments)
    assert done.status == 1
    assert f"{mcp.file}, line 3, column 1" in done.reason
    assert mcp.file.read_bytes() == before


def test_a_directory_that_cannot_be_written(mcp: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = mcp("add", "a", "--transport", "stdio", "c", "--state", str(tmp_path / "file"))
    assert done.status == 1
    assert "it cannot be written" in done.reason


def test_an_old_file_is_reported_by_whatever_lists(mcp: Machine) -> None:
    mcp.state.mkdir()
    (mcp.state / "mcp.toml").write_text('[mcpServers.files]\ncommand = "c"')
    done = mcp("list")
    assert (done.status, done.out) == (0, "no MCP servers\n")
    assert "old format" in done.err
    assert "files" in done.err
    assert mcp("list", "--json").json["problems"] == [done.err.removeprefix("ostler: ").strip()]


def test_an_entry_that_means_nothing_hides_no_other(mcp: Machine) -> None:
    mcp.write({"bad": {"transport": "pigeon", "url": "http://x"}, "worse": 7, "good": {"command": "c"}})
    done = mcp("list")
    assert done.status == 0
    assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [
        ["bad", "broken"], ["worse", "broken"], ["good", "enabled"],
    ]  # fmt: skip
    assert "bad (file) is not used: transport" in done.err
    assert mcp("enable", "worse").status == 1
    assert mcp("remove", "worse").status == 0
    assert mcp("get", "bad").status == 0


def test_where_each_comes_from(mcp: Machine) -> None:
    mcp.write({"both": {"command": "mine"}, "mine": {"command": "c"}})
    settings = {"both": {"url": "https://x", "headers": {"A": "gAAAAsealed"}}, "theirs": {"command": "d"}}
    (mcp.state / "settings.json").write_text(json.dumps({"agent_settings": {"mcp_config": settings}}))
    done = mcp("list")
    assert [line.split()[:4] for line in done.out.splitlines()[1:]] == [
        ["both", "enabled", "http", "settings"],
        ["theirs", "enabled", "stdio", "settings"],
        ["both", "hidden", "stdio", "file"],
        ["mine", "enabled", "stdio", "file"],
    ]
    assert "both of mcp.json is not used" in done.err
    assert "gAAAA" not in mcp("list", "--show-secrets", "--json").out
    assert mcp("get", "both", "--json").json["source"] == "settings"
    refused = mcp("disable", "theirs")
    assert refused.status == 1
    assert "in the settings" in refused.reason
    (mcp.state / "settings.json").write_text("{")
    done = mcp("list")
    assert done.status == 0
    assert "cannot read" in done.err
    assert "settings.json" in done.err


@pytest.mark.guarantee(name="secrets-stay-in")
def test_what_is_masked(mcp: Machine) -> None:
    mcp.write(
        {
            "a": {
                "url": f"https://user:{SECRET}@mcp.example/x?key={SECRET}&ref=${{REF}}#{SECRET}",
                "headers": {"A": SECRET, "B": "Bearer ${TOKEN}", "C": f"${{TOKEN}}{SECRET}"},
                "auth": {"strategy": "basic", "username": "someone", "password": SECRET},
                "apiKey": SECRET,
                "nested": {"deep": [SECRET]},
            }
        }
    )
    for arguments in (["get", "a"], ["get", "a", "--json"], ["list"], ["list", "--json"]):
        done = mcp(*arguments)
        assert done.status == 0
        assert SECRET not in done.out + done.err
    shown = mcp("get", "a", "--json").json["entry"]
    assert shown["headers"] == {"A": "**********", "B": "Bearer ${TOKEN}", "C": "**********"}
    assert shown["auth"] == {"strategy": "basic", "username": "someone", "password": "**********"}
    assert "ref=${REF}" in shown["url"]


def test_nothing_of_a_file_steers_the_terminal(mcp: Machine) -> None:
    mcp.write({"a": {"command": "c\x1b[31m", "args": ["\x07"], "env": {"K\x1b[2J": "v"}}})
    done = mcp("get", "a", "--show-secrets")
    assert "\x1b" not in done.out
    assert "\x1b" not in mcp("list").out


@pytest.mark.parametrize(
    "action",
    ["list", "get", "remove", "enable", "disable", "add", "add-json", "import", "test", "login", "logout"],
)
def test_help(mcp: Machine, action: str) -> None:
    done = mcp(action, "--help")
    assert done.status == 0
    assert f"usage: ostler mcp {action}" in done.out
    assert "--json" in done.out


def test_an_address_that_makes_no_sense_is_not_needed(mcp: Machine) -> None:
    assert mcp("list", OSTLER_URL="nonsense", OSTLER_PORT="x").status == 0
