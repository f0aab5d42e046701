"""The views at three widths in two lights: pictures to be looked at, without a fault that axe finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.clients.served import Served, served
from tests.console.harness import Api, opened

pytestmark = pytest.mark.clients

WIDTHS = (1400, 800, 390)
PARTS = ("status", "secrets", "mcp", "profiles", "settings", "metrics")
LIGHTS: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def peopled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    """A server with a conversation that is finished, one that waits, and one that failed."""
    directory = tmp_path_factory.mktemp("peopled")
    with served(directory) as server:
        api = Api(server.url)
        named = {
            "finished": api.start(directory / "shop", "Add a search to the shop"),
            "waiting": api.start(
                directory / "site", "Please write the page", confirmation_policy={"kind": "AlwaysConfirm"}
            ),
            "failed": api.scripted(directory / "tool", "!text I begin\n!rich\n!diff a.py\n!crash 3"),
            "busy": api.scripted(
                directory / "all", "!commands\n!think of it\n!diff a.py\n!plan completed pending"
            ),
        }
        yield server, named


def views(named: dict[str, str]) -> dict[str, str]:
    return {
        "overview": "#/",
        "conversation": f"#/c/{named['finished']}",
        "permission": f"#/c/{named['waiting']}?pane=trace",
        "failed": f"#/c/{named['failed']}",
        "start": "#/new",
        **{f"server-{part}": f"#/server/{part}" for part in PARTS},
    }


@pytest.mark.parametrize("light", LIGHTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view(
    peopled: tuple[Served, dict[str, str]],
    browser: Browser,
    shots: Path,
    width: int,
    light: Literal["light", "dark"],
) -> None:
    server, named = peopled
    found = {}
    viewport = {"width": width, "height": 900}
    with opened(browser, server.url, viewport=viewport, color_scheme=light) as console:
        for name, view in views(named).items():
            page = console.open(view)
            expect(page.get_by_text("Loading…")).to_have_count(0)
            page.wait_for_timeout(300)  # for what is drawn after its data have come
            page.screenshot(path=shots / f"{name}-{width}-{light}.png")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} wide"
            if problems := faults(page):
                found[name] = problems
        console.healthy()
    assert found == {}


def faults(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds in the page as it stands."""
    violations = Axe().run(page).response["violations"]
    return [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in violations]


def composer(page: Page) -> None:
    """Commands, an attachment, and what it says of one that is too large."""
    page.get_by_label("Attach").set_input_files(
        [
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"notes"},
            {"name": "large.txt", "mimeType": "text/plain", "buffer": b"x" * 500_001},
        ]
    )
    page.get_by_role("alert").wait_for()
    page.get_by_role("textbox", name="Message").fill("/")
    page.get_by_role("list", name="Commands of the agent").wait_for()


def menu(page: Page) -> None:
    page.get_by_text("More", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete? Press again").wait_for()


def title(page: Page) -> None:
    page.locator("button.title").click()
    page.get_by_role("textbox", name="Title").wait_for()


def unfolded(page: Page) -> None:
    for each in page.get_by_role("log").locator("summary").all():
        each.click()
    page.get_by_text("Plan: 1 of 2 done").click()


def keys(page: Page) -> None:
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()


def selected(page: Page) -> None:
    page.get_by_role("checkbox", name="Select Add a search to the shop").check()
    tools = page.get_by_role("toolbar", name="Selected conversations")
    tools.get_by_role("button", name="Delete").click()


def credential(page: Page) -> None:
    page.get_by_role("combobox", name="Agent").select_option("qwen-code")
    page.get_by_role("button", name="Store").click()
    page.get_by_role("alert").wait_for()


def agent_profile(page: Page) -> None:
    page.get_by_role("button", name="New agent profile").click()
    page.get_by_role("form", name="New profile").wait_for()


def llm_profile(page: Page) -> None:
    page.get_by_role("button", name="New LLM profile").click()
    form = page.get_by_role("form", name="New profile")
    form.get_by_text("More", exact=True).click()
    form.get_by_role("button", name="Save").click()


OPENED = {
    "composer": ("#/c/{busy}", composer),
    "menu": ("#/c/{busy}", menu),
    "title": ("#/c/{busy}", title),
    "unfolded": ("#/c/{busy}", unfolded),
    "keys": ("#/", keys),
    "selected": ("#/", selected),
    "credential": ("#/new", credential),
    "agent-profile": ("#/server/profiles", agent_profile),
    "llm-profile": ("#/server/profiles", llm_profile),
}


@pytest.mark.parametrize("light", LIGHTS)
@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_every_form_that_is_open(
    peopled: tuple[Served, dict[str, str]],
    browser: Browser,
    shots: Path,
    width: int,
    light: Literal["light", "dark"],
) -> None:
    server, named = peopled
    found = {}
    viewport = {"width": width, "height": 900}
    for name, (view, show) in OPENED.items():
        with opened(browser, server.url, viewport=viewport, color_scheme=light) as console:
            page = console.open(view.format(**named))
            expect(page.get_by_text("Loading…")).to_have_count(0)
            show(page)
            page.screenshot(path=shots / f"open-{name}-{width}-{light}.png")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} wide"
            if problems := faults(page):
                found[name] = problems
            console.healthy()
    assert found == {}
