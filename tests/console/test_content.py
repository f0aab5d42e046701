"""What a conversation shows of a turn, and what its exports have."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.harness import Api, Console
from tests.console.test_composer import PIXEL

pytestmark = pytest.mark.clients

DATA = base64.b64encode(PIXEL).decode()
PICTURE = {"type": "image", "mimeType": "image/png", "data": DATA}
CALL = {
    "sessionUpdate": "tool_call",
    "toolCallId": "shot",
    "title": "Take a picture",
    "status": "completed",
    "content": [{"type": "content", "content": PICTURE}],
}


def test_a_plan_shows_its_steps_and_how_far_it_is(console: Console, api: Api, tmp_path: Path) -> None:
    page = console.open(f"#/c/{api.scripted(tmp_path, '!plan completed in_progress pending')}")
    page.get_by_text("Plan: 1 of 3 done").click()
    steps = page.locator("details.plan").get_by_role("listitem")
    expect(steps).to_have_text(["step 1", "step 2", "step 3"])
    expect(steps.nth(0)).to_have_class("completed")
    api.say(page.url.rsplit("/", 1)[1], "!plan completed completed pending")
    expect(page.get_by_text("Plan: 2 of 3 done")).to_be_visible()


def test_a_picture_of_a_call_is_shown(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.scripted(tmp_path, f"!update {json.dumps(CALL)}")
    page = console.open(f"#/c/{conversation}")
    log = page.get_by_role("log")
    log.get_by_text("Take a picture", exact=True).click()
    picture = log.get_by_role("img", name="Picture from the conversation")
    expect(picture).to_be_visible()
    assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("!usage 1200 200000 0.25", r"^Turn done after \d+\.\d s, 1\.2k tokens"),
        ("!stop refusal", r"^Turn refused after \d+\.\d s"),
        ("!stop max_tokens", r"^Turn stopped at the most tokens after \d+\.\d s"),
    ],
)
def test_a_turn_says_why_it_ended_how_long_it_took_and_what_it_used(
    console: Console, api: Api, tmp_path: Path, message: str, words: str
) -> None:
    page = console.open(f"#/c/{api.scripted(tmp_path, message)}")
    expect(page.get_by_role("log").locator(".turn")).to_have_text(re.compile(words))


def exported(page: Page, what: str) -> tuple[str, str]:
    """The name and the text of an export."""
    page.get_by_text("More", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Export as {what}").click()
    page.get_by_text("More", exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_text()


def test_exports_have_the_whole_conversation(console: Console, api: Api, tmp_path: Path) -> None:
    lines = ("!think pondering", "!text Dear **reader**", "!tool execute Look around", "!diff a.py")
    message = "\n".join((*lines, f"!update {json.dumps(CALL)}"))
    conversation = api.scripted(tmp_path, message)
    api.ask("PATCH", f"/api/conversations/{conversation}", {"title": "Für wen? / for whom"})
    page = console.open(f"#/c/{conversation}")
    expect(page.get_by_role("log")).to_contain_text("Turn done")
    expect(page.get_by_role("heading", name="Für wen?")).to_be_visible()
    name, text = exported(page, "JSON")
    assert re.fullmatch(r"[\w.-]+\.json", name, re.ASCII)
    found = json.loads(text)
    assert found == api.ask("GET", f"/api/conversations/{conversation}/events/search?limit=100")["items"]
    name, text = exported(page, "Markdown")
    assert re.fullmatch(r"[\w.-]+\.md", name, re.ASCII)
    assert text.startswith("# Für wen? / for whom\n")
    for part in (
        "## You",
        "!think pondering",
        "## Agent",
        "Dear **reader**",
        "**Look around** (completed)",
        f"![Picture](data:image/png;base64,{DATA})",
    ):
        assert part in text
    assert re.search(r"^```diff\n\S*a\.py\n[-+]", text, re.MULTILINE)
    assert re.search(r"^\*Turn done after \d+\.\d s\*$", text, re.MULTILINE)


def test_an_export_has_also_what_has_not_arrived_in_the_page(
    console: Console, api: Api, tmp_path: Path
) -> None:
    conversation = api.scripted(tmp_path, "!text the beginning\n!tools 400")
    api.ask("PATCH", f"/api/conversations/{conversation}", {"title": "Long"})
    page = console.open(f"#/c/{conversation}")
    expect(page.get_by_role("log")).to_contain_text("Turn done")
    # From here on only its last events are shown: the socket never answers.
    page.route_web_socket(re.compile("/sockets/session/"), lambda _: None)
    page.reload()
    page.get_by_text("More", exact=True).wait_for()
    for what in ("JSON", "Markdown"):
        _, text = exported(page, what)
        assert "the beginning" in text
