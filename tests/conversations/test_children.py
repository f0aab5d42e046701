"""Children: conversations that are started as a part of another one, perhaps in a worktree."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import AtCapacity
from supervisor.journal import Journal, JournalUnavailable
from tests.conversations.harness import open_harness, say, settled, turn, until


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


async def test_a_child_has_the_same_agent_and_a_worktree(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    repository(workspace)
    async with open_harness(tmp_path) as harness:
        parent = await harness.start(tags={"a": "b"}, secrets={"TOKEN": "value-of-it"})
        await turn(parent, "the word is tulip")
        child = await harness.supervisor.start_child(parent.id, "!cwd\n!remember", title="C", worktree=True)
        await settled(child)
        record = child.record
        assert (record.parent_conversation_id, record.title, record.tags) == (parent.id, "C", {"a": "b"})
        assert parent.record.children == [child.id]
        place = Path(record.working_dir)
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
        for worktree in (True, False):
            child = await harness.supervisor.start_child(parent.id, "hello", title=None, worktree=worktree)
            await settled(child)
            assert child.record.working_dir == parent.record.working_dir
        assert len(parent.record.children) == 2


@pytest.mark.parametrize("worktree", [True, False])
async def test_where_there_is_no_room_nothing_is_made(tmp_path: Path, worktree: bool) -> None:
    repository(tmp_path / "workspace")
    async with open_harness(tmp_path, limits=Limits(agents=0, full="refuse")) as harness:
        parent = await harness.start()
        with pytest.raises(AtCapacity):
            await harness.supervisor.start_child(parent.id, "hello", title=None, worktree=worktree)
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

            patch.setattr(Conversation, "_durable", unavailable)
            with pytest.raises(JournalUnavailable, match="is created") as told:
                await harness.supervisor.start_child(parent.id, "hello", title=None, worktree=False)
        (child,) = parent.record.children
        assert child in str(told.value)
        await settled(await harness.supervisor.get(child))
