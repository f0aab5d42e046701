"""Makes the README's picture of the console: a real server with the demo agent, in a real browser."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.clients.browser import find_chromium
from tests.clients.served import served
from tests.console.harness import Api, opened

ROOT = Path(__file__).resolve().parents[1]

TARGET = ROOT / "docs" / "console.png"
SIZE = {"width": 1200, "height": 640}
WORK = Path(tempfile.gettempdir()) / "work"
"""The workspaces' names are in the picture."""

ASK = {"confirmation_policy": {"kind": "AlwaysConfirm"}}
SPARK_SECONDS = 12  # until the curves have some points

CONVERSATIONS = (
    ("shop", "Add a search to the shop", {}),
    ("docs", "Explain the release process", {}),
    ("api", "Which routes have no test?", {}),
    ("site", "Please write the landing page", ASK),
)


def main() -> None:
    """Write TARGET."""
    with tempfile.TemporaryDirectory() as directory, served(Path(directory)) as server:
        api = Api(server.url)
        for place, message, more in CONVERSATIONS:
            api.start(WORK / place, message, **more)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
            with opened(browser, server.url, viewport=SIZE, color_scheme="light") as console:
                page = console.open()
                page.get_by_role("group", name="Permission request").wait_for()
                time.sleep(SPARK_SECONDS)
                page.screenshot(path=TARGET)
            browser.close()
    print(f"wrote {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
