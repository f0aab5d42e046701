"""Commands of clients in a real server: whatever ends the server, nothing of a command is left."""

from __future__ import annotations

import shlex
import signal
import sys

import pytest
import trio

from supervisor.agents.containment import levels
from supervisor.agents.containment.levels import Level
from tests.support.processes import alive, environment, kill
from tests.support.server import running_server
from tests.workspace.test_bash import DAEMON, pid_in, until

WAIT_S = 20.0


def daemon(note):
    """A command that leaves a daemon and then hangs itself, both deaf to SIGTERM."""
    code = shlex.join([sys.executable, "-I", "-S", "-c", DAEMON, str(note)])
    child = f"echo $! > {note}.part; mv {note}.part {note}.child"
    return f"trap '' TERM; {code}; sleep 300 & {child}; wait; sleep 300"


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.parametrize("end", ["server killed", "SIGTERM", "warden killed"])
async def test_nothing_of_a_command_is_left(tmp_path, end):
    notes = [tmp_path / "one", tmp_path / "two"]
    async with running_server(tmp_path) as server:
        below = await below_a_conversation(server, tmp_path)
        for note, path in zip(notes, ("/api/bash", below), strict=True):
            await server.rest.call("POST", f"{path}/start_bash_command", {"command": daemon(note)})
        daemons = [await pid_in(note) for note in notes]
        children = [await pid_in(tmp_path / f"{note.name}.child") for note in notes]
        pids = [*daemons, *children]
        await until(lambda: all(environment(pid) == {} for pid in daemons))
        assert all(map(alive, pids))
        pid = int((server.state / "server.pid").read_text())
        if end == "server killed":
            kill([pid])
        elif end == "warden killed":
            kill([server.pid])
        else:
            assert await server.stop() == 0
        await until(lambda: not any(map(alive, pids)))
        if end == "server killed":
            # The next server remembers nothing of it, and works.
            with trio.fail_after(WAIT_S):
                found = await server.rest.call("GET", "/api/bash/bash_events/search")
                assert found["items"] == []
                done = await server.rest.call("POST", "/api/bash/execute_bash_command", {"command": "echo a"})
                assert done["stdout"] == "a\n"
        else:
            if end == "warden killed":
                await until(lambda: not alive(pid))
            assert server.left() == []


async def below_a_conversation(server, tmp_path):
    settings = {"acp_server": "demo"}
    created = await server.rest.create(tmp_path / "work", settings)
    return f"/api/conversations/{created['id']}/bash"


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.parametrize(
    "level",
    [
        pytest.param(
            each,
            marks=pytest.mark.skipif(
                levels.obstacle(each, warden=True) is not None, reason="this level is not to be had here"
            ),
        )
        for each in (Level.CGROUP, Level.PIDNS)
    ],
)
async def test_a_command_is_contained_as_agents_are(tmp_path, level):
    note = tmp_path / "note"
    async with running_server(tmp_path, arguments=["--containment", level.value]) as server:
        run = "/api/bash/execute_bash_command"
        done = await server.rest.call("POST", run, {"command": "echo out; echo err >&2; kill -9 $$"})
        assert (done["stdout"], done["exit_code"]) == ("out\n", -9)
        assert done["stderr"].startswith("err\n")
        command = await server.rest.call("POST", "/api/bash/start_bash_command", {"command": daemon(note)})
        pids = [await pid_in(note), await pid_in(tmp_path / "note.child")]
        stopped = f"/api/bash/bash_commands/{command['id']}/stop"
        assert await server.rest.call("POST", stopped) == {"success": True}
        if level is not Level.PIDNS:  # where they have other numbers
            assert not any(map(alive, pids))
        assert await server.stop() == 0
        assert server.left() == []


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_command_is_shown_neither_the_key_nor_the_environment(tmp_path):
    key = "key-0123456789abcdef"
    environment = {"OSTLER_SESSION_API_KEY": key, "ANTHROPIC_API_KEY": "anthropic-0123456789abcdef"}
    async with running_server(tmp_path, environment) as server:
        server.rest.http.headers["X-Session-API-Key"] = key
        (tmp_path / "note").write_text(key)
        command = f"env; cat {tmp_path}/note; echo"
        done = await server.rest.call("POST", "/api/bash/execute_bash_command", {"command": command})
    names = {line.partition("=")[0] for line in done["stdout"].splitlines()}
    assert "PATH" in names
    assert not names & set(environment)
    assert "\n<secret-hidden>\n" in done["stdout"]


async def test_the_signal_of_the_end_is_heard_while_a_command_is_waited_for(tmp_path):
    async with running_server(tmp_path) as server, trio.open_nursery() as nursery:

        async def wait():
            with trio.move_on_after(WAIT_S):
                try:
                    await server.rest.call("POST", "/api/bash/execute_bash_command", {"command": "sleep 300"})
                except Exception:
                    return

        nursery.start_soon(wait)
        await trio.sleep(0.5)
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0
        assert server.left() == []
        nursery.cancel_scope.cancel()
