"""A run of three servers on machines of their own, with clients, agents and accidents by a seeded plan."""

from __future__ import annotations

import random
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import trio

from supervisor.database.address import Database, parse
from supervisor.database.connection import connect
from tests.chaos import checks
from tests.chaos.clients import REQUEST_S, Follower, Sender
from tests.chaos.run import Report, prompted
from tests.machines.clock import Clock, library, tidy
from tests.machines.network import Network, network
from tests.machines.servers import LIVE
from tests.support.client import Rest, rest_client
from tests.support.cluster import USER, Cluster
from tests.support.postgres import cluster
from tests.support.processes import alive, descendants, info, kill
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess

SERVERS: Final = 3
PORT: Final = 8000
LEASE_S: Final = 2.0
GONE_S: Final = 2.0  # after the end of a lease no second agent lives
SETTLE_S: Final = 90.0
RESEND_S: Final = 10.0
FOLLOWERS: Final = 2
SEND_PAUSE_S: Final = 2.0
STOPPED_S: Final = (0.5, 8.0)  # shorter and longer than a lease
CUT_S: Final = (0.5, 8.0)
AWAY_S: Final = (0.1, 5.0)
JUMP_S: Final = (60.0, 3 * 3600.0)
WRONG_S: Final = (0.5, 15.0)
LOOK_S: Final = 0.1

PROMPTS: Final = ("", "", "!slow 5 20", "!slow 20 50", "!tool", "!tools 5", "!flood 300", "!spawn daemon")

ACCIDENTS: Final = {
    "agent": 3,  # SIGKILL of an agent
    "cut": 4,  # a client loses its connection
    "interrupt": 2,
    "server": 3,  # SIGKILL of a server; its warden starts it again
    "machine": 2,  # SIGKILL of server and warden; it is started again after a while
    "stopped": 3,  # SIGSTOP of a server, or of all of its machine
    "partition": 3,  # the link of a machine is down
    "database": 1,  # PostgreSQL crashes and starts again
    "leave": 1,  # a server ends in order, and another one starts
    "clock": 2,  # the wall clock of a machine jumps, for a while or until it jumps again
}


class Host:
    """A machine: a namespace, and the server in it."""

    def __init__(self, net: Network, directory: Path, name: str, environment: dict[str, str]) -> None:
        self.net, self.name = net, name
        self.place, self.address = net.add()
        directory.mkdir(parents=True)
        preloaded = library()
        self.clock = None if preloaded is None else Clock(directory, preloaded)
        self.process = ServerProcess(
            directory,
            {
                **environment,
                "OSTLER_SERVER_NAME": name,
                **(self.clock.environment if self.clock is not None else {}),
            },
            ("--host", self.address, "--port", str(PORT)),
            prefix=("ip", "netns", "exec", self.place),
        )
        self.url = f"http://{self.address}:{PORT}"
        self.busy = False
        """Whether an accident has it, so that the next one takes another."""

    def server(self) -> int | None:
        with suppress(OSError, ValueError):
            pid = int((self.process.state / "server.pid").read_text())
            return pid if alive(pid) else None
        return None

    def everything(self) -> list[int]:
        return [self.process.pid, *(each.pid for each in descendants(self.process.pid))]


class Day:
    """The run. `report` has what it did and what is wrong."""

    def __init__(
        self,
        directory: Path,
        net: Network,
        base: Cluster,
        database: Database,
        seed: int,
        accidents: dict[str, int],
    ) -> None:
        self.directory, self.net, self.base, self.database = directory, net, base, database
        self.report = Report(seed)
        self.chance = random.Random(seed)
        self.hosts: list[Host] = []
        self.logs: list[ScriptedLog] = []
        self.senders: list[Sender] = []
        self.followers: list[Follower] = []
        self._accidents = accidents
        self._choice = random.Random(seed + 1)
        self._pairs: dict[int, float] = {}

    def environment(self) -> dict[str, str]:
        volumes = [f"{name}={self.directory / name}" for name in ("work", "data")]
        return {
            "OSTLER_DATABASE": self.database.conninfo,
            "OSTLER_MASTER_KEY": "one phrase for all servers",
            "OSTLER_ALLOW_OPEN": "1",
            "OSTLER_ALLOWED_HOSTS": "*",
            "OSTLER_LEASE_SECONDS": str(LEASE_S),
            "OSTLER_VOLUMES": ",".join(volumes),
            "OSTLER_SERVER_RESTARTS": "1000",
            "OSTLER_GRACE_SECONDS": "1",
            "OSTLER_ATTACHABLE": "1",
        }

    def url(self) -> str:
        """The address of any server: a round robin without stickiness."""
        return self._choice.choice(self.hosts).url

    async def start(self) -> None:
        for name in ("work", "data"):
            (self.directory / name).mkdir()
        for number in range(SERVERS):
            host = Host(self.net, self.directory / f"m{number}", f"m{number}", self.environment())
            self.hosts.append(host)
            await host.process.start()

    async def populate(self, http: httpx2.AsyncClient, conversations: int) -> None:
        for number in range(conversations):
            log = ScriptedLog(self.directory / f"agent{number}.jsonl")
            command = scripted_command(log=log.path, home=self.directory / "data" / f"home{number}")
            workspace = self.directory / "work" / f"w{number}"
            workspace.mkdir()
            made = str(uuid.uuid4())
            body = {
                "conversation_id": made,
                "workspace": {"kind": "LocalWorkspace", "working_dir": str(workspace)},
                "agent_settings": {"agent_kind": "acp", "acp_server": "custom", "acp_command": command},
            }
            await self._create(http, body)
            self.logs.append(log)
            self.senders.append(Sender(number, made, http, self.url))
            self.followers += [Follower(made, self.url) for _ in range(FOLLOWERS)]

    async def _create(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        """Start a conversation. A server whose lease ends on a busy machine cuts the request, which is safe
        to send again: it has the conversation's id."""
        with trio.fail_after(SETTLE_S):
            while True:
                with suppress(httpx2.TransportError):
                    answer = await http.post(f"{self.url()}/api/conversations", json=body)
                    if answer.status_code in (200, 201):
                        return
                    assert answer.status_code == 503, answer.text
                await trio.sleep(LOOK_S)

    # -- accidents

    async def storm(self, seconds: float, pause: float) -> None:
        """Clients at work, and accidents `pause` seconds apart on average."""
        until = time.monotonic() + seconds
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                chance = random.Random(self.chance.random())
                nursery.start_soon(sender.chatter, chance, _prompt, SEND_PAUSE_S)
            nursery.start_soon(self._count_agents)
            async with trio.open_nursery() as under_way:
                while time.monotonic() < until:
                    await trio.sleep(self.chance.uniform(0, 2 * pause))
                    (kind,) = self.chance.choices(list(self._accidents), list(self._accidents.values()))
                    self._happen(kind, under_way)
            nursery.cancel_scope.cancel()

    def _happen(self, kind: str, nursery: trio.Nursery) -> None:
        match kind:
            case "agent":
                living = [pid for log in self.logs for pid in log.pids() if alive(pid)]
                if living:
                    kill([self.chance.choice(living)])
            case "cut":
                self.chance.choice(self.followers).cut()
            case "interrupt":
                sender = self.chance.choice(self.senders)
                nursery.start_soon(sender.post, "interrupt", {})
            case "database":
                nursery.start_soon(self._restart_database, self.chance.uniform(*AWAY_S))
            case "clock":
                host, ahead = self.chance.choice(self.hosts), self.chance.uniform(*JUMP_S)
                wrong = self.chance.uniform(*WRONG_S) if self.chance.random() < 0.5 else None
                nursery.start_soon(self._set_clock, host, self.chance.choice((-1, 1)) * ahead, wrong)
            case _:
                free = [host for host in self.hosts if not host.busy]
                if len(free) < SERVERS - 1:  # one of three may always be lost; two at once prove nothing more
                    return
                nursery.start_soon(self._befall, self.chance.choice(free), kind)
        self.report.faults[kind] += 1

    async def _befall(self, host: Host, kind: str) -> None:
        host.busy = True
        try:
            match kind:
                case "server":
                    if (pid := host.server()) is not None:
                        kill([pid])
                case "machine":
                    host.process.lose_power()
                    await host.process.wait()
                    await trio.sleep(self.chance.uniform(*CUT_S))
                    await host.process.start()
                case "stopped":
                    pids = [pid for pid in (host.server(),) if pid is not None]
                    if self.chance.random() < 0.5:
                        pids = host.everything()  # as a machine that is suspended, agents included
                    kill(pids, signal.SIGSTOP)
                    await trio.sleep(self.chance.uniform(*STOPPED_S))
                    kill(pids, signal.SIGCONT)
                case "partition":
                    self.net.connect(host.place, up=False)
                    await trio.sleep(self.chance.uniform(*CUT_S))
                    self.net.connect(host.place, up=True)
                case "leave":
                    await host.process.stop()
                    await host.process.start()
        except AssertionError as error:
            self.report.problems.append(f"{host.name}: {kind}: {str(error)[:2000]}")
        finally:
            host.busy = False

    async def _set_clock(self, host: Host, ahead: float, wrong: float | None) -> None:
        """Whatever else happens to that machine. `wrong`: seconds until it is set right; None: it stays."""
        assert host.clock is not None
        host.clock.set(ahead)
        if wrong is not None:
            await trio.sleep(wrong)
            host.clock.set(0.0)

    async def _restart_database(self, seconds: float) -> None:
        with trio.CancelScope(shield=True):
            with suppress(Exception):
                await trio.to_thread.run_sync(self.base.stop, "immediate")
            await trio.sleep(seconds)
            with suppress(Exception):
                await trio.to_thread.run_sync(self.base.start)

    async def _count_agents(self) -> None:
        """Two living agents of one conversation: at most for so long as a takeover may leave the first
        one."""
        most = LEASE_S + GONE_S
        while True:
            for number, log in enumerate(self.logs):
                living = [pid for pid in log.pids()[-4:] if at_work(pid)]
                if len(living) < 2:
                    self._pairs.pop(number, None)
                    continue
                began = self._pairs.setdefault(number, time.monotonic())
                if time.monotonic() - began > most:
                    self.report.problems.append(
                        f"conversation {number}: {len(living)} agents at once: {living}"
                    )
                    self._pairs[number] = float("inf")
            await trio.sleep(LOOK_S)

    # -- the end

    async def settle(self) -> None:
        """All is mended but the clocks, and the queues are worked off."""
        for host in self.hosts:
            self.net.connect(host.place, up=True)
            kill(host.everything(), signal.SIGCONT)
        with suppress(Exception):
            await trio.to_thread.run_sync(self.base.start)
        async with trio.open_nursery() as nursery:
            for sender in self.senders:
                nursery.start_soon(self._work_off, sender)

    async def _rest(self, look: Callable[[Rest], Any]) -> Any:
        """Ask any server; one that is not back yet is asked again."""
        while True:
            async with rest_client(self.url()) as rest:
                try:
                    return await look(rest)
                except (httpx2.TransportError, AssertionError):
                    await trio.sleep(0.1)

    async def _work_off(self, sender: Sender) -> None:
        with trio.move_on_after(SETTLE_S) as limit:
            while True:
                await sender.send("")
                # Sent again where no server took it: one may still be on its way up.
                with trio.move_on_after(RESEND_S):
                    while await self._rest(lambda rest: rest.status(sender.conversation)) in (
                        "idle",
                        "running",
                    ):
                        await trio.sleep(0.1)
                if await self._queued(sender) == 0:
                    return
        if limit.cancelled_caught:
            status = await self._rest(lambda rest: rest.info(sender.conversation))
            self.report.problems.append(
                f"{sender.conversation}: queue not worked off in {SETTLE_S} s: {status['execution_status']}"
            )

    async def _queued(self, sender: Sender) -> int:
        path = f"/api/agents/{sender.conversation}"
        return int((await self._rest(lambda rest: rest.call("GET", path)))["queue"])

    async def check(self) -> None:
        """Compare what all saw, and look into the database from outside."""
        problems = self.report.problems
        events = moved = 0
        for number, sender in enumerate(self.senders):
            name = f"conversation {number}"
            told = await self._rest(lambda rest, sender=sender: rest.events(sender.conversation))
            events += len(told)
            moved += sum(each.get("key") == "server" for each in told)
            for follower in self.followers[number * FOLLOWERS : (number + 1) * FOLLOWERS]:
                with trio.move_on_after(20):
                    while follower.last < len(told) - 1:
                        await trio.sleep(0.05)
                if follower.last < len(told) - 1:
                    problems.append(
                        f"{name}: a client has {follower.last + 1} of {len(told)}: {follower.state}"
                    )
                problems += follower.errors
                problems += checks.sequence_problems(name, follower.numbers)
                problems += checks.difference_problems(name, follower.events, told)
            problems += checks.time_problems(name, told)
            problems += sender.errors
            problems += checks.message_problems(name, told, sender.accepted, sender.attempted)
            queued = await self._queued(sender)
            problems += checks.prompt_problems(name, told, prompted(self.logs[number]), queued)
        problems += await trio.to_thread.run_sync(self._gaps)
        problems += await trio.to_thread.run_sync(self._marks)
        self.report.figures |= {
            "conversations": len(self.senders),
            "events": events,
            "moves": moved,
            "messages_accepted": sum(len(sender.accepted) for sender in self.senders),
            "messages_unanswered": sum(len(s.attempted) - len(s.accepted) for s in self.senders),
            "prompts": sum(len(prompted(log)) for log in self.logs),
            "agents_started": sum(len(log.pids()) for log in self.logs),
            "connections": sum(follower.connections for follower in self.followers),
        }

    def _gaps(self) -> list[str]:
        with connect(self.database, "check") as connection:
            rows = connection.execute(
                "SELECT conversations.id, count(*), min(seq), max(seq), last_seq FROM events "
                "JOIN conversations "
                "ON conversation = conversations.key JOIN heads ON heads.key = conversation "
                "GROUP BY conversations.id, last_seq "
                "HAVING count(*) <> max(seq) + 1 OR min(seq) <> 0 OR max(seq) <> last_seq"
            ).fetchall()
        return [
            f"the log of {row[0]} has {row[1]} events from {row[2]} to {row[3]}, head {row[4]}"
            for row in rows
        ]

    def _marks(self) -> list[str]:
        with connect(self.database, "check") as connection:
            rows = connection.execute(
                "SELECT id, status, live FROM conversations JOIN heads USING (key) "
                "WHERE live <> (status = ANY(%s))",
                (sorted(LIVE),),
            ).fetchall()
        return [f"{name} is {status}, and its mark of live work {mark}" for name, status, mark in rows]

    async def stop(self) -> None:
        async with trio.open_nursery() as nursery:
            for host in self.hosts:
                nursery.start_soon(host.process.stop)
        for host in self.hosts:
            text = host.process.output.read_text(errors="replace")
            for words in checks.NEVER:
                if words in text:
                    at = text.index(words)
                    self.report.problems.append(f"{host.name} says: {text[max(0, at - 500) : at + 2500]}")
        left = sorted(pid for log in self.logs for pid in [*log.pids(), *log.children()] if alive(pid))
        if left:
            self.report.problems.append(f"{len(left)} processes survived: {left}")


def at_work(pid: int) -> bool:
    """Whether a process lives and is not stopped."""
    found = info(pid)
    return found is not None and found.state not in "ZXTt"


def _prompt(chance: random.Random) -> str:
    return chance.choice(PROMPTS)


async def day(
    directory: Path,
    *,
    seed: int,
    conversations: int,
    seconds: float,
    pause: float = 1.0,
    accidents: dict[str, int] = ACCIDENTS,
) -> Report:
    """A day of so many conversations, in `seconds`. Clocks jump where libfaketime is installed."""
    real_clocks = library() is None
    if real_clocks:
        accidents = {**accidents, "clock": 0}
    with network() as net, cluster(durable=True, listen=net.gateway) as base:
        base.trust(net.range)
        made = urlsplit(base.database().conninfo).path.removeprefix("/")
        database = parse(f"postgresql://{USER}@{net.gateway}/{made}")
        run = Day(directory, net, base, database, seed, accidents)
        began = time.monotonic()
        try:
            await run.start()
            async with httpx2.AsyncClient(timeout=REQUEST_S, trust_env=False) as http:
                await run.populate(http, conversations)
                async with trio.open_nursery() as nursery:
                    for follower in run.followers:
                        nursery.start_soon(follower.follow)
                    await run.storm(seconds, pause)
                    await run.settle()
                    await run.check()
                    nursery.cancel_scope.cancel()
            await run.stop()
        except BaseException:
            for host in run.hosts:
                print(f"--- output of {host.name}\n{host.process.output_tail()}")
            raise
        finally:
            for host in run.hosts:
                host.process.clean_up()
            tidy()
        run.report.figures["seconds"] = round(time.monotonic() - began, 1)
        if real_clocks:
            run.report.figures["left_out"] = "clock jumps: libfaketime is not installed"
        return run.report
