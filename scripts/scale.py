"""Many servers over one PostgreSQL, simulated: the model is in tests/machines/simulation."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from scripts.benchmark.lines import Panel, Points, svg
from supervisor.machines import lease
from tests.machines.simulation import costs
from tests.machines.simulation.database import BIN
from tests.machines.simulation.run import LIVE, Plan, Report, simulate

PLOT = Path(__file__).resolve().parent.parent / "docs" / "scale.svg"
HOUR = 3600.0
LOST_AT, SHOWN = 40.0, 35.0
"""When the rack is lost, and for how many seconds it is drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/scale", description=__doc__)
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--conversations", type=int, default=1_000_000)
    parser.add_argument("--docs", action="store_true", help=f"draw {PLOT.name}")
    options = parser.parse_args()
    servers, conversations = options.servers, options.conversations
    rack = {"lost": max(1, servers // 20), "lost_at": LOST_AT}
    cut_off = played("a rack is cut off", Plan(servers, conversations, 90.0, **rack))
    power = played("a rack has no power", Plan(servers, conversations, 90.0, **rack, power=True))
    outage = played(
        "the database is away for 8 s", Plan(servers, conversations, 80.0, outage=(LOST_AT, LOST_AT + 8))
    )
    deploy = played(
        "ten minutes of a deploy of one hour", Plan(servers, conversations, HOUR / 6, deploy=HOUR)
    )
    if options.docs:
        PLOT.write_text(svg("One PostgreSQL under many servers", panels(cut_off, power)))
    sys.exit(any(each.violations for each in (cut_off, power, outage, deploy)))


def played(words: str, plan: Plan) -> Report:
    """Simulate, and print what came of it."""
    began = time.perf_counter()
    report = simulate(plan)
    sys.stdout.write(f"\n{words} ({time.perf_counter() - began:.0f} s)\n")
    for kind in report.kinds():
        load, rates = report.load(kind), report.rates(kind)
        sys.stdout.write(
            f"  {kind:12} {sum(load) / len(load):7.3f} processors, at most {max(load):6.2f}; "
            f"{sum(rates) / len(rates):8,.0f} statements/s, at most {max(rates):8,.0f}\n"
        )
    sys.stdout.write(f"  the longest wait for a processor: {1000 * max(report.waits()):.1f} ms\n")
    if report.claimed_after is not None:
        sys.stdout.write(
            f"  {report.deaths} deaths; all claimed {report.claimed_after:.1f} s after the loss\n"
        )
    for each in report.violations[:10]:
        sys.stdout.write(f"  BROKEN {each}\n")
    return report


def panels(cut_off: Report, power: Report) -> list[Panel]:
    reports = {"no power": power, "cut off": cut_off}
    plan = cut_off.plan
    each = plan.conversations // plan.servers * LIVE * plan.events
    counts = [round(10 ** (exponent / 10)) for exponent in range(10, 41)]
    return [
        Panel(
            f"{plan.lost} of {plan.servers:,} servers are lost: live conversations without an owner",
            "seconds since the loss",
            {words: after(report, list(map(float, report.unowned))) for words, report in reports.items()},
        ),
        Panel(
            "The same, cut off: processors of the database that are busy (but for commits of events)",
            "seconds since the loss",
            {
                kind: after(
                    cut_off, [cut_off.database.load[kind][n] / BIN for n in range(len(cut_off.unowned))]
                )
                for kind in ("renewals", "scans", "deaths", "hints", "claims")
            },
        ),
        Panel(
            "By the number of servers, each with the same work: processors that are busy",
            "servers",
            {
                "commits of events": [(n, n * each * (costs.COMMIT + costs.COMMITTED_ROW)) for n in counts],
                "leases": [(n, leases(n, plan.ttl)) for n in counts],
                "one hint a second": [(n, n * (costs.HINT + costs.HINT_HEARD)) for n in counts],
                f"{plan.processors} processors": [(n, float(plan.processors)) for n in counts],
            },
            logarithmic=True,
        ),
    ]


def leases(servers: int, ttl: float) -> float:
    """Processors that renewals and scans keep busy."""
    scan = costs.SCAN_OF_A_SERVER * servers + costs.COUNT
    return servers / lease.next_renewal(ttl, 0.5) * (costs.RENEWAL + scan)


def after(report: Report, values: list[float]) -> Points:
    """The values by bin, as they are drawn."""
    first = int((LOST_AT - 5) / BIN)
    return [(n * BIN - LOST_AT, values[n]) for n in range(first, min(len(values), first + int(SHOWN / BIN)))]


if __name__ == "__main__":
    main()
