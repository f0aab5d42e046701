"""The secret store: what is on disk, who can read it, and what a wrong key may not do."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import trio

from supervisor.credentials.secret import (
    REDACTED,
    InvalidSecretName,
    InvalidSecretValue,
    Secret,
    SecretInfo,
    SecretsCorrupt,
    WrongMasterKey,
)
from supervisor.credentials.store import SecretStore
from tests.support.documents import FILES_ALONE

pytestmark = pytest.mark.usefixtures("stores")

KEY = {"OSTLER_MASTER_KEY": "correct horse battery staple"}
VALUE = "sk-very-secret-value"


async def test_round_trip_across_openings(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    await store.set("API_KEY", VALUE, "for the model")
    await store.set("B", "two")
    await store.set("B", "three")
    for reader in (store, await SecretStore.open(tmp_path, KEY)):
        assert await reader.get("API_KEY") == VALUE
        assert await reader.get("C") is None
        assert await reader.list() == [SecretInfo("API_KEY", "for the model"), SecretInfo("B")]
        assert await reader.values() == {"API_KEY": VALUE, "B": "three"}


async def test_delete_is_durable_and_says_whether_there_was_one(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    await store.set("A", VALUE)
    assert await store.delete("A")
    assert not await store.delete("A")
    assert await (await SecretStore.open(tmp_path, KEY)).list() == []


@FILES_ALONE
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_file_is_private_and_holds_no_value(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = await SecretStore.open(state, {})
    await store.set("A", VALUE)
    for name in ("secrets.json", "master.key"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert VALUE not in (state / "secrets.json").read_text()
    # Nothing half-written stays behind.
    assert sorted(path.name for path in state.iterdir()) == ["master.key", "secrets.json"]


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_values_show_nowhere(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    await store.set("A", VALUE)
    secret = Secret(VALUE)
    shown = [repr(store), repr(store.__dict__), repr(store.master), repr(secret), str(secret), f"{secret}"]
    assert all(VALUE not in text and KEY["OSTLER_MASTER_KEY"] not in text for text in shown)
    assert secret.reveal() == VALUE


@FILES_ALONE
@pytest.mark.parametrize("name", ["", "1A", "_A", "A-B", "A B", "A\n", "Ä", "A" * 65])
async def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    with pytest.raises(InvalidSecretName):
        await store.set(name, VALUE)
    assert not (tmp_path / "secrets.json").exists()


@pytest.mark.parametrize("value", ["", "  \n", REDACTED, f" {REDACTED}\n", "sk-a\0b"])
async def test_bad_values_are_refused_without_being_quoted(tmp_path: Path, value: str) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    with pytest.raises(InvalidSecretValue) as caught:
        await store.set("A", value)
    assert "sk-a" not in str(caught.value)
    assert await store.get("A") is None


@FILES_ALONE
async def test_key_order_and_source(tmp_path: Path) -> None:
    both = {"OSTLER_MASTER_KEY": "one", "OH_SECRET_KEY": "two"}
    assert (await SecretStore.open(tmp_path, both)).key_source == "OSTLER_MASTER_KEY"
    assert (await SecretStore.open(tmp_path, {"OH_SECRET_KEY": "two"})).key_source == "OH_SECRET_KEY"
    blank = {"OSTLER_MASTER_KEY": " ", "OH_SECRET_KEY": "two"}
    assert (await SecretStore.open(tmp_path, blank)).key_source == "OH_SECRET_KEY"
    assert not (tmp_path / "master.key").exists()


@FILES_ALONE
async def test_key_file_is_created_once_and_then_read(tmp_path: Path) -> None:
    first = await SecretStore.open(tmp_path, {})
    assert first.key_source == str(tmp_path / "master.key")
    assert first.master.created
    content = (tmp_path / "master.key").read_bytes()
    await first.set("A", VALUE)
    second = await SecretStore.open(tmp_path, {})
    assert not second.master.created
    assert (tmp_path / "master.key").read_bytes() == content
    assert await second.get("A") == VALUE
    # The file's content is a phrase like any other.
    moved = await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": content.decode()})
    assert await moved.get("A") == VALUE


@FILES_ALONE
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_wrong_key_names_file_and_source_and_changes_nothing(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, KEY)).set("A", VALUE)
    before = (tmp_path / "secrets.json").read_bytes()
    store = await SecretStore.open(tmp_path, {"OH_SECRET_KEY": "another"})
    for use in (
        store.list,
        store.values,
        lambda: store.get("A"),
        lambda: store.set("B", "x"),
        lambda: store.delete("A"),
    ):
        with pytest.raises(WrongMasterKey) as caught:
            await use()
        assert "secrets.json" in str(caught.value)
        assert "OH_SECRET_KEY" in str(caught.value)
    assert (tmp_path / "secrets.json").read_bytes() == before
    assert await (await SecretStore.open(tmp_path, KEY)).get("A") == VALUE


async def test_wrong_key_shows_even_when_all_secrets_are_deleted(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    await store.set("A", VALUE)
    await store.delete("A")
    with pytest.raises(WrongMasterKey):
        await (await SecretStore.open(tmp_path, {"OH_SECRET_KEY": "another"})).list()


@FILES_ALONE
async def test_lost_key_file_is_not_replaced_while_secrets_exist(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, {})).set("A", VALUE)
    (tmp_path / "master.key").unlink()
    store = await SecretStore.open(tmp_path, {})
    with pytest.raises(WrongMasterKey, match="missing"):
        await store.set("B", "x")
    with pytest.raises(WrongMasterKey):
        _ = store.cipher
    assert not (tmp_path / "master.key").exists()


@FILES_ALONE
async def test_empty_key_file_is_an_error_not_a_key(tmp_path: Path) -> None:
    (tmp_path / "master.key").write_text("\n")
    store = await SecretStore.open(tmp_path, {})
    with pytest.raises(SecretsCorrupt, match="empty"):
        await store.list()


@FILES_ALONE
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version":1,"check":"x","secrets":[]}',
        b'{"version":1,"check":"x","secrets":{"A":"b"}}',
        b'{"version":3,"check":"x","secrets":{}}',
        b'{"version":2,"check":"x","secrets":{},"retired":1}',
        b"[" * 100_000,
    ],
)
async def test_corrupt_file_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secrets.json"
    path.write_bytes(content)
    store = await SecretStore.open(tmp_path, KEY)
    with pytest.raises(SecretsCorrupt, match=r"secrets\.json"):
        await store.list()
    with pytest.raises(SecretsCorrupt):
        await store.set("A", VALUE)
    assert path.read_bytes() == content


@FILES_ALONE
async def test_a_file_of_another_release_is_read(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, KEY)).set("A", VALUE)
    path = tmp_path / "secrets.json"
    document = json.loads(path.read_text())
    document["secrets"]["A"]["later"] = document["later"] = 1
    path.write_text(json.dumps(document))
    assert await (await SecretStore.open(tmp_path, KEY)).get("A") == VALUE


@FILES_ALONE
async def test_one_damaged_value_is_named(tmp_path: Path) -> None:
    await (await SecretStore.open(tmp_path, KEY)).set("A", VALUE)
    path = tmp_path / "secrets.json"
    document = json.loads(path.read_text())
    document["secrets"]["A"]["value"] = "gAAAA-damaged"
    path.write_text(json.dumps(document))
    with pytest.raises(SecretsCorrupt, match="the value of A"):
        await (await SecretStore.open(tmp_path, KEY)).values()


async def test_exchange_replaces_what_it_was_asked_about(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    assert not await store.exchange("LOGIN", "second", lambda _: True)  # there is none
    await store.set("LOGIN", "first-value", "mine")
    assert not await store.exchange("LOGIN", "second-value", lambda value: value == "other")
    assert not await store.exchange("LOGIN", "first-value", lambda _: True)  # it is there already
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.set, "LOGIN", "a-persons-value", "mine")
        nursery.start_soon(store.exchange, "LOGIN", "rotated-value", lambda value: value == "first-value")
    assert await store.get("LOGIN") in {"a-persons-value", "rotated-value"}
    await store.set("LOGIN", "a-persons-value", "mine")
    assert not await store.exchange("LOGIN", "rotated-value", lambda value: value == "first-value")
    assert await store.exchange("LOGIN", "rotated-value", lambda value: value == "a-persons-value")
    again = await SecretStore.open(tmp_path, KEY)
    assert await again.get("LOGIN") == "rotated-value"
    assert [(info.name, info.description) for info in await again.list()] == [("LOGIN", "mine")]


async def test_concurrent_sets_all_stay(tmp_path: Path) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(store.set, f"S{number}", f"value {number}")
    expected = {f"S{number}": f"value {number}" for number in range(10)}
    assert await (await SecretStore.open(tmp_path, KEY)).values() == expected


@FILES_ALONE
async def test_failed_write_leaves_the_old_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await SecretStore.open(tmp_path, KEY)
    await store.set("A", VALUE)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("supervisor.documents.files.replace_private", full)
    with pytest.raises(OSError, match="space"):
        await store.set("A", "new")
    assert await store.get("A") == VALUE
    assert await (await SecretStore.open(tmp_path, KEY)).get("A") == VALUE


async def test_no_more_is_stored_than_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.credentials.store.MAX_FILE_BYTES", 2000)
    store = await SecretStore.open(tmp_path, {})
    await store.set("ONE", "1" * 200)
    with pytest.raises(InvalidSecretValue, match=r"more than 2000 bytes\. Delete some first"):
        await store.set("MORE", "2" * 2000)
    again = await SecretStore.open(tmp_path, {})
    assert await again.values() == {"ONE": "1" * 200}
    await again.delete("ONE")
    await again.set("MORE", "2" * 200)
