"""A real server, a real browser, and the console in it."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.clients.browser import find_chromium
from tests.clients.served import Served, served
from tests.interop.harness import CACHE
from tests.support.scripted import scripted_command

SHOTS = CACHE / "console-shots"
"""Pictures of the views, to be looked at."""

WAIT_MS = 20_000
"""For what the page is to show: a busy machine may take seconds."""

expect.set_options(timeout=WAIT_MS)

VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  const { violatedDirective, blockedURI, sourceFile, lineNumber } = event;
  window.violations.push(`${violatedDirective} ${blockedURI} ${sourceFile}:${lineNumber}`);
});
"""


class Console:
    """A page with the console of a server, and what went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.errors: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(VIOLATIONS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", self._dialog)

    def _said(self, message: Any) -> None:
        # What the browser says of a refused or lost request is the page's to show.
        if message.type == "error" and not message.text.startswith(
            ("Failed to load", "WebSocket connection")
        ):
            self.errors.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.errors.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, view: str = "#/") -> Page:
        """Show a view, and wait until the server is heard."""
        self.page.goto(f"{self.url}/{view}")
        self.connected()
        return self.page

    def connected(self) -> None:
        """Wait until the page says that it is connected."""
        self.page.get_by_role("status", name="Connection").get_by_text("Connected", exact=True).wait_for()

    def healthy(self) -> None:
        """Nothing failed, nothing was asked of another host, and the policy was kept."""
        assert not self.errors, "; ".join(self.errors)
        assert self.page.evaluate("window.violations") == []
        foreign = [url for url in self.asked if not url.startswith((self.url, "data:", "blob:"))]
        assert foreign == []


class Api:
    """The same server as other clients use it."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self.key = url, key

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["X-Session-API-Key"] = self.key
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def start(self, directory: Path, message: str | None = None, **more: Any) -> str:
        """Start a conversation with the demo agent; its id."""
        body: dict[str, Any] = {
            "agent_settings": {"agent_kind": "acp", "acp_server": "demo"},
            "workspace": {"working_dir": str(directory)},
            **more,
        }
        if message is not None:
            body["initial_message"] = {"content": [{"type": "text", "text": message}]}
        found: str = self.ask("POST", "/api/conversations", body)["id"]
        return found

    def scripted(self, directory: Path, message: str, **more: Any) -> str:
        """Start one with the scripted agent, which does as its message says."""
        command = scripted_command(home=directory / "sessions")
        agent = {"agent_kind": "acp", "acp_server": "custom", "acp_command": command}
        return self.start(directory, message, agent_settings=agent, **more)

    def say(self, conversation_id: str, text: str) -> None:
        content = [{"type": "text", "text": text}]
        self.ask("POST", f"/api/conversations/{conversation_id}/events", {"content": content, "run": True})

    def status(self, conversation_id: str) -> str:
        found: str = self.ask("GET", f"/api/conversations/{conversation_id}")["execution_status"]
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="module")
def api(server: Served) -> Api:
    return Api(server.url)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield found
        found.close()


Opened = Callable[..., Console]


@contextmanager
def opened(browser: Browser, url: str, **context: Any) -> Iterator[Console]:
    """A page of its own, which is closed at the end."""
    found: BrowserContext = browser.new_context(**context)
    try:
        yield Console(found.new_page(), url)
    finally:
        found.close()


@pytest.fixture
def console(browser: Browser, server: Served) -> Iterator[Console]:
    """The console of the module's server. Nothing may have failed in it at the end."""
    with opened(browser, server.url, viewport={"width": 1400, "height": 900}) as found:
        yield found
        found.healthy()


@pytest.fixture(scope="session")
def shots() -> Path:
    """An empty directory for pictures."""
    shutil.rmtree(SHOTS, ignore_errors=True)
    SHOTS.mkdir(parents=True)
    return SHOTS
