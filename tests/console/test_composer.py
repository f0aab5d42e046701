"""What the composer sends: attachments and the agent's commands arrive at the agent as they were given."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.harness import Api, Console
from tests.support.scripted import ScriptedLog, scripted_command

pytestmark = pytest.mark.clients

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def started(api: Api, directory: Path, message: str) -> tuple[str, ScriptedLog]:
    """A conversation with the scripted agent, and what that agent received."""
    heard = directory / "heard"
    command = scripted_command(log=heard, home=directory / "sessions")
    agent = {"agent_kind": "acp", "acp_server": "custom", "acp_command": command}
    return api.start(directory, message, agent_settings=agent), ScriptedLog(heard)


def sent(page: Page) -> None:
    """Send what the composer has, and wait for the end of its turn."""
    turns = page.get_by_role("log").get_by_text("Turn done")
    before = turns.count()
    page.get_by_role("button", name="Send").click()
    expect(turns).to_have_count(before + 1)


def last_prompt(log: ScriptedLog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log.received("session/prompt")[-1]["params"]["prompt"]
    return found


def test_a_file_and_a_picture_reach_the_agent(console: Console, api: Api, tmp_path: Path) -> None:
    conversation, heard = started(api, tmp_path, "!text ready")
    page = console.open(f"#/c/{conversation}")
    expect(page.get_by_role("log")).to_contain_text("Turn done")
    page.get_by_label("Attach").set_input_files(
        [
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"first line\nsecond line"},
            {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL},
            {"name": "unwanted.txt", "mimeType": "text/plain", "buffer": b"must not be sent"},
        ]
    )
    page.get_by_role("button", name="Remove unwanted.txt").click()
    page.get_by_role("textbox", name="Message").fill("!text seen")
    sent(page)
    blocks = last_prompt(heard)
    texts = "\n".join(each.get("text", "") for each in blocks)
    assert "!text seen" in texts
    assert "notes.txt" in texts
    assert "first line\nsecond line" in texts
    assert "must not be sent" not in texts
    pictures = [each for each in blocks if each["type"] == "image"]
    assert [(each["mimeType"], base64.b64decode(each["data"])) for each in pictures] == [("image/png", PIXEL)]
    # The conversation shows it, and the composer has sent it once.
    expect(page.get_by_role("img", name="Picture from the conversation")).to_be_visible()
    expect(page.get_by_role("button", name="Remove notes.txt")).to_have_count(0)


def test_a_file_that_is_too_large_is_refused_and_the_others_stay(
    console: Console, api: Api, tmp_path: Path
) -> None:
    page = console.open(f"#/c/{api.start(tmp_path, 'Hello')}")
    page.get_by_label("Attach").set_input_files(
        [
            {"name": "large.txt", "mimeType": "text/plain", "buffer": b"x" * 500_001},
            {"name": "small.txt", "mimeType": "text/plain", "buffer": b"x"},
        ]
    )
    expect(page.get_by_role("alert")).to_contain_text("large.txt has more than 500 KB")
    expect(page.get_by_role("button", name="Remove small.txt")).to_be_visible()
    expect(page.get_by_role("button", name="Remove large.txt")).to_have_count(0)


def test_the_agents_commands_are_offered_and_sent(console: Console, api: Api, tmp_path: Path) -> None:
    conversation, heard = started(api, tmp_path, "!commands")
    page = console.open(f"#/c/{conversation}")
    expect(page.get_by_role("log")).to_contain_text("Turn done")
    box, offered = (
        page.get_by_role("textbox", name="Message"),
        page.get_by_role("list", name="Commands of the agent"),
    )
    box.press_sequentially("/")
    expect(offered.get_by_role("listitem")).to_have_count(2)
    expect(offered).to_contain_text("Review the changes")
    box.press_sequentially("rev")
    expect(offered.get_by_role("listitem")).to_have_count(1)
    box.press("Tab")
    expect(box).to_have_value("/review ")
    box.press_sequentially("main")
    expect(offered).to_have_count(0)
    sent(page)
    assert [each["text"] for each in last_prompt(heard)] == ["/review main"]
    box.fill("/in")
    offered.get_by_role("button", name="/init").click()
    expect(box).to_have_value("/init ")
    expect(box).to_be_focused()
