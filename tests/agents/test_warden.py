"""The warden above a command of the test's own: what it restarts, what it passes on, what it leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from supervisor.agents.containment import warden
from tests.support.processes import alive, info, kill_mentioning, wait_until

WAIT_S = 20.0  # a busy machine; everything here takes a fraction of a second

AS_WARDEN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells have background jobs ignore
from supervisor.agents.containment.lifeline import become_warden
lifeline = become_warden()
"""

HASTY = """
from supervisor.agents.containment import warden
from supervisor.agents.containment.lifeline import become_warden
warden.END_SECONDS = 0.2
lifeline = become_warden(drain=0.1)
"""

SERVER = """
import os, signal, socket, subprocess, sys, time
sockets = lifeline.listening() or [socket.create_server(("127.0.0.1", 0))]
def serve():
    lifeline.serving(sockets)
    print(os.getpid(), sockets[0].getsockname()[1], flush=True)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def spawn(code, **options):
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **options)
"""

DAEMON = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid() if os.getpid() != os.getsid(0) else None
if os.fork():
    os._exit(0)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(300)
"""


@contextmanager
def started(tmp_path, code, as_warden=AS_WARDEN, stdin=None, **environment):
    """A warden with a server that runs `code`, with pipes for its output."""
    command = [sys.executable, "-c", f"{as_warden}{SERVER}\n{code}\n# {tmp_path}"]
    environment = {"PATH": os.environ["PATH"], **environment}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    )
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
                kill_mentioning(tmp_path)
    finally:
        kill_mentioning(tmp_path)


def run(tmp_path, code, **environment):
    """Status, lines of output, lines of complaint."""
    with started(tmp_path, code, **environment) as process:
        out, err = process.communicate(timeout=WAIT_S)
        return process.returncode, out.splitlines(), err.splitlines()


@pytest.mark.parametrize(
    ("code", "status", "starts"),
    [
        ("serve()", 0, 1),
        ("serve(); sys.exit(2)", 2, 1),  # called wrongly: it would be as wrong again
        ("print('no'); sys.exit(1)", 1, 1),  # it never served: it cannot be started
        ("serve(); sys.exit(3)", 3, 3),
        ("serve(); die()", 128 + signal.SIGKILL, 3),
        ("print('early', flush=True); die()", 128 + signal.SIGKILL, 3),
        ("serve(); lifeline.closing(); die()", 128 + signal.SIGKILL, 1),  # it was told to end anyway
    ],
)
def test_what_is_started_again_and_how_it_ends(tmp_path, code, status, starts):
    ended, lines, complaints = run(tmp_path, code, OSTLER_SERVER_RESTARTS="2")
    assert (ended, len(lines)) == (status, starts)
    said = [line for line in complaints if line.startswith("ostler: the server")]
    assert len(said) == (starts if starts > 1 else 0)


def test_budget_and_pauses():
    lifecycle = warden.Warden()
    pauses = [lifecycle._next_pause() for _ in range(warden.BUDGET + 1)]
    assert pauses == pytest.approx([0.1, 0.3, 0.9, 2.7, 8.1, None])
    lifecycle._restarts = [moment - warden.BUDGET_SECONDS for moment in lifecycle._restarts]
    assert lifecycle._next_pause() == pytest.approx(0.1)


@pytest.mark.guarantee(name="nothing-survives")
def test_the_port_stays_and_who_connects_meanwhile_waits(tmp_path):
    code = """
import select
serve()
select.select(sockets, [], [])
connection, _ = sockets[0].accept()
data = connection.recv(10)
if data == b"die":
    die()
connection.sendall(b"hello")
sys.exit(0)
"""
    with started(tmp_path, code) as process:
        first, port = map(int, process.stdout.readline().split())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"die")
            assert client.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(b"more")
            assert client.recv(5) == b"hello"
        second, same = map(int, process.stdout.readline().split())
        assert second != first
        assert same == port
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("told_by", ["signal", "itself"])
def test_a_server_that_does_not_end_is_killed(tmp_path, told_by):
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
serve()
if sys.stdin.readline() == "close\\n":
    lifeline.closing()
time.sleep(300)
"""
    with started(tmp_path, code, HASTY, stdin=subprocess.PIPE) as process:
        process.stdout.readline()
        if told_by == "signal":
            process.terminate()
        else:
            process.stdin.write("close\n")
        err = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 128 + signal.SIGKILL
    assert "the server did not end within 0.3 s; killing it" in err
    assert "restarting it" not in err


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, warden.DRAIN_SECONDS), ("60", 60.0), ("soon", warden.DRAIN_SECONDS)]
)
def test_the_drain_that_the_operator_set_is_waited_for(monkeypatch, text, seconds):
    if text is None:
        monkeypatch.delenv("OSTLER_DRAIN_SECONDS", raising=False)
    else:
        monkeypatch.setenv("OSTLER_DRAIN_SECONDS", text)
    assert warden.drain() == seconds


@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGTERM, "15"), (signal.SIGINT, "2"), (signal.SIGHUP, "15")],
)
def test_signals_are_passed_on_once_and_end_it(tmp_path, sent, received):
    code = """
got = []
for number in (1, 2, 15):
    signal.signal(number, lambda n, _: got.append(n))
serve()
while not got:
    time.sleep(0.01)
time.sleep(0.2)
print(*got, flush=True)
sys.exit(5)
"""
    with started(tmp_path, code) as process:
        process.stdout.readline()
        process.send_signal(sent)
        out, _ = process.communicate(timeout=WAIT_S)
    assert out.split() == [received]
    assert process.returncode == 5


def test_it_can_be_stopped_between_two_servers(tmp_path):
    with started(tmp_path, "serve(); die()") as process:
        for _ in range(4):  # the next pause takes 2.7 s
            process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(WAIT_S) == 128 + signal.SIGKILL
        assert time.monotonic() - began < 2
        assert process.stdout.read() == ""


@pytest.mark.parametrize("end", ["sys.exit(0)", "die()"])
def test_nothing_is_left_and_nobody_waits_for_who_holds_the_pipes(tmp_path, end):
    code = f"""
daemon = spawn({DAEMON!r}, env={{}}, stdout=subprocess.PIPE)
plain = spawn("import time; time.sleep(300)", env={{}})
serve()
print("left", daemon.stdout.readline().decode().strip(), plain.pid, flush=True)
{end}
"""
    ended, lines, _ = run(tmp_path, code, OSTLER_SERVER_RESTARTS="1")
    pids = [int(pid) for line in lines if line.startswith("left") for pid in line.split()[1:]]
    starts = 1 if "exit" in end else 2
    assert len(pids) == 2 * starts
    assert [pid for pid in pids if alive(pid)] == []
    assert ended == (0 if "exit" in end else 128 + signal.SIGKILL)


@pytest.mark.guarantee(name="nothing-survives")
def test_those_left_behind_are_gone_before_the_next_server_is_there(tmp_path):
    note = tmp_path / "pid"
    code = f"""
import pathlib
note = pathlib.Path({str(note)!r})
if note.exists():
    print(pathlib.Path("/proc", note.read_text()).exists(), flush=True)
    sys.exit(0)
daemon = spawn({DAEMON!r}, env={{}}, stdout=subprocess.PIPE)
note.write_text(daemon.stdout.readline().decode().strip())
serve()
die()
"""
    ended, lines, _ = run(tmp_path, code)
    assert (ended, lines[1:]) == (0, ["False"])


def test_adopted_orphans_are_reaped(tmp_path):
    # The server is no subreaper in this test: its orphans come to the warden at once.
    orphans = "import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\nos._exit(0)"
    with started(tmp_path, f"spawn({orphans!r}).wait(); serve(); time.sleep(300)") as process:
        process.stdout.readline()

        def zombies():
            children = (tmp_path / "x", *map(int, _children(process.pid)))[1:]
            return [pid for pid in children if (found := info(pid)) and found.state == "Z"]

        assert wait_until(lambda: zombies() == [], WAIT_S)
        process.terminate()
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


@pytest.mark.guarantee(name="nothing-survives")
def test_nonsense_on_its_channel_changes_nothing(tmp_path):
    note = tmp_path / "second"
    code = f"""
import pathlib
serve()
note = pathlib.Path({str(note)!r})
if note.exists():
    sys.exit(0)
note.touch()
channel = lifeline._channel
for word in (b"c", b"s", b"closing ", b"serving, closing", b"x" * 100, os.urandom(5000)):
    channel.send(word)
ours, theirs = os.pipe()
for word in (b"junk", b"\\0"):
    for _ in range(300):
        socket.send_fds(channel, [word], [ours] * 100)
sys.stdin.readline()
die()
"""
    with started(tmp_path, code, stdin=subprocess.PIPE) as process:
        first, port = map(int, process.stdout.readline().split())
        assert wait_until(lambda: note.exists(), WAIT_S)
        assert wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) < 10, WAIT_S)
        process.stdin.write("\n")
        process.stdin.flush()
        second, same = map(int, process.stdout.readline().split())
        assert (second != first, same) == (True, port)
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("end", ["lifeline._channel.close()", "lifeline._channel.send(b'')"])
def test_a_server_that_hangs_up_is_kept_all_the_same(tmp_path, end):
    ended, lines, _ = run(tmp_path, f"serve(); {end}; time.sleep(0.1); die()", OSTLER_SERVER_RESTARTS="1")
    assert (ended, len(lines)) == (128 + signal.SIGKILL, 2)
    assert len({line.split()[1] for line in lines}) == 1  # the port stays


def test_what_is_no_listening_socket_is_not_handed_on(tmp_path):
    code = """
if len(sockets) > 1 or not sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
    print("wrong")
pair = socket.socketpair()
descriptors = [sockets[0].fileno(), pair[0].fileno(), os.pipe()[0], os.open("/dev/null", os.O_RDONLY)]
socket.send_fds(lifeline._channel, [b"serving"], descriptors)
print(sockets[0].getsockname()[1], flush=True)
time.sleep(0.1)
die()
"""
    _, lines, _ = run(tmp_path, code, OSTLER_SERVER_RESTARTS="1")
    assert len(lines) == 2
    assert lines[0] == lines[1] != "wrong"


def test_a_server_that_cannot_be_forked_is_tried_again(tmp_path):
    code = """
import os
fork, tries = os.fork, []
def sometimes():
    tries.append(1)
    if len(tries) in (1, 3):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = sometimes
"""
    with started(tmp_path, "serve(); die()", code + AS_WARDEN, OSTLER_SERVER_RESTARTS="3") as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert len(out.splitlines()) == 2
    assert err.count("the server cannot start: Resource temporarily unavailable") == 2


def test_its_end_is_told_to_the_server(tmp_path):
    code = """
signal.signal(15, lambda *_: (os.write(1, b"told"), os._exit(0)))
serve()
time.sleep(300)
"""
    with started(tmp_path, code) as process:
        pid = int(process.stdout.readline().split()[0])
        process.kill()
        process.wait()
        assert process.stdout.read() == "told"
        assert wait_until(lambda: not alive(pid))


def test_a_server_whose_warden_is_gone_already_does_not_start(tmp_path):
    code = """
import os, socket
from supervisor.agents.containment import lifeline, warden
warden.Warden.run = lambda self: (os.getpid(), socket.socketpair()[0], [], 0)
try:
    lifeline.become_warden()
except lifeline.WardenGone as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "the warden of this server is gone\n"


def test_it_is_small(tmp_path):
    code = "serve(); time.sleep(300)"
    with started(tmp_path, code, OSTLER_ATTACHABLE="1") as process:  # its memory is looked at
        process.stdout.readline()
        assert info(process.pid).name == "ostler-warden"
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            private = [int(line.split()[1]) for line in file if line.startswith("Private_Dirty")]
        assert private[0] < 8 * 1024


def test_it_imports_nothing_but_the_standard_library():
    code = f"""
import json, runpy, sys
sys.argv = ["warden"]
runpy.run_path({warden.__file__!r}, run_name="other")
print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}} - sys.stdlib_module_names)))
"""
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True).stdout
    assert json.loads(out) == ["__main__"]


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("hangs", ["time.sleep(300)", "while True: pass"])
def test_a_server_that_hangs_ends_in_time_without_its_warden(tmp_path, hangs):
    code = f"""
signal.signal(15, signal.SIG_IGN)
left = spawn("import time; time.sleep(300)")
lifeline.end_without(left.kill, 0.5)
print(left.pid, flush=True)
serve()
{hangs}
"""
    with started(tmp_path, code) as process:
        left = int(process.stdout.readline())
        pid = int(process.stdout.readline().split()[0])
        time.sleep(1)
        assert alive(pid)  # the time counts from the warden's end
        process.kill()
        process.wait()
        assert wait_until(lambda: not alive(pid))
        assert wait_until(lambda: not alive(left))
        assert "did not end within 0.5 s without its warden" in process.stderr.read()


def test_a_server_that_ends_by_itself_is_not_hurried(tmp_path):
    code = "lifeline.end_without(lambda: os.write(1, b'killed'), 0.0); serve()"
    status, lines, complaints = run(tmp_path, code)
    assert (status, len(lines), complaints) == (0, 1, [])
