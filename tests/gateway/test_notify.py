"""What systemd is told: over a real socket, and by a real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
import trio

from gateway.serving.notify import Notifier

NOBODY = "4194305"
"""A process number above the largest that Linux gives. 1 is our parent's when what started us has ended."""


class Manager:
    """Listens in the place of systemd."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(20)

    def heard(self):
        """Everything that is there now."""
        found = []
        self.socket.setblocking(False)
        try:
            while True:
                found.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.fixture
def manager(tmp_path):
    opened = Manager(str(tmp_path / "notify"))
    yield opened
    opened.socket.close()


def environment(tmp_path, **more):
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/bin", **more}


async def test_ready_and_stopping(tmp_path, manager):
    environ = environment(tmp_path, WATCHDOG_USEC="1000000", WATCHDOG_PID=NOBODY)
    notifier = Notifier.take(environ)
    assert environ == {"PATH": "/bin"}
    await notifier.ready("Listening")
    await notifier.stopping()
    with trio.fail_after(20):
        await notifier.keep_alive()  # nobody wants signs of life from us: ends at once
    assert manager.heard() == ["READY=1\nSTATUS=Listening", "STOPPING=1\nSTATUS=Stopping"]


@pytest.mark.parametrize("pid", [None, os.getpid(), os.getppid()], ids=["nobody", "us", "our parent"])
async def test_signs_of_life_twice_as_often_as_wanted(tmp_path, manager, autojump_clock, pid):
    watched = {} if pid is None else {"WATCHDOG_PID": str(pid)}
    notifier = Notifier.take(environment(tmp_path, WATCHDOG_USEC="30000000", **watched))
    with trio.move_on_after(44):
        await notifier.keep_alive()
    assert manager.heard() == ["WATCHDOG=1"] * 3  # after 0, 15 and 30 s


async def test_abstract_addresses():
    name = f"ostler-test-{os.getpid()}"
    manager = Manager(f"\0{name}")
    await Notifier.take({"NOTIFY_SOCKET": f"@{name}"}).ready("Listening")
    assert manager.heard() == ["READY=1\nSTATUS=Listening"]
    manager.socket.close()


@pytest.mark.parametrize("address", ["", "vsock:2:9", "relative/path"])
async def test_without_a_manager_nothing_happens(address, autojump_clock):
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    notifier = Notifier.take(environ)
    with trio.fail_after(0.1):
        await notifier.ready("Listening")
        await notifier.keep_alive()


async def test_a_manager_that_is_gone_or_deaf_stops_nobody(tmp_path, autojump_clock):
    notifier = Notifier.take(environment(tmp_path, WATCHDOG_USEC="1000000"))
    with trio.fail_after(5):
        await notifier.ready("Listening")
    manager = Manager(str(tmp_path / "notify"))
    with trio.fail_after(5000):
        for _ in range(2000):  # more than its queue takes
            await notifier.stopping()
    assert 0 < len(manager.heard()) < 2000
    manager.socket.close()


@pytest.mark.parametrize("arguments", [[], ["--no-warden"]])
def test_a_server_tells(tmp_path, manager, arguments):
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--state", str(tmp_path / "state")]
    environ = environment(tmp_path, HOME=str(tmp_path), WATCHDOG_USEC="200000")
    environ["PATH"] = os.environ["PATH"]
    with subprocess.Popen(
        [*command, *arguments], env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            said = []
            while len(said) < 6:
                said.append(manager.socket.recv(4096).decode())
            announced = process.stdout.readline().split()[-1]
            ready = f"READY=1\nSTATUS=Listening on {announced}"
            assert said.count(ready) == 1
            assert set(said) == {ready, "WATCHDOG=1"}
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
            assert "STOPPING=1\nSTATUS=Stopping" in manager.heard()
        finally:
            process.kill()
