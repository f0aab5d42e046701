"""A Deep Agent that asks before it runs a command or writes a file, as its makers' pages build one."""

from __future__ import annotations

import asyncio
from typing import Any

from acp import run_agent
from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from deepagents_acp.server import AgentServerACP
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver

ASKS = {"allowed_decisions": ["approve", "reject"]}
MEMORY = MemorySaver()


def build(context: Any) -> Any:
    return create_deep_agent(
        model=ChatOpenAI(model="test-model"),
        checkpointer=MEMORY,
        backend=LocalShellBackend(root_dir=context.cwd, virtual_mode=False),
        interrupt_on={"execute": ASKS, "write_file": ASKS},
    )


asyncio.run(run_agent(AgentServerACP(agent=build)))
