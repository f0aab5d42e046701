"""acpx: a command for each thing, a process behind it that has the session and starts the agent."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from tests.interop.editors.clients import TURN_SECONDS, Agent
from tests.interop.editors.install import ACPX
from tests.interop.npm import Packages
from tests.support.processes import kill_mentioning

Message = Mapping[str, Any]

DENIED = 5
"""Its status where a permission was denied."""

OWNER_SECONDS = 60
"""How long the process behind it stays without work: `forget` ends it before."""


@attrs.frozen
class Acpx:
    """acpx with an agent, in the agent's directory."""

    packages: Packages
    agent: Agent

    def __call__(self, *arguments: str, status: int = 0) -> list[Message]:
        """Run it; the messages of the protocol that it prints."""
        with self.started(*arguments) as process:
            out, _ = process.communicate(timeout=TURN_SECONDS)
        assert process.returncode == status, (arguments, process.returncode, out[-2000:], self._log())
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The same as a process at work."""
        home = self.agent.cwd.parent
        command = [self.packages.node, str(self.packages.directory / ACPX), "--cwd", str(self.agent.cwd)]
        command += [
            "--ttl",
            str(OWNER_SECONDS),
            "--format",
            "json",
            "--agent",
            shlex.join(self.agent.command),
        ]
        with (
            (home / "acpx.log").open("a") as errors,
            subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={"PATH": os.environ["PATH"], "HOME": str(home), **self.agent.environment},
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def _log(self) -> str:
        return (self.agent.cwd.parent / "acpx.log").read_text()[-2000:]

    def prompt_until(self, text: str, found: Callable[[str], bool], then: Callable[[], Any]) -> list[Message]:
        """Prompt, do something when a line of it is this one, and wait for the end."""
        messages = []
        done = False
        with self.started("prompt", text) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    messages.append(json.loads(line))
                if not done and found(line):
                    then()
                    done = True
            process.wait(TURN_SECONDS)
        assert done, messages
        return messages

    def forget(self) -> None:
        """End the processes behind it, so that the next command starts the agent again."""
        kill_mentioning(self.agent.cwd)


def updates(messages: list[Message]) -> list[dict[str, Any]]:
    """The updates among these."""
    return [each["params"]["update"] for each in messages if each.get("method") == "session/update"]


def stop(messages: list[Message]) -> str:
    """Why the turn ended."""
    return str(
        next(each["result"]["stopReason"] for each in messages if "stopReason" in (each.get("result") or {}))
    )
