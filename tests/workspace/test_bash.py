"""Commands of clients as real processes: output, bounds, and what is left of them."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import asynccontextmanager

import pytest
import trio

from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.process_tag import usable
from supervisor.agents.spawning import descriptors
from supervisor.workspace.commands.bash import BashLimits, TooManyCommands, open_bash
from supervisor.workspace.commands.log import Wanted
from tests.support.processes import alive, environment, everyone, mentioning
from tests.support.thorough import everyday

WAIT_S = 30.0
MB = 1024 * 1024

# Twice forked, in a session of its own, deaf to SIGTERM, without environment: no ordinary trace leads to it.
DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for descriptor in range(3):
    os.close(descriptor)
file = os.open(sys.argv[1] + "~", os.O_WRONLY | os.O_CREAT)
os.write(file, b"%d" % os.getpid())
os.rename(sys.argv[1] + "~", sys.argv[1])
os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(300)"], {})
"""


def daemon(note):
    return shlex.join([sys.executable, "-I", "-S", "-c", DAEMON, str(note)])


@asynccontextmanager
async def opened(tmp_path, secrets=(), **limits):
    async def values():
        return tuple(secrets)

    async with (
        open_containment(tmp_path, Level.TREE),
        open_bash(dict(os.environ), limits=BashLimits(**limits), secrets=values) as bash,
    ):
        yield bash


@pytest.fixture
async def bash(tmp_path):
    (tmp_path / "state").mkdir()
    async with opened(tmp_path / "state") as bash:
        yield bash


async def run(bash, command, cwd=None, seconds=60):
    with trio.fail_after(WAIT_S):
        return json.loads(await bash.result(bash.start(command, cwd=cwd, seconds=seconds)))


async def until(condition):
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.01)


async def pid_in(note):
    await until(note.exists)
    return int(note.read_text())


def outputs(bash, command):
    return [json.loads(kept.body) for kept in bash.log.outputs(command.id)]


# What comes out.


async def test_output_error_and_exit_code_come_together(bash, tmp_path):
    (tmp_path / "here").mkdir()
    found = await run(bash, "pwd; echo err >&2; exit 3", cwd=str(tmp_path / "here"))
    assert (found["stdout"], found["stderr"], found["exit_code"]) == (f"{tmp_path}/here\n", "err\n", 3)
    assert (found["kind"], found["order"], len(found["id"]), found["timestamp"][-1]) == (
        "BashOutput",
        0,
        32,
        "Z",
    )
    quiet = await run(bash, "true")
    assert (quiet["stdout"], quiet["stderr"], quiet["exit_code"]) == (None, None, 0)


async def test_the_end_by_a_signal_is_its_number(bash):
    assert (await run(bash, "kill -9 $$"))["exit_code"] == -9


async def test_what_cannot_be_started_says_why(bash, tmp_path):
    found = await run(bash, "true", cwd=str(tmp_path / "none"))
    assert found["exit_code"] == -1
    assert found["stderr"].startswith(
        f"Error executing command: the working directory {tmp_path}/none cannot"
    )


async def test_standard_input_is_empty_and_no_pipe(bash):
    found = await run(bash, "cat; readlink /proc/self/fd/0")
    assert found["stdout"] == "/dev/null\n"


async def test_the_environment_is_the_allow_list(monkeypatch, tmp_path):
    monkeypatch.setenv("OSTLER_SECRET_KEY", "sesame")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
    async with opened(tmp_path) as bash:
        found = (await run(bash, "env"))["stdout"]
    names = {line.partition("=")[0] for line in found.splitlines()}
    assert "PATH" in names
    # Its mark; what a shell sets by itself.
    assert {name for name in names if name.startswith("OSTLER")} == {"OSTLER_AGENT"}
    assert "ANTHROPIC_API_KEY" not in names


async def test_secrets_are_masked_across_pieces_and_in_both_streams(tmp_path):
    secret = "tok-1234567890abcdef"
    async with opened(tmp_path, secrets=[secret]) as bash:
        slow = f"printf {secret[:7]}; sleep 0.1; printf {secret[7:]}; echo; echo x{secret}y >&2"
        found = await run(bash, slow)
    assert (found["stdout"], found["stderr"]) == ("<secret-hidden>\n", "x<secret-hidden>y\n")


async def test_characters_that_are_cut_come_whole_and_others_are_replaced(bash):
    found = await run(bash, r"printf '\303'; sleep 0.1; printf '\244 \377 \342\202'")
    assert found["stdout"] == "ä � �"


async def test_a_background_process_that_writes_keeps_the_command_running(bash):
    found = await run(bash, "(sleep 0.5; echo late) & echo soon")
    assert (found["stdout"], found["exit_code"]) == ("soon\nlate\n", 0)


async def test_output_above_a_megabyte_comes_in_parts(bash):
    command = bash.start("head -c 2500000 /dev/zero | tr '\\0' x; echo end >&2", cwd=None, seconds=60)
    whole = json.loads(await bash.result(command))
    parts = outputs(bash, command)
    assert [len(part["stdout"]) for part in parts] == [MB, MB, 2500000 - 2 * MB]
    assert [part["order"] for part in parts] == [0, 1, 2]
    assert [part["exit_code"] for part in parts] == [None, None, 0]
    assert (whole["stdout"], whole["stderr"]) == ("x" * 2500000, "end\n")
    assert (whole["id"], whole["order"], whole["exit_code"]) == (parts[-1]["id"], 2, 0)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_a_client_that_polls_sees_every_part_once(bash):
    command = bash.start(
        "for i in 1 2 3 4 5; do head -c 1100000 /dev/zero; sleep 0.05; done", cwd=None, seconds=60
    )
    seen, last = [], None
    with trio.fail_after(WAIT_S):
        while not seen or seen[-1]["exit_code"] is None:
            wanted = Wanted(kind="BashOutput", command_id=command.id, order_above=last)
            items, _ = bash.log.search(None, wanted)
            seen += [json.loads(item.body) for item in items]
            last = seen[-1]["order"] if seen else None
            await trio.sleep(0.01)
    assert [each["order"] for each in seen] == list(range(len(seen)))
    assert len({each["id"] for each in seen}) == len(seen)
    assert sum(len(each["stdout"] or "") for each in seen) == 5500000


# Bounds.


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_a_flood_is_kept_as_beginning_and_end_and_holds_up_nobody(tmp_path):
    gaps = []

    async def beat():
        while True:
            before = time.perf_counter()
            await trio.sleep(0.001)
            gaps.append(time.perf_counter() - before)

    async with opened(tmp_path, output_bytes=4 * MB) as bash, trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        command = bash.start("yes | head -c 400M; echo the end", cwd=None, seconds=120)
        with trio.fail_after(120):
            whole = json.loads(await bash.result(command))
        nursery.cancel_scope.cancel()
        held = bash.log.bytes
    assert whole["exit_code"] == 0
    assert whole["stdout"].startswith("y\ny\n")
    assert whole["stdout"].endswith("y\nthe end\n")
    assert "[Ostler dropped 41" in whole["stdout"]
    assert len(whole["stdout"]) < 5 * MB
    assert held < 10 * MB
    # A slice is two milliseconds; the machine may be busy otherwise.
    gaps.sort()
    assert gaps[len(gaps) * 9 // 10] < 0.1
    assert gaps[-1] < 2


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_the_oldest_events_are_forgotten(tmp_path):
    async with opened(tmp_path, kept_bytes=2 * MB, kept_events=10) as bash:
        first = bash.start("true", cwd=None, seconds=60)
        await bash.result(first)
        for _ in range(5):
            await run(bash, "true")
        assert bash.log.get(None, first.id) is None
        assert len(bash.log) == 10
        # What is told while it is asked for is not lost without a word.
        found = await run(bash, "head -c 5000000 /dev/zero | tr '\\0' x")
        assert found["stdout"].startswith("[Ostler dropped the beginning: OSTLER_BASH_KEPT_BYTES]\nxxx")
        assert bash.log.bytes <= 2 * MB


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_so_many_commands_run_at_a_time(tmp_path):
    async with opened(tmp_path, commands=2) as bash:
        for _ in range(2):
            bash.start("sleep 300", cwd=None, seconds=300)
        with pytest.raises(TooManyCommands, match="2 commands are running, which is the limit"):
            bash.start("true", cwd=None, seconds=300)
        with trio.fail_after(WAIT_S):
            for command in list(bash._live):
                assert await bash.stop(command)
        assert (await run(bash, "echo again"))["stdout"] == "again\n"


async def test_a_longer_timeout_than_allowed_is_cut(tmp_path):
    async with opened(tmp_path, seconds=1.0) as bash:
        command = bash.start("sleep 300", cwd=None, seconds=10**12)
        assert command.event.timeout == 1
        with trio.fail_after(WAIT_S):
            assert json.loads(await bash.result(command))["exit_code"] == -1


# Ends.


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.parametrize("seconds", [0, -5, 1])
async def test_time_runs_out(bash, seconds):
    found = await run(bash, "echo begun; trap 'echo bye; exit 7' TERM; sleep 300 & wait", seconds=seconds)
    assert found["exit_code"] == -1
    assert found["stderr"].endswith(f"Command timed out after {seconds} seconds")
    if seconds > 0:
        assert found["stdout"] == "begun\nbye\n"


async def test_a_stop_ends_the_command_alone_and_may_be_repeated(bash, tmp_path):
    other = bash.start("sleep 300", cwd=None, seconds=300)
    command = bash.start(f"touch {tmp_path}/begun; exec sleep 300", cwd=None, seconds=300)
    await until((tmp_path / "begun").exists)
    with trio.fail_after(WAIT_S):
        assert await bash.stop(command.id)
        assert outputs(bash, command)[-1]["exit_code"] == -15
        assert await bash.stop(command.id)
        assert not await bash.stop("0" * 32)
        assert not await bash.stop(other.id, "another scope")
    assert not other.finished.is_set()


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.skipif(not usable(), reason="this system shows no resource limits")
@pytest.mark.parametrize("end", ["timeout", "stop", "stop later", "close", "forget"])
async def test_a_daemon_does_not_outlive_its_command(tmp_path, end):
    note = tmp_path / "note"
    (tmp_path / "state").mkdir()
    after = "" if end == "stop later" else "; sleep 300"
    seconds = 2 if end == "timeout" else 300
    async with opened(tmp_path / "state") as bash:
        command = bash.start(f"{daemon(note)}{after}", cwd=None, seconds=seconds, scope="c")
        pid = await pid_in(note)
        await until(lambda: environment(pid) == {})
        assert alive(pid)
        with trio.fail_after(WAIT_S):
            if end == "stop later":
                await command.finished.wait()
                assert alive(pid)
            if end.startswith("stop"):
                assert await bash.stop(command.id, "c")
            elif end == "timeout":
                await command.gone.wait()
            elif end == "forget":
                await bash.forget("c")
                assert len(bash.log) == 0
        if end != "close":
            assert not alive(pid)
    assert not alive(pid)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.skipif(not usable(), reason="this system shows no resource limits")
async def test_what_is_left_in_the_background_lives_until_the_timeout(bash, tmp_path):
    note = tmp_path / "note"
    command = bash.start(f"{daemon(note)}; echo done", cwd=None, seconds=6)
    found = json.loads(await bash.result(command))
    assert (found["stdout"], found["exit_code"]) == ("done\n", 0)
    pid = await pid_in(note)
    with trio.move_on_after(2.5):  # longer than it would take to end it
        await command.gone.wait()
    assert alive(pid)
    assert not command.gone.is_set()
    assert bash.running == 0
    with trio.fail_after(WAIT_S):
        await command.gone.wait()
    assert not alive(pid)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.skipif(not usable(), reason="this system shows no resource limits")
async def test_so_many_may_be_left_in_the_background(tmp_path):
    (tmp_path / "state").mkdir()
    async with opened(tmp_path / "state", background=1) as bash:
        pids = []
        for number in range(2):
            await run(bash, daemon(tmp_path / f"{number}"), seconds=300)
            pids.append(await pid_in(tmp_path / f"{number}"))
        await until(lambda: not alive(pids[0]))
        assert alive(pids[1])


FORKERS = everyday(4, 8)
"""Each has another child every few milliseconds, until it is caught: two processors are full of them."""


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.skipif(not usable(), reason="this system shows no resource limits")
async def test_a_process_that_forks_all_the_time_is_ended(bash, tmp_path):
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"for _ in range({FORKERS}):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        end = time.monotonic() + 60\n"  # what a failed test leaves behind ends by itself
        "        while time.monotonic() < end:\n"
        "            if os.fork(): os._exit(0)\n"
        "            time.sleep(0.005)\n"
        "        os._exit(0)\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "fork.py").write_text(code)
    command = bash.start(f"{sys.executable} -I -S fork.py", cwd=str(tmp_path), seconds=everyday(1, 2))
    with trio.fail_after(WAIT_S):
        await command.gone.wait()
    await until(lambda: not mentioning(tmp_path))
    # Those that were handed to this process are collected.
    with trio.fail_after(WAIT_S):
        while [each for each in everyone() if each.ppid == os.getpid() and each.state == "Z"]:
            await trio.sleep(1)  # a look at all of /proc holds up those who collect them


async def test_descriptors_are_given_back(bash):
    await run(bash, "true")
    await until(lambda: not bash._live)
    before = descriptors.used()
    for _ in range(5):
        await run(bash, "true")
        await run(bash, "true", cwd="/nowhere")
    await until(lambda: not bash._live)
    assert descriptors.used() <= before  # another test's may have been closing


async def test_what_is_forgotten_before_it_began_does_not_begin(bash, tmp_path):
    ran = tmp_path / "ran"
    command = bash.start(f"touch {ran}", cwd=str(tmp_path), seconds=60, scope="c")
    with trio.fail_after(WAIT_S):
        await bash.forget("c")
        output = json.loads(await bash.result(command))
    assert (output["exit_code"], output["stdout"]) == (-1, None)
    assert not ran.exists()
    assert len(bash.log) == 0
