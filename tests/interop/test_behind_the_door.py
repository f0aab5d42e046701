"""Real agents behind the network door: they do a turn, and the key of their model is in nothing of theirs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.catalog import Descriptor, load_catalog
from supervisor.agents.environment import compose_environment
from supervisor.agents.homes.credential import Choice, auth_params, choose_credential
from supervisor.agents.homes.data_dir import prepare_data_dir
from supervisor.agents.install.install import resolve_launch
from supervisor.agents.walls.door.rewiring import Wiring
from supervisor.conversations.state.deadlines import Deadlines
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import KEY, MORE_AGENTS, REAL_AGENTS, RealAgent, install
from tests.walls.door import inside
from tests.walls.door.inside import opened

TURN_S = 120.0
MOST_BYTES = 1 << 30
"""Of a mapping that is looked into: larger ones are reserved, and empty."""

AGENTS = [
    *REAL_AGENTS.values(),
    *(MORE_AGENTS[key] for key in ("qwen-code", "kimi-code", "copilot", "mistral-vibe", "fast-agent")),
]
"""Those that take the address of their model from their environment."""

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="malicious-agents")]


class Agent:
    """A process that speaks ACP on its standard streams."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said = ""
        self._asked = 0
        self._unsplit = b""

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._asked += 1
        await self._send({"id": self._asked, "method": method, "params": params})
        while True:
            message = await self._next()
            if "method" not in message and message.get("id") == self._asked:
                return message
            if "id" in message:
                refusal = {"code": -32601, "message": "not here"}
                await self._send({"id": message["id"], "error": refusal})
            elif message.get("method") == "session/update":
                update = message["params"]["update"]
                if update["sessionUpdate"] == "agent_message_chunk":
                    self.said += update["content"].get("text", "")

    async def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._unsplit:
            data = await self.process.stdout.receive_some(65536)
            assert data, "the agent ended"
            self._unsplit += data
        line, _, self._unsplit = self._unsplit.partition(b"\n")
        return dict(json.loads(line))


async def _session(
    agent: Agent, cwd: Path, descriptor: Descriptor, choice: Choice, env: dict[str, str]
) -> str:
    """Open a session, with a login where the agent asks for one."""
    answer = await agent.ask("initialize", protocolVersion=1, clientCapabilities={})
    offered = [method["id"] for method in answer["result"].get("authMethods", ())]
    opening = {"cwd": str(cwd), "mcpServers": []}
    answer = await agent.ask("session/new", **opening)
    if "error" in answer:
        params = auth_params(descriptor, choice, offered, env)
        assert params is not None, answer
        assert "result" in await agent.ask("authenticate", **params)
        answer = await agent.ask("session/new", **opening)
    return str(answer["result"]["sessionId"])


def _strangers() -> Iterator[Path]:
    """The processes of other network namespaces than this test's."""
    ours = os.readlink("/proc/self/ns/net")
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and os.readlink(directory / "ns/net") != ours:
                yield directory
        except OSError:
            continue


def holders(wanted: bytes, environment: bytes) -> list[str]:
    """Which processes with this in their environment have `wanted` in their memory, which holds the
    environment and the command line too."""
    found = []
    for process in _strangers():
        try:
            if environment in (process / "environ").read_bytes() and _holds(process, wanted):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def _holds(process: Path, wanted: bytes) -> bool:
    with (process / "mem").open("rb", 0) as memory:
        for line in (process / "maps").read_text().splitlines():
            place, rights, *_ = line.split()
            low, high = (int(each, 16) for each in place.split("-"))
            if "r" not in rights or high - low > MOST_BYTES:
                continue
            try:
                memory.seek(low)
                if wanted in memory.read(high - low):
                    return True
            except (OSError, OverflowError, ValueError):
                continue
    return False


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.key)
async def test_a_turn_without_a_key(
    agent: RealAgent, model_api: ModelApi, agents_prefix: Path, tmp_path: Path
) -> None:
    inside.require("ordinary")
    await install(agent, agents_prefix)
    descriptor = load_catalog()[agent.key]
    work, home, data = (tmp_path / name for name in ("work", "home", "data"))
    for each in (work, home, data):
        each.mkdir()
    agent.put_files(model_api.url, home)
    model_api.key = KEY
    secrets = agent.secrets(model_api.url)
    choice = choose_credential(descriptor, dict.fromkeys(secrets, "store"))
    await prepare_data_dir(descriptor, data, secrets=secrets, home=home)
    server_env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    launch = await resolve_launch(
        descriptor,
        (),
        (),
        agents_prefix,
        progress=print,
        seconds=Deadlines().install,
        server_env=dict(os.environ),
    )
    composed = compose_environment(
        server_env=server_env,
        descriptor=descriptor,
        secrets=secrets,
        data_dir=data,
        extra={},
        path=launch.path,
        choice=choice,
    )
    wiring = Wiring()
    env = wiring.environment(descriptor, composed, choice)
    assert wiring.kept == []
    async with opened(tmp_path, user="root" if os.geteuid() == 0 else "ordinary", wiring=wiring) as door:
        flags = [*inside.FLAGS, "--bind", str(tmp_path), str(tmp_path), "--chdir", str(work)]
        process = await trio.lowlevel.open_process(
            door.command(launch.argv, flags),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        try:
            with trio.fail_after(TURN_S):
                speaker = Agent(process)
                session = await _session(speaker, work, descriptor, choice, env)
                model = agent.settings.get("acp_model")
                if model is not None:
                    await speaker.ask("session/set_model", sessionId=session, modelId=model)
                prompt = [{"type": "text", "text": "Hello there"}]
                answer = await speaker.ask("session/prompt", sessionId=session, prompt=prompt)
                assert answer["result"]["stopReason"] == "end_turn"
                assert "Hello there" in speaker.said
                [instead] = wiring.upstreams[0].keys
                place, search = str(tmp_path).encode(), trio.to_thread.run_sync
                assert await search(holders, instead.encode(), place) != []
                assert await search(holders, KEY.encode(), place) == []
        finally:
            process.kill()
            await process.wait()
    assert {call.key for call in model_api.calls} == {KEY}
    with_key = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert with_key == []
