"""POST /api/hooks: what a project's file says, for clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.workspace.access import Access

HOOKS = {"PreToolUse": [{"matcher": "execute", "hooks": [{"command": "check"}]}]}


async def test_a_project_with_hooks(gateway: Any, tmp_path: Path) -> None:
    file = tmp_path / ".openhands" / "hooks.json"
    file.parent.mkdir()
    file.write_bytes(orjson.dumps({"hooks": HOOKS}))
    status, answer = await gateway.call("POST", "/api/hooks", {"project_dir": str(tmp_path)})
    assert status == 200
    found = answer["hook_config"]
    assert set(found) == {
        "pre_tool_use", "post_tool_use", "user_prompt_submit", "session_start", "session_end", "stop",
    }  # fmt: skip
    (hook,) = found["pre_tool_use"][0]["hooks"]
    assert (hook["command"], hook["timeout"], hook["async"]) == ("check", 60, False)


@pytest.mark.parametrize("place", [None, "/does/not/exist", "", "relative", "a\0b"])
async def test_a_project_without(gateway: Any, place: str | None) -> None:
    assert await gateway.call("POST", "/api/hooks", {"project_dir": place}) == (200, {"hook_config": None})
    assert await gateway.call("POST", "/api/hooks", {}) == (200, {"hook_config": None})


async def test_what_is_no_directory_is_refused(gateway: Any) -> None:
    assert (await gateway.call("POST", "/api/hooks", {"project_dir": 5}))[0] == 422


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_link_to_elsewhere_is_no_file_of_the_project(gateway_with: Any, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "hooks.json").write_bytes(orjson.dumps({"hooks": HOOKS}))
    (inside / ".openhands").symlink_to(outside)
    for access, there in ((Access.ALL, True), (Access.WORKSPACES, False)):
        async with gateway_with(workspace_access=access) as gateway:
            conversation = await gateway.conversation()
            conversation.request = conversation.request.__class__(working_dir=str(inside))
            _, answer = await gateway.call("POST", "/api/hooks", {"project_dir": str(inside)})
            assert (answer["hook_config"] is not None) is there


async def test_a_file_that_is_too_large_or_none_has_no_hooks(gateway: Any, tmp_path: Path) -> None:
    file = tmp_path / ".openhands" / "hooks.json"
    file.parent.mkdir()
    for content in (orjson.dumps({"hooks": HOOKS, "x": "x" * 300_000}), b"{", b"[]", b"\xff"):
        file.write_bytes(content)
        answer = await gateway.call("POST", "/api/hooks", {"project_dir": str(tmp_path)})
        assert answer == (200, {"hook_config": None})
    file.unlink()
    os.mkfifo(file)
    assert (await gateway.call("POST", "/api/hooks", {"project_dir": str(tmp_path)}))[0] == 200
