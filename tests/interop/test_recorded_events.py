"""Every event that the other tests of this session journalled or sent is read by the peer's own SDK.

Its name sorts it behind them; `scripts/test --all` runs it when they have ended (OSTLER_TEST_RECORDING).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.peer_environment import PeerEnvironment
from tests.interop.recording import Recording

pytestmark = pytest.mark.interop

SHOWN = 10  # complaints in a failure message


@pytest.mark.guarantee(name="every-event-can-be-read")
def test_the_peer_reads_every_event(builtin_python: Path, recording: Recording, tmp_path: Path) -> None:
    if not len(recording):
        pytest.skip("no scenario ran before this test")
    peer = PeerEnvironment(builtin_python)  # which has the tools, too
    *complaints, counts = peer.run("validate.py", *map(str, recording.paths()), home=tmp_path)
    shown = "\n".join(json.dumps(complaint)[:2000] for complaint in complaints[:SHOWN])
    assert not complaints, f"{len(complaints)} of {len(recording)} events:\n{shown}"
    assert counts["read"]


def test_the_check_itself_complains(peer: PeerEnvironment, tmp_path: Path) -> None:
    good = {"kind": "PauseEvent", "id": "1", "timestamp": "2026-01-02T03:04:05.000006Z", "source": "user"}
    faulty = Recording(tmp_path)
    faulty.add("ws", "here", [good, {**good, "extra": 1}, {**good, "kind": "NoSuchEvent"}])
    *complaints, counts = peer.run("validate.py", *map(str, faulty.paths()), home=tmp_path)
    assert [complaint["event"] for complaint in complaints] == [
        {**good, "extra": 1},
        {**good, "kind": "NoSuchEvent"},
    ]
    assert counts["read"] == {"PauseEvent": 2, "NoSuchEvent": 1}
