"""Tests an agent's conformance to the protocol.

The agent is started as for a conversation, with the same environment, credentials and client capabilities,
in an empty directory. Its permission requests are rejected, except for the one harmless command that it is
asked to run.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from supervisor.acp import (
    ConnectionLost,
    InitializeResult,
    RequestTimeout,
    RpcError,
    method_offered,
    parse_session,
    text_block,
)
from supervisor.agents.catalog import CUSTOM, Descriptor
from supervisor.agents.endings import StopPolicy, StopStep
from supervisor.conversations.agent.incarnation import Incarnation, run_agent
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.opening import introduce
from supervisor.conversations.agent.session_choices import models_of
from supervisor.conversations.agent.session_setup import SessionRequest, open_session
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.events import Vocabulary, timestamp_now
from supervisor.offline.probe_client import ProbeClient
from supervisor.patience import ended_by
from supervisor.settings.agent import AgentSettings

PASS: Final = "PASS"  # noqa: S105 - no password
FAIL: Final = "FAIL"
NOT_OFFERED: Final = "NOT OFFERED"
SKIPPED: Final = "SKIPPED"

PROMPT: Final = "Answer with the single word: ready"
LONG_PROMPT: Final = "Count slowly from 1 to 500, one number per line. Use no tools."

COMMAND: Final = "printf ostler-%d 42"
"""Without expansions, which some agents refuse."""
WITNESS: Final = "ostler-42"
"""What the command prints. An agent that did not run it does not say it."""

RUN: Final = "Run this shell command with your tool, then say what it printed:"
SHELL_PROMPT: Final = f"{RUN} {COMMAND}"

COUNTER: Final = "ostler-ran.txt"
COUNTED: Final = f"echo ran >> {COUNTER}; sleep 60"
"""Counts how often it runs, and runs until its agent is killed: longer than that takes."""

COUNTER_LOOK_SECONDS: Final = 0.1
"""Between two looks at the counter."""

ANSWER_CHARS: Final = 60
"""Characters shown of a meaningless answer."""

OFFERED: Final = ("fs/", "terminal/")
"""Methods that an agent may call only where a client offers them. Extensions may be tried."""

METHOD_NOT_FOUND: Final = -32601
UNKNOWN_METHOD: Final = "_ostler.test/unknown"
"""A method in the protocol's extension namespace, which no agent knows."""

CANCEL_AFTER_SECONDS: Final = 1.0
"""Seconds after which a turn without output is cancelled."""

EXIT_SECONDS: Final = 10.0
"""Seconds from the end of an agent's input to its exit: the slowest known agent takes 7."""

INSTALL_SECONDS: Final = 1800.0

Prepare = Callable[[], Awaitable[Plan]]
"""Plans one start of the agent. Raises AgentFailure."""


class Result(NamedTuple):
    """The result of one check: PASS, FAIL, NOT OFFERED or SKIPPED."""

    check: str
    result: str
    detail: str
    seconds: float


class _Skip(Exception):
    def __init__(self, result: str, detail: str) -> None:
        super().__init__(detail)
        self.result = result


class _Broken(Exception):
    """The agent violated the protocol."""


FAILURES: Final = (_Skip, _Broken, AgentFailure, ConnectionLost, RequestTimeout, RpcError)
"""The exceptions of a failed check."""


def _reason(error: Exception) -> str:
    return f"[{error.code}] {error.message}" if isinstance(error, RpcError) else str(error)


async def _lines(file: trio.Path) -> int:
    return len((await file.read_text()).splitlines())


class Probe:
    """Tests the agent of a descriptor, or a command. `name` and `version` are those that it reports."""

    def __init__(
        self, descriptor: Descriptor | None, command: tuple[str, ...], *, prompt: bool, seconds: float
    ) -> None:
        self._descriptor = descriptor
        self._command = command
        self._prompts = prompt
        self._seconds = seconds
        self.name = descriptor.key if descriptor is not None else command[0]
        self.version: str | None = None
        self._initialized: InitializeResult | None = None
        self._session: str | None = None
        self._prompted = False
        self._ran = False
        self._models: list[str] = []
        self._results: list[Result] = []
        self._trying: Callable[[str], None] = lambda name: None

    def about(self) -> dict[str, Any]:
        """A description of the tested agent, for programs."""
        known = self._initialized
        return {
            "agent": self._descriptor.key if self._descriptor is not None else CUSTOM,
            "command": list(self._command),
            "name": self.name,
            "version": self.version,
            "capabilities": None if known is None else known.capabilities.raw,
            "auth_methods": [] if known is None else [method.id for method in known.auth_methods],
            "models": self._models,
        }

    async def run(self, launcher: Launcher, trying: Callable[[str], None]) -> list[Result]:
        """Run all checks, one after the other; `trying` gets the name of the next. Raises AgentFailure."""
        self._trying = trying
        with tempfile.TemporaryDirectory(prefix="ostler-probe-") as workspace:
            record = self._record(workspace)

            async def prepare() -> Plan:
                return await launcher.plan(record, lambda line: None, INSTALL_SECONDS)

            async def start() -> str:
                return " ".join((await prepare()).argv)

            if await self._check("find", start):
                await self._first(prepare)
                await self._second(prepare)
                await self._third(prepare)
        return self._results

    def _record(self, workspace: str) -> ConversationRecord:
        now = timestamp_now()
        if self._descriptor is None:
            agent = AgentSettings(acp_server=CUSTOM, acp_command=self._command)
        else:
            agent = AgentSettings(acp_server=self._descriptor.key, acp_command=self._descriptor.command)
        return ConversationRecord(
            id=str(uuid.uuid4()),
            start=Start(
                working_dir=workspace,
                created_at=now,
                vocabulary=Vocabulary.EXTENDED,
                preset_command=self._descriptor is not None,
            ),
            updated_at=now,
            agent=agent,
        )

    # -- processes: one for most checks, one to restore its session, two for a command that is cut off -------
    # Each has a separate plan, as in a conversation: an agent's temporary files and the short path of its
    # home are removed with its process.

    async def _first(self, prepare: Prepare) -> None:
        async with self._running(prepare) as (run, handler):
            if run is None or not await self._check("initialize", lambda: self._initialize(run)):
                return
            await self._check("session/new", lambda: self._new(run))
            await self._check("session/prompt", lambda: self._prompt(run, handler))
            await self._check("shell", lambda: self._shell(run, handler))
            await self._check("permission", lambda: self._permission(handler))
            await self._check("session/cancel", lambda: self._cancel(run, handler))
            await self._check("after a cancel", lambda: self._again(run, handler))
            await self._check("client methods", lambda: self._client_methods(handler))
            await self._check("unknown method", lambda: self._unknown(run))
            if not (self._prompted and self._restorable):
                await self._check("session/close", lambda: self._close(run))
            await self._check("output", lambda: self._output(handler))
            await self._check("exit", lambda: self._exit(run))

    async def _second(self, prepare: Prepare) -> None:
        if self._initialized is None:
            return
        for method in ("session/load", "session/resume"):
            if not method_offered(self._initialized, method):
                self._results.append(Result(method, NOT_OFFERED, "", 0.0))
                continue
            if not self._prompted:
                nothing = "the session is empty; there is nothing to restore"
                self._results.append(Result(method, SKIPPED, nothing, 0.0))
                continue
            async with self._running(prepare) as (run, _):
                if run is None:
                    continue
                await self._check(method, partial(self._restore, run, method))
                if method == self._restorable[-1]:
                    await self._check("session/close", partial(self._close, run))

    async def _third(self, prepare: Prepare) -> None:
        """Whether a command that was cut off runs again when its session is resumed."""
        name = "cut-off call"
        if not self._ran:
            self._results.append(Result(name, SKIPPED, "no command ran", 0.0))
        elif not self._restorable:
            self._results.append(Result(name, NOT_OFFERED, "no session is restored", 0.0))
        else:
            await self._check(name, partial(self._cut_off, prepare), times=4)

    async def _cut_off(self, prepare: Prepare) -> str:
        await self._with_process(prepare, self._begin_and_kill)
        ran = await self._with_process(prepare, self._resume_and_count)
        if ran > 1:
            raise _Broken("a command that was cut off runs again with the next prompt, unasked")
        return "a command that was cut off is left alone"

    async def _with_process(
        self, prepare: Prepare, work: Callable[[Incarnation, ProbeClient], Awaitable[int]]
    ) -> int:
        """Run `work` with a process of its own. Its failure leaves the process's nursery first: inside it,
        it would come out in an exception group, which `_check` does not catch."""
        result = 0
        failure: Exception | None = None
        async with self._running(prepare) as (run, handler):
            if run is None:
                failure = _Skip(SKIPPED, "the agent did not start again")
            else:
                try:
                    result = await work(run, handler)
                except FAILURES as error:
                    failure = error
        if failure is not None:
            raise failure
        return result

    async def _begin_and_kill(self, run: Incarnation, handler: ProbeClient) -> int:
        """Kill the agent while its command runs. Returns how often the command has begun."""
        await self._handshake(run)
        await self._new(run)
        handler.harmless = COUNTED
        counter = trio.Path(run.plan.cwd) / COUNTER
        with trio.move_on_after(self._seconds):
            async with ended_by(partial(self._end_of, run, self._prompt_params(f"{RUN} {COUNTED}"))):
                while not await counter.exists():  # noqa: ASYNC110 - a file of another process
                    await trio.sleep(COUNTER_LOOK_SECONDS)
        if not await counter.exists():
            raise _Skip(SKIPPED, f"the agent did not run {COUNTED!r}")
        with suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGKILL)
        await run.process.exited.wait()
        return await _lines(counter)

    async def _resume_and_count(self, run: Incarnation, handler: ProbeClient) -> int:
        """Resume the session and prompt it. Returns how often the command has begun by then."""
        try:
            await self._restore(run, self._restorable[-1])
        except FAILURES as error:
            # The checks of `session/load` and `session/resume` report that; this check is inconclusive.
            raise _Skip(SKIPPED, f"the session was not restored: {_reason(error)}") from None
        with suppress(*FAILURES):  # its answer is irrelevant
            await run.connection.request("session/prompt", self._prompt_params(PROMPT), timeout=self._seconds)
        return await _lines(trio.Path(run.plan.cwd) / COUNTER)

    async def _end_of(self, run: Incarnation, params: Mapping[str, Any]) -> None:
        """Wait for the end of a turn in which the command does not run."""
        with suppress(*FAILURES):
            await run.connection.request("session/prompt", params, timeout=self._seconds)

    @asynccontextmanager
    async def _running(self, prepare: Prepare) -> AsyncIterator[tuple[Incarnation | None, ProbeClient]]:
        handler = ProbeClient()
        stop = StopPolicy(stdin_grace=EXIT_SECONDS, term_grace=1.0)
        began = trio.current_time()
        try:
            async with run_agent(await prepare(), handler, stop, Deadlines().spawn) as run:
                handler.services = run.services
                try:
                    yield run, handler
                except BaseException:
                    # Ctrl-C: nothing is to be learned from its end, and a person waits.
                    if not run.process.exited.is_set():
                        with suppress(ProcessLookupError):
                            os.kill(run.process.pid, signal.SIGKILL)
                    raise
        except AgentFailure as failure:
            self._results.append(Result("start", FAIL, str(failure), trio.current_time() - began))
            yield None, handler

    async def _check(self, name: str, work: Callable[[], Awaitable[str]], *, times: int = 1) -> bool:
        """Run a check. `times`: how many answers it waits for."""
        self._trying(name)
        began = trio.current_time()
        result, detail = PASS, ""
        try:
            with trio.fail_after(times * (self._seconds + EXIT_SECONDS)):
                detail = await work()
        except _Skip as skip:
            result, detail = skip.result, str(skip)
        except FAILURES as error:
            result, detail = FAIL, _reason(error)
        except trio.TooSlowError:
            result, detail = FAIL, f"not done within {self._seconds:g} s"
        self._results.append(Result(name, result, detail, round(trio.current_time() - began, 3)))
        return result == PASS

    @property
    def _known(self) -> InitializeResult:
        assert self._initialized is not None
        return self._initialized

    @property
    def _restorable(self) -> list[str]:
        """The offered methods that resume a session."""
        return [each for each in ("session/load", "session/resume") if method_offered(self._known, each)]

    @property
    def _deadlines(self) -> Deadlines:
        each = self._seconds
        return Deadlines(initialize=each, authenticate=each, new_session=each, load_session=each)

    def _needs_session(self) -> str:
        if self._session is None:
            raise _Skip(SKIPPED, "there is no session")
        return self._session

    # -- the checks: each says what it found ---------------------------------------------------------------

    async def _initialize(self, run: Incarnation) -> str:
        found = await self._handshake(run)
        self._initialized = found
        if found.agent is not None:
            self.name, self.version = found.agent.name, found.agent.version
        offered = sorted(found.capabilities.session)
        if found.capabilities.load_session:
            offered.insert(0, "load")
        methods = ", ".join(method.id for method in found.auth_methods) or "none"
        return f"protocol 1; sessions: {', '.join(offered) or 'nothing more'}; logins: {methods}"

    async def _handshake(self, run: Incarnation) -> InitializeResult:
        await introduce(run, self._deadlines)
        assert run.initialized is not None
        return run.initialized

    async def _new(self, run: Incarnation) -> str:
        plan = run.plan
        wanted = SessionRequest(cwd=str(plan.cwd), mcp_servers=(), prior_id=None, login=plan.login)
        session = await open_session(run.connection, self._known, wanted, self._deadlines, lambda _: None)
        self._session = session.session_id
        models = models_of(session.result)
        self._models = [str(model["model_id"]) for model in models.available or ()]
        options = [option.id for option in session.result.config_options or ()]
        return f"{len(self._models)} models; options: {', '.join(options) or 'none'}"

    def _prompt_params(self, text: str) -> dict[str, Any]:
        return {"sessionId": self._needs_session(), "prompt": [text_block(text)]}

    async def _prompt(self, run: Incarnation, handler: ProbeClient) -> str:
        params = self._prompt_params(PROMPT)
        if not self._prompts:
            raise _Skip(SKIPPED, "--no-prompt")
        handler.said = ""
        answer = await run.connection.request("session/prompt", params, timeout=self._seconds)
        reason = answer.get("stopReason") if isinstance(answer, Mapping) else None
        if reason != "end_turn":
            raise _Broken(f"the turn ended with {reason!r}, not with 'end_turn'")
        if not handler.said:
            raise _Broken("the turn ended without any text")
        self._prompted = True
        return f"end_turn after {len(handler.said)} characters"

    async def _cancel(self, run: Incarnation, handler: ProbeClient) -> str:
        params = self._prompt_params(LONG_PROMPT)
        if not self._prompted:
            raise _Skip(SKIPPED, "no prompt was answered")
        handler.speaking = trio.Event()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await run.connection.request("session/prompt", params, timeout=self._seconds))

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                with trio.move_on_after(CANCEL_AFTER_SECONDS):
                    await handler.speaking.wait()
                began = trio.current_time()
                run.connection.notify("session/cancel", {"sessionId": params["sessionId"]})
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        taken = trio.current_time() - began
        reason = answers[0].get("stopReason") if isinstance(answers[0], Mapping) else None
        if reason == "end_turn":
            raise _Skip(
                SKIPPED,
                "end_turn: the turn ended before the cancel, or the agent does not report cancellation",
            )
        if reason != "cancelled":
            raise _Broken(f"the turn ended with {reason!r}, not with 'cancelled'")
        return f"cancelled within {taken:.2f} s"

    async def _again(self, run: Incarnation, handler: ProbeClient) -> str:
        """Check that a cancelled session continues."""
        params = self._prompt_params(PROMPT)
        if not self._prompted:
            raise _Skip(SKIPPED, "no prompt was answered")
        answer = await run.connection.request("session/prompt", params, timeout=self._seconds)
        reason = answer.get("stopReason") if isinstance(answer, Mapping) else None
        if reason != "end_turn":
            raise _Broken(f"the next turn ended with {reason!r}")
        return "the session continues"

    async def _shell(self, run: Incarnation, handler: ProbeClient) -> str:
        """Check that a command runs, where it is allowed."""
        params = self._prompt_params(SHELL_PROMPT)
        if not self._prompted:
            raise _Skip(SKIPPED, "no prompt was answered")
        handler.said = handler.calls = handler.results = ""
        handler.open.clear()
        handler.harmless = COMMAND
        handler.permissions.clear()
        try:
            await run.connection.request("session/prompt", params, timeout=self._seconds)
        finally:
            handler.harmless = None
        if WITNESS in handler.results or WITNESS in handler.said:
            self._ran = True
            return f"{COMMAND!r} ran"
        if COMMAND not in handler.calls and not handler.permissions and not handler.refused:
            raise _Skip(SKIPPED, "the agent did not try to run it")
        wanted = f"; it asked for {', '.join(dict.fromkeys(handler.refused))}" if handler.refused else ""
        raise _Broken(f"the agent tried to run {COMMAND!r}, and it did not run{wanted}")

    async def _permission(self, handler: ProbeClient) -> str:
        await trio.lowlevel.checkpoint()
        if handler.permissions:
            return f"asked; {handler.permissions[0]}"
        if not self._ran:
            raise _Skip(SKIPPED, "no command ran")
        raise _Skip(NOT_OFFERED, "the command ran without a question")

    async def _client_methods(self, handler: ProbeClient) -> str:
        """Check that the agent calls what it was offered, and nothing else."""
        await trio.lowlevel.checkpoint()
        called = list(dict.fromkeys(handler.refused))
        missing = [method for method in called if method.startswith(OFFERED)]
        if missing:
            raise _Broken(f"called without being offered: {', '.join(missing)}")
        return f"refused: {', '.join(called)}" if called else ""

    async def _unknown(self, run: Incarnation) -> str:
        """Check that an unknown method has an answer. A result is harmless: libraries give one to what may
        be an extension."""
        try:
            answer = await run.connection.request(UNKNOWN_METHOD, {}, timeout=self._seconds)
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:
                return "refused"
            raise _Broken(f"refused, but not as unknown: [{error.code}] {error.message}") from None
        return f"a result instead of an error: {json.dumps(answer)[:ANSWER_CHARS]}"

    async def _restore(self, run: Incarnation, method: str) -> str:
        session = self._needs_session()
        await self._handshake(run)
        params = {"sessionId": session, "cwd": str(run.plan.cwd), "mcpServers": []}
        answer = await run.connection.request(method, params, timeout=self._seconds)
        parse_session(answer or {})
        return "restored in a new process"

    async def _close(self, run: Incarnation) -> str:
        if not method_offered(self._known, "session/close"):
            raise _Skip(NOT_OFFERED, "")
        params = {"sessionId": self._needs_session()}
        await run.connection.request("session/close", params, timeout=self._seconds)
        return ""

    async def _output(self, handler: ProbeClient) -> str:
        await trio.lowlevel.checkpoint()
        if handler.non_protocol_lines or handler.unreadable:
            raise _Broken(
                f"{handler.non_protocol_lines} lines are not messages, "
                f"{handler.unreadable} messages are unreadable"
            )
        return f"{len(handler.updates)} updates, nothing else"

    async def _exit(self, run: Incarnation) -> str:
        report = await run.process.stop()
        if report.survivors:
            raise _Broken(f"{len(report.survivors)} processes cannot be ended")
        if report.step in (StopStep.TERM, StopStep.KILL):
            left = (
                f"{report.outlived} of its processes kept running" if report.outlived else "it kept running"
            )
            raise _Broken(f"{left} after the end of its input, and had to be ended by {report.step}")
        return f"ended {report.seconds:.2f} s after the end of its input"
