"""A desktop session's keyring: gnome-keyring on a session bus of its own, to be locked and killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("dbus-run-session", "dbus-send", "gnome-keyring-daemon")
"""Of Debian's packages dbus and gnome-keyring."""

PASSWORD = b"a password of the test's own"
READY_S = 20.0  # for a daemon on a busy machine

NOBODY = "/bin/false"
"""The prompter of a session in which nobody can be asked for the password."""

PROMPTER = """[D-BUS Service]
Name=org.gnome.keyring.SystemPrompter
Exec={}
"""

ASK = """
import sys, trio
from supervisor.credentials.os_keyring import OsKeyring

async def main():
    ring, (what, *arguments) = OsKeyring(), sys.argv[1:]
    print(await getattr(ring, what)(*arguments), ring.name, sep="|")

trio.run(main)
"""


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class KeyringSession:
    """`environment` is for whoever is to find the keyring."""

    def __init__(self, directory: Path, prompter: str) -> None:
        self.directory = directory
        self._daemon: subprocess.Popen[bytes] | None = None
        services = directory / "data" / "dbus-1" / "services"
        services.mkdir(parents=True)
        (directory / "run").mkdir(mode=0o700)
        # The session's own directory goes before the system's: no test waits for a window that cannot open.
        (services / "org.gnome.keyring.SystemPrompter.service").write_text(PROMPTER.format(prompter))
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
            "XDG_DATA_HOME": str(directory / "data"),
            "XDG_RUNTIME_DIR": str(directory / "run"),
        }

    def start_bus(self) -> subprocess.Popen[bytes]:
        """The bus ends when the standard input of this process is closed."""
        bus = subprocess.Popen(
            ["dbus-run-session", "--", "sh", "-c", 'echo "$DBUS_SESSION_BUS_ADDRESS"; exec cat'],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert bus.stdout is not None
        self.environment["DBUS_SESSION_BUS_ADDRESS"] = bus.stdout.readline().decode().strip()
        return bus

    def start(self, *, unlocked: bool = True) -> None:
        """Start the daemon; it answers when this returns."""
        command = ["gnome-keyring-daemon", "--foreground", "--components=secrets"]
        self._daemon = subprocess.Popen(
            [*command, "--unlock"] if unlocked else command,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert self._daemon.stdin is not None
        if unlocked:
            self._daemon.stdin.write(PASSWORD)
        self._daemon.stdin.close()
        until = time.monotonic() + READY_S
        while self._serving() != self._daemon.pid:
            assert self._daemon.poll() is None, "gnome-keyring-daemon ended"
            assert time.monotonic() < until, f"gnome-keyring-daemon is not there after {READY_S} s"
            time.sleep(0.02)

    def _serving(self) -> int | None:
        """The process that answers for the keyring, None where there is none."""
        command = ["dbus-send", "--session", "--print-reply=literal", "--dest=org.freedesktop.DBus", "/"]
        asked = subprocess.run(
            [*command, "org.freedesktop.DBus.GetConnectionUnixProcessID", "string:org.freedesktop.secrets"],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        return int(asked.stdout.split()[-1]) if asked.returncode == 0 else None

    def signal(self, number: int) -> None:
        """To the daemon."""
        assert self._daemon is not None
        self._daemon.send_signal(number)

    def kill(self) -> None:
        """End the daemon at once. What the bus starts in its place, when it is asked for, is locked."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None
        while (other := self._serving()) is not None:  # that the bus has started
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
            time.sleep(0.02)

    def lock(self) -> None:
        """The daemon of a session in which nobody has given the password."""
        self.kill()
        self.start(unlocked=False)

    def unlock(self) -> None:
        """The daemon of a session in which somebody has."""
        self.kill()
        self.start()

    def ask(self, what: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Ask the keyring through Ostler's own code, in its own process: answer, bar, name of the keyring."""
        return subprocess.run(
            [sys.executable, "-c", ASK, what, *arguments],
            env={**self.environment, **environment},
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            timeout=60,
        )


@contextmanager
def keyring_session(prompter: str = NOBODY) -> Iterator[KeyringSession]:
    """A session with an unlocked keyring. Nothing of it is left afterwards."""
    # A short path: those of sockets are limited.
    with tempfile.TemporaryDirectory(prefix="ostler-", ignore_cleanup_errors=True) as name:
        session = KeyringSession(Path(name), prompter)
        bus = session.start_bus()
        try:
            session.start()
            yield session
        finally:
            if session._daemon is not None:
                session.signal(signal.SIGCONT)
            session.kill()
            assert bus.stdin is not None
            assert bus.stdout is not None
            bus.stdin.close()
            bus.stdout.close()
            bus.wait()
