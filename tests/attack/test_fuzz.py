"""Some thousands of wrong inputs. The long run is a command: scripts/fuzz."""

from __future__ import annotations

from attack.fuzz_run import SHARES, fuzz, plan
from attack.pure_targets import TARGETS as PURE
from attack.served_targets import TARGETS as SERVED

SEED = 20261121
INPUTS = 12_000


def test_every_target_has_its_share():
    assert set(SHARES) == {*PURE, *SERVED}
    assert abs(sum(SHARES.values()) - 1) < 1e-9


async def test_wrong_inputs_break_nothing(tmp_path):
    report = await fuzz(tmp_path / "a", SEED, plan(INPUTS))
    assert report.failures == []
    assert sum(report.inputs.values()) >= INPUTS * 0.98
