"""Every public method of the Python SDK's RemoteConversation and RemoteWorkspace, against a real Ostler.

The checks are in `python/`, and run by the SDK's own Python, all of them once, some at a time.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.clients.served import served
from tests.interop.peer_environment import PeerEnvironment
from tests.support.scripted import scripted_command

pytestmark = pytest.mark.clients

CHECKS = Path(__file__).resolve().parent / "python"
OPEN: dict[str, str] = {}
"""Checks that fail, and why they may for now. One that passes must go from here."""


def names() -> list[str]:
    """The checks, without importing the SDK: functions with the decorator `covers`."""
    found = []
    for path in sorted(CHECKS.glob("*_checks.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                found.append(node.name)
    return found


@pytest.fixture(scope="module")
def outcome(peer: PeerEnvironment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By check its traceback or None; under "" what the SDK has that no check is about."""
    directory = tmp_path_factory.mktemp("python-sdk")
    command = scripted_command(log=directory / "scripted.jsonl", home=directory / "sessions")
    with served(directory) as server:
        arguments = (server.url, str(directory / "checks"), "all", *command)
        lines = peer.run(CHECKS / "run.py", *arguments, home=directory / "client-home")
    return {str(line.get("check", "")): line.get("error", line) for line in lines}


@pytest.mark.parametrize("name", names())
def test_a_check(name: str, outcome: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if name in OPEN:
        request.applymarker(pytest.mark.xfail(reason=OPEN[name], strict=True))
    assert name in outcome, "the check did not run"
    assert outcome[name] is None, outcome[name]


def test_every_public_method_has_a_check(outcome: dict[str, Any]) -> None:
    """A new method in an update of the SDK has no check: write one. What a check names has to run, too."""
    assert outcome[""]["uncovered"] == []
    assert outcome[""]["uncalled"] == []
    assert outcome[""]["stale"] == []
    assert set(OPEN) <= set(names())
