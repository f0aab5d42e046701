"""One conversation in the console: what is read, written, asked and answered there."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.clients.served import Served
from tests.console.harness import Api, Console

pytestmark = pytest.mark.clients

ASK = {"confirmation_policy": {"kind": "AlwaysConfirm"}}


def log(page: Page):
    return page.get_by_role("log", name="Conversation")


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_a_first_conversation_from_the_first_page(console: Console, tmp_path: Path) -> None:
    page = console.open()
    page.get_by_role("link", name="New conversation").click()
    page.get_by_role("combobox", name="Agent").select_option("demo")
    page.get_by_role("combobox", name="Workspace").fill(str(tmp_path))
    page.get_by_role("textbox", name="Message").fill("Hello from the console")
    page.get_by_role("button", name="Start").click()
    expect(log(page)).to_contain_text("You said: Hello from the console")
    expect(log(page)).to_contain_text("List the workspace")
    expect(log(page)).to_contain_text(re.compile(r"Turn done after \d"))
    send(page, "And **again**")
    expect(log(page)).to_contain_text("You said: And **again**".replace("**", ""))
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")


def test_a_permission_shows_what_is_asked_and_takes_a_reason(
    console: Console, api: Api, tmp_path: Path
) -> None:
    conversation = api.start(tmp_path, "Please write a file", **ASK)
    page = console.open(f"#/c/{conversation}")
    request = page.get_by_role("group", name="Permission request")
    expect(request).to_contain_text("hello-from-ostler.txt")
    expect(request).to_contain_text("Hello from Ostler's demo agent.")
    for name in ("Write it", "Do not write it"):
        expect(request.get_by_role("button", name=name, exact=True)).to_be_visible()
    request.get_by_role("textbox", name="Reason").fill("Not in this directory")
    request.get_by_role("button", name="Reject with reason").click()
    expect(request).to_have_count(0)
    expect(log(page)).to_contain_text("I did not write")
    assert list(tmp_path.glob("*.txt")) == []
    found = api.ask("GET", f"/api/conversations/{conversation}")["agent_state"]["permissions"]
    assert [each["reason"] for each in found] == ["Not in this directory"]


def test_interrupt_pause_and_resume(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.scripted(tmp_path, "!slow 200 100")
    page = console.open(f"#/c/{conversation}")
    interrupt, resume = (
        page.get_by_role("button", name="Interrupt"),
        page.get_by_role("button", name="Resume"),
    )
    expect(interrupt).to_be_enabled()
    expect(resume).to_be_disabled()
    send(page, "queued behind it")
    expect(page.get_by_role("list", name="Queued messages")).to_contain_text("queued behind it")
    interrupt.click()
    expect(log(page)).to_contain_text("Interrupted")
    expect(resume).to_be_enabled()
    resume.click()
    expect(page.get_by_role("list", name="Queued messages")).to_have_count(0)
    expect(log(page)).to_contain_text(re.compile("queued behind it.*queued behind it", re.DOTALL))


def test_mode_and_model_are_what_the_agent_has(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.start(tmp_path, "Hello")
    page = console.open(f"#/c/{conversation}")
    model = page.get_by_role("combobox", name="Model")
    expect(model).to_have_value("demo-polite")
    model.select_option("demo-terse")
    expect(model).to_have_value("demo-terse")
    expect(model).to_be_enabled()
    send(page, "Short please")
    expect(log(page)).to_contain_text("Short please")


def test_changes_errors_and_protocol_stand_beside_it(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.start(tmp_path / "made", "Please write a file")
    page = console.open(f"#/c/{conversation}")
    expect(log(page)).to_contain_text("I wrote hello-from-ostler.txt")
    page.get_by_role("button", name="Changes").click()
    pane = page.get_by_role("complementary", name="Changes")
    pane.get_by_text("hello-from-ostler.txt").first.click()
    expect(pane).to_contain_text("+Hello from Ostler's demo agent.")
    pane.get_by_role("button", name="Open the file").click()
    expect(page.get_by_role("complementary", name="File")).to_contain_text("Hello from Ostler's demo agent.")
    page.get_by_role("button", name="Protocol").click()
    expect(page.get_by_role("complementary", name="Protocol")).to_contain_text("session/prompt")
    page.get_by_role("button", name="Standard error").click()
    expect(page.get_by_role("complementary", name="Standard error")).to_contain_text("wrote nothing")
    page.go_back()


def test_fork_and_back_from_an_event(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.start(tmp_path, "First")
    page = console.open(f"#/c/{conversation}")
    expect(log(page)).to_contain_text("You said: First")
    send(page, "Second")
    expect(log(page)).to_contain_text("You said: Second")
    answer = page.get_by_role("article").filter(has_text="You said: First").first
    item = page.locator(".item").filter(has=answer).first
    item.hover()
    item.get_by_role("button", name="Fork from here").click()
    page.wait_for_url(lambda url: conversation not in url)
    expect(log(page)).to_contain_text("You said: First")
    expect(log(page)).not_to_contain_text("You said: Second")


def test_back_to_an_event_takes_a_second_press_and_forgets_what_came_after(
    console: Console, api: Api, tmp_path: Path
) -> None:
    conversation = api.start(tmp_path, "First")
    page = console.open(f"#/c/{conversation}")
    expect(log(page)).to_contain_text("You said: First")
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
    send(page, "Second")
    expect(log(page)).to_contain_text("Before that you said: First")
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
    item = (
        page.locator(".item").filter(has=page.get_by_role("article").filter(has_text="You said: First")).first
    )
    item.hover()
    item.get_by_role("button", name="Go back to here").click()
    head = api.ask("GET", f"/api/conversations/{conversation}")["leaf_event_id"]
    item.get_by_role("button", name="Continue from here? Press again").click()
    expect(item.get_by_role("button", name="Go back to here")).to_be_visible()
    expect(item.get_by_role("alert")).to_have_count(0)
    send(page, "Third")
    # The demo agent says what it was given: the transcript up to there, and the message.
    answer = page.get_by_role("article").filter(has_text="Third").last
    expect(answer).to_contain_text("END OF TRANSCRIPT")
    expect(answer).to_contain_text("User: First")
    expect(answer).not_to_contain_text("Second")
    assert api.ask("GET", f"/api/conversations/{conversation}")["leaf_event_id"] != head


def test_a_title_is_changed_and_shown(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.start(tmp_path, "Hello")
    page = console.open(f"#/c/{conversation}")
    page.get_by_role("button", name="Hello", exact=True).click()
    page.get_by_role("textbox", name="Title").fill("A better name")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="A better name")).to_be_visible()
    assert api.ask("GET", f"/api/conversations/{conversation}")["title"] == "A better name"


def test_an_installation_shows_its_step(console: Console, api: Api, server: Served, tmp_path: Path) -> None:
    directory = server.processes[0].state / "agents" / "gemini-cli"
    directory.mkdir(parents=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process installs it
        agent = {"agent_kind": "acp", "acp_server": "gemini-cli"}
        conversation = api.start(tmp_path, "Please wait", agent_settings=agent)
        page = console.open(f"#/c/{conversation}")
        expect(page.locator("header.head")).to_contain_text(
            "Waiting for another process that is installing Gemini CLI"
        )
        api.ask("DELETE", f"/api/conversations/{conversation}")


def test_one_that_does_not_exist(console: Console) -> None:
    page = console.open("#/c/00000000-0000-0000-0000-000000000000")
    expect(page.get_by_text("This conversation does not exist")).to_be_visible()


def test_a_pause_lets_the_turn_end_and_holds_the_next(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.scripted(tmp_path, "!slow 40 50")
    page = console.open(f"#/c/{conversation}")
    page.get_by_role("button", name="Pause").click()
    send(page, "held")
    expect(log(page)).to_contain_text("Paused")
    expect(page.get_by_role("list", name="Queued messages")).to_contain_text("held")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("list", name="Queued messages")).to_have_count(0)


def test_a_long_history_begins_at_its_end_and_is_whole(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.scripted(tmp_path, "!tools 600")
    page = console.open(f"#/c/{conversation}")
    expect(log(page)).to_contain_text("Turn done")
    page.reload()
    expect(log(page)).to_contain_text("Turn done")
    expect(log(page)).to_have_attribute("aria-busy", "false")
    expect(log(page)).to_contain_text("Turn done")
    assert page.locator(".log-item").count() < 100  # what is not seen does not stand in the page
    log(page).evaluate("(log) => { log.scrollTop = 0; }")
    expect(log(page)).to_contain_text("!tools 600")
    page.get_by_role("button", name="To the newest").click()
    expect(log(page)).to_contain_text("Turn done")


def test_the_end_of_a_long_history_is_seen_before_the_rest_has_arrived(
    console: Console, api: Api, tmp_path: Path
) -> None:
    conversation = api.scripted(tmp_path, "!tools 400")
    page = console.open(f"#/c/{conversation}")
    expect(log(page)).to_contain_text("Turn done")

    def withheld(socket: WebSocketRoute) -> None:
        """Only how long the history is comes through."""
        server = socket.connect_to_server()
        server.on_message(lambda frame: socket.send(frame) if json.loads(frame)["type"] == "sync" else None)

    page.route_web_socket(re.compile("/sockets/session/"), withheld)
    page.reload()
    expect(log(page)).to_contain_text("Turn done")
    expect(log(page)).to_have_attribute("aria-busy", "true")


MODULES = """() => {
  const named = (found) => new URL(found, location).pathname;
  const links = [...document.querySelectorAll("link[rel=modulepreload]")].map((each) => named(each.href));
  const loaded = performance.getEntriesByType("resource").map((each) => named(each.name));
  return [links, loaded.filter((each) => each.endsWith(".js"))];
}"""


def test_no_module_of_the_first_view_waits_for_another(console: Console, api: Api, tmp_path: Path) -> None:
    page = console.open(f"#/c/{api.start(tmp_path, 'Hello')}")
    expect(log(page)).to_contain_text("You said: Hello")
    links, loaded = page.evaluate(MODULES)
    languages = {each for each in loaded if "/highlight-" in each}  # each when it is first met
    assert set(loaded) - languages - set(links) == {"/console/main.js"}
    assert set(links) <= set(loaded)
    assert len(loaded) == len(set(loaded))  # and none was asked for twice
