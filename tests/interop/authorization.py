"""A certified authorization server (npm's oidc-provider), and the browser of a person who logs in there.

It is installed by a lock file with hashes, once, below `.cache`; `authorization_server/server.mjs` runs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import attrs
import httpx2

from tests.interop.npm import Packages
from tests.interop.npm import install as install_packages

HERE = Path(__file__).resolve().parent / "authorization_server"
HAPPENS_SECONDS = 20.0
RESOURCE_SECRET = "secret-of-the-resource-server"


def install(cache: Path) -> Packages:
    """Install the authorization server."""
    return install_packages(HERE, cache)


@attrs.define
class AuthorizationServer:
    """One that runs."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = attrs.field(factory=list)
    issuer: str = ""

    @contextmanager
    def of_one_test(self) -> Iterator[None]:
        """What happens meanwhile belongs to one test, which may leave it down: it fails if the server did."""
        self.events.clear()
        try:
            yield
        finally:
            self.up()
        assert self.happened("failed") == []

    def happened(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """What it told, oldest first."""
        wanted = {"event": event, **fields}
        return [each for each in list(self.events) if wanted.items() <= each.items()]

    def down(self) -> None:
        """Let nobody reach it. It forgets nothing."""
        self._command("down")

    def up(self) -> None:
        """Let it be reached again, at the same address."""
        self._command("up")

    def _command(self, word: str) -> None:
        before = len(self.happened(word))
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        self.wait_for(word, before + 1)

    def wait_for(self, event: str, count: int = 1) -> None:
        until = time.monotonic() + HAPPENS_SECONDS
        while len(self.happened(event)) < count:
            assert time.monotonic() < until, (event, self.events)
            assert self.process.poll() is None, "the authorization server has ended"
            time.sleep(0.01)


@contextmanager
def authorization_server(packages: Packages, **options: Any) -> Iterator[AuthorizationServer]:
    """Run it, with the options that server.mjs names."""
    given = json.dumps({"secret": RESOURCE_SECRET, **options})
    command = [packages.node, str(HERE / "server.mjs"), str(packages.directory), given]
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        server = AuthorizationServer(process)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):  # the provider itself gives hints there
                    server.events.append(json.loads(line))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            server.wait_for("ready")
            server.issuer = str(server.happened("ready")[0]["issuer"])
            yield server
        finally:
            process.kill()
            reader.join(HAPPENS_SECONDS)
    assert server.happened("failed") == []


FORM = re.compile(r'<form[^>]*action="([^"]+)"[^>]*method="post">(.*?)</form>', re.DOTALL)
FIELD = re.compile(r"<input[^>]*>")
ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
ABORT = re.compile(r'href="([^"]+/abort)"')


def pages(url: str, *, consent: bool = True) -> str:
    """Log in and consent (or refuse to) as a person does; where the browser is then sent to, unseen."""
    with httpx2.Client(timeout=30) as client:
        for _ in range(20):
            response = client.get(url)
            while response.status_code == 200:
                form = FORM.search(response.text)
                assert form is not None, response.text
                fields = {}
                for field in FIELD.findall(form[2]):
                    found = dict(ATTRIBUTE.findall(field))
                    fields[found["name"]] = unescape(found.get("value", "somebody"))
                abort = ABORT.search(response.text)
                if fields["prompt"] == "consent" and not consent:
                    assert abort is not None, response.text
                    response = client.get(unescape(abort[1]))
                else:
                    response = client.post(unescape(form[1]), data=fields)
            assert response.status_code in (302, 303), response.text
            url = urljoin(url, response.headers["Location"])
            if "/callback?" in url:
                return url
    raise AssertionError("no end of redirects")
