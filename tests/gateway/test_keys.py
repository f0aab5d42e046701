"""A server with keys, as a process: what it says, and what it never says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from gateway.cli import main

KEY = "k3y-that-nobody-may-read"
NEAR = "k3y-that-nobody-may-guess"
HANDSHAKE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_open_server_elsewhere_is_refused_in_one_line(capsys, monkeypatch, tmp_path, host):
    for name in [name for name in os.environ if "API_KEY" in name or name.startswith("OSTLER_")]:
        monkeypatch.delenv(name)
    assert main(["serve", "--host", host, "--state", str(tmp_path / "state")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ostler: --host: {host} is reached from other machines")
    assert "OSTLER_SESSION_API_KEY" in captured.err
    assert "OSTLER_ALLOW_OPEN=1" in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "state").exists()


def say(address, text):
    """What comes back for raw text: what begins, and what follows within a moment."""
    with socket.create_connection(address, timeout=30) as stream:
        stream.sendall(text.encode())
        received = b""
        try:
            while chunk := stream.recv(65536):
                received += chunk
                stream.settimeout(0.5)
        except TimeoutError:
            pass
    return received


@pytest.mark.guarantee(name="other-machines")
def test_no_key_is_ever_logged(tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OSTLER_SESSION_API_KEYS": f"x,{KEY}"}
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--state", str(tmp_path / "state")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        try:
            line = process.stdout.readline()
            host, port = line.split("http://")[1].strip().split(":")
            address = (host, int(port))
            events = f"GET /sockets/events/{NOBODY}"
            expected = {
                f"GET /api/settings?session_api_key={KEY} HTTP/1.1\r\n": b"401",
                f"{events}?session_api_key={NEAR} HTTP/1.1\r\n{HANDSHAKE}": b"403",
                f"{events}?session_api_key={KEY}&resend_mode=x HTTP/1.1\r\n{HANDSHAKE}": b"403",
                f"GET /sockets/events/{KEY}?session_api_key={KEY} HTTP/1.1\r\n{HANDSHAKE}": b"403",
                f"{events}?session_api_key={KEY} HTTP/1.1\r\n{HANDSHAKE}": b"101",
                f"GET /sockets/nothing?session_api_key={KEY} HTTP/1.1\r\n{HANDSHAKE}": b"404",
                f"{events}?session_api_key={KEY} HTTP/1.1\r\n": b"401",
                f"GET /sockets/events/x HTTP/1.1\r\nX-Session-API-Key: {NEAR}\r\n{HANDSHAKE}": b"403",
                f"GET /api/{KEY} HTTP/1.1\r\nX-Session-API-Key: {KEY}\r\n": b"404",
                f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {NEAR}\r\n": b"401",
            }
            answers = {text: say(address, f"{text}Host: localhost\r\n\r\n") for text in expected}
            found = {text: answer[9:12] for text, answer in answers.items()}
            assert found == expected
            for answer in answers.values():
                assert KEY.encode() not in answer
                assert NEAR.encode() not in answer
        finally:
            process.terminate()
            out, err = process.communicate(timeout=20)
    assert KEY not in line + out + err
    assert NEAR not in line + out + err
    assert "Traceback" not in err
