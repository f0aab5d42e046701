"""The bundled agent, driven over pipes as Ostler drives any other."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from supervisor.agents.demo.turn import FILE_NAME
from supervisor.agents.process import StopStep, spawn

DEADLINE = 10


class Client:
    def __init__(self, process, cwd):
        self.process = process
        self.cwd = str(cwd)
        self.updates = []
        self.permissions = []
        self._buffer = b""
        self._next_id = 0

    async def send(self, **message):
        await self.process.stdin.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def start(self, method, **params):
        self._next_id += 1
        await self.send(id=self._next_id, method=method, params=params)
        return self._next_id

    async def read(self):
        while b"\n" not in self._buffer:
            data = await self.process.stdout.receive_some()
            assert data, f"ended: {self.process.stderr_tail()}"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        if message.get("method") == "session/update":
            self.updates.append(message["params"]["update"])
        elif message.get("method") == "session/request_permission":
            self.permissions.append(message)
        return message

    async def answer_to(self, request_id):
        while True:
            message = await self.read()
            if message.get("id") == request_id and "method" not in message:
                return message

    async def ask(self, method, **params):
        answer = await self.answer_to(await self.start(method, **params))
        assert "error" not in answer, answer
        return answer["result"]

    async def refusal(self, method, **params):
        return (await self.answer_to(await self.start(method, **params)))["error"]

    async def prompt(self, session, text):
        return await self.start("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    async def until_permission(self):
        while not self.permissions:
            await self.read()
        return self.permissions.pop()

    def text(self, kind="agent_message_chunk"):
        return "".join(u["content"]["text"] for u in self.updates if u["sessionUpdate"] == kind)

    def kinds(self):
        return {u["sessionUpdate"] for u in self.updates}

    def calls(self):
        calls = {}
        for update in self.updates:
            if "toolCallId" in update:
                calls.setdefault(update["toolCallId"], {}).update(update)
        return list(calls.values())


@pytest.fixture
def workspace(tmp_path):
    directory = tmp_path / "workspace"
    directory.mkdir()
    (directory / "notes.txt").write_text("n")
    return directory


@pytest.fixture
def demo(tmp_path, workspace):
    @asynccontextmanager
    async def open_demo():
        env = {"PATH": os.environ["PATH"], "OSTLER_DEMO_HOME": str(tmp_path / "home")}
        argv = [sys.executable, "-P", "-m", "supervisor.agents.demo"]
        with trio.fail_after(DEADLINE):
            async with spawn(argv, cwd=workspace, env=env) as process:
                yield Client(process, workspace)

    return open_demo


async def new(client):
    return (await client.ask("session/new", cwd=client.cwd, mcpServers=[]))["sessionId"]


async def test_initialize_tells_what_it_can(demo):
    async with demo() as client:
        result = await client.ask("initialize", protocolVersion=1, clientCapabilities={})
        assert result["protocolVersion"] == 1
        assert result["agentInfo"]["name"] == "ostler-demo"
        assert result["agentCapabilities"]["loadSession"] is True
        assert set(result["agentCapabilities"]["sessionCapabilities"]) == {"list", "resume", "close"}
        assert (await client.refusal("session/fork", sessionId="x"))["code"] == -32601


async def test_a_whole_turn(demo):
    async with demo() as client:
        session = await new(client)
        result = await client.answer_to(await client.prompt(session, "Good morning, demo"))
        assert result["result"]["stopReason"] == "end_turn"
        assert result["result"]["usage"]["totalTokens"] > 10
        kinds = "agent_thought_chunk plan tool_call tool_call_update agent_message_chunk usage_update"
        assert client.kinds() == set(kinds.split())
        assert "Good morning, demo" in client.text()
        assert "demo agent" in client.text()
        assert len([u for u in client.updates if u["sessionUpdate"] == "agent_message_chunk"]) > 10
        (call,) = client.calls()
        assert (call["kind"], call["status"]) == ("read", "completed")
        assert "notes.txt" in call["rawOutput"]
        plans = [u["entries"] for u in client.updates if u["sessionUpdate"] == "plan"]
        assert {entry["status"] for entry in plans[-1]} == {"completed"}
        assert not client.permissions


@pytest.mark.parametrize(
    ("option", "written", "status", "asked_again"),
    [
        ("allow", True, "completed", True),
        ("always", True, "completed", False),
        ("reject", False, "failed", True),
    ],
)
async def test_permission(demo, workspace, option, written, status, asked_again):
    async with demo() as client:
        session = await new(client)
        prompt = await client.prompt(session, "Please write a file")
        request = await client.until_permission()
        assert not (workspace / FILE_NAME).exists()
        kinds = [offered["kind"] for offered in request["params"]["options"]]
        assert kinds == ["allow_once", "allow_always", "reject_once"]
        assert request["params"]["sessionId"] == session
        await client.send(id=request["id"], result={"outcome": {"outcome": "selected", "optionId": option}})
        assert (await client.answer_to(prompt))["result"]["stopReason"] == "end_turn"
        assert (workspace / FILE_NAME).exists() is written
        assert client.calls()[-1]["status"] == status
        prompt = await client.prompt(session, "write it again")
        if asked_again:
            request = await client.until_permission()
            await client.send(id=request["id"], result={"outcome": {"outcome": "cancelled"}})
        stopped = (await client.answer_to(prompt))["result"]["stopReason"]
        assert stopped == ("cancelled" if asked_again else "end_turn")


async def test_auto_mode_does_not_ask(demo, workspace):
    async with demo() as client:
        session = await new(client)
        await client.ask("session/set_mode", sessionId=session, modeId="auto")
        await client.answer_to(await client.prompt(session, "write"))
        assert (workspace / FILE_NAME).exists()
        assert not client.permissions


async def test_cancel_in_mid_stream_then_another_turn(demo):
    async with demo() as client:
        session = await new(client)
        prompt = await client.prompt(session, "tell me slowly")
        while "tool_call" not in client.kinds():
            await client.read()
        began = trio.current_time()
        await client.send(method="session/cancel", params={"sessionId": session})
        result = await client.answer_to(prompt)
        assert result["result"]["stopReason"] == "cancelled"
        assert trio.current_time() - began < 1
        assert client.calls()
        assert all(call["status"] == "failed" for call in client.calls())
        result = await client.answer_to(await client.prompt(session, "and now"))
        assert result["result"]["stopReason"] == "end_turn"


async def test_cancel_with_an_open_permission(demo, workspace):
    async with demo() as client:
        session = await new(client)
        prompt = await client.prompt(session, "write a file")
        request = await client.until_permission()
        await client.send(method="session/cancel", params={"sessionId": session})
        assert (await client.answer_to(prompt))["result"]["stopReason"] == "cancelled"
        await client.send(id=request["id"], result={"outcome": {"outcome": "selected", "optionId": "allow"}})
        await client.answer_to(await client.prompt(session, "hello"))
        assert not (workspace / FILE_NAME).exists()


async def test_second_prompt_meanwhile_is_refused_and_other_sessions_go_on(demo):
    async with demo() as client:
        first, second = await new(client), await new(client)
        running = await client.prompt(first, "slowly please")
        assert (await client.answer_to(await client.prompt(first, "me too")))["error"]["code"] == -32600
        assert "result" in await client.answer_to(await client.prompt(second, "hello"))
        await client.send(method="session/cancel", params={"sessionId": first})
        await client.answer_to(running)


async def test_memory_survives_a_kill(demo):
    async with demo() as client:
        session = await new(client)
        await client.ask("session/set_config_option", sessionId=session, configId="mode", value="auto")
        await client.answer_to(await client.prompt(session, "the word is heron"))
        os.kill(client.process.pid, signal.SIGKILL)
        await client.process.wait()
    async with demo() as client:
        listed = await client.ask("session/list")
        assert [item["sessionId"] for item in listed["sessions"]] == [session]
        result = await client.ask("session/load", sessionId=session, cwd=client.cwd, mcpServers=[])
        assert result["modes"]["currentModeId"] == "auto"
        assert client.text("user_message_chunk") == "the word is heron"
        assert client.text().startswith("You said: the word is heron")
    async with demo() as client:
        await client.ask("session/resume", sessionId=session, cwd=client.cwd, mcpServers=[])
        assert client.updates == []
        await client.answer_to(await client.prompt(session, "what was it?"))
        assert "the word is heron" in client.text()
        await client.ask("session/close", sessionId=session)
        assert (await client.refusal("session/prompt", sessionId=session, prompt=[]))["code"] == -32602


@pytest.mark.parametrize("session", ["../../etc/passwd", "6f0d1b7e-0000-4000-8000-000000000000", 5])
async def test_unknown_session_is_refused(demo, session):
    async with demo() as client:
        assert (await client.refusal("session/load", sessionId=session, cwd="/", mcpServers=[]))[
            "code"
        ] == -32602


async def test_noise_is_survived_and_end_of_input_ends_it(demo):
    async with demo() as client:
        await client.process.stdin.send_all(b"not json\n[1]\n\n{}\n" + b'{"method": [], "id": 1}\n')
        assert (await client.read())["error"]["code"] == -32700
        assert await new(client)
        await client.process.stdin.aclose()
        assert (await client.process.wait()).code == 0
    assert client.process.stop_report.step is StopStep.EXITED


async def test_it_starts_without_the_supervisor():
    code = "import sys, supervisor.agents.demo.agent; print('trio' in sys.modules or 'attrs' in sys.modules)"
    done = await trio.run_process([sys.executable, "-P", "-c", code], capture_stdout=True)
    assert done.stdout == b"False\n"
