"""Every public method of the TypeScript client, the same script against Ostler and (recorded) the
peer's server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.comparison import RECORDING, differences
from tests.clients.design import DESIGN, OPEN
from tests.clients.served import served
from tests.clients.typescript_script import run_script
from tests.interop.npm import Packages

pytestmark = pytest.mark.clients

METHODS_LEAST = 200
"""Fewer would be an inventory that finds nothing."""


@pytest.fixture(scope="module")
def result(typescript_packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the script's steps."""
    directory = tmp_path_factory.mktemp("typescript")
    with served(directory) as server:
        return run_script(typescript_packages, server.url, directory)


@pytest.fixture(scope="module")
def peer_result() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(RECORDING.read_text())
    return recorded


def test_every_public_method_is_called(result: dict[str, Any]) -> None:
    """A new method in an update of the client is not in the script: call it there."""
    assert result["uncovered"] == []
    assert result["stale"] == []
    assert result["covered"] > METHODS_LEAST


def test_the_results_are_the_peers(result: dict[str, Any], peer_result: dict[str, Any]) -> None:
    found = differences(peer_result["steps"], result["steps"])
    left = [each for each in found if not any(row.covers(each) for row in (*DESIGN, *OPEN))]
    assert not left, "\n".join(map(str, left))


@pytest.mark.parametrize("row", [*DESIGN, *OPEN], ids=lambda row: f"{row.label} {row.path}")
def test_what_may_differ_does(row: Any, result: dict[str, Any], peer_result: dict[str, Any]) -> None:
    """A row for what is the same by now must go."""
    assert any(row.covers(each) for each in differences(peer_result["steps"], result["steps"])), row.reason
