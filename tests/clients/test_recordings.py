"""What the clients' suites compare with is of the peer's version that is locked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LOCKED = (HERE / "peer_server" / "requirements.in").read_text()


@pytest.mark.parametrize("of", ["canvas", "typescript"])
def test_a_recording_is_of_the_locked_version(of: str) -> None:
    recorded = json.loads((HERE / of / "peer.json").read_text())["peer"]
    assert f"openhands-agent-server == {recorded}\n" in LOCKED
    assert f"\n{recorded} gave to the same script" in (HERE / "README.md").read_text()
