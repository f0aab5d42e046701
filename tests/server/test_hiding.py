"""Warden and server keep their environment, with the keys in it, from other processes of the user."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from supervisor.agents.containment.containment import PID_FILE
from tests.support import spy as spy_program
from tests.support.processes import alive, command_line, descendants, kill_mentioning, wait_until
from tests.support.thorough import everyday
from tests.support.user import AS_USER, NEEDS_USER, USER, give

WAIT_S = 30.0

GROUP = 54321
"""As root, what tells a process whose files in /proc are its own from one whose files are root's."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def hidden(pid: int) -> bool:
    """Whether only root may look at it."""
    found = Path(f"/proc/{pid}/environ").stat()
    return found.st_gid != GROUP if os.geteuid() == 0 else found.st_uid != os.geteuid()


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.guarantee(name="secrets-stay-in")
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
            kill_mentioning(tmp_path)


def test_a_command_hides_its_key(tmp_path):
    program = Path(sysconfig.get_path("scripts")) / "ostler"
    with subprocess.Popen(
        [program, "secrets", "set", "A"],  # which waits for the value
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OSTLER_API_KEY": "x"},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        group=GROUP if os.geteuid() == 0 else None,
    ) as process:
        try:
            assert wait_until(lambda: "secrets" in command_line(process.pid) and hidden(process.pid), WAIT_S)
        finally:
            process.kill()


LOOKS = """
import os, signal, sys
from supervisor.agents.spawning.prctl import PR_SET_DUMPABLE, _prctl, hide_from_peers

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


@pytest.mark.guarantee(name="malicious-agents")
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


# -- a process of the same user that looks as fast as it can

CANARY = "k3y-that-nobody-may-read"
CONTROL = "c0ntrol-that-everybody-reads"
LATE = "l4te-" + "control"

CRASHES = everyday(8, 50)
STARTS = everyday(2, 5)

OSTLER = """
import os, sys, time
while "GATE" in os.environ and not os.path.exists(os.environ["GATE"]):
    time.sleep(0.005)  # not hidden yet: whoever looks has all the time to
from supervisor.agents.containment import warden
warden.FIRST_PAUSE_SECONDS, warden.PAUSE_FACTOR = 0.01, 1.0  # to crash often
from gateway.cli import main
sys.exit(main())
"""

HIDES_AND_THEN_TAKES_ITS_KEYS = """
import sys, time
from supervisor.agents.spawning.prctl import hide_from_peers
hide_from_peers()
key = "-".join(["l4te", "control"])
print("listening", flush=True)
time.sleep(300)
"""
"""What a server that is executed could do at its best."""


@pytest.fixture
def root():
    """A directory of the user that server and spy run as."""
    directory = Path(tempfile.mkdtemp(prefix="ostler-hiding-"))
    give(directory)
    yield directory
    kill_mentioning(directory)
    shutil.rmtree(directory)


class Looking:
    """A spy on what is below this process and mentions the directory."""

    def __init__(self, root):
        texts = [f"{name}={text.encode().hex()}" for name, text in
                 [("canary", CANARY), ("control", CONTROL), ("late", LATE)]]  # fmt: skip
        self.process = subprocess.Popen(
            [*AS_USER, sys.executable, spy_program.__file__, str(os.getpid()), str(root), *texts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        )  # fmt: skip

    def look(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def looking(root):
    spy = Looking(root)
    with spy.process:
        try:
            yield spy
        finally:
            spy.process.stdin.close()


@contextmanager
def started(root, *arguments, code=OSTLER, **options):
    command = [*AS_USER, sys.executable, "-c", code, "serve", "--port", "0", "--state", str(root / "state")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "CONTROL": CONTROL}
    environment |= {"OSTLER_SERVER_RESTARTS": "1000", **options.pop("variables", {})}
    with subprocess.Popen(
        [*command, *arguments], env=environment, cwd=root, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            for child in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)


def control(spy, root):
    """That it sees what can be seen: the environment that a program is executed with, and what comes into its
    memory after it has hidden itself."""
    for _ in range(50):
        with started(root, code=HIDES_AND_THEN_TAKES_ITS_KEYS) as process:
            assert is_serving(process)
            found = spy.look()["found"]
        if "environ" in found["control"] and "memory" in found["late"]:
            return
    pytest.fail(f"the spy is too slow: {found}")


def is_serving(process):
    return "listening" in process.stdout.readline()


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.guarantee(name="secrets-stay-in")
@NEEDS_USER
def test_keys_are_not_seen_when_a_crashed_server_is_started_again(root):
    variables = {"OSTLER_SESSION_API_KEY": CANARY, "OSTLER_SECRET_A": CANARY}
    rolling = random.Random(4)
    with started(root, variables=variables) as process:
        assert is_serving(process)
        with looking(root) as spy:
            servers = set()
            for crash in range(10 * CRASHES):
                if crash >= CRASHES and spy.look()["seen"] > CRASHES // 2:
                    break  # on a busy machine the spy misses more of them
                assert wait_until(
                    lambda: [each for each in descendants(process.pid) if each.ppid == process.pid], WAIT_S
                )
                time.sleep(rolling.random() * 0.2)  # at every stage of its start
                for child in descendants(process.pid):
                    servers.add(child.pid)
                    os.kill(child.pid, signal.SIGKILL)
                wait_until(lambda child=child: not alive(child.pid))
            assert is_serving(process)
            seen = spy.look()
            assert len(servers) >= CRASHES
            assert seen["seen"] > CRASHES // 2
            assert seen["found"] == {"canary": [], "control": [], "late": []}
            assert seen["memory"] == 0
            control(spy, root)


@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.guarantee(name="secrets-stay-in")
@NEEDS_USER
@pytest.mark.parametrize("way", ["file", "descriptor"])
def test_keys_that_are_no_variables_are_never_seen(root, way):
    content = f"OSTLER_SESSION_API_KEY={CANARY}\nOSTLER_SECRET_A={CANARY}\n"
    if way == "file":
        file = root / "keys"
        file.write_text(content)
        file.chmod(0o600)
        give(file)
    with looking(root) as spy:
        for start in range(STARTS):
            ours, theirs = os.pipe()
            gate, held = root / f"gate{start}", spy.look()["memory"]
            given = ["--keys-file", str(file)] if way == "file" else ["--keys-fd", str(ours)]
            try:
                with started(root, *given, pass_fds=[ours], variables={"GATE": str(gate)}) as process:
                    # The spy has opened its memory before it hides.
                    assert wait_until(lambda held=held: spy.look()["memory"] > held, WAIT_S)
                    gate.touch()
                    # As a careful operator does: a pipe's content can be taken until the process is hidden.
                    assert wait_until(lambda process=process: hides(process.pid), WAIT_S)
                    os.write(theirs, content.encode())
                    os.close(theirs)
                    assert is_serving(process)
                    seen = spy.look()
            finally:
                os.close(ours)
        assert "environ" in seen["found"]["control"]
        assert seen["memory"] >= STARTS
        assert seen["found"]["canary"] == []
        control(spy, root)


def hides(pid):
    """Whether it has begun with Ostler's own lines."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return (
        b"serve" in command
        and b"setpriv" not in command
        and (Path(f"/proc/{pid}/environ").stat().st_uid != USER)
    )
