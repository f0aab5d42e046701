"""Has a server started for each conversation that has none, and stopped when it has left."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio

from gateway.api.provisioning.command import CommandFailed, run
from gateway.http.access import is_known
from supervisor.machines import provisions
from supervisor.machines.errors import DatabaseAway, NotNow, NotProvided, Place

if TYPE_CHECKING:
    from gateway.configuration.machines import MachinesConfig, Provision
    from supervisor.database.connection import Connection
    from supervisor.machines.machines import Machines

log = structlog.get_logger(__name__)

KEY_BYTES: Final = 32

AT_ONCE: Final = 16
"""Servers that are started, and those that are stopped, at the same time. More wait for them."""

LOOK_SECONDS: Final = 0.2
"""Seconds between two looks for a server that is being started."""

ENDED_SECONDS: Final = 2.0
"""Seconds between two looks for servers that have left."""

UNATTENDED_SECONDS: Final = 10.0
"""Seconds between two looks for conversations with live work and without server."""

STOP_SECONDS: Final = 60.0
"""Seconds that the command may take to stop a server: it is not waited for by any client."""

MARGIN_SECONDS: Final = 10.0
"""Seconds that a claim outlasts what is done under it: for the end of the command."""


@attrs.define(eq=False)
class _Start:
    """A server that is being started. `key`: it joins with it; empty when it has been used."""

    conversation_id: str
    key: str = attrs.field(factory=lambda: secrets.token_urlsafe(KEY_BYTES), repr=False)
    over: trio.Event = attrs.field(factory=trio.Event)
    place: Place | None = None
    failure: str = "this server is stopping"


class Provisioner:
    """Starts and stops servers. `handed`: the variables that each of them gets when it joins, besides its
    conversation. `environment`: that of the command. `nursery`: has a task for each that is being started."""

    def __init__(
        self,
        config: Provision,
        labels: Mapping[str, str],
        machines: Machines,
        address: str,
        handed: Mapping[str, str],
        environment: Mapping[str, str],
        nursery: trio.Nursery,
    ) -> None:
        self._config = config
        self._labels = ",".join(f"{name}={value}" for name, value in labels.items())
        self._machines = machines
        self._address = address
        self._handed = dict(handed)
        self._environment = dict(environment)
        self._nursery = nursery
        self._starts: dict[str, _Start] = {}
        self._room = trio.CapacityLimiter(AT_ONCE)

    async def place_for(self, conversation_id: str) -> Place:
        """The server for a conversation, which is started if there is none. Raises NotProvided, DatabaseAway.

        Those that ask at the same time wait for the same start, which their cancellation does not end.
        """
        found = await self._machines.ask(partial(provisions.place_for, conversation_id=conversation_id))
        if found is not None:
            return found
        start = self._starts.get(conversation_id)
        if start is None:
            start = self._starts[conversation_id] = _Start(conversation_id)
            self._nursery.start_soon(self._start, start)
        await start.over.wait()
        if start.place is None:
            raise NotProvided(f"No server could be started for {conversation_id}: {start.failure}")
        return start.place

    def knows(self, key: str | None) -> bool:
        """Whether a server may join with this key."""
        return is_known(key, [each.key for each in self._starts.values() if each.key])

    def join(self, key: str) -> dict[str, str] | None:
        """What the server with this key gets, once; None for any other key."""
        found = [each for each in self._starts.values() if each.key and is_known(key, (each.key,))]
        for start in found:
            start.key = ""
            log.info("a server joins", conversation_id=start.conversation_id)
            return {**self._handed, "OSTLER_ONLY_CONVERSATION": start.conversation_id}
        return None

    async def _start(self, start: _Start) -> None:
        seconds = self._config.seconds
        try:
            with trio.move_on_after(seconds) as limit:
                start.place = await self._bring(start, seconds)
            if limit.cancelled_caught:
                start.failure = f"none joined within {seconds:g} s (OSTLER_PROVISION_SECONDS)"
        except (CommandFailed, DatabaseAway) as error:
            start.failure = str(error)
        except Exception:
            # A fault with one must not end the server, whose nursery this is in.
            log.exception("no server started", conversation_id=start.conversation_id)
            start.failure = "a fault of Ostler, which its log has"
        finally:
            start.key = ""
            self._starts.pop(start.conversation_id, None)
            start.over.set()
        if start.place is None:
            log.warning("no server started", conversation_id=start.conversation_id, reason=start.failure)

    async def _bring(self, start: _Start, seconds: float) -> Place:
        """Start the server within these seconds, unless another one is about it, and return it."""
        until = trio.current_time() + seconds
        conversation_id, server = start.conversation_id, self._machines.server
        look = partial(provisions.place_for, conversation_id=conversation_id)
        async with self._room:
            claimed = False
            try:
                while (place := await self._machines.ask(look)) is None:
                    left = until - trio.current_time()
                    claim = partial(
                        provisions.claim,
                        server=server,
                        conversation_id=conversation_id,
                        seconds=left + MARGIN_SECONDS,
                    )
                    if not claimed and await self._machines.ask(claim):
                        claimed = True
                        await run(self._config.command, self._variables(start), self._environment, left)
                    else:
                        await trio.sleep(LOOK_SECONDS)
            finally:
                if claimed:
                    with trio.CancelScope(shield=True), suppress(DatabaseAway):
                        await self._machines.ask(
                            partial(provisions.started, server=server, conversation_id=conversation_id)
                        )
            return place

    def _variables(self, start: _Start) -> dict[str, str]:
        return {
            **self._asked("start", start.conversation_id),
            "OSTLER_PROVISION_JOIN_URL": self._address,
            "OSTLER_PROVISION_JOIN_KEY": start.key,
        }

    def _asked(self, action: str, conversation_id: str) -> dict[str, str]:
        return {
            "OSTLER_PROVISION_ACTION": action,
            "OSTLER_PROVISION_CONVERSATION": conversation_id,
            "OSTLER_PROVISION_LABELS": self._labels,
        }

    async def stop_ended(self) -> None:
        """Stop the servers that have left or died; endless."""
        while True:
            await trio.sleep(ENDED_SECONDS)
            claim = partial(
                provisions.claim_ended,
                server=self._machines.server,
                most=AT_ONCE,
                seconds=STOP_SECONDS + MARGIN_SECONDS,
            )
            await self._for_each(claim, self._stop)

    async def attend(self) -> None:
        """Have servers started for conversations with live work that have none, since theirs died; endless.
        What fails is tried again."""
        look = partial(provisions.unattended, most=AT_ONCE)
        while True:
            await trio.sleep(UNATTENDED_SECONDS)
            await self._for_each(look, self._attend)

    async def _for_each(
        self, look: Callable[[Connection], list[str]], task: Callable[[str], Awaitable[None]]
    ) -> None:
        found: list[str] = []
        with suppress(DatabaseAway):  # it is asked again
            found = await self._machines.ask(look)
        async with trio.open_nursery() as nursery:
            for conversation_id in found:
                nursery.start_soon(task, conversation_id)

    async def _attend(self, conversation_id: str) -> None:
        with suppress(NotNow):  # logged
            await self.place_for(conversation_id)

    async def _stop(self, conversation_id: str) -> None:
        reason = ""
        try:
            await run(
                self._config.command, self._asked("stop", conversation_id), self._environment, STOP_SECONDS
            )
        except CommandFailed as error:
            reason = str(error)
        except Exception as error:
            log.exception("server not stopped", conversation_id=conversation_id)
            reason = type(error).__name__
        again = False
        with suppress(DatabaseAway):  # the claim ends, and it is stopped once more
            again = await self._machines.ask(
                partial(
                    provisions.stopped,
                    server=self._machines.server,
                    conversation_id=conversation_id,
                    done=not reason,
                )
            )
        if reason:
            log.warning("server not stopped", conversation_id=conversation_id, reason=reason, again=again)


@asynccontextmanager
async def open_provisioner(
    config: MachinesConfig,
    machines: Machines,
    address: str,
    handed: Mapping[str, str],
    environment: Mapping[str, str],
) -> AsyncIterator[Provisioner]:
    """Start servers while the block runs. Leaving it ends the command, where that runs."""
    assert config.provision is not None
    async with trio.open_nursery() as nursery:
        provisioner = Provisioner(
            config.provision, config.labels, machines, address, handed, environment, nursery
        )
        machines.provision = provisioner.place_for
        nursery.start_soon(provisioner.stop_ended)
        nursery.start_soon(provisioner.attend)
        try:
            yield provisioner
        finally:
            machines.provision = _stopping
            nursery.cancel_scope.cancel()


async def _stopping(conversation_id: str) -> Place:
    raise NotProvided(f"No server could be started for {conversation_id}: this server is stopping")
