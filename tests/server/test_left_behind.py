"""What a killed server leaves on the disk is nobody's, and the next one removes it."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
import trio

from tests.conversations.harness import until
from tests.support.server import running_server
from tests.workspace.repositories import repository


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_server_that_is_killed_beside_git_leaves_nothing_for_the_next_one(tmp_path: Path) -> None:
    repository(tmp_path / "work", kept="k")
    programs, temporary = tmp_path / "programs", tmp_path / "temporary"
    programs.mkdir()
    temporary.mkdir()
    began = tmp_path / "began"
    git = programs / "git"
    git.write_text(f"#!/bin/sh\ntouch {began}\nexec sleep 100\n")
    git.chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    async with running_server(tmp_path, environment) as server:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with suppress(httpx2.HTTPError):  # its server is killed
                    await server.rest.call("GET", f"/api/git/changes?path={tmp_path / 'work'}", expect=503)

            nursery.start_soon(ask)
            await until(began.exists, "git")
            server.signal(signal.SIGKILL)
            await server.wait()
            nursery.cancel_scope.cancel()
        left = list((server.state / "tmp").iterdir())
        assert [each.name.startswith("ostler-git-") for each in left] == [True]
        assert list(temporary.iterdir()) == []
        git.unlink()
        git.symlink_to(str(shutil.which("git")))
        await server.start()
        await until(lambda: not list((server.state / "tmp").iterdir()), "an empty directory")
