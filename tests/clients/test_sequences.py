"""The peer's client holds the same conversations with Ostler's built-in agent as with the peer's server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from scripts import sequences
from tests.clients.sequences import play, titles
from tests.clients.served import served
from tests.interop.builtin_program import agent
from tests.interop.model_api.server import ModelApi, running_model_api
from tests.interop.talk import TURN_S, wait_for_spare
from tests.support.client import rest_client

RECORDED = sequences.load()
KNOWN = sequences.reasons()


@pytest.fixture(scope="module")
def played(
    builtin_python: Path, agents_prefix: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """All conversations with one Ostler. The client has the tools of the agent's environment."""
    directory = tmp_path_factory.mktemp("sequences")
    with (
        served(directory, {"OSTLER_AGENTS_DIR": str(agents_prefix)}) as server,
        running_model_api() as model_api,
    ):
        trio.run(one_before, server.url, directory, model_api)
        return play(builtin_python, server.url, directory)


async def one_before(url: str, directory: Path, model_api: ModelApi) -> None:
    """A conversation like those that follow, after which the server has who forks their agents."""
    body = {"agent": agent(model_api), "workspace": {"working_dir": str(directory / "before")}}
    async with rest_client(url) as rest:
        made = await rest.call("POST", "/api/conversations", body)
        await rest.turn(made["id"], "Hello.", timeout=TURN_S)
        await wait_for_spare(rest)
        await rest.call("DELETE", f"/api/conversations/{made['id']}")


@pytest.mark.clients
@pytest.mark.parametrize("name", list(RECORDED["ostler"]))
def test_a_conversation_is_the_recorded_one(played: dict[str, Any], name: str) -> None:
    """The recording is what the document is made of: what differs from it now is new."""
    assert "error" not in played[name], played[name]["error"]
    for part in (sequences.EVENTS, sequences.STATUSES):
        assert played[name][part] == RECORDED["ostler"][name][part]


@pytest.mark.parametrize("name", list(RECORDED["peer"]))
def test_every_difference_from_the_peer_is_explained(name: str) -> None:
    found = sequences.differences(RECORDED["peer"][name], RECORDED["ostler"][name])
    reasons = sequences.explained(name, found, KNOWN)
    assert [each for each, reason in zip(found, reasons, strict=True) if reason is None] == []


def test_every_scenario_is_recorded_and_no_reason_is_left_over() -> None:
    assert titles() == {name: each["title"] for name, each in RECORDED["peer"].items()}
    assert len(RECORDED["peer"]) >= 12
    seen = {
        (scenario, difference)
        for scenario, peer in RECORDED["peer"].items()
        for difference in sequences.differences(peer, RECORDED["ostler"][scenario])
    }
    for scenario, reasons in KNOWN.items():
        for difference in reasons:
            assert any(scenario in ("*", each) and difference == other for each, other in seen), difference


def test_a_repository_with_a_failing_test_is_repaired() -> None:
    """What the scenario asserts about files and words happened with both; here is what the agents did."""
    steps = [line.split()[-1] for line in RECORDED["ostler"]["repair"]["events"] if "ActionEvent" in line]
    terminal, editor = "TerminalAction", "FileEditorAction"
    assert steps == [terminal, editor, editor, terminal, "FinishAction"]
    assert RECORDED["ostler"]["repair"]["statuses"][-1] == "finished"
