"""The console tells the truth about its connection, and comes back without a gap or a double."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.clients.served import Served, served
from tests.console.harness import Api, Console, opened

pytestmark = pytest.mark.clients


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A server of the test's own, which it kills."""
    with served(tmp_path) as found:
        yield found


@pytest.fixture
def page_of_own(browser: Browser, own: Served) -> Iterator[Console]:
    with opened(browser, own.url) as found:
        yield found


def numbers(console: Console) -> list[str]:
    """The texts of a person's messages in the log, in order."""
    return console.page.get_by_role("log").locator("article.user .said").all_inner_texts()


def test_a_killed_server_is_noticed_and_nothing_is_missing_afterwards(
    page_of_own: Console, own: Served, tmp_path: Path
) -> None:
    api = Api(own.url)
    conversation = api.start(tmp_path / "work", "one")
    page = page_of_own.open(f"#/c/{conversation}")
    status = page.get_by_role("status", name="Connection")
    expect(page.get_by_role("log")).to_contain_text("You said: one")
    own.kill()
    expect(status).to_have_text("Connection lost. Trying again…")
    own.start()
    expect(status).to_have_text("Connected")
    api.say(conversation, "two")
    expect(page.get_by_role("log")).to_contain_text("You said: two")
    api.say(conversation, "three")
    expect(page.get_by_role("log")).to_contain_text("You said: three")
    assert numbers(page_of_own) == ["one", "two", "three"]
    keys = page.evaluate("[...document.querySelectorAll('.log-item')].map((each) => each.dataset.index)")
    assert len(keys) == len(set(keys))


def test_a_server_that_is_stopped_counts_as_lost_until_it_goes_on(page_of_own: Console, own: Served) -> None:
    page = page_of_own.open()
    status = page.get_by_role("status", name="Connection")
    pids = [pid for each in own.processes for pid in (each.pid, *(below.pid for below in each.tree()))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(status).to_have_text("Connection lost. Trying again…")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    expect(status).to_have_text("Connected")


def test_an_overview_comes_back_with_what_changed(page_of_own: Console, own: Served, tmp_path: Path) -> None:
    api = Api(own.url)
    gone = api.start(tmp_path / "a", "to be deleted")
    api.start(tmp_path / "b", "that stays")
    page = page_of_own.open()
    table = page.get_by_role("table", name="Conversations")
    expect(table.get_by_role("row")).to_have_count(3)
    page.context.set_offline(True)
    expect(page.get_by_role("status", name="Connection")).to_have_text("Connection lost. Trying again…")
    api.ask("DELETE", f"/api/conversations/{gone}")
    api.start(tmp_path / "c", "that is new")
    page.context.set_offline(False)
    expect(table).to_contain_text("that is new")
    expect(table).not_to_contain_text("to be deleted")
    expect(table.get_by_role("row")).to_have_count(3)


def test_signing_in_keeps_the_key_out_of_addresses(browser: Browser, tmp_path: Path) -> None:
    key = "a-session-key-of-the-test"
    with served(tmp_path, {"OSTLER_SESSION_API_KEYS": key}) as found, opened(browser, found.url) as console:
        page = console.page
        page.goto(found.url + "/")
        page.get_by_label("Session key").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("The server does not know this key.")
        page.get_by_label("Session key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        console.connected()
        page.reload()
        console.connected()
        assert not [url for url in console.asked if key in url]
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        console.healthy()
