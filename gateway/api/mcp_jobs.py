"""Logins to MCP servers that HTTP clients start: each is a job, from its start to its outcome."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import structlog
import trio

from supervisor.conversations.mcp.helper import HelperFailed
from supervisor.conversations.mcp.probe import CannotTry, Login, McpProbe
from supervisor.credentials.secret import CredentialsFailure
from supervisor.mcp.logins import LoginsError

log = structlog.get_logger(__name__)

MAX_JOBS: Final = 16
"""The most logins in progress. A person has one."""

KEPT_SECONDS: Final = 600.0
"""Seconds for which the outcome of a job is kept."""

SETTLE_SECONDS: Final = 5.0
"""Seconds that the response to a callback waits for its effect."""

PENDING, AUTHORIZING, SUCCEEDED, FAILED = "pending", "authorizing", "succeeded", "failed"


class TooManyJobs(Exception):
    """The limit of concurrent logins is reached."""


@attrs.define(eq=False)
class Job:
    """One login. `outcome` is the helper's last event."""

    id: str
    status: str = PENDING
    url: str | None = None
    outcome: dict[str, Any] | None = None
    refused: int = 0
    login: Login | None = None
    ended_at: float | None = None
    changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def over(self) -> bool:
        """Whether it has an outcome."""
        return self.outcome is not None

    def undecided(self, refused: int) -> bool:
        """Whether a callback is still being checked; `refused` is the number of callbacks refused before
        it."""
        return self.outcome is None and self.refused == refused

    def note(self) -> None:
        """Note a change, and wake the tasks that wait for it."""
        self.changed.set()
        self.changed = trio.Event()


class McpJobs:
    """The logins of one server. Made by `open_jobs`."""

    def __init__(self, nursery: trio.Nursery, probe: McpProbe) -> None:
        self._nursery = nursery
        self._jobs: dict[str, Job] = {}
        self.probe = probe

    async def start(
        self, name: str, entry: Mapping[str, Any], given: Mapping[str, str], *, seconds: float
    ) -> Job:
        """Begin a login, and wait at most `seconds` for the URL that a person has to open.

        Raises TooManyJobs.
        """
        self._forget()
        if sum(not job.over for job in self._jobs.values()) >= MAX_JOBS:
            raise TooManyJobs(f"There are {MAX_JOBS} logins in progress. Finish one, or try again later.")
        job = Job(secrets.token_urlsafe(24))
        self._jobs[job.id] = job
        self._nursery.start_soon(self._run, job, name, entry, given)
        with trio.move_on_after(seconds):
            while job.status == PENDING:
                await job.changed.wait()
        return job

    def get(self, job_id: str) -> Job | None:
        """The job with this id; None once it is no longer kept."""
        self._forget()
        return self._jobs.get(job_id)

    async def answer(self, job: Job, callback_url: str) -> bool:
        """Pass on the URL that the browser ended at, and wait a little for its effect.

        Returns False if that was not an answer to this login.
        """
        before = job.refused
        if job.over or job.login is None:
            return job.over
        try:
            await job.login.answer(callback_url=callback_url)
        except HelperFailed:
            return job.over
        with trio.move_on_after(SETTLE_SECONDS):
            while job.undecided(before):
                await job.changed.wait()
        return job.refused == before

    async def _run(self, job: Job, name: str, entry: Mapping[str, Any], given: Mapping[str, str]) -> None:
        try:
            job.outcome = await self._login(job, name, entry, given)
        except (CannotTry, HelperFailed, CredentialsFailure, LoginsError) as error:
            job.outcome = {"ok": False, "error": str(error), "error_kind": "unknown"}
        except Exception:
            # This task lives in the server's nursery: a fault in one login ends no other.
            log.exception("login to MCP server failed")
            job.outcome = {
                "ok": False,
                "error": "the login failed; the server's log has the reason",
                "error_kind": "unknown",
            }
        finally:
            job.login = None
        job.status = SUCCEEDED if job.outcome["ok"] else FAILED
        job.ended_at = trio.current_time()
        job.note()

    async def _login(
        self, job: Job, name: str, entry: Mapping[str, Any], given: Mapping[str, str]
    ) -> dict[str, Any]:
        async with self.probe.login(name, entry, given) as login:
            while (event := await login.event())["event"] != "done":
                if event["event"] == "authorize":
                    job.url, job.status, job.login = event["url"], AUTHORIZING, login
                else:
                    job.refused += 1
                job.note()
            return event

    def _forget(self) -> None:
        now = trio.current_time()
        self._jobs = {
            key: job
            for key, job in self._jobs.items()
            if job.ended_at is None or now - job.ended_at < KEPT_SECONDS
        }


@asynccontextmanager
async def open_jobs(probe: McpProbe) -> AsyncIterator[McpJobs]:
    """Allow logins while the block runs; leaving it ends those in progress, with their processes."""
    async with trio.open_nursery() as nursery:
        yield McpJobs(nursery, probe)
        nursery.cancel_scope.cancel()
