"""A person works with Codex in the console; its model is a script on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from playwright.sync_api import Browser, expect

from supervisor.agents.install.install import DONE_FILE
from tests.clients.served import Served, served
from tests.console.harness import Api, opened
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import CODEX, install

pytestmark = pytest.mark.clients


@pytest.fixture
def with_codex(agents_prefix: Path, model_api: ModelApi, tmp_path: Path) -> Iterator[Served]:
    """A server that has Codex, and its key."""
    there = any(agents_prefix.glob(f"{CODEX.key}/*/{DONE_FILE}"))
    if not there and os.environ.get("CI") != "true":
        pytest.skip(f"{CODEX.key} is not installed: see OSTLER_TEST_AGENTS in tests/interop/README.md")
    trio.run(install, CODEX, agents_prefix)
    state = tmp_path / "state"
    state.mkdir()
    (state / "agents").symlink_to(agents_prefix)
    with served(tmp_path) as server:
        api = Api(server.url)
        for name, value in CODEX.secrets(model_api.url).items():
            api.ask("PUT", "/api/settings/secrets", {"name": name, "value": value})
        yield server


def test_a_text_a_command_with_permission_and_its_output(
    browser: Browser, with_codex: Served, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    api = Api(with_codex.url)
    settings = {"agent_kind": "acp", **CODEX.agent_settings()}
    conversation = api.start(
        workspace,
        "say hello please",
        agent_settings=settings,
        confirmation_policy={"kind": "AlwaysConfirm"},
    )
    with opened(browser, with_codex.url) as console:
        page = console.open(f"#/c/{conversation}")
        log = page.get_by_role("log", name="Conversation")
        page.set_default_timeout(60_000)  # its first start takes a while
        expect(log).to_contain_text("ECHO: say hello please", timeout=60_000)
        page.get_by_role("textbox", name="Message").fill("ASK: echo one > made.txt && cat made.txt")
        page.get_by_role("button", name="Send").click()
        request = page.get_by_role("group", name="Permission request")
        expect(request).to_contain_text("made.txt", timeout=60_000)
        assert not (workspace / "made.txt").exists()
        request.get_by_role("button").first.click()
        expect(request).to_have_count(0)
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled(timeout=60_000)
        assert (workspace / "made.txt").read_text() == "one\n"
        console.healthy()
