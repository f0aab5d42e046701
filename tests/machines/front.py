"""A plain proxy in front of several servers: nginx, one request to each in turn, without stickiness."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

START_S = 10.0

CONFIGURATION = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/f;
    uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
    upstream servers {{ {servers} }}
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_buffering off;
        proxy_request_buffering off;
        proxy_read_timeout 1h;
        location / {{ proxy_pass http://servers; }}
    }}
}}
"""


def nginx() -> str:
    """The program. Skips the test where there is none, but for CI."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        assert os.environ.get("CI") != "true", "nginx is missing. Install the package nginx-light."
        pytest.skip("nginx is not installed")
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def front(urls: Sequence[str], directory: Path) -> Iterator[str]:
    """The address of a proxy before these servers."""
    port = free_port()
    servers = " ".join(f"server {urlsplit(url).netloc} max_fails=0;" for url in urls)
    file = directory / "nginx.conf"
    file.write_text(CONFIGURATION.format(directory=directory, servers=servers, port=port))
    process = subprocess.Popen([nginx(), "-e", str(directory / "nginx.log"), "-c", str(file)])
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (directory / "nginx.log").read_text()
                assert time.monotonic() < until, "nginx does not listen"
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
