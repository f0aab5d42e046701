"""A whole server with limits on its agents: the operator's, a start request's, and what clients see."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.support.scripted import scripted_command
from tests.support.server import running_server

MB = 1024 * 1024
WAIT_S = 30.0
ALLOWED = {"OSTLER_AGENT_MEMORY": str(160 * MB), "OSTLER_AGENT_OPEN_FILES": "200"}


def agent(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    command = scripted_command(home=tmp_path / "agents")
    return {"acp_server": "custom", "acp_command": command, **settings}


async def test_limits_from_the_operators_variables_to_what_a_client_sees(tmp_path: Path) -> None:
    async with running_server(tmp_path, ALLOWED) as server:
        rest = server.rest
        # Above the operator's: in a start request, and in the settings.
        refused = await rest.http.post(
            "/api/conversations",
            json={
                "workspace": {"working_dir": str(tmp_path / "work")},
                "agent_settings": {"agent_kind": "acp", **agent(tmp_path, acp_limits={"memory": 161 * MB})},
            },
        )
        assert refused.status_code == 422
        (error,) = refused.json()["detail"]
        assert error == {
            "loc": ["body", "agent_settings", "acp_limits", "memory"],
            "msg": f"Input should be less than or equal to {160 * MB}, the server's own limit",
            "type": "less_than_equal",
        }
        change = {"agent_settings_diff": {"acp_limits": {"open_files": 201, "disc": 1}}}
        refused = await rest.http.patch("/api/settings", json=change)
        assert refused.status_code == 422
        change = {"agent_settings_diff": {"acp_limits": {"open_files": 201}}}
        refused = await rest.http.patch("/api/settings", json=change)
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"][-2:] == ["acp_limits", "open_files"]
        # Below them.
        made = await rest.create(tmp_path / "work", agent(tmp_path, acp_limits={"open_files": 60}))
        assert made["agent"]["acp_limits"]["open_files"] == 60
        events = await rest.turn(made["id"], "!open 300")
        assert "Too many open files" in str(events)
        # The whole tree, by measurements.
        events = await rest.turn(made["id"], "!hoard 60000000 3\n!hang", wanted=("error",))
        (failure,) = [each for each in events if each["kind"] == "ConversationErrorEvent"]
        assert failure["code"] == "AgentLimit"
        assert "of memory; the limit is 160 MiB (OSTLER_AGENT_MEMORY)." in failure["detail"]
        events = await rest.turn(made["id"], "hello")
        assert "hello" in str(events)


def test_a_limit_that_nothing_holds_is_a_start_error(tmp_path: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "ostler"
    done = subprocess.run(
        [str(program), "serve", "--port", "0", "--state", str(tmp_path / "state")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OSTLER_AGENT_CPUS": "1.5"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ostler: OSTLER_AGENT_CPUS is unavailable: ")
    assert "OSTLER_CONTAINMENT=cgroup" in done.stderr.replace("\n", " ")
