"""`ostler database copy`: a whole state, in both directions."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.api.webhooks.cursors import Cursors, FileTable
from supervisor.credentials.store import SecretStore
from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.journal.journal import open_journal
from supervisor.journal.rows import Blob, RecordOrder, RecordUpdate, Row
from supervisor.machines import directory
from supervisor.machines.directory import Claimant
from supervisor.mcp.file import McpFile
from supervisor.offline.copying import copying
from supervisor.offline.copying.copying import Copied, copy
from supervisor.offline.copying.ends import PART_BYTES, RECORD, CannotCopy, parts
from supervisor.offline.copying.postgres import Shared
from supervisor.offline.copying.sqlite import Directory
from tests.journal.harness import CREATED, new_log

CONVERSATIONS = 12
EVENTS = 40


async def fill(state: Path, *, conversations: int = CONVERSATIONS, events: int = EVENTS) -> None:
    """A state as servers leave it: events of all sizes with updates, files, forks, what was deleted."""
    draw = random.Random(7)
    async with open_journal(state / "journal.sqlite3") as journal:
        for number in range(conversations):
            log = await new_log(journal, f"c-{number:04}")
            for at in range(events):
                body = draw.randbytes(draw.choice((2, 300, 300, 20_000)))
                row = Row(f"e-{at}", draw.choice(("A", "B", "ü")), "agent", f"{CREATED}{at}", body)
                if at % 3 == 0:
                    row.updates = draw.randbytes(50)
                blobs = [Blob(f"b-{at}", "image/png", draw.randbytes(70_000))] if at % 20 == 0 else []
                log.append([row], RecordUpdate(record=b"%d" % at, status="idle", updated_at=CREATED), blobs)
            await log.flushed()
        await new_log(journal, "c-empty")
        await journal.fork("c-0001", "c-fork", b"{}", parts=[(0, 5), (10, events - 1)], **columns())
        await journal.delete("c-0002")
    secrets = await SecretStore.open(state, {})
    await secrets.set("TOKEN", "a value")
    McpFile(state).change(lambda servers: servers.update(one={"command": "c"}))
    cursors = Cursors(FileTable(state / "webhooks.sqlite3"))
    for number in range(conversations):
        await cursors.put(f"c-{number:04}", "https://receiver", number, behind=number % 2 == 0)
    await cursors.close()


def columns() -> dict[str, Any]:
    return {"status": "idle", "created_at": CREATED, "updated_at": CREATED}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a state; copy it before it is changed."""
    state = tmp_path_factory.mktemp("filled") / "state"
    trio.run(fill, state)
    return state


@pytest.fixture
def state(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "source"))


def content(connection: Any) -> list[list[tuple[Any, ...]]]:
    """All that a copy moves, but for what belongs to one end. What a deleted conversation leaves is removed
    in pieces, so some of it may be there still."""
    kept = "WHERE conversation IN (SELECT key FROM conversations)"
    asked = (
        f"SELECT key, {', '.join(RECORD)} FROM conversations ORDER BY 1",
        "SELECT conversation, seq, id, kind, source, timestamp, body, updates "
        f"FROM events {kept} ORDER BY 1, 2",
        f"SELECT conversation, id, media_type, data FROM blobs {kept} ORDER BY 1, 2",
        f"SELECT conversation, kind, block, events FROM kind_counts {kept} ORDER BY 1, 2, 3",
    )
    return [list(connection.execute(each).fetchall()) for each in asked]


def in_directory(state: Path) -> list[list[tuple[Any, ...]]]:
    connection = sqlite3.connect(state / "journal.sqlite3")
    found = content(connection)
    connection.close()
    return found


def in_database(database: Database) -> list[list[tuple[Any, ...]]]:
    with connect(database, "test") as connection:
        return content(connection)


def run(source: Path | Database, target: Path | Database) -> Copied:
    """One copy. Raises CannotCopy."""
    ends: list[Directory | Shared] = []
    try:
        for each in (source, target):
            kind: Any = Directory if isinstance(each, Path) else Shared
            ends.append(kind(each, target=each is target))
        return copy(ends[0], ends[1], lambda what, number: None)
    finally:
        for end in ends:
            end.close()


async def test_a_state_goes_into_a_database_and_back(
    state: Path, empty_database: Database, tmp_path: Path
) -> None:
    before = in_directory(state)
    found = run(state, empty_database)
    assert found == Copied(CONVERSATIONS + 1, len(before[1]), len(before[2]), 2, CONVERSATIONS)
    assert found.events > 400
    assert in_database(empty_database) == before
    with connect(empty_database, "test") as connection:
        heads = connection.execute("SELECT key, owner, generation, last_seq FROM heads ORDER BY 1").fetchall()
        said = "SELECT nextval(pg_get_serial_sequence('conversations', 'key')), (SELECT count(*) FROM meta)"
        row = connection.execute(said).fetchone()
    last = {key: max((row[1] for row in before[1] if row[0] == key), default=-1) for key, *_ in before[0]}
    assert heads == [(key, None, 0, last[key]) for key in sorted(last)]
    assert row == (max(last) + 1, 0)
    back = tmp_path / "back"
    assert run(empty_database, back) == found
    assert in_directory(back) == before
    assert back.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in back.iterdir() if path.suffix != ".lock"}
    assert modes == dict.fromkeys(("journal.sqlite3", "secrets.json", "mcp.json", "webhooks.sqlite3"), 0o600)
    for name in ("secrets.json", "mcp.json"):
        assert (back / name).read_bytes() == (state / name).read_bytes()
    cursors = Cursors(FileTable(back / "webhooks.sqlite3"))
    assert await cursors.behind() == [f"c-{number:04}" for number in range(0, CONVERSATIONS, 2)]
    await cursors.close()
    shutil.copy(state / "master.key", back / "master.key")
    assert await (await SecretStore.open(back, {})).get("TOKEN") == "a value"
    async with open_journal(back / "journal.sqlite3") as journal:
        records = await journal.search_records(status=None, order=RecordOrder.CREATED_AT, page=None, limit=50)
        assert len(records.items) == found.conversations
        log = await journal.log("c-0003")
        log.append([Row("new", "A", "user", CREATED, b"{}")])
        await log.flushed()
        assert log.high_water == EVENTS


async def test_work_that_was_cut_off_waits_for_a_server(tmp_path: Path, empty_database: Database) -> None:
    async with open_journal(tmp_path / "state" / "journal.sqlite3") as journal:
        for status in ("idle", "running", "waiting_for_confirmation", "finished"):
            await journal.create(status, b"{}", status=status, created_at=CREATED, updated_at=CREATED)
    run(tmp_path / "state", empty_database)
    with connect(empty_database, "test") as connection:
        assert directory.waiting(connection, Claimant(1, "")) == 2


KILLED = """
import os, sys
from pathlib import Path
from supervisor.database.address import parse
from supervisor.offline.copying import copying
from supervisor.offline.copying.postgres import Shared
from supervisor.offline.copying.sqlite import Directory

source, target, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

def end(text, target):
    return Shared(parse(text), target=target) if "://" in text else Directory(Path(text), target=target)

here, there = end(source, False), end(target, True)

def counted(function):
    def call(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*arguments)
    return call

for name in ("insert", "insert_conversation", "replace_document", "replace_cursors", "end"):
    setattr(there, name, counted(getattr(there, name)))
copying.PAGE = 3
copying.copy(here, there, lambda what, number: None)
"""


@pytest.mark.parametrize("back", [False, True])
def test_a_copy_that_is_killed_goes_on(
    state: Path, empty_database: Database, tmp_path: Path, back: bool
) -> None:
    before = in_directory(state)
    ends = [str(state), empty_database.conninfo]
    if back:
        run(state, empty_database)
        ends = [empty_database.conninfo, str(tmp_path / "back")]
    statuses = []
    for left in (0, 3, 8, 14, 1, 2, 1000):
        command = [sys.executable, "-c", KILLED, *ends, str(left)]
        statuses.append(subprocess.run(command, check=False, timeout=120).returncode)
        if statuses[-1] == 0:
            break
        assert statuses[-1] == -signal.SIGKILL
        if back:
            assert not (tmp_path / "back" / "journal.sqlite3").exists()
    assert statuses[-1] == 0
    assert len(statuses) > 4
    assert (in_directory(tmp_path / "back") if back else in_database(empty_database)) == before
    with pytest.raises(CannotCopy, match="is not empty"):
        run(state, tmp_path / "back" if back else empty_database)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE events SET body = 'x' WHERE seq = 7 AND conversation = 4", "the conversation c-0003"),
        ("UPDATE events SET updates = NULL WHERE seq = 3 AND conversation = 1", "the conversation c-0000"),
        ("DELETE FROM blobs WHERE conversation = 5 AND id = 'b-20'", "the conversation c-0004"),
        ("UPDATE conversations SET record = 'x' WHERE id = 'c-0005'", "the conversation c-0005"),
        ("DELETE FROM conversations WHERE id = 'c-0006'", "the conversations"),
        ("UPDATE documents SET body = 'x' WHERE name = 'mcp.json'", "mcp.json"),
        ("UPDATE webhook_cursors SET seq = 99 WHERE conversation = 'c-0007'", "the positions of webhooks"),
    ],
)
def test_what_differs_is_found(
    state: Path, empty_database: Database, monkeypatch: pytest.MonkeyPatch, change: str, what: str
) -> None:
    compared = copying._compared
    source, target = Directory(state, target=False), Shared(empty_database, target=True)

    def spoilt(*arguments: Any) -> Copied:
        target._connection.execute(change.encode())
        return compared(*arguments)

    monkeypatch.setattr(copying, "_compared", spoilt)
    with pytest.raises(CannotCopy, match=f"differs from its source: {what}. Empty the target"):
        copy(source, target, lambda what, number: None)
    row = target._connection.execute("SELECT count(*) FROM meta WHERE name = 'copy'").fetchone()
    assert row == (1,), "servers could use it"
    source.close()
    target.close()


def test_what_is_in_use_or_not_empty_is_refused(
    state: Path, database: Database, empty_database: Database, tmp_path: Path
) -> None:
    held = Directory(state, target=False)
    with pytest.raises(CannotCopy, match=r"another process has the journal .* open"):
        run(state, empty_database)
    with pytest.raises(CannotCopy, match=r"another process has the journal .* open"):
        run(database, state)
    held.close()
    with pytest.raises(CannotCopy, match="is not empty"):
        run(database, state)
    (tmp_path / "settled").mkdir()
    (tmp_path / "settled" / "settings.json").write_text("{}")
    with pytest.raises(CannotCopy, match="is not empty"):
        run(database, tmp_path / "settled")
    with pytest.raises(CannotCopy, match="there is no journal in"):
        run(tmp_path / "nothing", database)
    assert not (tmp_path / "nothing").exists()
    with connect(database, "test") as connection:
        connection.execute(
            "INSERT INTO servers (name, instance, address, version, expires, ttl) "
            "VALUES ('one', '', '', '', now() + interval '1 h', 15)"
        )
        for ends in ((state, database), (database, tmp_path / "target")):
            with pytest.raises(CannotCopy, match=r"servers use the database .*: one\. End them first"):
                run(*ends)
        connection.execute("UPDATE servers SET state = 'left'")
        connection.execute("INSERT INTO documents VALUES ('settings.json', 1, '{}')")
    with pytest.raises(CannotCopy, match="is not empty"):
        run(state, database)
    other = Shared(database, target=False)
    with pytest.raises(CannotCopy, match="another copy uses"):
        run(state, database)
    other.close()


def test_a_part_of_another_copy_is_refused(
    state: Path, empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> Copied:
        raise CannotCopy("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_compared", fails)
        with pytest.raises(CannotCopy, match="on purpose"):
            run(state, empty_database)
        with pytest.raises(CannotCopy, match="on purpose"):
            run(state, tmp_path / "target")
    other = Path(shutil.copytree(state, tmp_path / "other"))
    for target in (empty_database, tmp_path / "target"):
        with pytest.raises(CannotCopy, match="a part of a copy from elsewhere"):
            run(other, target)
        run(state, target)


def test_parts_are_bounded() -> None:
    rows = [(b"x" * (PART_BYTES // 2 - 10),)] * 3 + [(b"y" * 2 * PART_BYTES,)] + [("z",)] * 1001
    assert [len(part) for part in parts(iter(rows))] == [2, 1, 1, 500, 500, 1]


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "database", "copy", *arguments],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **env},
    )  # fmt: skip


def test_the_command(state: Path, empty_database: Database) -> None:
    done = command(str(state), "env:WHERE", "--json", WHERE=empty_database.conninfo)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["conversations"] == CONVERSATIONS + 1
    again = command(str(state), "env:WHERE", WHERE=empty_database.conninfo)
    assert (again.returncode, again.stdout) == (1, "")
    assert "is not empty" in again.stderr
    assert command(str(state), "env:NOWHERE").returncode == 2


def test_no_message_has_the_password(state: Path) -> None:
    password = "hunter" * 2
    for address in (f"postgresql://u:{password}@127.0.0.1:1/x", f"mysql://u:{password}@h/x"):
        done = command(str(state), "env:WHERE", WHERE=address)
        assert done.returncode in (1, 2)
        assert done.stderr
        assert password not in done.stdout + done.stderr
