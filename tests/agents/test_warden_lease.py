"""The end of a server's lease: the warden kills the server and its agents, and starts it again."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from supervisor.agents.containment import warden
from tests.agents.test_warden import DAEMON, HASTY, WAIT_S, run, started
from tests.support.processes import alive, wait_until

SAID = "ostler: the server's lease ended, and another server may have its conversations; killing it"

LEASE = """
def lease(seconds):
    until = time.monotonic() + seconds
    lifeline.lease(until)
    return until
"""


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("hangs", ["time.sleep(300)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_server_whose_lease_ends_dies_with_its_agents_and_is_started_again(tmp_path, hangs):
    code = f"""{LEASE}
serve()
if lifeline.restarts:
    time.sleep(0.5)  # longer than the lease of the first: this one has none
    sys.exit(0)
print(int(spawn({DAEMON!r}, stdout=subprocess.PIPE).stdout.readline()), flush=True)
print(lease(0.3), flush=True)
{hangs}
"""
    with started(tmp_path, code) as process:
        first, port = map(int, process.stdout.readline().split())
        agent = int(process.stdout.readline())
        until = float(process.stdout.readline())
        assert alive(agent)
        assert wait_until(lambda: not alive(agent) and not alive(first), WAIT_S)
        assert 0 <= time.monotonic() - until < 1
        second, same = map(int, process.stdout.readline().split())
        assert (second != first, same) == (True, port)
        complaints = process.communicate(timeout=WAIT_S)[1].splitlines()
    assert process.returncode == 0
    assert complaints == [SAID, "ostler: the server was killed by signal 9; restarting it"]


@pytest.mark.parametrize("last", ["lease(300)", "lifeline.lease(0.0)"])
def test_a_lease_that_is_extended_or_given_up_kills_nothing(tmp_path, last):
    code = f"""{LEASE}
serve()
for _ in range(10):
    lease(0.3)
    time.sleep(0.05)
{last}
time.sleep(0.5)
"""
    ended, lines, complaints = run(tmp_path, code)
    assert (ended, len(lines), complaints) == (0, 1, [])


def test_the_last_packet_counts(tmp_path):
    code = f"""{LEASE}
serve()
lease(300), lease(0.2)
time.sleep(300 if not lifeline.restarts else 0)
"""
    ended, lines, complaints = run(tmp_path, code)
    assert (ended, len(lines), complaints[0]) == (0, 2, SAID)


def test_ends_of_leases_do_not_spend_the_budget_of_crashes(tmp_path):
    code = f"""{LEASE}
serve()
if lifeline.restarts < 4:
    lease(0.05)
    time.sleep(300)
die() if lifeline.restarts == 4 else sys.exit(0)
"""
    ended, lines, complaints = run(tmp_path, code, OSTLER_SERVER_RESTARTS="1")
    assert (ended, len(lines), complaints.count(SAID)) == (0, 6, 4)


def test_a_server_that_stops_has_to_keep_its_lease_too(tmp_path):
    code = f"""{LEASE}
signal.signal(signal.SIGTERM, lambda *_: lease(0.1))
serve()
while True:
    time.sleep(300)
"""
    with started(tmp_path, code, HASTY.replace("drain=0.1", "drain=60")) as process:
        process.stdout.readline()
        process.terminate()
        complaints = process.communicate(timeout=WAIT_S)[1].splitlines()
    assert (process.returncode, complaints) == (128 + signal.SIGKILL, [SAID])


def test_what_is_no_time_is_no_lease(tmp_path):
    code = """
serve()
for word in (b"lease ", b"lease", b"lease soon", b"lease nan", b"lease inf", b"lease -1", b"lease 1e999"):
    lifeline._channel.send(word)
time.sleep(0.3)
"""
    ended, lines, complaints = run(tmp_path, code)
    assert (ended, len(lines), complaints) == (0, 1, [])


def test_a_warden_that_is_stopped_does_not_block_the_server(tmp_path):
    code = f"""{LEASE}
serve()
sys.stdin.readline()
for _ in range(10000):
    lifeline.lease(time.monotonic() + 300)
print("sent", flush=True)
"""
    with started(tmp_path, code, stdin=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "sent\n"
        finally:
            process.send_signal(signal.SIGCONT)
        assert process.wait(WAIT_S) == 0


def test_packets_have_room_for_any_time():
    assert len(warden.LEASE + b"%.6f" % 1e12) <= warden.WORD_BYTES
