"""Every line of the log that is about a conversation says which one."""

from __future__ import annotations

from pathlib import Path

import structlog
from structlog.testing import capture_logs

from supervisor.agents.restart import RestartPolicy
from tests.conversations.harness import open_harness, ready_pid, say, settled, turn, until

SERVER_WIDE = frozenset(
    {
        "created a master key for secrets",
        "closed the state directory to other users",
    }
)
"""Lines about no conversation."""


async def test_every_line_about_a_conversation_names_it(tmp_path: Path) -> None:
    """Lines of all rooms: the process that dies, the connection that reads nonsense, the turn that fails, the
    agent that comes back, is stopped by an operator and hibernated."""
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        async with open_harness(tmp_path, restart=RestartPolicy(first_pause=0.01, crashes=1)) as harness:
            crashing = await harness.start("crash=idle:9")
            for _ in range(3):
                await turn(crashing, "hello")
                if crashing.agent.phase == "parked":
                    break
            noisy = await harness.start("banner=3", "cancel=ignore", "without=close")
            await noisy.send(say("!hang"), run=True)
            await until(lambda: ready_pid(noisy))
            await noisy.interrupt()
            await until(lambda: not noisy.busy)
            refused = await harness.start("crash=new:1")
            await refused.send(say("hello"), run=True)
            await settled(refused)
            await noisy.agent.hibernate("a test wants it")
            await harness.supervisor.restart_agent(crashing.id)
    known = {crashing.id, noisy.id, refused.id}
    about = [line for line in lines if line["event"] not in SERVER_WIDE]
    assert {line["event"] for line in about} >= {"agent exited", "turn failed", "agent is parked"}
    assert [line for line in about if line.get("conversation_id") not in known] == []
    assert {line["conversation_id"] for line in about} == known
