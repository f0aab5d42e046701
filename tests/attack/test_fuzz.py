"""Some thousands of wrong inputs. The long run is a command: scripts/fuzz."""

from __future__ import annotations

import orjson
import pytest

from supervisor.acp import parse_update
from supervisor.acp.schema import parse_prompt_result
from supervisor.conversations.recording.effects import Usage
from supervisor.conversations.recording.usage import with_report, with_tokens
from tests.attack.fuzz_run import SHARES, fuzz, plan
from tests.attack.pure_targets import TARGETS as PURE
from tests.attack.served_targets import TARGETS as SERVED
from tests.support.thorough import everyday

SEED = 20261121
INPUTS = everyday(2_000, 12_000)


def test_every_target_has_its_share():
    assert set(SHARES) == {*PURE, *SERVED}
    assert abs(sum(SHARES.values()) - 1) < 1e-9


@pytest.mark.parametrize("number", [2**53, 2**64 - 1, 1e300, -(2**63), 10**12])
def test_no_sum_of_what_an_agent_used_grows_beyond_what_can_be_stored(number):
    """The record of a conversation holds them; one that could not be written ended the whole server."""
    result = parse_prompt_result({"usage": {"inputTokens": number, "outputTokens": number}})
    usage: dict[str, object] = {}
    for _ in range(2000):
        usage = with_tokens(usage, result.usage)
    _, update = parse_update(
        {
            "update": {
                "sessionUpdate": "usage_update",
                "used": number,
                "size": number,
                "cost": {"amount": number},
            }
        }
    )
    usage = with_report(usage, Usage(update.used, update.size, update.cost))
    assert orjson.loads(orjson.dumps(usage)) == usage


@pytest.mark.guarantee(name="nothing-that-is-sent-breaks-it")
async def test_wrong_inputs_break_nothing(tmp_path):
    report = await fuzz(tmp_path / "a", SEED, plan(INPUTS))
    assert report.failures == []
    assert sum(report.inputs.values()) >= INPUTS * 0.98
