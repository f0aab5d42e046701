"""Secrets that are given from outside: files, systemd's credentials, variables."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.credentials import store as store_module
from supervisor.credentials.external_sources import take_private
from supervisor.credentials.secret import MAX_VALUE_BYTES
from supervisor.credentials.store import SecretStore

VALUE = "sk-from-outside"


class Log:
    """Stands for the room's log."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def warning(self, event: str, **more: object) -> None:
        self.lines.append(f"{event} {more}")


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


async def test_the_order_of_the_places(tmp_path: Path) -> None:
    mounted = write(tmp_path / "mounted", IN_ALL="mounted", IN_FILES="mounted")
    systemd = write(tmp_path / "systemd", IN_ALL="systemd", IN_FILES="systemd", IN_SYSTEMD="systemd")
    environ = {
        "OSTLER_SECRETS_DIR": str(mounted),
        "CREDENTIALS_DIRECTORY": str(systemd),
        **{f"OSTLER_SECRET_{name}": "variable" for name in ("IN_ALL", "IN_FILES", "IN_SYSTEMD", "ALONE")},
    }
    store = await SecretStore.open(tmp_path / "state", environ)
    await store.set("IN_ALL", "store", "the best")
    assert await store.values() == {
        "ALONE": "variable",
        "IN_ALL": "store",
        "IN_FILES": "mounted",
        "IN_SYSTEMD": "systemd",
    }
    found = await store.found()
    assert list(found) == sorted(found)
    best = found["IN_ALL"]
    assert (best.source, best.where, best.description) == ("store", None, "the best")
    assert best.hides == (str(mounted / "IN_ALL"), str(systemd / "IN_ALL"), "OSTLER_SECRET_IN_ALL")
    assert (found["IN_FILES"].source, found["IN_FILES"].where) == ("directory", str(mounted / "IN_FILES"))
    assert (found["ALONE"].source, found["ALONE"].where) == ("variable", "OSTLER_SECRET_ALONE")
    assert found["ALONE"].hides == ()
    assert store.problems == ()
    # What is stored is still told apart.
    assert [secret.name for secret in await store.list()] == ["IN_ALL"]
    assert await store.get("ALONE") is None
    await store.delete("IN_ALL")
    assert (await store.values())["IN_ALL"] == "mounted"


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"v", "v"), (b"v\n", "v"), (b"v\r\n", "v"), (b"v\n\n", "v\n"), (b"a\nb\n", "a\nb"), (b" v ", " v ")],
)
async def test_the_end_of_the_last_line_is_no_part_of_a_secret(
    tmp_path: Path, content: bytes, value: str
) -> None:
    (write(tmp_path / "d") / "A").write_bytes(content)
    store = await SecretStore.open(tmp_path, {"OSTLER_SECRETS_DIR": str(tmp_path / "d")})
    assert await store.values() == {"A": value}


async def test_a_volume_of_kubernetes(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    (mounted / "..2026_11_21").mkdir(parents=True)
    (mounted / "..2026_11_21" / "API_KEY").write_text("one")
    (mounted / "..data").symlink_to("..2026_11_21")
    (mounted / "API_KEY").symlink_to("..data/API_KEY")
    store = await SecretStore.open(tmp_path, {"OSTLER_SECRETS_DIR": str(mounted)})
    assert await store.values() == {"API_KEY": "one"}
    assert store.problems == ()
    # A new version reaches the next agent that starts.
    (mounted / "..2026_11_21" / "API_KEY").write_text("two")
    assert await store.values() == {"API_KEY": "two"}


async def test_what_cannot_be_used_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(store_module, "log", Log(logged))
    mounted = write(tmp_path / "mounted", GOOD=VALUE, BLANK=" \n", LONG="x" * (MAX_VALUE_BYTES + 1))
    write(mounted, **{"bad-name": VALUE, "1BAD": VALUE, "NUL": f"{VALUE}\0"})
    (mounted / "BINARY").write_bytes(b"\xff" + VALUE.encode())
    (mounted / "FOLDER").mkdir()
    (mounted / "DANGLING").symlink_to("nowhere")
    os.mkfifo(mounted / "PIPE")
    environ = {
        "OSTLER_SECRETS_DIR": str(mounted),
        "CREDENTIALS_DIRECTORY": str(tmp_path / "missing"),
        "OSTLER_SECRET_": VALUE,
        "OSTLER_SECRET_1BAD": VALUE,
        "OSTLER_SECRET_EMPTY": "",
        "OSTLER_SECRET_FINE": VALUE,
    }
    store = await SecretStore.open(tmp_path / "state", environ)
    assert await store.values() == {"GOOD": VALUE, "FINE": VALUE}
    named = "\n".join(store.problems)
    for name in ("bad-name", "1BAD", "NUL", "BLANK", "LONG", "BINARY", "FOLDER", "DANGLING", "PIPE"):
        assert str(mounted / name) in named
    for text in (str(tmp_path / "missing"), "OSTLER_SECRET_ ", "OSTLER_SECRET_1BAD", "OSTLER_SECRET_EMPTY"):
        assert text in named
    assert len(store.problems) == 13
    assert VALUE not in named + "".join(logged) + repr(store.__dict__)
    assert "".join(logged).count("bad-name") == 1  # told once, though it was read twice


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is unreadable for root")
async def test_an_unreadable_file(tmp_path: Path) -> None:
    mounted = write(tmp_path / "mounted", A=VALUE, B=VALUE)
    (mounted / "A").chmod(0)
    store = await SecretStore.open(tmp_path, {"OSTLER_SECRETS_DIR": str(mounted)})
    assert await store.values() == {"B": VALUE}
    assert stat.S_IMODE((mounted / "A").stat().st_mode) == 0


def test_private_variables_are_taken_out() -> None:
    private = {
        "OSTLER_SECRET_A": "a",
        "OSTLER_MASTER_KEY": "k",
        "OH_SECRET_KEY": "k",
        "OSTLER_PREVIOUS_MASTER_KEYS": "k",
        "OH_PREVIOUS_SECRET_KEYS": "k",
    }
    public = {"PATH": "/bin", "OSTLER_SECRETS_DIR": "/run/secrets", "OSTLER_STATE": "s"}
    environ = {**private, **public}
    assert take_private(environ) == private
    assert environ == public


TAKEN = """
import os, subprocess, sys
from pathlib import Path
from supervisor.credentials.external_sources import take_private

taken = take_private(os.environ)
assert taken == {"OSTLER_SECRET_A": "sk-secret-a", "OSTLER_MASTER_KEY": "sk-master"}, taken
for pid in ("self", str(os.getpid())):
    shown = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"sk-" not in shown, shown
    assert b"KEPT=kept" in shown
child = subprocess.run(["env"], capture_output=True, text=True).stdout
assert "sk-" not in child and "OSTLER_" not in child
assert "KEPT=kept" in child
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_neither_children_nor_proc_show_what_was_taken() -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "OSTLER_SECRET_A": "sk-secret-a",
        "OSTLER_MASTER_KEY": "sk-master",
        "KEPT": "kept",
    }
    command = [sys.executable, "-c", TAKEN]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
