"""Children: conversations that are started as a part of another one, perhaps in a worktree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.conversations.harness import open_harness, settled, turn


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
