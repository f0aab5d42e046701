"""The view of all conversations: what it shows, what it lets a person do, and what it is called."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.harness import WAIT_MS, Api, Console

pytestmark = pytest.mark.clients

ASK = {"confirmation_policy": {"kind": "AlwaysConfirm"}}


def row(console: Console, title: str):
    table = console.page.get_by_role("table", name="Conversations")
    return table.get_by_role("row").filter(has=console.page.get_by_role("link", name=title, exact=True))


def test_a_conversation_that_starts_elsewhere_appears(console: Console, api: Api, tmp_path: Path) -> None:
    console.open()
    api.start(tmp_path, "Appear please")
    found = row(console, "Appear please")
    expect(found).to_contain_text("demo")
    expect(found).to_contain_text(str(tmp_path))
    expect(found).to_contain_text("ready")
    expect(found).to_contain_text(re.compile(r"\d MB"))


def test_a_permission_is_answered_in_the_row(console: Console, api: Api, tmp_path: Path) -> None:
    console.open()
    conversation = api.start(tmp_path, "Please write file one", **ASK)
    found = row(console, "Please write file one")
    request = found.get_by_role("group", name="Permission request")
    expect(request.get_by_role("button")).to_have_count(3)
    expect(console.page).to_have_title("(1) Ostler")
    first = console.page.get_by_role("table", name="Conversations").get_by_role("row").nth(1)
    expect(first).to_contain_text("Please write file one")  # what needs a person comes first
    request.get_by_role("button", name="Write it", exact=True).click()
    expect(request).to_have_count(0)
    expect(console.page).to_have_title("Ostler")
    expect(found).to_contain_text("ready")
    assert api.status(conversation) == "finished"
    assert list(tmp_path.glob("*.txt"))


def test_a_permission_that_is_answered_elsewhere_is_gone(console: Console, api: Api, tmp_path: Path) -> None:
    console.open()
    conversation = api.start(tmp_path, "Please write file two", **ASK)
    request = row(console, "Please write file two").get_by_role("group", name="Permission request")
    request.wait_for()
    api.ask("POST", f"/api/conversations/{conversation}/events/respond_to_confirmation", {"accept": False})
    expect(request).to_have_count(0)


def test_search_filters_and_the_address_keep_them(console: Console, api: Api, tmp_path: Path) -> None:
    api.start(tmp_path / "needle", "Look for me")
    api.start(tmp_path / "hay", "Something else entirely")
    page = console.open()
    row(console, "Look for me").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("needle")
    expect(row(console, "Something else entirely")).to_have_count(0)
    expect(row(console, "Look for me")).to_have_count(1)
    page.reload()
    expect(page.get_by_role("searchbox", name="Search")).to_have_value("needle")
    expect(row(console, "Something else entirely")).to_have_count(0)
    page.get_by_role("searchbox", name="Search").fill("no such thing")
    expect(page.get_by_text("No conversation matches.")).to_be_visible()


def test_keys_move_and_open(console: Console, api: Api, tmp_path: Path) -> None:
    api.start(tmp_path, "Opened by keys")
    page = console.open("#/?text=Opened")
    row(console, "Opened by keys").wait_for()
    page.keyboard.press("j")
    expect(row(console, "Opened by keys")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log", name="Conversation")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("table", name="Conversations")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("log", name="Conversation")).to_be_visible()


def test_several_are_deleted_with_a_second_press(console: Console, api: Api, tmp_path: Path) -> None:
    api.start(tmp_path, "Another, which the filter hides")
    for number in range(3):
        api.start(tmp_path, f"Delete me {number}")
    page = console.open("#/?text=Delete+me")
    expect(page.get_by_role("row")).to_have_count(4)
    page.get_by_role("checkbox", name="Select all").check()
    tools = page.get_by_role("toolbar", name="Selected conversations")
    tools.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("row")).to_have_count(4)  # once is not enough
    tools.get_by_role("button", name=re.compile("Press again")).click()
    expect(page.get_by_text("No conversation matches.")).to_be_visible()
    undo = page.get_by_role("button", name="Undo")
    expect(page.get_by_role("status").filter(has=undo)).to_have_text("3 deleted. Undo")
    undo.click()
    expect(page.get_by_role("row")).to_have_count(4)
    expect(undo).to_have_count(0)


def test_one_that_is_deleted_in_its_own_view_comes_back_for_a_minute(
    console: Console, api: Api, tmp_path: Path
) -> None:
    console.page.clock.install()
    page = console.open(f"#/c/{api.start(tmp_path, 'Come back')}")
    for times in (1, 2):
        if times == 2:
            row(console, "Come back").get_by_role("link", name="Come back").click()
        page.get_by_text("More", exact=True).click()
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("button", name=re.compile("Press again")).click()
        notice = page.get_by_role("status").filter(has=page.get_by_role("button", name="Undo"))
        expect(notice).to_have_text("Deleted. Undo")
        expect(row(console, "Come back")).to_have_count(0)
        if times == 1:
            notice.get_by_role("button", name="Undo").click()
    page.reload()
    console.connected()
    expect(notice).to_have_text("Deleted. Undo")
    notice.get_by_role("button", name="Undo").click()
    expect(row(console, "Come back")).to_have_count(1)
    expect(notice).to_have_count(0)


def test_a_deletion_is_offered_to_be_undone_for_a_minute_and_no_longer(
    console: Console, api: Api, tmp_path: Path
) -> None:
    console.page.clock.install()
    page = console.open(f"#/c/{api.start(tmp_path, 'Gone for good')}")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name=re.compile("Press again")).click()
    undo = page.get_by_role("button", name="Undo")
    expect(undo).to_be_visible()
    page.clock.fast_forward(30_000)
    page.reload()
    console.connected()
    expect(undo).to_be_visible()
    page.clock.fast_forward(31_000)
    expect(undo).to_have_count(0)
    page.reload()
    console.connected()
    expect(undo).to_have_count(0)


def test_an_empty_server_says_what_to_do(console: Console) -> None:
    page = console.open("#/?text=certainly+nothing")
    expect(page.get_by_role("link", name="New conversation")).to_be_visible()
    expect(page.get_by_role("status", name="Connection")).to_have_text("Connected")


def test_rows_stay_where_they_are_under_the_pointer(console: Console, api: Api, tmp_path: Path) -> None:
    old = api.start(tmp_path / "old", "calm older", **ASK)
    page = console.open("#/?text=calm")
    expect(row(console, "calm older")).to_contain_text("ready")  # what it says is older, too
    api.start(tmp_path / "new", "calm newer")
    rows = page.get_by_role("table", name="Conversations").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("calm newer")
    rows.nth(2).hover()
    api.say(old, "Please write a file")
    expect(rows.nth(2).get_by_role("group", name="Permission request")).to_be_visible()
    expect(rows.nth(1)).to_contain_text("calm newer")  # although the other needs a person
    page.get_by_role("searchbox", name="Search").hover()
    expect(rows.nth(1)).to_contain_text("calm older")


NOTIFICATIONS = """
window.made = [];
window.Notification = class {
  static permission = "granted";
  constructor(title, options) {
    Object.assign(this, { title, ...options, closed: false });
    window.made.push(this);
  }
  close() { this.closed = true; }
};
Object.defineProperty(document, "hidden", { get: () => true });
"""


def until(page: Page, condition: str) -> None:
    """Wait for what the page does not show. `wait_for_function` evaluates, which the policy forbids."""
    end = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def test_a_hidden_page_notifies_of_a_request_until_it_is_answered(
    console: Console, api: Api, tmp_path: Path
) -> None:
    console.page.add_init_script(NOTIFICATIONS)
    page = console.open()
    conversation = api.start(tmp_path, "Please write a file for the note", **ASK)
    until(page, "window.made.length === 1")
    made = page.evaluate("window.made.map(({ title, body, closed }) => ({ title, body, closed }))")
    assert made == [
        {
            "title": "Please write a file for the note",
            "body": "Permission: Write hello-from-ostler.txt",
            "closed": False,
        }
    ]
    api.ask("POST", f"/api/conversations/{conversation}/events/respond_to_confirmation", {"accept": True})
    until(page, "window.made[0].closed")


def test_the_keys_are_shown(console: Console) -> None:
    page = console.open()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("new conversation")
    keys.get_by_role("button", name="Close").click()
    expect(keys).to_be_hidden()
