"""`ostler open`: show the console in a browser; and the links to it that other commands print."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.locations import read_known
from gateway.cli.present import print_json
from gateway.configuration.address import ANYWHERE, http_url
from gateway.serving.control import URL_FILE

SHOWING: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""One of these has to be set for a browser. Without a display Python would choose one for a terminal."""

OURS: Final = ("OSTLER_", "OH_", "SESSION_API_KEY")
"""How variables begin that a browser does not get: some are keys."""


def console_url(server: Server, conversation_id: str | None = None) -> str | None:
    """The address of the console for a browser, or of a conversation in it. It never has a key.

    None for a temporary server, which ends with its commands, and for one whose address is unknown.
    """
    if server.temporary:
        return None
    parts = server.parts
    if server.socket_path is not None:
        if read_known(server.socket_path.parent) is not None:
            return None
        if server.by_socket:
            try:
                parts = urlsplit((server.socket_path.parent / URL_FILE).read_text().strip())
            except (OSError, ValueError):
                return None
    host, port = parts.hostname, parts.port
    if not host:
        return None
    netloc = parts.netloc.rpartition("@")[2]
    base = http_url(ANYWHERE[host], port or 80) if host in ANYWHERE else f"{parts.scheme}://{netloc}"
    return f"{base}{parts.path.rstrip('/')}/" + (f"#/c/{conversation_id}" if conversation_id else "")


def run(server: Server, arguments: Namespace) -> None:
    """Open a browser at the console; print the address where there is no browser. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id) if arguments.id else None
    if conversation_id:
        server.get(f"/api/conversations/{conversation_id}")
    else:
        server.get("/server_info")
    url = console_url(server, conversation_id)
    if url is None:
        raise Failure("only a temporary server runs, which ends soon; start one with `ostler serve`")
    opened = _shown(url, os.environ)
    if arguments.json:
        print_json({"url": url, "opened": opened})
    else:
        print(url)


def _shown(url: str, env: Mapping[str, str]) -> bool:
    """Start the browser, without waiting for it. False if there is none."""
    if not any(env.get(name) for name in SHOWING):
        return False
    import webbrowser  # it takes longer than all that a link needs

    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    # A process of its own: some browsers stay in the foreground, and write to the terminal. `-I`: a file
    # of this directory may have the module's name.
    subprocess.Popen(
        [sys.executable, "-I", "-m", "webbrowser", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in env.items() if not name.startswith(OURS)},
        start_new_session=True,
    )
    return True
