"""Four ACP clients that nobody here wrote: acpx, the TypeScript SDK, the Python SDK, acp.el.

The two SDKs and acp.el are libraries. A driver of each does the same steps with any agent and prints
what comes, a line of JSON each:

    {"do": "new"}, {"do": "load", "session": ID}, {"do": "list"}, {"do": "mode", "mode": ID}
    {"do": "prompt", "text": TEXT, "cancel_at": TEXT}       cancelled when the agent has said that
    {"do": "watch"}                                         until standard input says `end`

Each can have "answer", how permissions are answered meanwhile: allow (default), reject, or word: when
standard input says `answer`.

acp.el does neither word nor watch. acpx is a command, and is driven by its own arguments (`acpx.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).resolve().parent
TURN_SECONDS = 90.0
"""For what a test waits for: a real agent's first turn takes some seconds, more on a busy machine."""

Event = dict[str, Any]
Step = Mapping[str, Any]


@attrs.frozen
class Agent:
    """What a client starts: `ostler acp`, or an agent itself."""

    command: Sequence[str]
    cwd: Path
    environment: Mapping[str, str] = attrs.field(factory=dict)


class Drive:
    """A driver's process, and what it has told until now."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[Event] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, found: Callable[[Event], Any], *, start: int = 0) -> Event:
        """The first event from `start` on for which this holds."""
        until = time.monotonic() + TURN_SECONDS
        with self._news:
            while True:
                for event in self.events[start:]:
                    if found(event):
                        return event
                assert self._reader.is_alive(), f"the client has ended: {self.events[-5:]}"
                assert time.monotonic() < until, f"it does not come: {self.events[-5:]}"
                self._news.wait(1)

    def say(self, word: str) -> None:
        """To the driver's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def finish(self) -> Outcome:
        """Wait for the end."""
        status = self.process.wait(TURN_SECONDS)
        self._reader.join(TURN_SECONDS)
        assert status == 0, (status, self.events[-5:])
        return Outcome(self.events)

    def kill(self) -> list[Event]:
        """SIGKILL to the client alone, as a crash would have it; what it had told."""
        self.process.kill()
        self.process.wait(TURN_SECONDS)
        self._reader.join(TURN_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        return self.events


@attrs.frozen
class Outcome:
    """What a driver told."""

    events: list[Event]

    def of(self, event: str) -> list[Event]:
        return [each for each in self.events if each["event"] == event]

    def answers(self, do: str) -> list[Any]:
        """The results of these steps; an error fails the test."""
        answers = [each for each in self.of("answer") if each["do"] == do]
        assert all("result" in each for each in answers), answers
        return [each["result"] for each in answers]

    @property
    def session(self) -> str:
        return str(self.answers("new")[0]["sessionId"])

    def updates(self, step: int | None = None) -> list[dict[str, Any]]:
        """The updates; of one step, those after the answer of the step before."""
        updates, at = [], 0
        for each in self.events:
            if each["event"] == "answer":
                at = each["step"] + 1
            elif each["event"] == "update" and step in (None, at):
                updates.append(each["update"])
        return updates


def text(updates: Sequence[Mapping[str, Any]], kind: str = "agent_message_chunk") -> str:
    """What these say."""
    return "".join(each["content"].get("text") or "" for each in updates if each["sessionUpdate"] == kind)


@attrs.frozen
class Client:
    """A library with a driver."""

    name: str
    command: tuple[str, ...]

    @contextmanager
    def start(self, agent: Agent, *steps: Step) -> Iterator[Drive]:
        """A driver at work; killed at the end."""
        given = {
            "command": list(agent.command),
            "cwd": str(agent.cwd),
            "env": dict(agent.environment),
            "steps": steps,
        }
        with (agent.cwd.parent / f"{self.name}.log").open("a") as errors:
            process = subprocess.Popen(
                [*self.command, json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={"PATH": os.environ["PATH"], "HOME": str(agent.cwd.parent)},
                cwd=agent.cwd,
            )
        drive = Drive(process)
        try:
            yield drive
        except BaseException:
            print((agent.cwd.parent / f"{self.name}.log").read_text()[-4000:])
            raise
        finally:
            drive.kill()

    def run(self, agent: Agent, *steps: Step) -> Outcome:
        """Do these steps and end."""
        with self.start(agent, *steps) as drive:
            return drive.finish()


def example(client: tuple[str, str], agent: Agent, prompt: str) -> str:
    """What the Python SDK's example client prints of the agent's answer to a prompt."""
    done = subprocess.run(
        [*client, *agent.command],
        input=f"{prompt}\n",
        capture_output=True,
        text=True,
        timeout=TURN_SECONDS,
        cwd=agent.cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(agent.cwd.parent), **agent.environment},
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr[-4000:])
    assert "ERROR" not in done.stderr, done.stderr[-4000:]
    prefix = "| Agent: "
    lines = [line.removeprefix("> ") for line in done.stdout.splitlines()]
    return "".join(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
