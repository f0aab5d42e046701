"""Sums up an agent's token usage and cost as clients read it (`stats`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from supervisor.acp.schema import Usage as TokenUsage
    from supervisor.conversations.recording.effects import Usage

USAGE_ID: Final = "acp-managed"
"""The usage id of an external agent whose client gave none: its models are its own business."""


DOLLARS: Final = "USD"
"""The currency of figures that name none: what clients take them for."""

CURRENCIES_MAX: Final = 8
"""The most currencies besides the newest whose sums are kept: an agent has one."""

COST_DIGITS: Final = 9
"""Decimals of a turn's cost: the rest is what subtracting leaves."""


_TOKENS: Final = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cache_read_tokens": "cached_read_tokens",
    "cache_write_tokens": "cached_write_tokens",
    "reasoning_tokens": "thought_tokens",
}
"""The figures of tokens as clients read them, and as ACP names them."""


def empty() -> dict[str, Any]:
    """No usage yet."""
    return {
        "cost": 0.0,
        "session_cost": 0.0,
        **dict.fromkeys(_TOKENS, 0),
        "context_window": 0,
        "context_used": 0,
    }


def with_report(usage: Mapping[str, Any], report: Usage) -> dict[str, Any]:
    """Add a `usage_update`.

    Its cost is cumulative for the agent's session. Only the increase counts; if it decreased, the agent
    restarted its count, and all of it is new. Currencies are summed separately: `cost` is that of the newest,
    `other_costs` has the others.
    """
    taken = {**empty(), **usage}
    if report.cost is not None:
        before, now = taken.get("currency", DOLLARS), report.currency or DOLLARS
        if now != before:
            others = {**taken.get("other_costs", {})}
            if taken["cost"]:
                others[before] = taken["cost"]
            taken |= {"cost": others.pop(now, 0.0), "session_cost": 0.0, "currency": now}
            taken["other_costs"] = dict(list(others.items())[-CURRENCIES_MAX:])
    if report.used is not None:
        taken["context_used"] = report.used
    if report.size is not None:
        taken["context_window"] = report.size
    if report.cost is not None:
        before = taken["session_cost"]
        taken["cost"] += report.cost - before if report.cost >= before else report.cost
        taken["session_cost"] = report.cost
    return taken


def with_tokens(usage: Mapping[str, Any], tokens: TokenUsage) -> dict[str, Any]:
    """Add the tokens of one turn, as its answer reports them."""
    taken = {**empty(), **usage}
    for name, given in _TOKENS.items():
        taken[name] += getattr(tokens, given)
    return taken


def of_turn(
    before: Mapping[str, Any], after: Mapping[str, Any], tokens: TokenUsage | None
) -> dict[str, Any] | None:
    """What one turn used, from the sums before and after it; `tokens`: those of its answer.

    None where the agent reported nothing; a figure is None where it did not report that."""
    currency = after.get("currency", DOLLARS)
    same = before.get("currency", DOLLARS) == currency
    had = before.get("cost", 0.0) if same else before.get("other_costs", {}).get(currency, 0.0)
    cost = after.get("cost", 0.0) - had
    if tokens is None and not cost:
        return None
    used = {name: getattr(tokens, given, None) for name, given in _TOKENS.items()}
    used["cost"] = round(cost, COST_DIGITS) if cost else None
    return used if currency == DOLLARS else {**used, "currency": currency}


def new_session(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a new agent session, whose cost starts from zero."""
    return {**empty(), **usage, "session_cost": 0.0}


def stats(usage: Mapping[str, Any], usage_id: str = USAGE_ID) -> dict[str, Any]:
    """The `stats` value of state updates and of the conversation resource: zeros before anything was used,
    since clients read the figures without asking whether there are any. `usage_id`: the client's name for
    what the agent uses."""
    known = {**empty(), **usage}
    tokens = {
        "model": USAGE_ID,
        **{name: known[name] for name in _TOKENS},
        "context_window": known["context_window"],
        "per_turn_token": known["context_used"],
        "response_id": "",
    }
    metrics = {
        "model_name": USAGE_ID,
        "accumulated_cost": known["cost"],
        "max_budget_per_task": None,
        "accumulated_token_usage": tokens,
    }
    if known.get("currency", DOLLARS) != DOLLARS or known.get("other_costs"):
        metrics |= {"cost_currency": known["currency"], "other_costs": known.get("other_costs", {})}
    return {"usage_to_metrics": {usage_id: metrics}}


def spent(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of values of `stats`: `tokens` in and out, and `costs` by currency. What is no figure is none:
    the built-in agent reports its stats itself."""
    tokens, costs = 0, dict[str, float]()
    for each in (each for figures in found for each in _mapping(figures, "usage_to_metrics").values()):
        if not isinstance(each, Mapping):
            continue
        used = _mapping(each, "accumulated_token_usage")
        tokens += int(_figure(used.get("prompt_tokens")) + _figure(used.get("completion_tokens")))
        more = {str(each.get("cost_currency") or DOLLARS): each.get("accumulated_cost")}
        for currency, cost in (*more.items(), *_mapping(each, "other_costs").items()):
            costs[currency] = costs.get(currency, 0.0) + _figure(cost)
    return {
        "tokens": tokens,
        "costs": {name: round(cost, COST_DIGITS) for name, cost in costs.items() if cost},
    }


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _figure(value: object) -> float:
    return value if isinstance(value, int | float) and 0 <= value < inf else 0.0
