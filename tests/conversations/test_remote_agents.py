"""An agent at an address: its process is Ostler's relay, and all else is as for any agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from supervisor.conversations.state.start import StartRequest
from supervisor.events import Vocabulary
from supervisor.settings.agent import AgentSettings
from supervisor.settings.remote import RELAY_COMMAND
from tests.conversations.harness import Harness, events, open_harness, ready_pid, say, settled, states, until
from tests.support.scripted import scripted_command


class Remote:
    """A machine elsewhere: each connection has a scripted agent of its own. `refuse`: the status of the next
    handshakes."""

    def __init__(self, directory: Path) -> None:
        self._command = scripted_command(log=directory / "remote.log", home=directory / "remote")
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.refuse: int | None = None
        self.cut: trio.CancelScope | None = None
        self.port = 0

    async def handle(self, request: WebSocketRequest) -> None:
        self.headers.append({name.decode().lower(): value.decode() for name, value in request.headers})
        self.paths.append(request.path)
        if self.refuse is not None:
            await request.reject(self.refuse)
            return
        socket = await request.accept(extra_headers=[(b"acp-connection-id", b"1")])
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(self._agent)

            async def back() -> None:
                buffer = b""
                assert process.stdout is not None
                async for data in process.stdout:
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in lines:
                        await socket.send_message(line.decode())

            nursery.start_soon(back)
            assert process.stdin is not None
            with suppress(ConnectionClosed), trio.CancelScope() as self.cut:
                while True:
                    text = await socket.get_message()
                    await process.stdin.send_all(text.encode() + b"\n")
            nursery.cancel_scope.cancel()

    async def _agent(self, task_status: Any) -> None:
        async def start(task_status: Any) -> None:
            await trio.run_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                check=False,
                task_status=task_status,
            )

        async with trio.open_nursery() as nursery:
            task_status.started(await nursery.start(start))


@asynccontextmanager
async def remote_agent(directory: Path) -> AsyncIterator[Remote]:
    found = Remote(directory)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(
            lambda task_status: serve_websocket(
                found.handle, "127.0.0.1", 0, None, max_message_size=1 << 25, task_status=task_status
            )
        )
        found.port = server.port
        yield found
        nursery.cancel_scope.cancel()


async def start(harness: Harness, url: str, **headers: str) -> Any:
    agent = AgentSettings(acp_server="custom", acp_command=RELAY_COMMAND, acp_url=url, acp_headers=headers)
    request = StartRequest(
        working_dir=str(harness.root / "workspace"),
        agent=agent,
        spelled_out=True,
        event_vocabulary=Vocabulary.EXTENDED,
    )
    conversation, _ = await harness.supervisor.create(request)
    return conversation


async def said(conversation: Any, text: str) -> list[dict[str, Any]]:
    await conversation.send(say(text), run=True)
    await settled(conversation)
    return await events(conversation)


def problems(found: list[dict[str, Any]]) -> list[str]:
    return [each["detail"] for each in found if each["kind"] == "ConversationErrorEvent"]


async def test_a_turn_and_the_headers_with_secrets(tmp_path: Path) -> None:
    secrets = {"REMOTE_TOKEN": "token-of-the-remote", "OTHER": "another-secret-value"}
    async with remote_agent(tmp_path) as remote, open_harness(tmp_path, secrets=secrets) as harness:
        conversation = await start(
            harness, f"http://127.0.0.1:{remote.port}", Authorization="Bearer ${REMOTE_TOKEN}", X_Team="blue"
        )
        found = await said(conversation, "hello")
        assert [each.get("stop_reason") for each in states(found, "turn")] == [None, "end_turn"]
        assert problems(found) == []
        assert remote.paths == ["/acp"]
        assert remote.headers[0]["authorization"] == "Bearer token-of-the-remote"
        assert remote.headers[0]["x_team"] == "blue"
        pid = ready_pid(conversation)
        process = Path(f"/proc/{pid}")
        assert b"token-of-the-remote" not in (process / "cmdline").read_bytes()
        environment = (process / "environ").read_bytes()
        assert b"token-of-the-remote" in environment
        assert b"another-secret-value" not in environment


async def test_a_lost_connection_is_a_restart_with_the_session(tmp_path: Path) -> None:
    async with remote_agent(tmp_path) as remote, open_harness(tmp_path) as harness:
        conversation = await start(harness, f"ws://127.0.0.1:{remote.port}/agent?x=1")
        await said(conversation, "hello")
        first = ready_pid(conversation)
        assert remote.cut is not None
        remote.cut.cancel()
        await until(lambda: len(remote.paths) == 2)
        await until(lambda: ready_pid(conversation) not in (None, first))
        found = await said(conversation, "hello again")
        assert remote.paths == ["/agent?x=1"] * 2
        (exit_,) = states(found, "agent_exit")
        assert exit_["last_words"] == [
            f"ws://127.0.0.1:{remote.port}/agent: the remote agent ended the connection (1000)"
        ]
        assert states(found, "agent_state")[-1]["memory"] == "resumed"
        assert problems(found) == []


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "check acp_headers, and the secrets that they name"),
        (404, "check the path of acp_url"),
        (500, "(status 500)"),
    ],
)
async def test_a_refusal_says_what_to_do(tmp_path: Path, status: int, hint: str) -> None:
    async with remote_agent(tmp_path) as remote, open_harness(tmp_path) as harness:
        remote.refuse = status
        conversation = await start(harness, f"ws://127.0.0.1:{remote.port}/?key=in-the-query")
        text = " ".join(problems(await said(conversation, "hello")))
        assert hint in text
        assert "in-the-query" not in text


async def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    async with remote_agent(tmp_path) as remote:
        port = remote.port
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, f"ws://127.0.0.1:{port}/acp")
        text = " ".join(problems(await said(conversation, "hello")))
        assert f"ws://127.0.0.1:{port}/acp: the remote agent cannot be reached (Connection refused)" in text
        assert "check acp_url" in text


async def test_a_secret_that_is_missing_is_named(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, "ws://127.0.0.1:1", Authorization="Bearer ${GONE}")
        text = " ".join(problems(await said(conversation, "hello")))
        assert (
            "acp_headers: there is no value for the secret GONE; store it with `ostler secrets set`" in text
        )


async def test_an_address_that_was_taken_away_is_named(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, "")
        text = " ".join(problems(await said(conversation, "hello")))
        assert "acp_url is not set" in text


async def test_stopping_the_agent_leaves_no_process(tmp_path: Path) -> None:
    async with remote_agent(tmp_path) as remote, open_harness(tmp_path) as harness:
        conversation = await start(harness, f"ws://127.0.0.1:{remote.port}")
        await said(conversation, "hello")
        pid = ready_pid(conversation)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
