"""The server does what its interface description says, and nothing else, whatever it is sent."""

from __future__ import annotations

import os

from tests.attack.schema_run import run

SEED = 20261121
EXAMPLES = int(os.environ.get("ATTACK_EXAMPLES", "8"))  # per operation and phase


async def test_the_description_holds(tmp_path):
    done = await run(tmp_path / "a", seed=SEED, examples=EXAMPLES)
    assert not done.failures, done.failures
    assert done.untested == 0, done.output
    assert done.requests > 1000, done.output
