"""A new master key: everything can still be read, at every moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.credentials.secret import CannotRotate, SecretsCorrupt, WrongMasterKey
from supervisor.credentials.store import SecretStore
from tests.credentials.keyrings import FakeBackend, Locked, ring


async def opened(state: Path, environ: dict[str, str], backend: FakeBackend | None = None) -> SecretStore:
    return await SecretStore.open(state, environ, keyring=None if backend is None else ring(backend))


async def test_a_new_key_file(tmp_path: Path) -> None:
    store = await opened(tmp_path, {})
    await store.set("A", "a", "first")
    sealed = store.cipher.encrypt(b"of a conversation")
    old_key = (tmp_path / "master.key").read_text()
    old_file = (tmp_path / "secrets.json").read_text()

    rotation = await store.rotate()
    assert (rotation.source, rotation.before, rotation.secrets) == (store.key_source, store.key_source, 1)
    assert store.key_source == str(tmp_path / "master.key")
    assert (tmp_path / "master.key").read_text() != old_key
    assert (tmp_path / "master.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["master.key", "secrets.json"]
    document = json.loads((tmp_path / "secrets.json").read_text())
    assert document["secrets"]["A"]["value"] not in old_file
    assert document["secrets"]["A"]["description"] == "first"
    for each in (store, await opened(tmp_path, {})):
        assert await each.get("A") == "a"
        assert each.cipher.decrypt(sealed) == b"of a conversation"
    (tmp_path / "master.key").write_text(old_key)
    with pytest.raises(WrongMasterKey):
        await (await opened(tmp_path, {})).get("A")


async def test_many_rotations_keep_every_key(tmp_path: Path) -> None:
    store = await opened(tmp_path, {})
    sealed = []
    for number in range(4):
        sealed.append(store.cipher.encrypt(str(number).encode()))
        await store.rotate()
        if number % 2:
            store = await opened(tmp_path, {})
        await store.set(f"S{number}", "x")  # writes the file, and with it the keys of before
    for each in (store, await opened(tmp_path, {})):
        assert [each.cipher.decrypt(token) for token in sealed] == [b"0", b"1", b"2", b"3"]
    assert len(json.loads((tmp_path / "secrets.json").read_text())["retired"]) == 4


async def test_from_a_file_into_the_keyring_and_on(tmp_path: Path) -> None:
    await (await opened(tmp_path, {})).set("A", "a")
    backend = FakeBackend()
    store = await opened(tmp_path, {}, backend)
    sealed = store.cipher.encrypt(b"x")
    assert (await store.rotate()).source == "the OS keyring"
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]
    first = dict(backend.entries)
    assert len(first) == 1
    await store.rotate()
    assert len(backend.entries) == 1
    assert backend.entries.keys().isdisjoint(first)
    again = await opened(tmp_path, {}, backend)
    assert await again.get("A") == "a"
    assert again.cipher.decrypt(sealed) == b"x"


async def test_a_keyring_that_cannot_be_written_is_no_reason_to_use_a_file(tmp_path: Path) -> None:
    backend = FakeBackend()
    await (await opened(tmp_path, {}, backend)).set("A", "a")
    store = await opened(tmp_path, {}, backend)
    backend.set_password = Locked().set_password  # type: ignore[method-assign]
    before = (tmp_path / "secrets.json").read_bytes()
    with pytest.raises(
        CannotRotate, match=r"the keyring failed \(RuntimeError\). Nothing was changed. Unlock"
    ):
        await store.rotate()
    assert (tmp_path / "secrets.json").read_bytes() == before
    assert await (await opened(tmp_path, {}, backend)).get("A") == "a"


async def test_a_key_of_the_operator_is_changed_by_the_operator(tmp_path: Path) -> None:
    store = await opened(tmp_path, {"OSTLER_MASTER_KEY": "old"})
    await store.set("A", "a")
    sealed = store.cipher.encrypt(b"x")
    with pytest.raises(CannotRotate, match="OSTLER_PREVIOUS_MASTER_KEYS"):
        await store.rotate()

    both = {"OSTLER_MASTER_KEY": "new", "OSTLER_PREVIOUS_MASTER_KEYS": "old"}
    rotation = await (await opened(tmp_path, both)).rotate()
    assert (rotation.source, rotation.before) == ("OSTLER_MASTER_KEY", "OSTLER_PREVIOUS_MASTER_KEYS")
    store = await opened(tmp_path, {"OSTLER_MASTER_KEY": "new"})
    assert await store.get("A") == "a"
    assert store.cipher.decrypt(sealed) == b"x"
    with pytest.raises(WrongMasterKey):
        await (await opened(tmp_path, {"OSTLER_MASTER_KEY": "old"})).get("A")


async def test_from_a_file_to_a_variable_removes_the_file(tmp_path: Path) -> None:
    await (await opened(tmp_path, {})).set("A", "a")
    await (await opened(tmp_path, {"OSTLER_MASTER_KEY": "k"})).rotate()
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]
    assert await (await opened(tmp_path, {"OSTLER_MASTER_KEY": "k"})).get("A") == "a"


async def test_a_key_file_that_nobody_knows_is_left_alone(tmp_path: Path) -> None:
    await (await opened(tmp_path, {"OH_SECRET_KEY": "old"})).set("A", "a")
    store = await opened(tmp_path, {"OSTLER_MASTER_KEY": "new", "OH_SECRET_KEY": "old"})
    (tmp_path / "master.key").write_text("of somebody else\n")
    await store.rotate()
    assert (tmp_path / "master.key").read_text() == "of somebody else\n"


async def test_a_key_file_that_could_not_be_renamed_is_renamed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path, {})
    await store.set("A", "a")
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "master.key.new":
            raise OSError(1, "Operation not permitted")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        await store.rotate()
        assert (tmp_path / "master.key.new").exists()
        # The only copy of the key in use is not overwritten.
        with pytest.raises(OSError, match="permitted"):
            await store.rotate()
    again = await opened(tmp_path, {})
    assert await again.get("A") == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["master.key", "secrets.json"]


async def test_a_rotation_that_failed_late_and_one_that_fails_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced already when the first one fails, and not yet when the second one does."""
    store = await opened(tmp_path, {})
    await store.set("A", "a")
    write = SecretStore._write

    def late(*args: Any) -> None:
        write(*args)
        raise OSError(5, "Input/output error")

    def early(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    for failing in (late, early):
        monkeypatch.setattr(SecretStore, "_write", failing)
        with pytest.raises(OSError, match=r"error|space"):
            await store.rotate()
    assert await (await opened(tmp_path, {})).get("A") == "a"


async def test_a_damaged_key_of_before_is_not_dropped(tmp_path: Path) -> None:
    store = await opened(tmp_path, {})
    await store.rotate()
    path = tmp_path / "secrets.json"
    document = json.loads(path.read_text())
    document["retired"].append("gAAAA-damaged")
    path.write_text(json.dumps(document))
    store = await opened(tmp_path, {})
    await store.set("A", "a")
    with pytest.raises(SecretsCorrupt, match="damaged"):
        await store.rotate()
    assert json.loads(path.read_text())["retired"][-1] == "gAAAA-damaged"
    assert await (await opened(tmp_path, {})).get("A") == "a"


async def test_secrets_set_during_a_rotation_stay(tmp_path: Path) -> None:
    store = await opened(tmp_path, {})
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(store.set, f"S{number}", "x")
            if number % 2:
                nursery.start_soon(store.rotate)
    assert await (await opened(tmp_path, {})).values() == {f"S{number}": "x" for number in range(6)}


@pytest.mark.parametrize("failing", range(8))
@pytest.mark.parametrize("to_keyring", [False, True])
async def test_what_fails_on_the_way_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, to_keyring: bool
) -> None:
    """The n-th change of a file or of the keyring fails; then all of it is tried once more."""
    backend = FakeBackend()
    store = await opened(tmp_path, {})
    await store.set("A", "a")
    sealed = store.cipher.encrypt(b"x")
    store = await opened(tmp_path, {}, backend if to_keyring else None)
    left = failing

    def counted(function):  # type: ignore[no-untyped-def]
        def call(*args, **more):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(28, "No space left on device")
            return function(*args, **more)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr("os.fsync", counted(os.fsync))
        for name in ("set_password", "delete_password"):
            patch.setattr(backend, name, counted(getattr(backend, name)))
        try:
            await store.rotate()
        except OSError:
            assert left < 0

    async def check(store: SecretStore) -> None:
        assert await store.get("A") == "a"
        assert store.cipher.decrypt(sealed) == b"x"

    # A server that starts now, the one that goes on, and the next one.
    await check(await opened(tmp_path, {}, backend if to_keyring else None))
    await check(store)
    await store.set("B", "b")
    await store.rotate()
    await check(store)
    last = await opened(tmp_path, {}, backend if to_keyring else None)
    await check(last)
    assert await last.get("B") == "b"


KILLED_AT_EVERY_STEP = """
import os, sys
from functools import partial
from pathlib import Path
import trio
from supervisor.credentials.store import SecretStore

state = Path(sys.argv[1])
STEPS = ("open", "os.rename", "os.link", "os.remove")
sealed = state.parent / "sealed"

async def prepare():
    store = await SecretStore.open(state, {})
    await store.set("A", "a")
    sealed.write_text(store.cipher.encrypt(b"x"))

async def rotate(kill_at):
    store = await SecretStore.open(state, {})
    await store.get("A")
    seen = 0

    def watch(event, args):
        nonlocal seen
        if event in STEPS and str(state) in str(args[0]):
            if seen == kill_at:
                os._exit(9)
            seen += 1

    sys.addaudithook(watch)
    await store.rotate()

async def check():
    store = await SecretStore.open(state, {})
    assert await store.get("A") == "a"
    assert store.cipher.decrypt(sealed.read_text()) == b"x"
    await store.set("A", "a")

def apart(main, *args):
    pid = os.fork()
    if pid == 0:
        trio.run(main, *args)
        sys.stdout.flush()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert apart(prepare) == 0
killed = 0
while (status := apart(rotate, killed)) == 9:
    assert apart(check) == 0, killed
    killed += 1
assert status == 0, status
assert apart(check) == 0
print(killed)
"""


@pytest.mark.guarantee(name="secrets-stay-in")
def test_a_server_that_is_killed_at_any_step_loses_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 6  # two files written and renamed, one put into its place
    assert not (state / "master.key.new").exists()
