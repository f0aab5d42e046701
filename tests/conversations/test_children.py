"""Children: conversations that are started as a part of another one, perhaps in a worktree."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.acp import RpcError
from supervisor.conversations import children
from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.children import Worktrees
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import AtCapacity, ConversationClosing
from supervisor.journal.errors import JournalUnavailable
from supervisor.journal.journal import Journal
from supervisor.workspace.access import Admitted
from supervisor.workspace.git.worktree import WORKTREES_DIR, drop_worktree, make_worktree
from tests.conversations.harness import answer, open_harness, say, settled, turn, until
from tests.conversations.telling import told
from tests.workspace.repositories import reader


def git(*arguments: str, cwd: Path) -> str:
    config = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *config, *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(path: Path) -> None:
    path.mkdir()
    git("init", cwd=path)
    (path / "sub").mkdir()
    (path / "sub" / "a.txt").write_text("committed")
    git("add", ".", cwd=path)
    git("commit", "-m", "first", cwd=path)
    # Hooks do not run over a worktree.
    hook = path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {path.parent}/hooked\n")
    hook.chmod(0o755)


def apart(parent: Conversation) -> Worktrees:
    """As the route has it."""
    workspace = Path(parent.record.start.working_dir)
    place, root = Admitted(workspace.resolve(), workspace.resolve()), workspace.parent / WORKTREES_DIR

    async def make(child_id: str) -> Path | None:
        return await make_worktree(reader(), place, root, child_id)

    async def drop(child_id: str) -> None:
        await drop_worktree(reader(), place, root, child_id)

    return Worktrees(make, drop)


async def test_a_child_has_the_same_agent_and_a_worktree(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    repository(workspace)
    async with open_harness(tmp_path) as harness:
        parent = await harness.start(tags={"a": "b"}, secrets={"TOKEN": "value-of-it"})
        await turn(parent, "the word is tulip")
        child = await harness.supervisor.start_child(
            parent.id, "!cwd\n!remember", title="C", worktree=apart(parent)
        )
        await settled(child)
        record = child.record
        assert (record.start.parent_conversation_id, record.title, record.tags) == (
            parent.id,
            "C",
            {"a": "b"},
        )
        assert parent.record.children == [child.id]
        place = Path(record.start.working_dir)
        assert place == tmp_path / "worktrees" / child.id / "workspace"
        assert (place / "sub" / "a.txt").read_text() == "committed"
        assert git("branch", "--show-current", cwd=place) == f"openhands/{child.id}"
        said = await child.final_response()
        assert str(place) in said
        assert "tulip" not in said
        assert harness.log.records("start")[-1]["environment"]["TOKEN"] == "value-of-it"
        assert not (tmp_path / "hooked").exists()


async def test_without_a_repository_or_where_it_is_to_be_so_both_share_the_workspace(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        parent = await harness.start()
        (tmp_path / "workspace").mkdir()
        for own in (apart(parent), None):
            child = await harness.supervisor.start_child(parent.id, "hello", title=None, worktree=own)
            await settled(child)
            assert child.record.start.working_dir == parent.record.start.working_dir
        assert len(parent.record.children) == 2


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
@pytest.mark.parametrize("worktree", [True, False])
async def test_where_there_is_no_room_nothing_is_made(tmp_path: Path, worktree: bool) -> None:
    repository(tmp_path / "workspace")
    async with open_harness(tmp_path, limits=Limits(agents=0, full="refuse")) as harness:
        parent = await harness.start()
        with pytest.raises(AtCapacity):
            await harness.supervisor.start_child(
                parent.id, "hello", title=None, worktree=apart(parent) if worktree else None
            )
        with pytest.raises(AtCapacity):
            await harness.start(initial_message=say("hello"))
        assert await harness.supervisor.count() == 1
        assert parent.record.children == []
        assert not (tmp_path / "worktrees").exists()
        assert git("branch", "--list", "openhands/*", cwd=tmp_path / "workspace") == ""


async def test_who_is_created_is_not_refused_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the last place while a conversation is created: its message waits for one."""
    async with open_harness(tmp_path, limits=Limits(agents=1, full="refuse")) as harness:
        create = Journal.create

        async def meanwhile(journal: Journal, *args: Any, **more: Any) -> Any:
            monkeypatch.undo()
            other = await harness.start()
            await other.send(say("!hang"), run=True)
            await until(lambda: harness.log.prompts())
            return await create(journal, *args, **more)

        monkeypatch.setattr(Journal, "create", meanwhile)
        conversation = await harness.start(initial_message=say("hello"))
        assert conversation.busy
        assert conversation.queued == [say("hello")]
        await conversation.interrupt()


async def test_a_disk_that_does_not_answer_tells_that_it_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        parent = await harness.start()
        with monkeypatch.context() as patch:

            async def unavailable(_: Conversation) -> None:
                raise JournalUnavailable("The message is queued, but it is not on the disk yet.")

            patch.setattr(Conversation, "durable", unavailable)
            with pytest.raises(JournalUnavailable, match="is created") as told:
                await harness.supervisor.start_child(parent.id, "hello", title=None, worktree=None)
        (child,) = parent.record.children
        assert child in str(told.value)
        await settled(await harness.supervisor.get(child))


async def test_the_built_in_agent_starts_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tool `start_child_conversation`, as a client does by REST; not without an end."""
    monkeypatch.setattr(children, "CHILDREN_MAX", 1)
    async with told(tmp_path) as (harness, parent):
        await turn(parent, "!answer m Yes")
        ask = parent.context.children.start
        assert ask is not None
        wanted = {"sessionId": "s", "task": "!answer n Done", "title": "T", "isolation": "shared"}
        said = await ask(parent.id, wanted)
        child = await harness.supervisor.get(said["conversation_id"])
        await settled(child)
        assert await child.final_response() == "Done"
        assert said == {
            "conversation_id": child.id,
            "parent_conversation_id": parent.id,
            "status": said["status"],
            "title": "T",
            "url": None,
            "workspace": parent.record.start.working_dir,
            "isolation": "shared",
        }
        for bad, why in (
            ({"task": ""}, "task"),
            ({"task": "t", "isolation": "x"}, "isolation"),
            ({}, "task"),
        ):
            with pytest.raises(RpcError, match=why):
                await ask(parent.id, bad)
        with pytest.raises(RpcError, match="has 1 child conversations already"):
            await ask(parent.id, {"task": "t"})
        for _ in range(children.GENERATIONS_MAX - 1):
            child = await harness.supervisor.get((await ask(child.id, wanted))["conversation_id"])
        with pytest.raises(RpcError, match="at most 3 generations"):
            await ask(child.id, wanted)


async def test_an_agent_that_asks_for_many_children_at_once_gets_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "CHILDREN_MAX", 1)
    async with told(tmp_path) as (_, parent):
        await turn(parent, "!answer m Yes")
        ask = parent.context.children.start
        assert ask is not None
        refused = []

        async def one() -> None:
            try:
                await ask(parent.id, {"task": "!answer n Done", "isolation": "shared"})
            except RpcError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        assert len(parent.record.children) == 1
        assert len(refused) == 2
        assert parent.starting_children == 0


async def test_a_child_whose_parent_was_deleted_starts_one(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, parent):
        await turn(parent, "!answer m Yes")
        ask = parent.context.children.start
        assert ask is not None
        wanted = {"task": "!answer n Done", "isolation": "shared"}
        child = await harness.supervisor.get((await ask(parent.id, wanted))["conversation_id"])
        await settled(child)
        await harness.supervisor.delete(parent.id)
        assert (await ask(child.id, wanted))["parent_conversation_id"] == child.id


async def test_who_is_not_of_ostlers_own_starts_none(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!request _ostler/start_child")
        assert "_ostler/start_child -> error -32601" in answer(found)
        assert conversation.record.children == []


@pytest.mark.parametrize("moment", ["closing", "not stored", "created"])
async def test_a_worktree_of_which_no_child_comes_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The parent closes while its worktree is made, or the journal takes no conversation."""
    repository(tmp_path / "workspace")
    async with open_harness(tmp_path) as harness:
        parent = await harness.start()
        worktrees = apart(parent)

        async def make(child_id: str) -> Path | None:
            made = await worktrees.make(child_id)
            assert made is not None
            assert (made / "sub" / "a.txt").exists()
            if moment == "closing":
                parent.runner.close()
            return made

        async def unavailable(*_: Any, **__: Any) -> Any:
            raise JournalUnavailable("It is not on the disk yet.")

        if moment == "not stored":
            monkeypatch.setattr(Journal, "create", unavailable)
        elif moment == "created":
            monkeypatch.setattr(Conversation, "begin", unavailable)
        with pytest.raises((ConversationClosing, JournalUnavailable)):
            await harness.supervisor.start_child(
                parent.id, "hello", title=None, worktree=Worktrees(make, worktrees.drop)
            )
        created = moment == "created"
        assert bool(list((tmp_path / "worktrees").iterdir())) is created
        branches = git("branch", "--list", "openhands/*", cwd=tmp_path / "workspace")
        assert bool(branches) is created
        assert len(git("worktree", "list", cwd=tmp_path / "workspace").splitlines()) == 1 + created


async def test_what_clients_start_and_what_is_deleted_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "CHILDREN_MAX", 1)
    async with told(tmp_path) as (harness, parent):
        await turn(parent, "!answer m Yes")
        ask = parent.context.children.start
        assert ask is not None
        wanted = {"task": "!answer n Done", "isolation": "shared"}
        await settled(
            await harness.supervisor.start_child(parent.id, "!answer n Done", title=None, worktree=None)
        )
        for _ in range(3):
            child = (await ask(parent.id, wanted))["conversation_id"]
            await settled(await harness.supervisor.get(child))
            with pytest.raises(RpcError, match="has 1 child conversations already"):
                await ask(parent.id, wanted)
            await harness.supervisor.delete(child)
        assert parent.record.started == [child]
