"""The OS keyring: which backends are used, and that none of them can hold anything up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import keyring.backend
import keyring.core
import pytest
import trio
import trio.testing
from keyring.backends import chainer, fail, null

from supervisor.credentials import os_keyring
from supervisor.credentials.os_keyring import (
    KEYRING_SECONDS,
    KeyringUnavailable,
    OsKeyring,
    class_name,
    find_backend,
    plausible,
)


class FakeBackend:
    """A keyring in memory."""

    priority = 5.0

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.entries[service, username]


class BetterBackend(FakeBackend):
    priority = 6.0


class PlaintextBackend(FakeBackend):
    """Not allowed, and of the highest priority."""

    priority = 99.0


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `keyring` finds on this machine, for a test to fill in."""
    found: list[object] = []
    allowed = {f"{FakeBackend.__module__}.{name}": name for name in ("FakeBackend", "BetterBackend")}
    monkeypatch.setattr(os_keyring, "ALLOWED", allowed)
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: found)
    monkeypatch.setattr(keyring.core, "load_env", lambda: None)
    monkeypatch.setattr(keyring.core, "load_config", lambda: None)
    return found


async def test_entries_are_kept_and_removed() -> None:
    backend = FakeBackend()
    ring = OsKeyring({}, find=lambda: backend)
    assert await ring.get("a") is None
    await ring.set("a", "secret")
    assert await ring.get("a") == "secret"
    assert list(backend.entries) == [("ostler", "a")]
    await ring.delete("a")
    assert not backend.entries


def test_only_allowed_backends_are_taken(installed: list[object]) -> None:
    better = BetterBackend()
    installed += [PlaintextBackend(), FakeBackend(), better, fail.Keyring(), chainer.ChainerBackend()]
    assert find_backend() is better
    installed[:] = [PlaintextBackend(), null.Keyring(), fail.Keyring(), chainer.ChainerBackend()]
    with pytest.raises(KeyringUnavailable, match="trusts"):
        find_backend()


def test_a_configured_backend_is_the_only_one(
    installed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.append(BetterBackend())
    configured = FakeBackend()
    monkeypatch.setattr(keyring.core, "load_config", lambda: configured)
    assert find_backend() is configured
    # What `keyring --disable` writes.
    monkeypatch.setattr(keyring.core, "load_config", null.Keyring)
    with pytest.raises(KeyringUnavailable, match="null"):
        find_backend()


def test_the_allowed_ones_are_not_those_that_hold_plaintext() -> None:
    names = " ".join(os_keyring.ALLOWED)
    assert "SecretService" in names
    for refused in (null.Keyring(), fail.Keyring(), chainer.ChainerBackend()):
        assert class_name(refused) not in os_keyring.ALLOWED
    assert not any(word in names for word in ("alt", "file", "chainer", "null", "fail"))


@pytest.mark.parametrize("error", [RuntimeError("sk-value"), keyring.errors.KeyringLocked("sk-value")])
async def test_what_a_backend_raises_is_told_without_its_text(error: Exception) -> None:
    class Broken(FakeBackend):
        def get_password(self, service: str, username: str) -> str | None:
            raise error

    with pytest.raises(KeyringUnavailable, match=type(error).__name__) as caught:
        await OsKeyring({}, find=Broken).get("a")
    assert "sk-value" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (keyring.errors.KeyringLocked("sk-value"), "the keyring is locked (KeyringLocked)"),
        (keyring.errors.InitError("sk-value"), "it is locked, or was never set up (InitError)"),
        (RuntimeError("sk-value"), "the keyring failed (RuntimeError)"),
    ],
)
async def test_what_people_can_mend_is_told_in_words(error: Exception, said: str) -> None:
    class Broken(FakeBackend):
        def get_password(self, service: str, username: str) -> str | None:
            raise error

    with pytest.raises(KeyringUnavailable) as caught:
        await OsKeyring({}, find=Broken).get("a")
    assert said in str(caught.value)


async def test_what_is_imported_takes_nothing_of_the_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the libraries alone take longer than a keyring may."""
    backend = FakeBackend()

    monkeypatch.setattr(os_keyring, "_load", lambda: time.sleep(0.5))
    monkeypatch.setattr(os_keyring, "find_backend", lambda: backend)
    ring = OsKeyring({}, find=os_keyring.find_backend, seconds=0.2)
    assert await ring.get("a") is None


async def test_a_backend_that_forgets_is_not_used() -> None:
    class Forgetful(FakeBackend):
        def set_password(self, service: str, username: str, password: str) -> None:
            pass

    with pytest.raises(KeyringUnavailable, match="keep"):
        await OsKeyring({}, find=Forgetful).set("a", "b")


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_hanging_keyring_is_given_up_and_not_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    release = threading.Event()
    asked: list[str] = []

    class Hanging(FakeBackend):
        def get_password(self, service: str, username: str) -> str | None:
            asked.append(username)
            release.wait()
            return None

    ring = OsKeyring({"DBUS_SESSION_BUS_ADDRESS": "x"}, find=Hanging)
    assert await ring.plausible()
    try:
        before = trio.current_time()
        with pytest.raises(KeyringUnavailable, match="locked"):
            await ring.get("a")
        assert trio.current_time() - before == pytest.approx(KEYRING_SECONDS)
        before = trio.current_time()
        with pytest.raises(KeyringUnavailable, match="locked"):
            await ring.get("b")
        assert trio.current_time() == before
        assert len(asked) <= 1
        assert not await ring.plausible()
    finally:
        release.set()


def test_a_thread_that_hangs_does_not_hold_up_the_exit() -> None:
    code = """
import threading, trio
from supervisor.credentials.os_keyring import KeyringUnavailable, OsKeyring

async def main():
    try:
        await OsKeyring({}, find=threading.Event().wait, seconds=0.05).get("a")
    except KeyringUnavailable:
        print("given up", flush=True)

trio.run(main)
"""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("given up\n", 0), done.stderr
    assert time.monotonic() - started < 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a keyring of their own")
def test_a_machine_without_a_session_bus_is_not_asked(tmp_path: Path) -> None:
    assert not plausible({})
    assert not plausible({"XDG_RUNTIME_DIR": str(tmp_path)})
    (tmp_path / "bus").touch()
    assert plausible({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert plausible({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus"})


def test_the_room_does_not_import_keyring() -> None:
    code = "import sys, supervisor.credentials; sys.exit('keyring' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
