"""The web UI in a browser, before a real Ostler: the walk of a person, with what it shows.

What the same walk showed before the peer's server is in `canvas/peer.json`: another outcome, a toast or a
refused request that is not there is a fault of Ostler's, unless `WALK` in `design.py` says why. Pictures of
every step are kept below `.cache/canvas-shots`.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.canvas_package import HERE, CanvasPackage
from tests.clients.design import WALK
from tests.clients.served import served
from tests.clients.walk import run_walk
from tests.interop.harness import CACHE

pytestmark = pytest.mark.clients

RECORDING = HERE / "peer.json"
WORDS_OF_A_REFUSAL = re.compile(r"(?<=\)): .*", re.DOTALL)
AUTOMATION = " /api/automation/"
"""The UI asks at any time for a service that neither server has."""

OF_AUTOMATION = frozenset({"Request failed with status code 404"})
"""What it shows of that after a while, in any step. Any other 404 is among the refused requests, too."""

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
            asks = {"kill": server.kill, "start": server.start}
            steps = run_walk(canvas, chromium, server.url, directory, asks)
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
    return {WORDS_OF_A_REFUSAL.sub("", toast) for toast in toasts}


@pytest.mark.parametrize("name", STEPS)
def test_a_step(
    name: str,
    walked: dict[str, dict[str, Any]],
    peers: dict[str, dict[str, Any]],
    request: pytest.FixtureRequest,
) -> None:
    if name in OPEN:
        request.applymarker(pytest.mark.xfail(reason=OPEN[name], strict=True))
    step, instead = walked[name], WALK.get(name)
    assert step["error"] is None, step["error"]
    if instead is None:
        assert peers[name]["error"] is None, "what the peer fails at needs a row in WALK"
    assert step["value"] == (instead.value if instead else peers[name]["value"])
    # A toast or a request may come after the end of its step, with either server.
    near = [peers[each] for each in STEPS[max(0, STEPS.index(name) - 1) : STEPS.index(name) + 2]]
    late = [row for each in near if (row := WALK.get(each["name"]))]
    toasts = {toast for each in near for toast in without_words(each["toasts"])} | OF_AUTOMATION
    assert without_words(step["toasts"]) <= toasts.union(*(row.toasts for row in late))
    refused = {one for each in near for one in each["refused"]}
    refused |= {one for each in peers.values() for one in each["refused"] if AUTOMATION in one}
    assert set(step["refused"]) <= refused.union(*(row.refused for row in late))


@pytest.mark.parametrize("name", WALK)
def test_what_differs_by_design_does(name: str, peers: dict[str, dict[str, Any]]) -> None:
    """A row for a step that gives the same must go."""
    assert peers[name]["error"] is not None or peers[name]["value"] != WALK[name].value
