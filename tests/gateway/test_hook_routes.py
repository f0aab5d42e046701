"""POST /api/hooks: what a project's file says, for clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

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
