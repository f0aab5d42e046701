"""The views at three widths in two lights: pictures to be looked at, without a fault that axe finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

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
            violations = Axe().run(page).response["violations"]
            problems = [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in violations]
            if problems:
                found[name] = problems
        console.healthy()
    assert found == {}
