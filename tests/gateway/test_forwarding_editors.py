"""An editor's socket goes to the server that has its session."""

from __future__ import annotations

import pytest
import trio
from trio_websocket import ConnectionClosed

from tests.gateway.servers import cluster
from tests.support.acp_client import Failed, acp_client


@pytest.fixture
async def two(tmp_path):
    async with cluster(tmp_path, 2) as made:
        yield made


def session(conversation):
    return {"sessionId": conversation.id, "cwd": "/w", "mcpServers": []}


@pytest.mark.parametrize("method", ["session/load", "session/resume", "_ostler/attach"])
async def test_a_session_of_another_server(two, method):
    conversation = await two.conversation(1)
    async with acp_client(two.gateways[0].url) as client:
        await client.call(method, {**session(conversation), "position": ""})
        chosen = {"sessionId": conversation.id, "modeId": "ask"}
        assert await client.call("session/set_mode", chosen) == {}
        assert conversation.calls == [("mode", "ask")]
        # One answer to `initialize`, though both servers were asked.
        assert len([each for each in client.received if "agentCapabilities" in each.get("result", {})]) == 1


async def test_sessions_of_two_servers_on_one_connection(two):
    here, there = await two.conversation(0), await two.conversation(1)
    for first, second, name in ((here, there, "server-1"), (there, here, "server-0")):
        async with acp_client(two.gateways[0].url) as client:
            await client.call("session/resume", session(first))
            with pytest.raises(Failed, match="Open another connection for it") as failed:
                await client.call("session/resume", session(second))
            assert failed.value.data == {"server": name}
            assert await client.call("session/set_mode", {"sessionId": first.id, "modeId": "ask"}) == {}


async def test_a_server_that_is_away(two):
    conversation = await two.conversation(1)
    two.views[1].address = "http://127.0.0.1:1"
    two.move(conversation, 1)
    async with acp_client(two.gateways[0].url) as client:
        await client.begin("session/resume", session(conversation))
        with trio.fail_after(5):
            while client.socket.closed is None:
                await trio.sleep(0.01)
        assert client.socket.closed.code == 1013


async def test_the_end_of_the_other_server(two):
    conversation = await two.conversation(1)
    async with acp_client(two.gateways[0].url) as client:
        await client.call("session/resume", session(conversation))
        two.gateways[1].services.closing.set()
        with trio.fail_after(5):
            while client.socket.closed is None:
                await trio.sleep(0.01)
        assert client.socket.closed.code == 1001
        with pytest.raises(ConnectionClosed):
            await client.socket.send_message("{}")
