"""A deletion that can be undone, over the end of a server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from tests.conversations.harness import PATIENCE_SECONDS
from tests.support.client import rest_client
from tests.support.scripted import scripted_command
from tests.support.server import running_server


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_the_next_server_restores_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    agent = {"acp_server": "custom", "acp_command": scripted_command()}
    async with running_server(tmp_path) as server:
        one = (await server.rest.create(tmp_path / "work", agent))["id"]
        path = f"/api/conversations/{one}"
        message = {"content": [{"type": "text", "text": "hello"}], "run": True}
        await server.rest.call("POST", f"{path}/events", message)
        await server.rest.wait_status(one, "finished")
        assert (await server.rest.call("POST", f"{path}/restore", expect=409))["detail"]
        answer = await server.rest.call("DELETE", f"{path}?undo_seconds=300")
        assert answer.keys() == {"success", "undo_until"}
        refused = await server.rest.call("POST", f"{path}/events", message, expect=409)
        assert f"{path}/restore" in refused["detail"]
        server.signal(signal.SIGKILL)
        await server.wait()
        assert (server.state / "deletions.json").stat().st_mode & 0o777 == 0o600
        await server.start()
        async with rest_client(server.url) as rest:
            assert (await rest.call("GET", "/api/conversations/search"))["items"] == []
            assert await rest.call("GET", "/api/conversations/count") == 0
            await rest.call("POST", f"{path}/events", message, expect=409)
            assert await rest.call("POST", f"{path}/restore") == {"success": True}
            (item,) = (await rest.call("GET", "/api/conversations/search"))["items"]
            assert item["id"] == one
            await rest.call("POST", f"{path}/events", message)
            await rest.wait_status(one, "finished")
            await rest.call("DELETE", f"{path}?undo_seconds=1")
            with trio.fail_after(PATIENCE_SECONDS):
                while (await rest.http.get(path)).status_code != 404:
                    await trio.sleep(0.02)
            await rest.call("POST", f"{path}/restore", expect=404)
