"""The web UI in a browser, before a real Ostler: the walk of a person, with what it shows.

What the same walk showed before the peer's server is in `canvas/peer.json`: a toast or a refused
request that is not there
is a fault of Ostler's. The pictures of every step are kept below `.cache/canvas-shots`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.canvas_package import HERE, CanvasPackage
from tests.clients.served import served
from tests.clients.walk import run_walk
from tests.interop.harness import CACHE

pytestmark = pytest.mark.clients

RECORDING = HERE / "peer.json"
STEPS = [step["name"] for step in json.loads(RECORDING.read_text())["steps"]]
OPEN: dict[str, str] = {}
"""Steps that fail, and why they may for now. One that passes must go from here."""


@pytest.fixture(scope="module")
def walked(
    canvas: CanvasPackage, chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """The steps by name."""
    directory: Path = tmp_path_factory.mktemp("canvas")
    try:
        with served(directory) as server:
            steps = run_walk(canvas, chromium, server.url, directory)
    finally:
        kept = CACHE / "canvas-shots"
        shutil.rmtree(kept, ignore_errors=True)
        if (directory / "shots").exists():
            shutil.copytree(directory / "shots", kept)
    return {step["name"]: step for step in steps}


@pytest.fixture(scope="module")
def peers() -> dict[str, dict[str, Any]]:
    """The same steps before the peer's server."""
    return {step["name"]: step for step in json.loads(RECORDING.read_text())["steps"]}


def without_words(toasts: list[str]) -> set[str]:
    """A toast may show the body of a refusal, whose words are each server's own."""
    return {toast.partition(": {")[0] for toast in toasts}


@pytest.mark.parametrize("name", STEPS)
def test_a_step(
    name: str,
    walked: dict[str, dict[str, Any]],
    peers: dict[str, dict[str, Any]],
    request: pytest.FixtureRequest,
) -> None:
    if name in OPEN:
        request.applymarker(pytest.mark.xfail(reason=OPEN[name], strict=True))
    step = walked[name]
    assert step["error"] is None, step["error"]
    refused = {each for one in peers.values() for each in one["refused"]}
    assert without_words(step["toasts"]) <= {
        each for one in peers.values() for each in without_words(one["toasts"])
    }
    assert set(step["refused"]) <= refused
    if peers[name]["error"] is None:
        assert step["value"] == peers[name]["value"]
