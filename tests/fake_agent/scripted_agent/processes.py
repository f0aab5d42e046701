"""Ways to die, and children that outlive their parent."""

from __future__ import annotations

import os
import sys

LIFETIME_S = 600  # a forgotten grandchild ends by itself

STUBBORN = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep({LIFETIME_S})"
# Forks twice with a session of its own: no parent, no group, no session and no environment leads to it.
DAEMON = f"""
import os, time
os.setsid()
if os.fork():
    os._exit(0)
os.write(1, str(os.getpid()).encode())
os.close(1)
time.sleep({LIFETIME_S})
"""


def spawn(kind: str) -> int:
    """Start a grandchild and return its pid."""
    import shutil  # both take their time, and few agents have children
    import subprocess

    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if kind == "plain":
        return subprocess.Popen(["sleep", str(LIFETIME_S)], stdout=subprocess.DEVNULL, **quiet).pid
    if kind == "pipe":
        return subprocess.Popen(["sleep", str(LIFETIME_S)], stdout=None, **quiet).pid
    if kind == "stubborn":
        command = [sys.executable, "-S", "-c", STUBBORN]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, **quiet).pid
    if kind == "session":
        command = [shutil.which("sleep") or "sleep", str(LIFETIME_S)]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env={}, start_new_session=True, **quiet
        ).pid
    if kind == "daemon":
        command = [sys.executable, "-S", "-E", "-c", DAEMON]
        starter = subprocess.Popen(command, stdout=subprocess.PIPE, env={}, **quiet)
        assert starter.stdout is not None
        pid = int(starter.stdout.read())
        starter.wait()
        return pid
    raise SystemExit(f"unknown kind of grandchild: {kind}")


def die(how: str, stderr_lines: int) -> None:
    """End this process at once, by exit code or by signal, after a few words on stderr."""
    for number in range(stderr_lines):
        os.write(2, f"scripted agent: fatal line {number + 1}\n".encode())
    if not how or how.lstrip("-").isdigit():
        os._exit(int(how or 1))
    import signal

    os.kill(os.getpid(), signal.Signals[f"SIG{how.upper().removeprefix('SIG')}"])
    signal.pause()
