"""What the table of conversations does with several at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.console.harness import Api, Console

pytestmark = pytest.mark.clients

SLOWLY = "!slow 2000 100"


def selected(console: Console, api: Api, directory: Path, message: str) -> tuple[Locator, dict[str, str]]:
    """Two conversations that do this, both selected, and a third that is not; the toolbar, and their ids."""
    ids = {}
    for name in ("one", "two", "other"):
        ids[name] = api.scripted(directory / name, message, tags={})
        api.ask("PATCH", f"/api/conversations/{ids[name]}", {"title": f"{directory.name} {name}"})
    page = console.open(f"#/?text={directory.name}")
    expect(page.get_by_role("row")).to_have_count(4)
    for name in ("one", "two"):
        page.get_by_role("checkbox", name=f"Select {directory.name} {name}").check()
    return page.get_by_role("toolbar", name="Selected conversations"), ids


def press(console: Console, tools: Locator, name: str) -> None:
    expect(tools).to_contain_text("2 selected")
    tools.get_by_role("button", name=name, exact=True).click()
    expect(tools).to_have_count(0)  # all of it was done
    expect(console.page.get_by_role("alert")).to_have_count(0)


def row(console: Console, conversation: str) -> Locator:
    return console.page.locator(f"tr[data-id='{conversation}']")


def state(console: Console, conversation: str) -> Locator:
    return row(console, conversation).locator(".state")


def test_several_are_interrupted(console: Console, api: Api, tmp_path: Path) -> None:
    tools, ids = selected(console, api, tmp_path, SLOWLY)
    for each in ids.values():
        expect(state(console, each)).to_have_text("running")
    press(console, tools, "Interrupt")
    for name in ("one", "two"):
        expect(state(console, ids[name])).not_to_have_text("running")
        assert api.status(ids[name]) == "paused"
    assert api.status(ids["other"]) == "running"
    api.ask("POST", f"/api/conversations/{ids['other']}/interrupt")


def test_several_are_paused_and_resumed(console: Console, api: Api, tmp_path: Path) -> None:
    tools, ids = selected(console, api, tmp_path, "!text ready")
    page = console.page
    for each in ids.values():
        expect(state(console, each)).to_have_text("ready")
        api.ask("POST", f"/api/conversations/{each}/pause")
        content = [{"type": "text", "text": "!text held"}]
        api.ask("POST", f"/api/conversations/{each}/events", {"content": content})
        expect(row(console, each)).to_contain_text("1 queued")
    press(console, tools, "Resume")
    for name in ("one", "two"):
        expect(row(console, ids[name])).not_to_contain_text("queued")
    expect(row(console, ids["other"])).to_contain_text("1 queued")
    # And held again.
    api.say(ids["one"], SLOWLY)
    api.say(ids["two"], SLOWLY)
    for name in ("one", "two"):
        expect(state(console, ids[name])).to_have_text("running")
        page.get_by_role("checkbox", name=f"Select {tmp_path.name} {name}").check()
    press(console, tools, "Pause")
    for name in ("one", "two"):
        assert api.status(ids[name]) == "paused"
        api.ask("POST", f"/api/conversations/{ids[name]}/interrupt")


def pids(api: Api) -> dict[str, int | None]:
    return {each["conversation_id"]: each["pid"] for each in api.ask("GET", "/api/agents")["agents"]}


def test_the_agents_of_several_are_restarted_and_stopped(console: Console, api: Api, tmp_path: Path) -> None:
    tools, ids = selected(console, api, tmp_path, "!text ready")
    for each in ids.values():
        expect(state(console, each)).to_have_text("ready")
    before = pids(api)
    press(console, tools, "Restart agent")
    for each in ids.values():
        expect(state(console, each)).to_have_text("ready")
    after = pids(api)
    assert [after[each] == before[each] for each in ids.values()] == [False, False, True]
    for name in ("one", "two"):
        console.page.get_by_role("checkbox", name=f"Select {tmp_path.name} {name}").check()
    press(console, tools, "Stop agent")
    for name in ("one", "two"):
        expect(row(console, ids[name])).not_to_contain_text("MB")
        assert pids(api).get(ids[name]) is None
    assert pids(api)[ids["other"]] == before[ids["other"]]


def test_what_one_refuses_is_said_and_the_selection_stays(console: Console, api: Api, tmp_path: Path) -> None:
    tools, ids = selected(console, api, tmp_path, "!text ready")
    console.page.route(f"**/api/conversations/{ids['one']}/pause", lambda route: route.abort())
    tools.get_by_role("button", name="Pause").click()
    expect(console.page.get_by_role("alert")).to_contain_text(
        "Pause: 1 of 2 failed. The server does not answer."
    )
    expect(tools).to_contain_text("2 selected")
