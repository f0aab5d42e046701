"""The peer's own SDK, in an environment of its own, as a client of our server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.peer_environment import PeerEnvironment
from tests.interop.recording import Recording
from tests.support.client import of_kind, rest_client
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess, shared_server
from tests.support.sockets import collect

pytestmark = pytest.mark.interop

RICH_PROMPTS = (
    "hello there",
    "!rich",
    "!text before \n!tool\n!text between \n!failtool\n!diff notes.txt\n!think a thought\n!text after",
    "!opentool",
    "!unknown\n!badtypes\n!noid\n!strayupdate\n!duptool",
    "!stop refusal",
    "!stop max_tokens",
    "!bigtool 200000",
)


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with shared_server(tmp_path_factory.mktemp("peer-sdk")) as running:
        yield running


@pytest.fixture
async def server(one_server: ServerProcess) -> AsyncIterator[ServerProcess]:
    """One for all of them."""
    async with rest_client(one_server.url) as one_server.rest:
        yield one_server


@pytest.fixture
def log(tmp_path: Path) -> ScriptedLog:
    return ScriptedLog(tmp_path / "scripted.jsonl")


@pytest.fixture
def command(tmp_path: Path, log: ScriptedLog) -> list[str]:
    return scripted_command("usage", log=log.path, home=tmp_path / "sessions")


async def drive(
    peer: PeerEnvironment, scenario: str, server: ServerProcess, directory: Path, command: list[str]
) -> dict[str, Any]:
    workspace = directory / "workspace"
    workspace.mkdir()

    def run() -> list[dict[str, Any]]:
        arguments = (scenario, server.url, str(workspace), *command)
        return peer.run("drive.py", *arguments, home=directory / "peer-home")

    (result,) = await trio.to_thread.run_sync(run)
    return result


async def test_two_turns(
    peer: PeerEnvironment, server: ServerProcess, tmp_path: Path, command: list[str], log: ScriptedLog
) -> None:
    result = await drive(peer, "turns", server, tmp_path, command)
    first, second = result["answers"]
    assert first.strip() == "echo: hello peer"
    assert second.strip() == "after"
    assert result["status"] == "finished"
    assert log.prompts() == ["hello peer", "!text before \n!tool\n!text after"]
    assert len(log.pids()) == 1
    journal = await server.rest.events(result["id"])
    started, _ = of_kind(journal, "ACPToolCallEvent")
    journal.remove(started)  # the client shows the end of a call in place of its start
    assert [event["id"] for event in journal] == result["logged"]
    assert {event["kind"] for event in journal} <= set(result["seen"])
    assert "StreamingDeltaEvent" in result["seen"]


async def test_turns_that_are_over_at_once(
    peer: PeerEnvironment, server: ServerProcess, tmp_path: Path, command: list[str]
) -> None:
    """The client takes a full_state for the end of a run only after it has read the answer to POST run.

    A turn can be over before that; without another snapshot the client waits for 30 s.
    """
    result = await drive(peer, "quick", server, tmp_path, command)
    assert result["slowest"] < 2.0


async def test_an_interrupt(
    peer: PeerEnvironment, server: ServerProcess, tmp_path: Path, command: list[str], log: ScriptedLog
) -> None:
    result = await drive(peer, "interrupt", server, tmp_path, command)
    assert result["took"] < 2.5
    assert result["returned"]
    assert result["after"] == "paused"
    assert "still there?" in result["answer"]
    assert log.prompts() == ["!slow 400 50", "still there?"]
    assert len(log.pids()) == 1
    assert len(log.received("session/cancel")) == 1


async def test_a_pause(
    peer: PeerEnvironment, server: ServerProcess, tmp_path: Path, command: list[str]
) -> None:
    result = await drive(peer, "pause", server, tmp_path, command)
    assert result["returned"]
    assert result["after"] == "paused"


async def test_confirmations(
    peer: PeerEnvironment, server: ServerProcess, tmp_path: Path, command: list[str]
) -> None:
    result = await drive(peer, "confirm", server, tmp_path, command)
    assert result["waiting"] == "waiting_for_confirmation"
    assert result["accepted"] == "finished"
    assert (tmp_path / "workspace" / "yes.txt").read_text() == "content"
    assert not (tmp_path / "workspace" / "no.txt").exists()


async def test_a_second_client(
    peer: PeerEnvironment, server: ServerProcess, tmp_path: Path, command: list[str]
) -> None:
    result = await drive(peer, "attach", server, tmp_path, command)
    assert result["same"]
    assert result["events"] > 3


@pytest.mark.parametrize("vocabulary", ["core", "extended"])
async def test_everything_a_scripted_agent_can_cause(
    server: ServerProcess, tmp_path: Path, command: list[str], recording: Recording, vocabulary: str
) -> None:
    """Fills the recording that test_recorded_events has read by the SDK."""
    rest = server.rest
    info = await rest.create(
        tmp_path / "workspace",
        {"acp_server": "custom", "acp_command": command},
        event_vocabulary=vocabulary,
        confirmation_policy={"kind": "AlwaysConfirm"},
    )
    conversation = info["id"]
    async with collect(server.events_socket(conversation)) as socket:
        for prompt in RICH_PROMPTS:
            await rest.turn(conversation, prompt, wanted=("finished", "error"))
        for accept in (True, False):
            await rest.turn(conversation, "!perm", wanted=("waiting_for_confirmation",))
            await rest.respond(conversation, accept=accept)
            await rest.wait_status(conversation, "finished", "idle")
        await rest.turn(conversation, "!crash 3", wanted=("error",))
        await rest.turn(conversation, "!error -32603 deterministic", wanted=("error",))
        await rest.send(conversation, "!slow 400 50")
        await socket.wait_for(lambda frame: "s2" in str(frame.get("content")))
        await rest.act(conversation, "interrupt")
        await rest.wait_status(conversation, "paused")
        # The core vocabulary has no InterruptEvent.
        await socket.wait_for(lambda frame: frame.get("kind") in ("InterruptEvent", "PauseEvent"))
        await recording.keep(f"scripted-{vocabulary}", rest, conversation, socket)
