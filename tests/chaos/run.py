"""A run: a real server under its warden, conversations, clients, and accidents by a seeded plan."""

from __future__ import annotations

import os
import random
import shlex
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import trio

from tests.chaos import accidents, checks
from tests.chaos.clients import REQUEST_S, Follower, Sender
from tests.support.client import Rest
from tests.support.processes import alive, alive_since, descendants, everyone, info, kill
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess

ENVIRONMENT = {
    "OSTLER_SERVER_RESTARTS": "100",  # the warden's pauses grow all the same; see Run._kills
    "OSTLER_GRACE_SECONDS": "1",  # turns of a server that is told to end
    "OSTLER_ATTACHABLE": "1",  # its descriptors are counted
}
FOLLOWERS = 2  # per conversation
KILLS_PER_WARDEN = 2  # its pauses are 0.1 s and 0.3 s then; the next would be longer
SEND_PAUSE_S = 0.4  # on average, between two messages of one sender
GONE_S = 2.0  # nothing of a killed server is left after so long
BACK_S = 30.0  # a killed server is back
SETTLE_S = 60.0  # for the queues to be worked off at the end
STALL_S = (0.1, 1.5)
HELD_S = (0.5, 9.0)  # longer than SQLite waits for a lock, at times
FULL_S = (0.2, 3.0)
STALLED_SPAWNER_S = (0.1, 4.0)  # it is waited for for some seconds
LEASED_S = (0.3, 2.0)
LOOK_S = 0.03  # between two looks at all agents
PASSING = 3  # processes of a tree that are on their way: what becomes a child has not told of itself yet
NOTES = "notes.txt"  # of every workspace; prompts read and write it

PROMPTS = (
    "",
    "",
    "!slow 5 20",
    "!slow 20 50",
    "!tool",
    "!tools 5",
    "!flood 2000",
    "!plan pending",
    "!spawn daemon",
    f"!read {NOTES}",
    f"!fswrite {NOTES} words",
)
FLOODS = (
    *("!gush noise 0.4", "!gush stderr 0.4", "!gush text 0.4", "!gush progress 0.1", "!gush tools 0.05"),
    *("!gush broken 0.3", "!gush unknown 0.3", "!gush reads 0.3", "!gush permissions 0.2"),
    *("!gush large 0.4", "!gush nodes 0.4", "!gush heavy 0.4"),
    *("!worst lists", "!worst keys", "!worst text", "!worst deep", "!worst unmended", "!worst heavy"),
    *("!pour text 3000000", "!pour thoughts 3000000", "!pour output 3000000", "!pour calls 300000 3000"),
    *("!huge 9000000", "!bigtool 9000000", "!heavy 60000"),
)
"""What runaway agents say."""
FLOOD_SHARE = 0.1  # of all prompts
EVERYTHING = {
    "agent": 4,  # SIGKILL of an agent
    "stall": 4,  # SIGSTOP, a little later SIGCONT
    "cut": 5,  # a client loses its connection
    "interrupt": 3,
    "server": 2,  # SIGKILL of the server
    "warden": 1,  # SIGKILL of the warden
    "both": 1,  # of both at once
    "rude": 2,  # a burst of clients without manners
    "held": 1,  # somebody else has the journal's database
    "full": 1,  # the disk is full
    "stop": 2,  # an operator ends one agent
    "spawner": 1,  # SIGKILL of the process that starts the others
    "stalled spawner": 1,  # SIGSTOP of it, a little later SIGCONT
    "lease": 2,  # somebody has a lease on an agent's program, or on a file in its workspace
}
SERVER_ONLY = {"server": 1}


@dataclass
class Report:
    """What a run did, and what it found wrong."""

    seed: int
    figures: dict[str, Any] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "faults": dict(self.faults), **self.figures, "problems": self.problems}


class Harness:
    """The server under its warden. Its address may change when it had to be started anew."""

    def __init__(self, directory: Path) -> None:
        self.server = ServerProcess(directory, ENVIRONMENT)

    def url(self) -> str:
        return self.server.url

    @property
    def warden(self) -> int:
        return self.server.pid

    def pid(self) -> int | None:
        """Of the server below the warden; None while there is none."""
        try:
            found = info(int((self.server.state / "server.pid").read_text()))
        except (OSError, ValueError):
            return None
        return found.pid if found and found.state not in "ZX" and found.ppid == self.warden else None

    async def wait_back(self, before: int) -> None:
        """Until another server than `before` has written its pid and answers."""
        with trio.fail_after(BACK_S):
            while self.pid() in (None, before):
                await trio.sleep(0.01)

    def zombies(self) -> list[int]:
        above = {self.warden} | {process.pid for process in descendants(self.warden)}
        return [process.pid for process in everyone() if process.state == "Z" and process.ppid in above]


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Harness]:
    directory.mkdir(parents=True, exist_ok=True)
    harness = Harness(directory)
    try:
        await harness.server.start()
        yield harness
    except BaseException:
        print(f"--- output of the server\n{harness.server.output_tail()}")
        raise
    finally:
        harness.server.clean_up()


class Run:
    """Conversations of one harness. `faults` are kinds of accidents and their weights."""

    def __init__(self, harness: Harness, http: httpx2.AsyncClient, seed: int, faults: dict[str, int]) -> None:
        self.harness = harness
        self.directory = harness.server.directory
        self.report = Report(seed)
        self.chance = random.Random(seed)
        self.logs: list[ScriptedLog] = []
        self.senders: list[Sender] = []
        self.followers: list[Follower] = []
        self._http = http
        self._faults = faults
        self._kills = 0  # of servers of this warden
        self._signalled: set[int] = set()  # agents that somebody has ended, or may have
        self._full = False

    # -- setting up

    async def populate(self, conversations: int) -> None:
        for number in range(conversations):
            log = ScriptedLog(self.directory / f"agent{number}.jsonl")
            # Half of the agents have children who have left them.
            modes = ("grandchild=session,daemon",) if number % 2 else ()
            command = scripted_command(*modes, log=log.path, home=self.directory / f"home{number}")
            workspace = self.directory / f"work{number}"
            workspace.mkdir()
            (workspace / NOTES).write_text("what one notes\n")
            created = await self.rest().create(
                workspace,
                {"acp_server": "custom", "acp_command": [str(_program(self._program(number), command))]},
            )
            self.logs.append(log)
            self.senders.append(Sender(number, created["id"], self._http, self.harness.url))
            self.followers += [Follower(created["id"], self.harness.url) for _ in range(FOLLOWERS)]

    def _program(self, number: int) -> Path:
        return self.directory / f"agent{number}"

    def rest(self) -> Rest:
        return Rest(_Based(self._http, self.harness.url()))  # type: ignore[arg-type]

    @property
    def server_kills(self) -> int:
        """SIGKILLs of the server, with its warden or without."""
        return self.report.faults["server"] + self.report.faults["both"]

    def living(self) -> dict[int, float]:
        """Every living process that agents are or have started, and when it was seen."""
        seen = [item for log in self.logs for item in log.seen().items()]
        return {pid: when for pid, when in seen if alive_since(pid, when)}

    def _may_end(self, log: ScriptedLog) -> None:
        """The agent of a conversation may be ended from now on."""
        self._signalled.update(log.pids())

    # -- the accidents

    async def storm(self, *, pause: float, until: Callable[[], bool]) -> None:
        """Clients at work, and accidents `pause` seconds apart on average, until `until()`."""
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                chance = random.Random(self.chance.random())
                nursery.start_soon(sender.chatter, chance, _prompt, SEND_PAUSE_S)
            nursery.start_soon(self._look_at_agents)
            while not until():
                await trio.sleep(self.chance.uniform(0, 2 * pause))
                (kind,) = self.chance.choices(list(self._faults), list(self._faults.values()))
                await self._fault(kind, nursery)
            nursery.cancel_scope.cancel()

    async def _fault(self, kind: str, nursery: trio.Nursery) -> None:
        match kind:
            case "agent" | "stall":
                living = self.living()
                pids = sorted(pid for log in self.logs for pid in log.pids() if pid in living)
                if not pids:
                    return
                pid = self.chance.choice(pids)
                if kind == "agent":
                    self._signalled.add(pid)
                    kill([pid])
                else:
                    nursery.start_soon(_stall, pid, self.chance.uniform(*STALL_S))
            case "cut":
                self.chance.choice(self.followers).cut()
            case "interrupt":
                nursery.start_soon(self._call_off, self.chance.randrange(len(self.senders)), "interrupt")
            case "stop":
                nursery.start_soon(self._call_off, self.chance.randrange(len(self.senders)), "stop")
            case "rude":
                nursery.start_soon(self._be_rude, random.Random(self.chance.random()))
            case "held":
                journal = self.harness.server.state / "journal.sqlite3"
                nursery.start_soon(accidents.hold_journal, journal, self.chance.uniform(*HELD_S))
            case "full":
                if (
                    self._full or not self._spawners()
                ):  # the next one, and its agents, would have the limit for good
                    return
                nursery.start_soon(self._fill_disk, self.chance.uniform(*FULL_S))
            case "spawner" | "stalled spawner":
                if self._full or not (pids := self._spawners()):
                    return
                if kind == "spawner":
                    kill(pids)
                else:
                    nursery.start_soon(_stall, pids[0], self.chance.uniform(*STALLED_SPAWNER_S))
            case "lease":
                number = self.chance.randrange(len(self.senders))
                notes = self.directory / f"work{number}" / NOTES
                path = self.chance.choice((self._program(number), notes))
                nursery.start_soon(accidents.lease, path, self.chance.uniform(*LEASED_S))
            case _:
                await self._kill_server(kind)
                return  # it counts what it does
        self.report.faults[kind] += 1

    async def _be_rude(self, chance: random.Random) -> None:
        self.report.problems += await accidents.rude_connections(self.harness.url(), chance)

    async def _fill_disk(self, seconds: float) -> None:
        self._full = True
        try:
            await accidents.full_disk(self.harness.pid, seconds)
        finally:
            self._full = False

    def _spawners(self) -> list[int]:
        server = self.harness.pid()
        return [] if server is None else accidents.spawners(server)

    async def _call_off(self, number: int, how: str) -> None:
        """Interrupt a conversation, or stop its agent; an answer is waited for."""
        log, sender = self.logs[number], self.senders[number]
        with trio.CancelScope(shield=True):
            self._may_end(log)
            if how == "interrupt":
                await sender.post("interrupt", {})
            else:
                await sender.call("POST", f"/api/agents/{sender.conversation}/stop")
            self._may_end(log)  # what was started meanwhile

    async def _look_at_agents(self) -> None:
        """As an operator who looks at them all the time; ends by cancellation."""
        while True:
            with suppress(httpx2.TransportError):
                answer = await self._http.get(f"{self.harness.url()}/api/agents")
                if answer.status_code == 200:
                    self._check_agents(answer.json()["agents"])
                    self.report.figures["looks"] = self.report.figures.get("looks", 0) + 1
                elif answer.status_code != 503:
                    self.report.problems.append(f"/api/agents: {answer.status_code} {answer.text[:300]}")
            await trio.sleep(LOOK_S)

    def _check_agents(self, agents: list[Any]) -> None:
        others = {self.harness.warden: "the warden", self.harness.pid() or 0: "the server"}
        others |= dict.fromkeys(self._spawners(), "the spawner")
        most = {}
        for sender, log in zip(self.senders, self.logs, strict=True):
            agent = next((each for each in agents if each["conversation_id"] == sender.conversation), {})
            if (agent.get("processes") or 0) > PASSING:  # a look at its log is worth it
                most[sender.conversation] = 1 + PASSING + len(log.children())
        self.report.problems += checks.agents_problems(agents, others, most)

    async def _kill_server(self, kind: str) -> None:
        if kind == "server" and self._kills >= KILLS_PER_WARDEN:
            kind = "both"
        pid, before = self.harness.pid(), self.living()
        if pid is None:
            return
        self.report.faults[kind] += 1
        for log in self.logs:
            self._may_end(log)
        if kind == "server":
            self._kills += 1
            kill([pid])
            await self._all_gone(before, "a killed server")
            await self.harness.wait_back(pid)
        elif kind == "warden":
            kill([self.harness.warden])
            with trio.fail_after(BACK_S):
                while alive(pid):
                    await trio.sleep(0.01)
            await self._all_gone(before, "a server whose warden was killed")
            await self._start_anew()
        else:
            kill([pid], signal.SIGSTOP)  # so that it cannot act on the death of its warden
            kill([self.harness.warden, pid])
            await self._start_anew()
            await self._all_gone(before, "a server killed with its warden, after the next start")

    async def _start_anew(self) -> None:
        await self.harness.server.wait()
        await self.harness.server.start()
        self._kills = 0

    async def _all_gone(self, before: Mapping[int, float], whose: str) -> None:
        begin = time.monotonic()
        left = list(before)
        while left and time.monotonic() - begin < GONE_S:
            await trio.sleep(0.01)
            left = [pid for pid, when in before.items() if alive_since(pid, when)]
        took = time.monotonic() - begin
        self.report.figures["slowest_clean_up_seconds"] = round(
            max(took, self.report.figures.get("slowest_clean_up_seconds", 0.0)), 2
        )
        if left:
            self.report.problems.append(f"{len(left)} of {len(before)} of {whose} live after {GONE_S} s")

    # -- the end

    async def settle(self) -> None:
        """Start the server again in order, so that no budget is spent, and work the queues off."""
        for log in self.logs:
            self._may_end(log)
        status = await self.harness.server.stop()
        if status != 0:
            self.report.problems.append(f"the server ended with status {status} on SIGTERM")
        await self.harness.server.start()
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                nursery.start_soon(self._work_off, sender)

    async def _work_off(self, sender: Sender) -> None:
        with trio.move_on_after(SETTLE_S) as limit:
            while True:
                await sender.send("")
                while await self.rest().status(sender.conversation) in ("idle", "running"):
                    await trio.sleep(0.05)
                if await self._queued(sender) == 0:
                    return
        if limit.cancelled_caught:
            self.report.problems.append(f"{sender.conversation}: queue not worked off in {SETTLE_S} s")

    async def _queued(self, sender: Sender) -> int:
        agent = await self.rest().call("GET", f"/api/agents/{sender.conversation}")
        return int(agent["queue"])

    async def check(self) -> None:
        """Compare what everybody saw; then stop the server, and look for what it left."""
        problems = self.report.problems
        events = 0
        for number, sender in enumerate(self.senders):
            name = f"conversation {number}"
            told = await self.rest().events(sender.conversation)
            events += len(told)
            for follower in self.followers[number * FOLLOWERS : (number + 1) * FOLLOWERS]:
                with trio.move_on_after(10):
                    while follower.last < len(told) - 1:
                        await trio.sleep(0.02)
                if follower.last < len(told) - 1:
                    problems.append(f"{name}: a client is {follower.state}, at {time.monotonic():.1f}")
                problems += follower.errors
                problems += checks.sequence_problems(name, follower.numbers)
                problems += checks.difference_problems(name, follower.events, told)
            problems += sender.errors
            problems += checks.message_problems(name, told, sender.accepted, sender.attempted)
            queued = await self._queued(sender)
            problems += checks.prompt_problems(name, told, prompted(self.logs[number]), queued)
        await self._look_for_zombies()
        for log in self.logs:
            self._may_end(log)
        status = await self.harness.server.stop()
        if status != 0:
            problems.append(f"the server ended with status {status} on SIGTERM")
        text = self.harness.server.output.read_text(errors="replace")
        problems += checks.log_problems(text, self._signalled, self.server_kills)
        survivors = sorted({*self.living(), *self.harness.server.left()})
        if survivors:
            problems.append(f"{len(survivors)} processes survived: {survivors}")
        self.report.figures |= {
            "conversations": len(self.senders),
            "events": events,
            "messages_accepted": sum(len(sender.accepted) for sender in self.senders),
            "messages_unanswered": sum(len(s.attempted) - len(s.accepted) for s in self.senders),
            "prompts": sum(len(prompted(log)) for log in self.logs),
            "agents_started": sum(len(log.pids()) for log in self.logs),
            "grandchildren": sum(len(log.children()) for log in self.logs),
            "connections": sum(follower.connections for follower in self.followers),
            "survivors": len(survivors),
        }

    async def _look_for_zombies(self) -> None:
        until = time.monotonic() + GONE_S  # one that is just being reaped is none
        while (found := self.harness.zombies()) and time.monotonic() < until:
            await trio.sleep(0.02)
        self.report.figures["zombies"] = len(found)
        if found:
            self.report.problems.append(f"zombies below the warden: {found}")


async def chaos(
    directory: Path,
    *,
    seed: int,
    conversations: int,
    seconds: float | None = None,
    kills: int | None = None,
    pause: float = 0.4,
) -> Report:
    """Everything for `seconds`, or SIGKILLs of the server under load until there were `kills`."""
    faults = EVERYTHING if kills is None else SERVER_ONLY
    async with opened(directory) as harness, httpx2.AsyncClient(timeout=REQUEST_S, trust_env=False) as http:
        run = Run(harness, http, seed, faults)
        await run.populate(conversations)
        begin = time.monotonic()

        def over() -> bool:
            if kills is not None:
                return run.server_kills >= kills
            return time.monotonic() - begin > (seconds or 0)

        async with trio.open_nursery() as nursery:
            for follower in run.followers:
                nursery.start_soon(follower.follow)
            await run.storm(pause=pause, until=over)
            await run.settle()
            await run.check()
            nursery.cancel_scope.cancel()
        run.report.figures["seconds"] = round(time.monotonic() - begin, 1)
        return run.report


def prompted(log: ScriptedLog) -> list[str]:
    """Markers of the prompts, in order. A transcript may go ahead of a prompt, in blocks of its own."""
    prompts = [message["params"]["prompt"] for message in log.received("session/prompt")]
    return [found for blocks in prompts if (found := checks.marker(blocks[-1].get("text", "")))]


async def _stall(pid: int, seconds: float) -> None:
    kill([pid], signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        kill([pid], signal.SIGCONT)


def _prompt(chance: random.Random) -> str:
    return chance.choice(FLOODS if chance.random() < FLOOD_SHARE else PROMPTS)


def _program(path: Path, command: Sequence[str]) -> Path:
    """A program that becomes this command: a file of its own, so that somebody can have a lease on it."""
    path.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    path.chmod(0o755)
    return path


class _Based:
    """A client for one address on connections that are shared."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http, self._url = http, url

    async def request(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return await self._http.request(method, self._url + path, **more)


# -- starts and stops


@dataclass(frozen=True)
class Weight:
    """What the server's process holds."""

    descriptors: int
    rss_kib: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Weight:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return cls(
            len(os.listdir(f"/proc/{pid}/fd")), int(status["VmRSS"].split()[0]), int(status["Threads"])
        )


AT_ONCE = 4
DESCRIPTORS_MORE = 4  # connections of this client that come and go
KIB_PER_START = 10  # what a start may leave behind, averaged (measured: 6); a leaked conversation is far more
KIB_MORE = 6 * 1024  # noise of the allocator


async def starts(directory: Path, *, count: int, warm_up: int) -> Report:
    """Start and delete conversations, `count` after `warm_up`; the server must be as heavy as before."""
    report = Report(0)
    async with opened(directory) as harness, httpx2.AsyncClient(timeout=REQUEST_S, trust_env=False) as http:
        rest = Rest(_Based(http, harness.url()))  # type: ignore[arg-type]
        log = ScriptedLog(directory / "agents.jsonl")
        agent = {"acp_server": "custom", "acp_command": scripted_command(log=log.path)}
        pid = harness.pid()
        assert pid is not None

        async def some(number: int) -> None:
            for _ in range(number):
                created = await rest.create(directory / "work", agent)
                await rest.turn(created["id"], "!tool")
                await rest.call("DELETE", f"/api/conversations/{created['id']}")

        async def many(total: int) -> Weight:
            async with trio.open_nursery() as nursery:
                for worker in range(AT_ONCE):
                    nursery.start_soon(some, total // AT_ONCE + (worker < total % AT_ONCE))
            await trio.sleep(0.3)  # the last ones' ends are looked after
            return Weight.of(pid)

        begin = time.monotonic()
        before = await many(warm_up)
        after = await many(count)
        if harness.pid() != pid:
            report.problems.append("the server was restarted")
        if after.descriptors > before.descriptors + DESCRIPTORS_MORE:
            report.problems.append(f"descriptors grew from {before.descriptors} to {after.descriptors}")
        if after.threads > before.threads + DESCRIPTORS_MORE:
            report.problems.append(f"threads grew from {before.threads} to {after.threads}")
        grown = after.rss_kib - before.rss_kib
        if grown > KIB_MORE + KIB_PER_START * count:
            report.problems.append(f"memory grew by {grown} KiB in {count} starts")
        if zombies := harness.zombies():
            report.problems.append(f"zombies below the warden: {zombies}")
        report.figures |= {
            "starts": count,
            "warm_up": warm_up,
            "seconds": round(time.monotonic() - begin, 1),
            "descriptors": [before.descriptors, after.descriptors],
            "threads": [before.threads, after.threads],
            "rss_kib": [before.rss_kib, after.rss_kib],
        }
        await harness.server.stop()
        survivors = [process for process in log.pids() if alive(process)]
        report.figures["survivors"] = len(survivors)
        if survivors:
            report.problems.append(f"agents survived: {survivors}")
    return report
