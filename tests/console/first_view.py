"""Measures the first view of a long conversation: python -m tests.console.first_view [EVENTS]

It prints milliseconds since the page was asked for, and how long the server takes for what the page asks.
Times are for people: tests do not judge them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.clients.browser import find_chromium
from tests.clients.served import served
from tests.console.harness import Api, opened

EVENTS = 10_000
EVENTS_OF_A_CALL = 3
TIMES = 3
BUILD_SECONDS = 300

WATCH = """
window.first = null;
const watch = new MutationObserver(() => {
  const log = document.querySelector(".log");
  if (log?.textContent.includes("Turn done")) window.first ??= performance.now();
  if (log && window.first && log.getAttribute("aria-busy") === "false") {
    window.whole = performance.now();
    watch.disconnect();
  }
});
watch.observe(document, { subtree: true, childList: true, attributes: true });
"""


def until(console, condition: str) -> float:
    """Wait for what the page notes, and return it."""
    while not console.page.evaluate(f"{condition} ?? null"):
        console.page.wait_for_timeout(20)
    found: float = console.page.evaluate(condition)
    return found


def built(api: Api, directory: Path, events: int) -> str:
    """A conversation with so many events, whose turn has ended."""
    conversation = api.scripted(directory, f"!tools {events // EVENTS_OF_A_CALL}")
    end = time.monotonic() + BUILD_SECONDS
    while api.status(conversation) != "finished":
        if time.monotonic() > end:
            raise TimeoutError("The conversation is not finished.")
        time.sleep(0.5)
    return conversation


def measure(browser: Browser, url: str, conversation: str) -> tuple[float, float]:
    """When the last page of the conversation is seen, and when all of it has arrived, in milliseconds."""
    with opened(browser, url) as console:
        console.page.add_init_script(WATCH)
        console.page.goto(f"{url}/#/c/{conversation}", wait_until="commit")
        return until(console, "window.first"), until(console, "window.whole")


def main() -> None:
    events = int(sys.argv[1]) if sys.argv[1:] else EVENTS
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as server, sync_playwright() as playwright:
        api = Api(server.url)
        conversation = built(api, Path(name) / "work", events)
        count = api.ask("GET", f"/api/conversations/{conversation}/events/count")
        print(f"events: {count}")
        path = f"/api/conversations/{conversation}/events/search?limit=100&sort_order=TIMESTAMP_DESC"
        for _ in range(TIMES):
            begin = time.perf_counter()
            api.ask("GET", path)
            print(f"server: the last page in {(time.perf_counter() - begin) * 1000:.0f} ms")
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for _ in range(TIMES):
            first, whole = measure(browser, server.url, conversation)
            print(f"page: its end seen after {first:.0f} ms, whole after {whole:.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
