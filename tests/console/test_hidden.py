"""A tab that is not seen asks for nothing, and its timers stand still."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.harness import WAIT_MS, Api, Console

pytestmark = pytest.mark.clients

TIMERS = """
window.hides = false;
Object.defineProperty(document, "hidden", { get: () => window.hides });
window.turn = (hides) => {
  window.hides = hides;
  document.dispatchEvent(new Event("visibilitychange"));
};
// Those of a second and more, and all that repeat: what is drawn a moment later is no polling.
window.timers = new Set();
for (const [set, clear] of [["setInterval", "clearInterval"], ["setTimeout", "clearTimeout"]]) {
  const [begin, end] = [window[set].bind(window), window[clear].bind(window)];
  window[set] = (call, wait, ...given) => {
    const timer = begin((...given) => {
      if (set === "setTimeout") window.timers.delete(timer);
      call(...given);
    }, wait, ...given);
    if (set === "setInterval" || wait >= 1000) window.timers.add(timer);
    return timer;
  };
  window[clear] = (timer) => {
    window.timers.delete(timer);
    end(timer);
  };
}
"""


def until(page: Page, condition: str) -> None:
    """Wait for what the page does not show. `wait_for_function` evaluates, which the policy forbids."""
    end = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


@pytest.mark.parametrize("view", ["#/", "#/server", "#/server/metrics", "#/new", "#/c/"])
def test_a_hidden_view_has_no_timers_and_looks_again_when_it_is_seen(
    console: Console, api: Api, tmp_path: Path, view: str
) -> None:
    conversation = api.start(tmp_path, "Hello")
    console.page.add_init_script(TIMERS)
    page = console.open(f"{view}{conversation}" if view == "#/c/" else view)
    until(page, "window.timers.size > 0")
    page.evaluate("window.turn(true)")
    until(page, "window.timers.size === 0")
    before = len(console.asked)
    page.evaluate("window.turn(false)")
    until(page, "window.timers.size > 0")
    expect(page.get_by_role("status", name="Connection")).to_have_text("Connected")
    if view.startswith("#/server"):  # what is polled is asked for at once
        end = time.monotonic() + WAIT_MS / 1000
        while not [url for url in console.asked[before:] if "/api/" in url]:
            assert time.monotonic() < end
            page.wait_for_timeout(50)


def test_a_hidden_view_asks_for_nothing(console: Console) -> None:
    console.page.add_init_script(TIMERS)
    console.page.clock.install()
    page = console.open("#/server")
    expect(page.get_by_text("Warden restarts")).to_be_visible()
    page.clock.run_for(6_000)
    until_asked(page, console, "/api/status", 2)
    page.evaluate("window.turn(true)")
    before = len(console.asked)
    page.clock.run_for(60_000)
    page.evaluate("fetch('/alive')")  # what was asked before that was noted before that
    assert [url.removeprefix(console.url) for url in console.asked[before:]] == ["/alive"]


def until_asked(page: Page, console: Console, path: str, times: int) -> None:
    end = time.monotonic() + WAIT_MS / 1000
    while len([url for url in console.asked if url.endswith(path)]) < times:
        assert time.monotonic() < end, path
        page.wait_for_timeout(50)
