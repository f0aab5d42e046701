"""The page that starts a conversation: credentials, and the models that an agent has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.clients.served import served
from tests.console.harness import Api, Console, opened

pytestmark = pytest.mark.clients

KEY = "OPENAI_API_KEY"
VALUE = "sk-that-is-stored-here"


@pytest.fixture
def without_credentials(browser: Browser, tmp_path: Path) -> Iterator[Console]:
    """The console of a server that finds no credential of Codex."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "CODEX_HOME": str(home / ".codex")}
    environment |= {name: "" for name in os.environ if name.endswith("_API_KEY")}
    with served(tmp_path, environment) as server, opened(browser, server.url) as console:
        yield console
        console.healthy()


def test_a_credential_that_is_missing_is_stored_there(without_credentials: Console) -> None:
    page = without_credentials.open("#/new")
    agent = page.get_by_role("combobox", name="Agent")
    agent.select_option("codex")
    expect(page.get_by_text("No credential found.")).to_be_visible()
    expect(agent.locator("option[value=codex]")).to_contain_text("(no credential)")
    page.get_by_role("combobox", name="Name of the key").select_option(KEY)
    page.get_by_role("button", name="Store").click()
    expect(page.get_by_role("alert")).to_have_text("Type the key first.")
    page.get_by_label("Key", exact=True).fill(VALUE)
    page.get_by_role("button", name="Store").click()
    expect(page.get_by_text(f"Key present: {KEY}")).to_be_visible()
    expect(page.get_by_text("No credential found.")).to_have_count(0)
    expect(agent.locator("option[value=codex]")).not_to_contain_text("(no credential)")
    api = Api(without_credentials.url)
    assert KEY in [each["name"] for each in api.ask("GET", "/api/settings/secrets")["secrets"]]
    assert VALUE not in page.content()
    assert not [url for url in without_credentials.asked if VALUE in url]


def test_the_models_that_an_agent_names_are_offered_and_taken(
    console: Console, api: Api, tmp_path: Path
) -> None:
    page = console.open("#/new")
    page.get_by_role("combobox", name="Agent").select_option("demo")
    page.get_by_role("button", name="Ask the agent for its models").click()
    expect(page.get_by_role("status", name="Models")).to_have_text("2 models")
    field = page.get_by_role("combobox", name="Model", exact=True)
    offered = page.locator("datalist#models option")
    values = offered.evaluate_all("(all) => all.map((each) => each.value)")
    assert set(values) >= {"demo-polite", "demo-terse"}
    assert field.evaluate("(input) => input.list.id") == "models"
    field.fill("demo-terse")
    page.get_by_role("combobox", name="Workspace").fill(str(tmp_path))
    page.get_by_role("textbox", name="Message").fill("Short please")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("log")).to_contain_text("Demo. You said: Short please")
    # Where another conversation has it, it is offered unasked.
    page.goto(f"{console.url}/#/new")
    page.get_by_role("combobox", name="Agent").select_option("demo")
    expect(page.locator("datalist#models option[value=demo-terse]")).to_be_attached()


def test_a_model_that_cannot_be_asked_for_says_why(console: Console) -> None:
    page = console.open("#/new")
    page.route("**/api/acp/models", lambda route: route.abort())
    page.get_by_role("combobox", name="Agent").select_option("demo")
    page.get_by_role("button", name="Ask the agent for its models").click()
    expect(page.get_by_role("alert")).to_have_text("The server does not answer.")
