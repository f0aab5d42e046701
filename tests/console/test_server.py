"""The view of the server: its figures, secrets, MCP servers and settings, as they are on the server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Locator, expect

from tests.console.harness import Api, Console
from tests.support import mcp_server
from tests.support.mcp_servers import RealServer, real_server

pytestmark = pytest.mark.clients


def test_status(console: Console, api: Api, tmp_path: Path) -> None:
    api.start(tmp_path, "Hello")
    page = console.open("#/server")
    state = api.ask("GET", "/api/status")["state"]
    expect(page.get_by_text(state, exact=True)).to_be_visible()
    expect(page.get_by_text("Warden restarts").locator("..")).to_contain_text("0")


def test_a_secret_is_stored_named_and_removed_and_its_value_is_nowhere(console: Console, api: Api) -> None:
    page = console.open("#/server/secrets")
    page.get_by_label("Name", exact=True).fill("KEY_OF_THE_CONSOLE")
    page.get_by_label("Value", exact=True).fill("value-that-stays-away")
    page.get_by_role("button", name="Store").click()
    row = page.get_by_role("row").filter(has_text="KEY_OF_THE_CONSOLE")
    expect(row).to_be_visible()
    assert "value-that-stays-away" not in page.content()
    row.get_by_role("button", name="Remove").click()
    row.get_by_role("button", name=re.compile("Press again")).click()
    expect(row).to_have_count(0)
    names = [each["name"] for each in api.ask("GET", "/api/settings/secrets")["secrets"]]
    assert "KEY_OF_THE_CONSOLE" not in names


def test_an_mcp_server_is_added_tested_and_switched_off(console: Console, api: Api) -> None:
    row = added(console, "tried", f"{sys.executable} {mcp_server.__file__} stdio")
    row.get_by_role("button", name="Test").click()
    expect(row.get_by_role("status")).to_contain_text(re.compile(r"^[1-9]\d* tools: "))
    row.get_by_role("button", name="Disable").click()
    expect(row.get_by_role("button", name="Enable")).to_be_visible()
    row.get_by_role("button", name="Remove").click()
    row.get_by_role("button", name=re.compile("Press again")).click()
    expect(row).to_have_count(0)


@pytest.fixture(scope="module")
def oauth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server("oauth", tmp_path_factory.mktemp("oauth")) as found:
        yield found


def added(console: Console, name: str, target: str) -> Locator:
    """The row of an MCP server that was added here."""
    page = console.open("#/server/mcp")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("URL or command").fill(target)
    page.get_by_role("button", name="Add").click()
    return page.get_by_role("row").filter(has_text=name)


def test_a_login_to_an_mcp_server_in_its_own_page(console: Console, api: Api, oauth: RealServer) -> None:
    row = added(console, "guarded", oauth.url)
    row.get_by_role("button", name="Test").click()
    expect(row.get_by_role("status")).to_contain_text("failed: ")
    row.get_by_role("button", name="Log in").click()
    with console.page.expect_popup() as popup:
        row.get_by_role("link", name="Log in at the server").click()
    expect(popup.value.get_by_text("logged in")).to_be_visible()
    expect(row.get_by_role("status")).to_have_text("logged in. 2 tools: secret_sum, environment")
    expect(row.get_by_role("link")).to_have_count(0)
    row.get_by_role("button", name="Test").click()
    expect(row.get_by_role("status")).to_have_text("2 tools: secret_sum, environment")
    token = oauth.lines("took")[-1].split()[1]
    assert token not in console.page.content()
    assert token not in str(api.ask("GET", "/api/settings"))


def test_a_login_from_another_machine_takes_the_address_of_the_last_page(
    console: Console, oauth: RealServer
) -> None:
    row = added(console, "distant", oauth.url)
    row.get_by_role("button", name="Log in").click()
    url = row.get_by_role("link", name="Log in at the server").get_attribute("href")
    assert url is not None
    ended = row.get_by_role("textbox", name="Address of the last page")
    ended.fill("http://127.0.0.1/callback?code=guessed&state=guessed")
    row.get_by_role("button", name="Finish").click()
    expect(row.get_by_role("status")).to_contain_text("not the answer")
    ended.fill(httpx2.get(url).headers["Location"])
    row.get_by_role("button", name="Finish").click()
    expect(row.get_by_role("status")).to_have_text("logged in. 2 tools: secret_sum, environment")


def test_a_setting_is_stored_or_refused_with_the_servers_words(console: Console, api: Api) -> None:
    page = console.open("#/server/settings")
    field = page.get_by_label("Max iterations")
    field.fill("321")
    field.blur()
    expect(page.get_by_text("Stored: Max iterations")).to_be_visible()
    assert api.ask("GET", "/api/settings")["conversation_settings"]["max_iterations"] == 321
    field.fill("-1")
    field.blur()
    expect(page.get_by_role("alert")).to_contain_text("max_iterations")
    assert api.ask("GET", "/api/settings")["conversation_settings"]["max_iterations"] == 321


def test_an_llm_profile_is_made_and_changed_and_keeps_its_key(console: Console, api: Api) -> None:
    page = console.open("#/server/profiles")
    page.get_by_role("button", name="New LLM profile").click()
    form = page.get_by_role("form", name="New profile")
    form.get_by_label("Name", exact=True).fill("fast")
    form.get_by_label("API Key", exact=True).fill("sk-that-stays-away")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("model")  # in the server's words
    form.get_by_label("Model", exact=True).fill("openai/small")
    form.get_by_role("button", name="Save").click()
    row = page.get_by_role("table", name="LLM profiles").get_by_role("row").filter(has_text="fast")
    expect(row).to_contain_text("openai/small")
    row.get_by_role("button", name="Edit").click()
    form = page.get_by_role("form", name="Profile fast")
    form.get_by_label("Model", exact=True).fill("openai/smaller")
    form.get_by_text("More", exact=True).click()
    form.get_by_label("Temperature").fill("0.5")
    form.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("openai/smaller")
    assert "sk-that-stays-away" not in page.content()
    found = api.ask("GET", "/api/profiles/fast")
    assert (found["config"]["temperature"], found["api_key_set"]) == (0.5, True)


def test_an_agent_profile_is_made_and_changed_and_keeps_the_rest(console: Console, api: Api) -> None:
    body = {"agent_kind": "acp", "acp_server": "demo", "acp_args": ["--kept"], "secret_refs": ["ONE"]}
    api.ask("POST", "/api/agent-profiles/mine", body)
    page = console.open("#/server/profiles")
    row = page.get_by_role("table", name="Agent profiles").get_by_role("row").filter(has_text="mine")
    row.get_by_role("button", name="Edit").click()
    form = page.get_by_role("form", name="Profile mine")
    form.get_by_label("Session mode").fill("plan")
    form.get_by_role("button", name="Save").click()
    expect(form).to_have_count(0)
    changed = api.ask("GET", "/api/agent-profiles/mine")["profile"]
    assert (changed["acp_session_mode"], changed["secret_refs"]) == ("plan", ["ONE"])
    assert changed["acp_args"] == ["--kept"]
    page.get_by_role("button", name="New agent profile").click()
    form = page.get_by_role("form", name="New profile")
    form.get_by_label("Name", exact=True).fill("other")
    form.get_by_label("Server", exact=True).select_option("codex")
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_role("table", name="Agent profiles")).to_contain_text("other")
    assert api.ask("GET", "/api/agent-profiles/other")["profile"]["acp_server"] == "codex"


def test_charts_come_with_the_second_sample(console: Console, api: Api, tmp_path: Path) -> None:
    api.start(tmp_path, "Hello")
    page = console.open("#/server/metrics")
    expect(page.get_by_role("img", name=re.compile("Agents over the last hour"))).to_be_visible(
        timeout=40_000
    )
