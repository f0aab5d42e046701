"""Real servers with agents that hide what they start: whatever is killed, nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.support.client import rest_client
from tests.support.lease import leased
from tests.support.processes import (
    alive,
    command_line,
    environment,
    everyone,
    info,
    kill,
    thread_states,
    waited_seconds,
)
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import running_server
from tests.support.thorough import everyday

AGENTS = everyday(5, 20)
WAIT_S = 20.0
GONE_S = 2.0  # the promise
START_S = 6.0  # as much as a start here takes and a pause counts, and some more

PROGRAM = Path(sysconfig.get_path("scripts")) / "ostler"


class Harness:
    """A server whose agents have a daemon each: own session, no environment, no parent."""

    def __init__(self, server, directory):
        self.server = server
        self.warden = server.pid
        self.log = ScriptedLog(directory / "agents.jsonl")
        self.directory = directory
        self.conversations = []

    @property
    def pid(self):
        """Of the server itself, below the warden."""
        return int((self.server.state / "server.pid").read_text())

    async def populate(self, count=AGENTS, modes=()):
        async def one(number):
            created = await self.server.rest.create(
                self.directory / f"work{number}",
                {"acp_server": "custom", "acp_command": scripted_command(*modes, log=self.log.path)},
            )
            self.conversations.append(created["id"])
            await self.server.rest.turn(created["id"], "!spawn daemon")

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, number)
        assert len(self.log.children()) == count
        assert all(alive(pid) for pid in self.everybody())
        assert all(environment(pid) == {} and info(pid).ppid == self.pid for pid in self.log.children())

    def everybody(self):
        return self.log.pids() + self.log.children()

    def living(self):
        return [pid for pid in self.everybody() if alive(pid)]


@asynccontextmanager
async def open_harness(directory, **options):
    directory.mkdir(exist_ok=True)
    async with running_server(directory, **options) as server:
        yield Harness(server, directory)


async def until(condition, seconds=WAIT_S):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def gone_in_time(pid):
    """The block takes no longer than promised, without what the process that ends the others waits for a
    processor: on a busy machine that is not its fault."""
    begun, before, waited = time.monotonic(), waited_seconds(pid), 0.0

    async def look():
        nonlocal waited
        while True:
            waited = max(waited, waited_seconds(pid) - before)
            await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield
        nursery.cancel_scope.cancel()
    assert time.monotonic() - begun - waited < GONE_S


def zombies(parents):
    return [process for process in everyone() if process.state == "Z" and process.ppid in parents]


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_killed_server_leaves_nothing_and_is_back(tmp_path):
    async with open_harness(tmp_path / "a") as one:
        await one.populate()
        before, url = one.pid, one.server.url
        assert info(before).ppid == one.warden
        kill([before])
        # A client that comes now waits for the next server; it is not refused.
        async with rest_client(url) as rest, trio.open_nursery() as nursery:

            async def watch():
                async with gone_in_time(one.warden):
                    await until(lambda: one.living() == [])

            nursery.start_soon(watch)
            found = await rest.call("GET", "/api/conversations/search")
            assert {item["id"] for item in found["items"]} == set(one.conversations)
            assert (await rest.call("GET", "/api/status"))["totals"]["warden_restarts"] == 1
        assert one.pid != before
        assert info(one.pid).ppid == one.warden
        text = one.server.output.read_text()
        assert text.count(f"Ostler is listening on {url}\n") == 2
        assert zombies({one.pid, one.warden}) == []
        assert await one.server.stop() == 0
        assert one.server.left() == []


@pytest.mark.guarantee(name="nothing-survives")
async def test_sigterm_ends_everything_with_status_0(tmp_path):
    async with open_harness(tmp_path / "a") as one:
        await one.populate()
        assert await one.server.stop() == 0
        assert one.living() == []
        assert one.server.left() == []


async def test_a_server_that_is_told_itself_takes_its_warden_along(tmp_path):
    async with open_harness(tmp_path / "a") as one:
        await one.populate(1)
        kill([one.pid], signal.SIGTERM)
        assert await one.server.wait() == 0
        assert one.living() == []


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("draining", [False, True])
async def test_a_killed_warden_takes_all_along_at_once(tmp_path, draining):
    stubborn = ["ignore-term", "ignore-eof", "cancel=ignore"]
    async with open_harness(tmp_path / "a", environment={"OSTLER_DRAIN_SECONDS": "300"}) as one:
        await one.populate(5, stubborn)
        for conversation in one.conversations:
            await one.server.rest.send(conversation, "!slow 3000 20")
        await until(lambda: len(one.log.prompts()) == 10)
        server = one.pid
        if draining:
            one.server.signal(signal.SIGTERM)
            await until(lambda: "signal=SIGTERM" in one.server.output.read_text())
        else:
            await trio.sleep(0.1)
        async with gone_in_time(server):
            kill([one.warden])
            await until(lambda: one.living() == [])
        await until(lambda: not alive(server))
        assert one.server.left() == []
        assert not (one.server.state / "server.pid").exists()  # it was not cut off
        text = one.server.output.read_text()
        assert "warden is gone; ending the agents" in text
        assert text.splitlines()[-1].startswith("ostler: the warden was killed")
        # Nothing is lost: what was said is there, and told as a turn that was interrupted.
        await one.server.wait()
        await one.server.start()
        async with rest_client(one.server.url) as rest:
            for conversation in one.conversations:
                events = await rest.events(conversation)
                assert "s0 s1 " in str(events)
                assert "ACPAgentExited" not in str(events)
                assert (await rest.info(conversation))["execution_status"] == "paused"


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_stopped_server_whose_warden_is_killed_ends_too(tmp_path):
    async with open_harness(tmp_path / "a") as one:
        await one.populate(3)
        server = one.pid
        kill([server], signal.SIGSTOP)
        # All of its threads: only then does the kernel wake it when its warden ends.
        await until(lambda: thread_states(server) == {"T"})
        async with gone_in_time(server):
            kill([one.warden])
            await until(lambda: one.living() == [])
        await until(lambda: not alive(server))


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_start_outlives_a_pause_of_the_server(tmp_path):
    names = ("SPAWN", "INITIALIZE", "NEW_SESSION")
    variables = {f"OSTLER_DEADLINE_{name}": str(START_S) for name in names}
    async with open_harness(tmp_path / "a", environment=variables) as one:
        held, rest = one.directory / "held", one.server.rest

        async def begin(name, command):
            agent = {"acp_server": "custom", "acp_command": command, "acp_startup_timeout": START_S}
            one.conversations.append((await rest.create(one.directory / name, agent))["id"])
            await rest.send(one.conversations[-1], "hello")

        held.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in scripted_command()) + "\n")
        held.chmod(0o755)
        with leased(held):
            await begin("spawning", [str(held)])
            for point in ("init", "new"):
                await begin(point, scripted_command(f"slow={point}:2", log=one.log.path))
            await until(lambda: len(one.log.received("initialize")) == 2 and one.log.received("session/new"))
            kill([one.pid], signal.SIGSTOP)
            try:
                await until(lambda: thread_states(one.pid) == {"T"})
                await trio.sleep(START_S + 2)
            except BaseException:
                kill([one.pid], signal.SIGCONT)
                raise
        kill([one.pid], signal.SIGCONT)
        for conversation in one.conversations:
            assert await rest.wait_status(conversation, "finished", "error") == "finished"


async def test_a_second_signal_ends_the_waiting_for_turns(tmp_path):
    async with open_harness(tmp_path / "a", environment={"OSTLER_DRAIN_SECONDS": "300"}) as one:
        await one.populate(1)
        await one.server.rest.send(one.conversations[0], "!slow 3000 20")
        await until(lambda: len(one.log.prompts()) == 2)
        one.server.signal(signal.SIGTERM)
        await until(lambda: one.server.output.read_text().count("signal=SIGTERM") == 1)
        await trio.sleep(0.2)
        one.server.signal(signal.SIGTERM)
        assert await one.server.wait() == 0
        assert one.living() == []


@pytest.mark.guarantee(name="nothing-survives")
async def test_what_two_kills_leave_the_next_start_ends(tmp_path):
    async with open_harness(tmp_path / "other") as other:
        await other.populate(1)
        async with open_harness(tmp_path / "a") as one:
            await one.populate()
            server = one.pid
            kill([server], signal.SIGSTOP)  # so that it cannot act on the death of its warden
            kill([one.warden, server])
            await until(lambda: not alive(server) and not alive(one.warden))
            assert set(one.log.children()) <= set(one.living())
            await one.server.wait()
            await one.server.start()
            # That line comes when it serves: by then all is done.
            assert one.living() == []
        assert other.living() == other.everybody()


async def test_without_a_warden(tmp_path):
    async with open_harness(tmp_path / "a", arguments=["--no-warden"]) as one:
        await one.populate(2)
        assert one.pid == one.warden
        assert "warden.py" not in command_line(one.warden)
        kill([one.pid])
        assert await one.server.wait() == -signal.SIGKILL
        assert set(one.log.children()) <= set(one.living())
        await one.server.start()
        assert one.living() == []
        assert await one.server.stop() == 0


async def test_the_server_reaps_what_its_agents_abandon(tmp_path):
    async with open_harness(tmp_path / "a") as one:
        await one.populate(2)
        kill(one.log.children())
        await until(lambda: not any(info(pid) for pid in one.log.children()))
        assert sorted(one.living()) == sorted(one.log.pids())


def serve(tmp_path, *arguments, **variables):
    command = [str(PROGRAM), "serve", "--port", "0", "--state", str(tmp_path / "state"), *arguments]
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WAIT_S)


WRONG_CALLS = [
    ([], {"OSTLER_CONTAINMENT": "strong"}, "OSTLER_CONTAINMENT: 'strong' is not one of auto, tree, "),
    (["--containment", "strong"], {}, "--containment: 'strong' is not one of auto, tree, "),
    (["--containment", "warden", "--no-warden"], {}, "containment 'warden' is unavailable: the server runs "),
    (["--containment", "warden"], {"OSTLER_NO_WARDEN": "1"}, "containment 'warden' is unavailable: "),
    (["--containment", "pidns"], {"PATH": "/nowhere"}, "containment 'pidns' is unavailable: the "),
    (["--port", "x"], {}, "--port: "),
]
"""The first two name the same wrong level, by a variable and by an option. The next two want a warden and
turn it off, by an option and by a variable. Everyday runs have the first of each pair."""


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"), everyday([*WRONG_CALLS[:4:2], *WRONG_CALLS[4:]], WRONG_CALLS)
)
def test_a_wrong_call_is_one_line_and_not_repeated(tmp_path, arguments, variables, complaint):
    done = serve(tmp_path, *arguments, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ostler: {complaint}")
    assert done.stderr.count("\n") == 1
