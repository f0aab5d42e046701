"""`mcp.json`: read as it is, written whole, never spoilt."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.documents.files import ProgramsFile
from supervisor.documents.shared_files import locked
from supervisor.mcp.entry import is_enabled, settings_entry, switch, transport_of, uses_oauth
from supervisor.mcp.file import FILE, MAX_BYTES, McpFile, McpFileError, check_name, parse
from supervisor.mcp.server import MCPServerError

ENTRY = {"command": "npx", "args": ["-y", "pkg"], "env": {"KEY": "v"}}


def write(state: Path, text: str | bytes) -> McpFile:
    file = McpFile(state)
    Path(file.shown).write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def add(file: McpFile, name: str, entry: Any = ENTRY) -> None:
    file.change(lambda servers: servers.__setitem__(name, entry))


def test_no_file_is_no_servers(tmp_path: Path) -> None:
    found = McpFile(tmp_path / "nowhere").read()
    assert (found.servers, found.version) == ({}, None)
    assert not (tmp_path / "nowhere").exists()


def test_what_is_written_is_private_whole_and_readable(tmp_path: Path) -> None:
    file = McpFile(tmp_path / "state")
    add(file, "one")
    assert json.loads(Path(file.shown).read_text()) == {"mcpServers": {"one": ENTRY}}
    assert Path(file.shown).read_text().count("\n") > 5
    assert stat.S_IMODE(Path(file.shown).stat().st_mode) == 0o600
    assert stat.S_IMODE(file.state.stat().st_mode) == 0o700
    assert {each.name for each in file.state.iterdir()} == {"mcp.json", "mcp.json.lock"}


def test_a_file_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    file = write(tmp_path, "{}")
    Path(file.shown).chmod(0o644)
    add(file, "one")
    assert stat.S_IMODE(Path(file.shown).stat().st_mode) == 0o600


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
def test_what_is_not_known_is_kept_in_its_place(tmp_path: Path) -> None:
    text = """{
      "$schema": "x", "inputs": [1, {"a": 1.50, "b": 123456789012345678901234567890}],
      "mcpServers": {
        "b": {"note": {"deep": [true, null]}, "command": "c", "zeta": 1, "env": {"Z": "1", "A": "é"}},
        "a": {"url": "https://x", "later": "\\ud800"}
      },
      "other": {"mcpServers": {"b": 1}}
    }"""
    file = write(tmp_path, text)
    before = json.loads(text)
    file.change(lambda servers: servers["b"].__setitem__("enabled", False))
    after = json.loads(Path(file.shown).read_text())
    before["mcpServers"]["b"]["enabled"] = False
    assert after == before
    assert list(after) == list(before)
    assert list(after["mcpServers"]["b"]) == ["note", "command", "zeta", "env", "enabled"]
    assert list(after["mcpServers"]["b"]["env"]) == ["Z", "A"]


def test_nothing_is_written_where_nothing_changes(tmp_path: Path) -> None:
    file = write(tmp_path, '{"mcpServers":{"a":{"command":"c"}}}')
    before = Path(file.shown).stat()
    file.change(lambda servers: servers["a"].__setitem__("command", "c"))
    after = Path(file.shown).stat()
    assert (
        Path(file.shown).read_text() == '{"mcpServers":{"a":{"command":"c"}}}'
        or before.st_ino != after.st_ino
    )

    def fail(servers: dict[str, Any]) -> None:
        servers.clear()
        raise LookupError

    with pytest.raises(LookupError):
        file.change(fail)
    assert file.read().servers == {"a": {"command": "c"}}


def test_a_change_of_one_that_looks_equal_is_written(tmp_path: Path) -> None:
    file = write(tmp_path, '{"mcpServers":{"a":{"command":"c","enabled":1}}}')
    file.change(lambda servers: switch(servers["a"], True))
    assert file.read().servers["a"]["enabled"] is True


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text("{}")
    file = McpFile(tmp_path)
    Path(file.shown).symlink_to(real)
    add(file, "one")
    assert Path(file.shown).is_symlink()
    assert json.loads(real.read_text()) == {"mcpServers": {"one": ENTRY}}


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('{"mcpServers": {\n  "a": {"command" "c"}\n}}', 2, 19, "it is not JSON"),
        ("{\n// hello\n}", 2, 1, "it is not JSON"),
        ('{"mcpServers":', 1, 15, "it is not JSON"),
        ("\n\n   [1, 2]", 3, 4, "it must hold an object"),
        ('"text"', 1, 1, "it must hold an object"),
        ('{"x": 1,\n  "mcpServers": ["a"]}', 2, 3, "mcpServers must be an object"),
        ('{"mcpServers": {"a": {},\n "b": {}, "a": {}}}', 2, 11, "the same key twice"),
        ('{"a": 1,\n "b": NaN}', 2, 7, "NaN is not JSON"),
        ('{"a": 1,\n "b": -1e400}', 2, 7, "a number that is too large"),
        (b'{"a":\n "\xff"}', 2, 3, "it is not UTF-8"),
        ("[" * 100_000, 1, 1, "too deeply"),
        ('{"a": ' + "9" * 5000 + "}", 1, 1, "number that is too long"),
    ],
)
def test_a_broken_file_is_reported_and_left_alone(
    tmp_path: Path, text: str | bytes, line: int, column: int, words: str
) -> None:
    file = write(tmp_path, text)
    before = Path(file.shown).read_bytes()
    with pytest.raises(McpFileError) as caught:
        file.read()
    assert (caught.value.line, caught.value.column) == (line, column)
    assert words in caught.value.reason
    assert f"{Path(file.shown)}, line {line}, column {column}: " in str(caught.value)
    with pytest.raises(McpFileError):
        add(file, "one")
    assert Path(file.shown).read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} <= {"mcp.json", "mcp.json.lock"}


@pytest.mark.parametrize("text", ["", " \n\t ", "\ufeff", '\ufeff{"mcpServers": {}}', '{"mcpServers": null}'])
def test_files_with_nothing_in_them(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    assert file.read().servers == {}
    add(file, "one")
    assert file.read().servers == {"one": ENTRY}


def test_what_is_no_file_or_no_reasonable_one(tmp_path: Path) -> None:
    file = McpFile(tmp_path)
    os.mkfifo(Path(file.shown))
    with pytest.raises(McpFileError, match="not a regular file"):
        file.read()
    Path(file.shown).unlink()
    Path(file.shown).mkdir()
    with pytest.raises(McpFileError, match="cannot be read"):
        file.read()
    Path(file.shown).rmdir()
    Path(file.shown).write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(McpFileError, match="more than"):
        file.read()
    Path(file.shown).write_text("{}")
    with pytest.raises(McpFileError, match="would have more than"):
        add(file, "one", {"command": "x" * MAX_BYTES})
    assert Path(file.shown).read_text() == "{}"


WRITER = """
import sys
from pathlib import Path
from supervisor.mcp.file import McpFile
file = McpFile(Path(sys.argv[1]))
for index in range(int(sys.argv[3])):
    file.change(lambda servers: servers.__setitem__(f"{sys.argv[2]}-{index}", {"command": "c"}))
"""


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    each, names = 20, ("a", "b", "c")
    seen: list[int] = []
    stop = threading.Event()

    def look() -> None:
        file = McpFile(tmp_path)
        while not stop.is_set():
            seen.append(len(file.read().servers))

    reader = threading.Thread(target=look)
    reader.start()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name, str(each)]) for name in names
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    stop.set()
    reader.join()
    assert len(McpFile(tmp_path).read().servers) == each * len(names)
    assert seen == sorted(seen), "a reader saw something older after something newer"


def test_a_writer_that_waits_too_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.documents.shared_files.LOCK_SECONDS", 0.05)
    with locked(ProgramsFile(tmp_path / FILE).try_lock), pytest.raises(McpFileError, match="another program"):
        add(McpFile(tmp_path), "one")


@pytest.mark.parametrize(
    ("name", "text", "servers"),
    [
        (
            "mcp.toml",
            '[mcpServers.files]\ncommand = "c"\n[mcpServers.web]\nurl = "https://x?k=secret"',
            "files, web",
        ),
        ("config.toml", '[mcp]\n[mcp.files]\ncommand = "c"', "files"),
        ("config.toml", '[[mcp.stdio_servers]]\nname = "files"\ncommand = "c"', "files"),
        ("mcp.toml", "this is = = not toml", None),
    ],
)
def test_an_old_file_has_to_be_redone(tmp_path: Path, name: str, text: str, servers: str | None) -> None:
    (tmp_path / name).write_text(text)
    said = McpFile(tmp_path).old_configuration()
    assert said is not None
    assert str(tmp_path / name) in said
    assert "ostler mcp add" in said
    assert "secret" not in said
    assert servers is None or f"({servers})" in said


def test_other_toml_files_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[core]\nx = 1\nmcp = "no"')
    assert McpFile(tmp_path).old_configuration() is None


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (ENTRY, ENTRY),
        (
            {"command": "c", "type": "stdio", "disabled": True},
            {"command": "c", "transport": "stdio", "enabled": False},
        ),
        ({"url": "https://x", "type": "streamable-http"}, {"url": "https://x", "transport": "http"}),
        ({"url": "https://x", "transport": "streamableHttp"}, {"url": "https://x", "transport": "http"}),
        ({"url": "https://x", "type": "HTTP"}, {"url": "https://x", "transport": "http"}),
        ({"url": "https://x", "transport": "sse"}, {"url": "https://x", "transport": "sse"}),
        ({"httpUrl": "https://x"}, {"url": "https://x", "transport": "http"}),
        ({"serverUrl": "https://x"}, {"url": "https://x"}),
        ({"url": "https://x", "auth": "oauth"}, {"url": "https://x", "auth": {"strategy": "oauth2"}}),
        (
            {"url": "https://x", "auth": {"strategy": "bearer", "value": "v"}},
            {"url": "https://x", "auth": {"strategy": "bearer", "value": "v"}},
        ),
        (
            {"command": "c", "env": {"PORT": 8080, "DEBUG": True, "NO": None}, "args": [1]},
            {"command": "c", "env": {"PORT": "8080", "DEBUG": "true"}, "args": ["1"]},
        ),
        ({"command": "c", "alwaysAllow": ["x"], "timeout": 60000}, {"command": "c"}),
        ({"command": "c", "enabled": True, "disabled": True}, {"command": "c", "enabled": True}),
    ],
)
def test_entries_as_others_write_them(entry: dict[str, Any], expected: dict[str, Any]) -> None:
    before = json.dumps(entry)
    assert settings_entry(entry) == expected
    assert json.dumps(entry) == before


@pytest.mark.parametrize(
    "entry",
    [
        "npx", None, [], {}, {"command": "c", "url": "https://x"}, {"command": 1},
        {"command": "c", "args": "x"},
        {"url": "https://x", "transport": "carrier-pigeon"}, {"url": "https://x", "transport": "stdio"},
        {"command": "c", "transport": "http"}, {"url": "https://x", "auth": "magic"},
        {"command": "c", "env": ["x"]},
        {"command": "c", "enabled": "yes"}, {"command": "c", "type": 1},
    ],
)  # fmt: skip
def test_entries_that_mean_nothing(entry: Any) -> None:
    with pytest.raises(MCPServerError):
        settings_entry(entry)


def test_switching_keeps_the_spelling() -> None:
    ours: dict[str, Any] = {"command": "c"}
    switch(ours, False)
    assert ours == {"command": "c", "enabled": False}
    theirs: dict[str, Any] = {"disabled": True}
    switch(theirs, True)
    assert theirs == {"disabled": False}
    assert is_enabled(theirs)
    assert is_enabled({"command": "c"})
    assert not is_enabled("npx")


def test_what_an_entry_is() -> None:
    assert transport_of({"command": "c"}) == "stdio"
    assert transport_of({"url": "u"}) == "http"
    assert transport_of({"url": "u", "transport": "sse"}) == "sse"
    assert uses_oauth({"url": "u", "auth": {"strategy": "oauth2"}})
    assert not uses_oauth({"url": "u"})


@pytest.mark.parametrize("name", ["", ".", "-x", "a b", "a/b", "é", "x" * 65, "a\n", "${X}"])
def test_names_that_cannot_be_added(name: str) -> None:
    with pytest.raises(ValueError, match="at most 64"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "_x", "A.b-c_9", "9", "x" * 64])
def test_names_that_can(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
def test_a_key_that_is_there_twice_is_found_at_once() -> None:
    """A process that can write the file must not be able to keep the server busy for minutes."""

    def once(data: bytes) -> float:
        begun = time.thread_time()
        with pytest.raises(McpFileError, match="the same key twice"):
            parse(data, "mcp.json")
        return time.thread_time() - begun

    def seconds(keys: int) -> float:
        data = ("{" + ",".join(f'"{number}":1' for number in range(keys)) + f',"{keys - 1}":2}}').encode()
        return min(once(data) for _ in range(5))

    # Thirty-two times as much: 1,024 times the work if each key is compared with each. It takes about 100
    # times as long, since the larger one does not fit the processor's cache.
    assert seconds(64_000) < 200 * seconds(2_000)
