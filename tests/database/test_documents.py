"""Documents in PostgreSQL: several servers read and change them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.conversations.deletion import DELETIONS_FILE, Deletions
from supervisor.credentials.secret import CannotRotate, SecretsUnavailable, WrongMasterKey
from supervisor.credentials.store import SecretStore
from supervisor.database.address import Database, parse
from supervisor.database.connection import connect
from supervisor.database.documents import PostgresDocuments
from supervisor.documents.changing import Changing
from supervisor.documents.port import DocumentsUnavailable
from supervisor.mcp.file import McpFile, McpFileError
from supervisor.mcp.logins import LoginStore
from supervisor.mcp.server import server_errors
from supervisor.settings.errors import SettingsCorrupt
from supervisor.settings.profiles.llm_profiles import LlmProfileStore
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.storage.store import SettingsStore
from supervisor.workspace.saved import SavedWorkspace, SavedWorkspaces
from tests.support.cluster import Cluster
from tests.support.postgres import cluster

Open = Callable[[], PostgresDocuments]

PRESETS = {"demo": ("demo",), "codex": ("npx", "codex@1")}


class Plain:
    def encrypt(self, data: bytes) -> str:
        return data.hex()

    def decrypt(self, token: str) -> bytes:
        return bytes.fromhex(token)


@pytest.fixture
def server(database: Database) -> Iterator[Open]:
    """Opens the documents as one more server."""
    opened: list[PostgresDocuments] = []

    def open_one() -> PostgresDocuments:
        opened.append(PostgresDocuments(database))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def settings_of(documents: PostgresDocuments) -> SettingsStore:
    return SettingsStore(documents, PRESETS, server_errors)


def put(documents: PostgresDocuments, name: str, data: bytes) -> None:
    document = documents.document(name)
    release = document.try_lock()
    assert release is not None
    document.write(data)
    release()


def test_one_document(server: Open) -> None:
    here, there = server().document("a.json"), server().document("a.json")
    assert (here.read(10), here.stamp(), here.exists()) == (None, None, False)
    assert here.create(b"first")
    assert not there.create(b"second")
    found = there.read(3)
    assert found is not None
    assert (found.data, found.stamp) == (b"fir", there.stamp())
    release = there.try_lock()
    assert release is not None
    assert here.try_lock() is None
    assert there.try_lock() is None, "one connection could take its own lock again"
    assert here.try_lock("part") is not None
    assert there.write(b"\0" * 100_000) != found.stamp
    release()
    again = here.read(200_000)
    assert again is not None
    assert again.data == b"\0" * 100_000
    with pytest.raises(DocumentsUnavailable, match="lost during a change"):
        here.write(b"without the lock")


async def test_what_a_client_changes_on_one_server_it_reads_on_the_next(server: Open) -> None:
    one, two = server(), server()
    here, there = settings_of(one), settings_of(two)
    profiles = AgentProfileStore(there)
    llms = LlmProfileStore(AgentProfileStore(here)), LlmProfileStore(profiles)
    workspaces = SavedWorkspaces(one), SavedWorkspaces(two)
    await there.get()
    for number in range(3):
        await here.patch({"misc_settings_diff": {"n": number}})
        assert (await there.get()).misc_settings == {"n": number}
        await there.patch({"misc_settings_diff": {"n": -number}})
        assert (await here.get()).misc_settings == {"n": -number}
        await llms[number % 2].save(f"p{number}", {"model": "m"})
        assert (await llms[(number + 1) % 2].get(f"p{number}"))["model"] == "m"
        body = {"agent_kind": "acp", "acp_server": "codex"}
        await AgentProfileStore(here).save(f"a{number}", body)
        assert (await profiles.get(f"a{number}")).revision == 0
        await workspaces[number % 2].add([SavedWorkspace("w", "w", f"/w{number}")])
        assert len((await workspaces[0].all()).workspaces) == number + 1


CHANGER = """
import sys, trio
from supervisor.database.address import parse
from supervisor.database.documents import PostgresDocuments
from supervisor.mcp.file import McpFile
from supervisor.mcp.server import server_errors
from supervisor.settings.storage.store import SettingsStore
from pathlib import Path

documents, name, number = PostgresDocuments(parse(sys.argv[1])), sys.argv[2], int(sys.argv[3])
store = SettingsStore(documents, {"demo": ("demo",)}, server_errors)
servers = McpFile(Path("/nowhere"), documents)

async def main():
    async with trio.open_nursery() as nursery:
        for n in range(number):
            nursery.start_soon(store.patch, {"misc_settings_diff": {f"{name}{n}": n}})
    for n in range(number):
        entry = {f"{name}{n}": {"command": "c"}}
        await trio.to_thread.run_sync(servers.change, lambda found: found.update(entry))

trio.run(main)
documents.close()
"""


async def test_changes_of_two_processes_at_once_lose_nothing(server: Open, database: Database) -> None:
    command = [sys.executable, "-c", CHANGER, database.conninfo]
    writers = [subprocess.Popen([*command, name, "25"]) for name in ("a", "b")]
    assert [await trio.to_thread.run_sync(each.wait, 120) for each in writers] == [0, 0]
    documents = server()
    found = (await settings_of(documents).get()).misc_settings
    assert found == {f"{name}{n}": n for name in "ab" for n in range(25)}
    assert McpFile(Path("/nowhere"), documents).read().servers.keys() == found.keys()


async def test_a_broken_document_is_left_alone(server: Open) -> None:
    documents = server()
    for name, use in (
        ("settings.json", settings_of(documents).get),
        ("agent-profiles.json", AgentProfileStore(settings_of(documents)).list),
        ("workspaces.json", SavedWorkspaces(documents).all),
    ):
        put(documents, name, b"{")
        with pytest.raises(SettingsCorrupt, match=f"{name} in the database"):
            await use()  # type: ignore[operator]
    file = McpFile(Path("/nowhere"), documents)
    put(documents, "mcp.json", b'{"mcpServers": []}')
    with pytest.raises(McpFileError, match=r"in the database .*, line 1, column 2: mcpServers must"):
        file.change(dict.clear)
    found = documents.document("mcp.json").read(100)
    assert found is not None
    assert found.data == b'{"mcpServers": []}'


def test_logins_and_their_locks(server: Open) -> None:
    here, there = (LoginStore(server(), Plain()) for _ in range(2))
    here.put("https://one", {"token": "1"})
    assert there.get("https://one") == {"token": "1"}
    release = here.try_lock("https://one")
    assert release is not None
    assert there.try_lock("https://one") is None
    assert there.try_lock("https://two") is not None
    there.put("https://two", {"token": "2"})  # the document itself is not locked
    release()
    assert there.try_lock("https://one") is not None
    assert here.drop("https://two")
    assert there.get("https://two") is None


async def test_a_deletion_is_hidden_everywhere_and_carried_out_by_the_owner(
    server: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.conversations.deletion.GRACE_SECONDS", 0.0)
    monkeypatch.setattr("supervisor.conversations.deletion.AGAIN_SECONDS", 0.05)
    deleted: list[str] = []

    def deletions(name: str) -> Deletions:
        async def ours(conversation_id: str) -> bool:
            return conversation_id.startswith(name)

        return Deletions(server().document(DELETIONS_FILE), {}, ours)

    one, two = deletions("one"), deletions("two")

    async def delete(conversation_id: str) -> None:
        deleted.append(conversation_id)

    for each in (one, two):
        await each.load()
    for owner, each in ((one, "one-a"), (one, "one-b"), (two, "two-a")):
        await owner.add(each, 100)
    await one.refresh()
    assert one.until.keys() == two.until.keys() == {"one-a", "one-b", "two-a"}
    await one.undo("one-b")
    await two.refresh()
    assert two.until.keys() == {"one-a", "two-a"}
    put(server(), DELETIONS_FILE, json.dumps({"one-a": time.time(), "two-a": time.time()}).encode())
    one, two = deletions("one"), deletions("two")
    for each in (one, two):
        await each.load()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.carry_out, delete)
            while two.until.keys() != {"one-a"}:
                await trio.sleep(0.01)
            await trio.sleep(0.2)  # it is not its own, however often it looks
            assert deleted == ["two-a"]
            nursery.start_soon(one.carry_out, delete)
            while two.until:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert deleted == ["two-a", "one-a"]
    found = server().document(DELETIONS_FILE).read(1000)
    assert found is not None
    assert json.loads(found.data) == {}


async def opened(server: Open, state: Path, environ: dict[str, str] | None = None) -> SecretStore:
    state.mkdir(exist_ok=True)
    return await SecretStore.open(state, environ or {}, documents=server())


async def test_secrets_have_one_key_on_all_servers(server: Open, tmp_path: Path) -> None:
    first = await opened(server, tmp_path / "1")
    await first.set("A", "a")
    assert (await opened(server, tmp_path / "1")).failure is None
    second = await opened(server, tmp_path / "2")
    assert isinstance(second.failure, WrongMasterKey)
    with pytest.raises(WrongMasterKey, match=r"secrets\.json in the database"):
        await second.set("B", "b")
    assert not (tmp_path / "2" / "master.key").exists()
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "master.key").write_bytes((tmp_path / "1" / "master.key").read_bytes())
    third = await opened(server, tmp_path / "3")
    await third.set("B", "b")
    assert await first.values() == {"A": "a", "B": "b"}
    assert [path.name for path in (tmp_path / "3").iterdir()] == ["master.key"]
    with pytest.raises(CannotRotate, match="start all of them with it in OSTLER_MASTER_KEY"):
        await third.rotate()


async def test_the_key_is_fixed_before_the_first_secret(server: Open, tmp_path: Path) -> None:
    await opened(server, tmp_path / "1", {"OSTLER_MASTER_KEY": "one"})
    other = await opened(server, tmp_path / "2", {"OSTLER_MASTER_KEY": "two"})
    assert isinstance(other.failure, WrongMasterKey)


async def test_a_rotation_is_known_where_the_new_key_is_and_refused_elsewhere(
    server: Open, tmp_path: Path
) -> None:
    old = {"OSTLER_MASTER_KEY": "old"}
    both = {"OSTLER_MASTER_KEY": "new", "OSTLER_PREVIOUS_MASTER_KEYS": "old"}
    late = await opened(server, tmp_path / "late", old)
    await late.set("A", "a")
    sealed = late.cipher.encrypt(b"of a conversation")
    one, two = await opened(server, tmp_path / "1", both), await opened(server, tmp_path / "2", both)
    assert await two.get("A") == "a"
    await one.rotate()
    fresh = one.cipher.encrypt(b"since then")
    assert two.cipher.decrypt(fresh) == b"since then"
    assert await two.get("A") == "a"
    await two.set("B", "b")
    assert await one.values() == {"A": "a", "B": "b"}
    assert two.key_source == "OSTLER_MASTER_KEY"
    for store in (one, two, await opened(server, tmp_path / "3", {"OSTLER_MASTER_KEY": "new"})):
        assert store.cipher.decrypt(sealed) == b"of a conversation"
        assert await store.get("B") == "b"
    for use in (late.list, lambda: late.set("C", "c")):
        with pytest.raises(WrongMasterKey, match="another master key than the one from OSTLER_MASTER_KEY"):
            await use()


async def test_what_waits_too_long_for_another_server_says_so(
    server: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.documents.changing.LOCK_SECONDS", 0.05)
    monkeypatch.setattr("supervisor.documents.shared_files.LOCK_SECONDS", 0.05)
    one, two = server(), server()
    async with Changing(one.document("settings.json")):
        with pytest.raises(DocumentsUnavailable, match=r"another server has been changing settings\.json in"):
            await settings_of(two).patch({"misc_settings_diff": {"a": 1}})
        await settings_of(two).get()
    release = one.document("mcp.json").try_lock()
    with pytest.raises(McpFileError, match="another program has been changing it"):
        McpFile(Path("/nowhere"), two).change(dict.clear)
    assert release is not None
    release()
    await settings_of(two).patch({"misc_settings_diff": {"a": 1}})


def end_connections(database: Database) -> None:
    with connect(database, "test") as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_lost_connection_is_made_again_and_a_change_over_it_refused(
    server: Open, database: Database
) -> None:
    documents = server()
    store = settings_of(documents)
    await store.patch({"misc_settings_diff": {"a": 1}})
    end_connections(database)
    await store.patch({"misc_settings_diff": {"a": 2}})
    document = documents.document("settings.json")
    async with Changing(document):
        end_connections(database)
        assert document.exists()
        with pytest.raises(DocumentsUnavailable, match="lost during a change; try again"):
            document.write(b"{}")
    assert (await settings_of(server()).get()).misc_settings == {"a": 2}
    await store.patch({"misc_settings_diff": {"a": 3}})


@pytest.fixture
def away() -> Iterator[tuple[Cluster, Any]]:
    """A cluster of its own with a schema, that a test may stop."""
    from supervisor.database.schema import migrate

    with cluster() as found:
        database = found.database()
        with connect(database, "test") as connection:
            migrate(connection)
        yield found, database


async def test_a_database_that_is_away_is_an_error_that_passes(
    away: tuple[Cluster, Database], tmp_path: Path
) -> None:
    postgres, database = away
    documents = PostgresDocuments(database)
    store, secrets = settings_of(documents), await SecretStore.open(tmp_path, {}, documents=documents)
    await store.patch({"misc_settings_diff": {"a": 1}})
    await secrets.set("A", "a")
    postgres.stop()
    uses: list[Callable[[], Any]] = [store.get, lambda: store.patch({"misc_settings_diff": {"a": 2}})]
    for use in uses:
        with pytest.raises(DocumentsUnavailable, match="cannot be used: it does not answer"):
            await use()
    with pytest.raises(SecretsUnavailable):
        await secrets.values()
    with pytest.raises(OSError, match="does not answer"):
        await secrets.set("A", "b")
    with pytest.raises(McpFileError, match="it cannot be read: the database"):
        McpFile(tmp_path, documents).read()
    begun = time.monotonic()
    for _ in range(100):
        with pytest.raises(DocumentsUnavailable):
            documents.document("a").stamp()
    assert time.monotonic() - begun < 5
    postgres.start()
    while True:
        try:
            assert (await store.get()).misc_settings == {"a": 1}
            break
        except DocumentsUnavailable:
            await trio.sleep(0.1)
    assert await secrets.values() == {"A": "a"}
    documents.close()


def test_no_error_repeats_the_password() -> None:
    password = "hunter" * 2
    documents = PostgresDocuments(parse(f"postgresql://u:{password}@127.0.0.1:1/x"))
    with pytest.raises(DocumentsUnavailable) as caught:
        documents.document("a").stamp()
    assert password not in "".join(traceback.format_exception(caught.value))
    assert password not in repr(documents.__dict__)
