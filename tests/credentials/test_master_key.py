"""Where the master key is kept, and which of several keys is used."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from supervisor.credentials.os_keyring import KEYRING_SECONDS, KeyringUnavailable, NoKeyring, OsKeyring
from supervisor.credentials.secret import (
    CredentialsFailure,
    MasterKeyUnavailable,
    SecretsCorrupt,
    WrongMasterKey,
)
from supervisor.credentials.store import SecretStore
from tests.credentials.keyrings import FakeBackend, Locked, ring


async def test_the_keyring_holds_the_key_of_a_new_state(tmp_path: Path) -> None:
    backend = FakeBackend()
    store = await SecretStore.open(tmp_path, {}, keyring=ring(backend))
    assert store.key_source == "the OS keyring"
    assert store.master.created
    assert not (tmp_path / "master.key").exists()
    await store.set("A", "secret")
    token = store.cipher.encrypt(b"of a conversation")

    again = await SecretStore.open(tmp_path, {}, keyring=ring(backend))
    assert await again.get("A") == "secret"
    assert again.cipher.decrypt(token) == b"of a conversation"
    assert not again.master.created
    (phrase,) = backend.entries.values()
    on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert phrase.encode() not in on_disk
    assert b"secret" not in on_disk.replace(b'"secrets"', b"")


async def test_the_key_in_the_keyring_is_found_before_anything_was_stored(tmp_path: Path) -> None:
    backend = FakeBackend()
    token = (await SecretStore.open(tmp_path, {}, keyring=ring(backend))).cipher.encrypt(b"x")
    again = await SecretStore.open(tmp_path, {}, keyring=ring(backend))
    assert again.cipher.decrypt(token) == b"x"
    assert len(backend.entries) == 1


async def test_two_states_have_two_keys(tmp_path: Path) -> None:
    backend = FakeBackend()
    for name in ("a", "b"):
        await SecretStore.open(tmp_path / name, {}, keyring=ring(backend))
    assert len(set(backend.entries.values())) == 2


async def test_a_variable_goes_before_the_keyring_and_saves_asking_it(tmp_path: Path) -> None:
    backend = FakeBackend()
    store = await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "k"}, keyring=ring(backend))
    assert store.key_source == "OSTLER_MASTER_KEY"
    await store.set("A", "a")
    assert backend.asked == 0


async def test_a_key_file_that_is_there_goes_before_the_keyring(tmp_path: Path) -> None:
    token = (await SecretStore.open(tmp_path, {})).cipher.encrypt(b"sealed before anything was stored")
    backend = FakeBackend()
    store = await SecretStore.open(tmp_path, {}, keyring=ring(backend))
    assert store.key_source == str(tmp_path / "master.key")
    assert store.cipher.decrypt(token)
    assert backend.asked == 0


async def test_without_a_bus_no_keyring_is_looked_for(tmp_path: Path) -> None:
    def find() -> FakeBackend:
        raise AssertionError("a library was loaded")

    store = await SecretStore.open(tmp_path, {}, keyring=OsKeyring({}, find=find))
    assert store.key_source == str(tmp_path / "master.key")


async def test_a_keyring_that_is_locked_from_the_start_leaves_the_file(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, {}, keyring=ring(Locked()))
    assert store.key_source == str(tmp_path / "master.key")
    assert store.master.created


async def test_a_keyring_that_hangs_from_the_start_leaves_the_file(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    release = threading.Event()

    class Hanging(FakeBackend):
        def set_password(self, service: str, username: str, password: str) -> None:
            release.wait()

    before = trio.current_time()
    try:
        store = await SecretStore.open(tmp_path, {}, keyring=ring(Hanging()))
    finally:
        release.set()
    assert trio.current_time() - before == pytest.approx(KEYRING_SECONDS)
    assert store.key_source == str(tmp_path / "master.key")


@pytest.mark.parametrize("keyring", ["locked", "off", "emptied"])
async def test_a_key_that_is_out_of_reach_is_told_and_nothing_is_changed(
    tmp_path: Path, keyring: str
) -> None:
    backend = FakeBackend()
    store = await SecretStore.open(tmp_path, {}, keyring=ring(backend))
    await store.set("A", "a")
    before = (tmp_path / "secrets.json").read_bytes()
    now = {"locked": ring(Locked()), "off": None, "emptied": ring(FakeBackend())}[keyring]
    store = await SecretStore.open(tmp_path, {}, keyring=now)
    for use in (store.list, store.values, store.rotate, lambda: store.set("B", "b")):
        with pytest.raises(MasterKeyUnavailable, match="keyring"):
            await use()
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.json"]
    assert (tmp_path / "secrets.json").read_bytes() == before
    assert await (await SecretStore.open(tmp_path, {}, keyring=ring(backend))).get("A") == "a"


async def test_a_key_that_fits_wins_over_a_variable_that_does_not(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, {})).set("A", "a")
    store = await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "set later"})
    assert store.key_source == str(tmp_path / "master.key")
    await store.set("B", "b")
    assert await (await SecretStore.open(tmp_path, {})).values() == {"A": "a", "B": "b"}


async def test_a_key_in_the_keyring_wins_over_a_variable_that_does_not_fit(tmp_path: Path) -> None:
    backend = FakeBackend()
    await (await SecretStore.open(tmp_path, {}, keyring=ring(backend))).set("A", "a")
    store = await SecretStore.open(tmp_path, {"OH_SECRET_KEY": "set later"}, keyring=ring(backend))
    assert store.key_source == "the OS keyring"
    assert await store.get("A") == "a"


async def test_a_previous_key_opens_what_is_there(tmp_path: Path) -> None:
    old = await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "old"})
    await old.set("A", "a")
    token = old.cipher.encrypt(b"of a conversation")
    environ = {"OSTLER_MASTER_KEY": "new", "OSTLER_PREVIOUS_MASTER_KEYS": "older, old"}
    store = await SecretStore.open(tmp_path, environ)
    assert store.key_source == "OSTLER_PREVIOUS_MASTER_KEYS"
    assert await store.get("A") == "a"
    # Where nothing is stored, the new one is in use, and the others still open what they made.
    (tmp_path / "secrets.json").unlink()
    for previous in ("OSTLER_PREVIOUS_MASTER_KEYS", "OH_PREVIOUS_SECRET_KEYS"):
        store = await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "new", previous: "old"})
        assert store.key_source == "OSTLER_MASTER_KEY"
        assert store.cipher.decrypt(token) == b"of a conversation"


async def test_no_key_that_fits_names_all_that_were_tried(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "right"})).set("A", "a")
    (tmp_path / "master.key").write_text("wrong\n")
    store = await SecretStore.open(tmp_path, {"OH_SECRET_KEY": "wrong, too"})
    with pytest.raises(WrongMasterKey) as caught:
        await store.list()
    assert "OH_SECRET_KEY" in str(caught.value)
    assert "master.key" in str(caught.value)
    assert "wrong, too" not in str(caught.value)


async def test_a_broken_key_file_matters_only_where_it_is_needed(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "right"})).set("A", "a")
    (tmp_path / "master.key").write_text("")
    assert await (await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "right"})).get("A") == "a"
    with pytest.raises(SecretsCorrupt, match=r"master\.key"):
        await (await SecretStore.open(tmp_path, {})).get("A")


async def test_a_keyring_entry_that_does_not_fit_is_a_wrong_key(tmp_path: Path) -> None:
    backend = FakeBackend()
    await (await SecretStore.open(tmp_path, {}, keyring=ring(backend))).set("A", "a")
    (entry,) = backend.entries
    backend.entries[entry] = "something else"
    with pytest.raises(CredentialsFailure) as caught:
        await (await SecretStore.open(tmp_path, {}, keyring=ring(backend))).get("A")
    assert isinstance(caught.value, WrongMasterKey)


async def test_two_servers_that_start_at_once_agree_on_a_key(tmp_path: Path) -> None:
    backend = FakeBackend()
    stores: list[SecretStore] = []

    async def start() -> None:
        stores.append(await SecretStore.open(tmp_path, {}, keyring=ring(backend)))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(start)
    token = stores[0].cipher.encrypt(b"x")
    assert [store.cipher.decrypt(token) for store in stores] == [b"x"] * 4
    assert len(backend.entries) == 1


async def test_the_layout_stays_that_of_before_without_need(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, {})).set("A", "a")
    assert json.loads((tmp_path / "secrets.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    ("error", "level"),
    [(KeyringUnavailable("it is locked"), "warning"), (NoKeyring("there is none"), "info")],
)
async def test_why_a_key_goes_to_a_file_is_said(
    tmp_path: Path, error: KeyringUnavailable, level: str
) -> None:
    """Loudly only where a person can mend it: most machines have no keyring."""

    class Refusing(FakeBackend):
        def set_password(self, service: str, username: str, password: str) -> None:
            raise error

    with structlog.testing.capture_logs() as lines:
        store = await SecretStore.open(tmp_path, {}, keyring=ring(Refusing()))
    assert store.failure is None
    assert store.key_source == str(tmp_path / "master.key")
    (line,) = [line for line in lines if "OS keyring" in line["event"]]
    assert (line["log_level"], line["reason"]) == (level, str(error))
    assert ("ostler secrets rotate" in line["event"]) == (level == "warning")
