"""Measures Ostler's speed and weight on this machine, with the peer's server and floors, in one run.

The same client and the same scripted agent (tests/fake_agent) drive all of them, in alternation. Every load
is bounded in count and time, and goes to the loopback address alone. docs/performance.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from scripts.benchmark import document
from scripts.benchmark.cases import CASES, Case, Target, chosen
from scripts.benchmark.client import BenchError
from scripts.benchmark.plot import svg
from scripts.benchmark.results import Results, machine
from scripts.benchmark.servers import ROOT, Bare, Before, Floor, Ostler, Peer, running
from scripts.benchmark.shared import Postgres, Three

# These add their cases, in the order of the table.
from scripts.benchmark import weight, turning, relaying, latency, editors, history, database  # isort: skip  # noqa: F401

QUICK_PART = 0.1
ROUNDS = 2
LAST = ("busy", "turns-at-once", "live")
"""Cases that leave many agents running."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.list:
        for each in CASES.values():
            print(each.name)
            for figure in each.figures:
                print(f"    {figure.words} ({figure.unit}): {figure.how}")
        return 0
    results = Results([], machine())
    targets = made_targets(options)
    results.targets = [target.name for target in targets]
    begin = time.monotonic()
    if options.database:
        results.machine["sync_ms"] = database.sync_ms()
    run(
        wanted(options, results.targets),
        targets,
        results,
        QUICK_PART if options.quick else 1.0,
        options.rounds,
    )
    results.machine["load_after"] = round(os.getloadavg()[0], 2)
    results.machine["seconds"] = round(time.monotonic() - begin)
    results.machine["quick"] = options.quick
    if options.database:
        print(json.dumps(database.as_json(results), indent=1) if options.json else database.table(results))
        return 0
    print(json.dumps(results.as_json(), indent=1) if options.json else results.table())
    if options.svg:
        options.svg.write_text(svg(results))
    if options.docs:
        document.write(results)
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--case", action="append", default=[], choices=[*CASES], metavar="NAME", help="only these"
    )
    parser.add_argument(
        "--list", action="store_true", help="name the cases, and how each figure is measured, and end"
    )
    parser.add_argument(
        "--peer",
        nargs="?",
        const="",
        metavar="PYTHON",
        help="measure the peer's server too; PYTHON has it installed (else an environment is made, once)",
    )
    parser.add_argument(
        "--before", type=Path, metavar="OSTLER", help="the `ostler` command of another checkout, too"
    )
    parser.add_argument(
        "--database",
        action="store_true",
        help="SQLite beside PostgreSQL, and three servers over one, in place of peer and floors",
    )
    parser.add_argument("--no-floor", action="store_true", help="leave the floors out")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load: to see that it works")
    parser.add_argument(
        "--rounds", type=int, default=None, help=f"how often each quick case is measured ({ROUNDS})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the ratios there")
    parser.add_argument(
        "--docs", action="store_true", help="write the table and the plot of docs/performance.md"
    )
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 1 if options.quick else ROUNDS
    return options


def wanted(options: argparse.Namespace, targets: Collection[str]) -> list[Case]:
    """The cases that were asked for, and that any of these targets can do."""
    names = options.case or (database.CHOSEN if options.database else ())
    return [each for each in chosen(names) if not each.targets.isdisjoint(targets)]


def made_targets(options: argparse.Namespace) -> list[Target]:
    """What is measured, Ostler first."""
    python = Path(sys.executable)
    ostler = python.with_name("ostler")
    targets = [Target(Ostler, ostler)]
    if options.database:
        return [*targets, Target(Postgres, ostler), Target(Three, ostler)]
    if options.before:
        targets.append(Target(Before, options.before.absolute()))
    if options.peer is not None:
        targets.append(Target(Peer, Path(options.peer).absolute() if options.peer else peer_python()))
    if not options.no_floor:
        targets += [Target(Floor, python), Target(Bare, python)]
    return targets


def peer_python() -> Path:
    """The interpreter of the peer's environment, which is made if need be: some minutes and 1 GB, once."""
    from tests.interop.peer_environment import PeerEnvironment, find_python

    python = find_python()
    if python is None:
        sys.exit(
            "bench: the peer's server needs Python 3.12 or 3.13. Install one, or name one with --peer PYTHON."
        )
    lock = ROOT / "tests" / "clients" / "peer_server" / "requirements.txt"
    return PeerEnvironment.prepare(python, ROOT / ".cache" / "peer-server", lock).python


def run(cases: Sequence[Case], targets: Sequence[Target], results: Results, part: float, rounds: int) -> None:
    """Measure: first what starts servers of its own, then what shares one for each target.

    Targets alternate, a case at a time. The table has the cases in their own order.
    """
    for each in cases:
        results.prepare(each)
    fresh = [each for each in cases if each.fresh]
    shared = [each for each in cases if not each.fresh]
    shared.sort(key=lambda each: LAST.index(each.name) if each.name in LAST else -1)
    for each in fresh:
        measure(each, targets, results, part, rounds)
    if not shared:
        return
    with ExitStack() as stack:
        for target in targets:
            if any(target.name in each.targets for each in shared):
                target.server = stack.enter_context(running(target.kind, target.program))
        for each in shared:
            measure(each, targets, results, part, rounds)


def measure(case: Case, targets: Sequence[Target], results: Results, part: float, rounds: int) -> None:
    for number in range(min(rounds, case.rounds or rounds)):
        for target in targets:
            if target.name not in case.targets or (target.slow and number >= case.slow_rounds):
                continue
            begin = time.monotonic()
            try:
                results.add(case, target.name, case.measure(target, part))
            except (BenchError, OSError) as error:
                if target.name == "ostler":
                    raise
                results.fail(case, target.name, f"{error}".splitlines()[0][:100])
            print(
                f"  {case.name}: {target.name}, {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True
            )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
