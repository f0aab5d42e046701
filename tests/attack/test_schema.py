"""The server does what its interface description says, and nothing else, whatever it is sent."""

from __future__ import annotations

import pytest

from tests.attack.schema_run import run
from tests.support.thorough import ALL, everyday

SEED = 20261121
EXAMPLES = everyday(1, 8)  # per operation and phase
EVERYDAY_PHASES = "fuzzing"  # one after the other, thousands of requests take their time


@pytest.mark.guarantee(name="nothing-that-is-sent-breaks-it")
@pytest.mark.skipif(not ALL, reason="it takes a minute: scripts/test --all has it")
async def test_the_description_holds(tmp_path):
    done = await run(tmp_path / "a", seed=SEED, examples=EXAMPLES, phases=everyday(EVERYDAY_PHASES, None))
    assert not done.failures, done.failures
    assert done.untested == 0, done.output
    assert done.requests > everyday(200, 1000), done.output
