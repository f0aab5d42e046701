"""A conversation of the SDK, extended by what Ostler needs, and its turns.

A turn goes from a message, or from where the agent stopped, until it stops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import ActionEvent, Event, MessageEvent
from openhands.sdk.llm import Message

from .children import Children, Start

Status = ConversationExecutionStatus

Ask = Callable[[ActionEvent], Awaitable[str | None]]
"""Asks whether an action may run: returns None, or the reason why not."""

AGAIN_SECONDS = 0.02
"""Seconds until the retry of a message that would come between an action and its result: such an action has
been allowed, and runs at once."""

READS_ON = (Status.FINISHED, Status.IDLE, Status.STUCK)
"""In one of these states a run has ended by itself, and a message starts another one."""


class Conversation(LocalConversation):
    """A conversation in which the ids of the user's messages may be given.

    Ostler has written such a message, with its id, before this process receives it; the SDK's event must have
    the same id.
    """

    children: Children
    """Its sub-agents; set by the code that makes it."""

    start_child: Start
    """Starts a child conversation; set by the code that makes this one."""

    def send(self, message: Message, sender: str | None, message_id: str | None) -> None:
        """Append the user's message. If its id is in the log already, continue from that message instead."""
        if message_id is not None and message_id in self._state.events:
            if all(event.id != message_id for event in self._state.active_branch()):
                self.navigate_to(message_id)
            return
        self._given.id = message_id
        try:
            self.send_message(message, sender)
        finally:
            self._given.id = None

    @property
    def _on_event(self) -> Callable[[Event], None]:
        return self._with_given_id

    @_on_event.setter
    def _on_event(self, callback: Callable[[Event], None]) -> None:
        # The SDK sets it again when it loads hooks, while it sends the first message.
        self._emit = callback
        if "_given" not in self.__dict__:
            self._given = threading.local()

    def _with_given_id(self, event: Event) -> None:
        given = getattr(self._given, "id", None)
        if given is not None and isinstance(event, MessageEvent) and event.source == "user":
            event = event.model_copy(update={"id": given})
            self._given.id = None
        self._emit(event)


class Lane:
    """The event loop of one conversation, in a separate thread.

    The SDK blocks its loop: hooks, critics and analyzers run there, and it waits there for a lock that a
    thread may hold. The loop that serves the client must not wait for that.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def end(self) -> None:
        """End the thread when it gets to it. This does not wait for what runs there."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


class Inbox:
    """Takes messages until its turn ends: each is read in the turn, or refused.

    Everything happens on the conversation's lane, except the writing itself, which waits for the SDK's lock:
    that is free while a model is asked, and between two steps.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._state: ConversationState = conversation.state
        self._order = asyncio.Lock()
        self._open = asyncio.Event()
        self._quiet = asyncio.Event()
        self._coming = 0
        self._came = self._ending = self._over = False

    async def take(self, write: Callable[[], None]) -> bool:
        """Write a message by calling `write` on a thread. Return False if the turn ends before: then nothing
        is written.

        Raises what `write` does.
        """
        if self._over:
            return False
        self._coming += 1
        try:
            async with self._order:
                while not self._over:
                    await self._open.wait()
                    if await asyncio.to_thread(self._write, write):
                        return True
                    if self._ending:
                        break
                    await asyncio.sleep(AGAIN_SECONDS)
            return False
        finally:
            self._coming -= 1
            if not self._coming:
                self._quiet.set()

    def open(self) -> None:
        """Take messages from now on: the message that the turn is about is written."""
        self._open.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold messages back while a person is asked: none may come between actions and their results."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def unread(self) -> bool:
        """Whether there are messages that no step has read. If not, the turn takes no more."""
        if self._state.execution_status in READS_ON:
            self._ending = True
            await self._settled()
            self._ending = False
            if self._came and self._state.execution_status is Status.IDLE:
                self._came = False
                return True
        self._over = True
        return False

    def refuse(self) -> None:
        """Take no more messages."""
        self._over = True

    async def end(self) -> None:
        """Take no more messages. Returns when none is being written."""
        self._over = True
        self._open.set()
        await self._settled()

    async def _settled(self) -> None:
        while self._coming:
            self._quiet.clear()
            await self._quiet.wait()

    def _write(self, write: Callable[[], None]) -> bool:
        with self._state:
            if self._over or ConversationState.get_unmatched_actions(self._state.active_branch()):
                return False
            write()
            self._came = True
            return True


class Turn:
    """Runs on the conversation's lane, where it is also interrupted; `cancelled` may be read anywhere.

    `inbox` takes the messages that arrive while it runs.
    """

    def __init__(self, conversation: Conversation, ask: Ask) -> None:
        self._conversation = conversation
        self._ask = ask
        self._task: asyncio.Task[Any] | None = None
        self.inbox = Inbox(conversation)
        self.cancelled = False
        self.asking = False
        """Whether actions wait for a person; none of them has begun."""

    async def run(self, send: Callable[[], None] | None) -> str:
        """Send the message, if there is one, then run. Returns the status in which the agent stopped.

        Raises what the SDK raises before the agent has begun, and what keeps it from writing its log.
        """
        self._task = asyncio.current_task()
        self._conversation.children.begin()
        try:
            # Even after a cancel: the user's message must be in the log.
            await asyncio.to_thread(self._prepare, send)
            self.inbox.open()
            await self._steps()
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
        except BaseException:
            self._failed()
            raise
        finally:
            self._task = None  # not cancellable from here on
            await self.inbox.end()
        if self.cancelled:
            self._pause()
        return self._conversation.state.execution_status.value

    def cancel(self) -> None:
        """Tell the tools to stop, before the lane gets to it; called on any thread."""
        self.cancelled = True
        token = self._conversation.cancel_token
        if token is not None:
            token.cancel()
        self._conversation.children.interrupt()

    def interrupt(self) -> None:
        """Cancel what the turn waits for; called on the lane, after `cancel`."""
        if self._task is not None:
            self._task.cancel()

    def _prepare(self, send: Callable[[], None] | None) -> None:
        # An action without a result would run now, unconfirmed: after a fork or a move to its event.
        conversation = self._conversation
        with conversation.state:
            if send is None and self._waits:
                return  # it was asked about in an earlier process, and will be again
            if ConversationState.get_unmatched_actions(conversation.state.active_branch()):
                conversation._emit_orphaned_action_errors()
            if self._waits:
                conversation.state.execution_status = Status.IDLE
        if send is not None:
            send()

    async def _steps(self) -> None:
        kept = self._waits
        while not self.cancelled:
            if not kept:
                try:
                    await self._conversation.arun()
                except ConversationRunError:
                    return  # the SDK has written the error into the log
            if self.cancelled:
                return
            kept = False
            if not self._waits:
                if await self.inbox.unread():
                    continue
                return
            with self.inbox.held():
                reason = await self._confirm()
                if reason is not None:
                    self.inbox.refuse()  # this turn has no step left that would read a message
            if reason is not None:
                await asyncio.to_thread(self._conversation.reject_pending_actions, reason)
                return

    @property
    def _waits(self) -> bool:
        return self._conversation.state.execution_status is Status.WAITING_FOR_CONFIRMATION

    async def _confirm(self) -> str | None:
        """Ask for every action that waits; None when all may run, else the reason of the rejection."""
        pending = ConversationState.get_unmatched_actions(self._conversation.state.active_branch())
        self.asking = True
        try:
            answers = await asyncio.gather(*map(self._ask, pending))
        finally:
            self.asking = False
        return next((reason for reason in answers if reason is not None), None)

    def _pause(self) -> None:
        """Close the actions that wait: otherwise the next turn would run them."""
        state = self._conversation.state
        with state:
            self._conversation._emit_orphaned_action_errors()
            if state.execution_status is not Status.PAUSED:
                state.execution_status = Status.PAUSED

    def _failed(self) -> None:
        """Set the error status. If it cannot be written to the disk either, it is still right in memory."""
        state = self._conversation.state
        if state.execution_status in (Status.RUNNING, Status.WAITING_FOR_CONFIRMATION):
            try:
                state.execution_status = Status.ERROR
            except OSError:
                return
