"""Warden and server keep their environment, with the keys in it, from other processes of the user."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.processes import command_line, descendants, sweep

from supervisor.agents.containment import PID_FILE

WAIT_S = 30.0

GROUP = 54321
"""As root, what tells a process whose files in /proc are its own from one whose files are root's."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def hidden(pid: int) -> bool:
    """Whether only root may look at it."""
    found = Path(f"/proc/{pid}/environ").stat()
    return found.st_gid != GROUP if os.geteuid() == 0 else found.st_uid != os.geteuid()


@pytest.mark.parametrize(("variables", "expected"), [({}, True), ({"OSTLER_ATTACHABLE": "1"}, False)])
def test_warden_and_server_hide_from_peers(tmp_path, variables, expected):
    program = Path(sysconfig.get_path("scripts")) / "ostler"
    state = tmp_path / "state"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}
    with subprocess.Popen(
        [program, "serve", "--port", "0", "--state", state],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        group=GROUP if os.geteuid() == 0 else None,
    ) as process:
        try:
            assert process.stdout is not None
            assert "listening" in process.stdout.readline()
            server = int((state / PID_FILE).read_text())
            assert server != process.pid
            assert (hidden(process.pid), hidden(server)) == (expected, expected)
            # The spawner, through which the environments of agents pass.
            (spawner,) = [each.pid for each in descendants(server) if "spawner.py" in command_line(each.pid)]
            assert hidden(spawner) == expected
            process.terminate()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            sweep(tmp_path)


LOOKS = """
import os, signal, sys
from supervisor.agents.prctl import PR_SET_DUMPABLE, _prctl, hide_from_peers

def become_somebody():
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
        _prctl(PR_SET_DUMPABLE, 1)  # as after an exec

def look_at(hide):
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        become_somebody()
        assert not hide or hide_from_peers()
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    looking = os.fork()
    if looking == 0:
        become_somebody()
        try:
            os._exit(0 if b"KEY=secret" in open(f"/proc/{pid}/environ", "rb").read() else 2)
        except PermissionError:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(looking, 0)[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return status

print(look_at(False), look_at(True))
"""


def test_who_hides_is_not_read_by_the_same_user():
    out = subprocess.run(
        [sys.executable, "-c", LOOKS],
        env={"KEY": "secret", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    ).stdout
    assert out.split() == ["0", "1"]
