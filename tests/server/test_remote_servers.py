"""A server whose agent is another server: `/acp` there, `acp_url` here."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.commands.editor import editor
from tests.server.test_acp import log_of
from tests.server.test_acp_bridge import begun, prompt, texts, until
from tests.support.scripted import scripted_command
from tests.support.server import running_server


async def test_a_conversation_through_two_servers(tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    for each in (far, near):
        (each / "workspace").mkdir(parents=True)
    environment = {"OSTLER_ACP": "on", "OSTLER_SESSION_API_KEY": "key-of-the-far-one"}
    secrets = {"OSTLER_SECRET_FAR_KEY": "key-of-the-far-one"}
    async with running_server(far, environment) as there, running_server(near, secrets) as here:
        command = scripted_command(log=far / "scripted.log", home=far / "scripted-home")
        custom = {"agent_kind": "acp", "acp_server": "custom", "acp_command": command}
        there.rest.http.headers["X-Session-API-Key"] = "key-of-the-far-one"
        await there.rest.call("PATCH", "/api/settings", {"agent_settings_diff": custom})
        remote = {
            "agent_kind": "acp",
            "acp_url": there.url,
            "acp_headers": {"X-Session-API-Key": "${FAR_KEY}"},
        }
        await here.rest.call("PATCH", "/api/settings", {"agent_settings_diff": remote})
        async with editor(near, "--url", here.url) as ide:
            session = await begun(ide, near)
            await ide.ask("session/prompt", prompt(session, "!tool\n!text from afar"), identity=2)
            found = await until(ide, 2)
            assert found[-1]["result"]["stopReason"] == "end_turn"
            assert "from afar" in texts(found)
            # The far server is killed: its warden starts it again, and the near one its relay.
            os.kill(int((there.state / "server.pid").read_text().split()[0]), signal.SIGKILL)
            await ide.ask("session/prompt", prompt(session, "!text after the kill"), identity=3)
            after = await until(ide, 3)
            if "error" in after[-1]:  # it reached the relay before it had noticed
                await ide.ask("session/prompt", prompt(session, "!text after the kill"), identity=4)
                after += await until(ide, 4)
            assert after[-1]["result"]["stopReason"] == "end_turn", after
            assert "after the kill" in texts(after)
            assert log_of(there).prompts()[0] == "!tool\n!text from afar"
