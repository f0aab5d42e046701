"""The long chaos run; what it does is in tests/chaos, where a short one is a test."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.chaos.run import Report, chaos, starts

WARM_UP = 100  # starts before the first measurement of a long run


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the plan of accidents (default: a new one, printed)")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long there are accidents")
    parser.add_argument("--server-kills", type=int, metavar="N", help="only N SIGKILLs of the server")
    parser.add_argument("--starts", type=int, metavar="N", help="only starts and stops, N after a warm-up")
    parser.add_argument("--machines", action="store_true", help="three servers over one PostgreSQL")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    # Trio ends in order on this one, so that the server does not stay behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    directory = Path(tempfile.mkdtemp(prefix="ostler-chaos-")).resolve()
    if options.machines:
        from tests.machines.chaos import day

        report = trio.run(
            partial(day, directory, seed=seed, conversations=options.conversations, seconds=options.seconds)
        )
    elif options.starts is not None:
        report = trio.run(partial(starts, directory, count=options.starts, warm_up=WARM_UP))
    else:
        report = trio.run(
            partial(
                chaos,
                directory,
                seed=seed,
                conversations=options.conversations,
                seconds=options.seconds,
                kills=options.server_kills,
            )
        )
    show(report, as_json=options.json)
    if report.problems:
        sys.exit(f"chaos: what the server and the agents wrote is in {directory}")
    shutil.rmtree(directory)


def show(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json()))
        return
    for name, value in {"seed": report.seed, **report.figures}.items():
        print(f"{name:<26} {value}")
    for kind, count in sorted(report.faults.items()):
        print(f"fault {kind:<20} {count}")
    print(f"{len(report.problems)} problems")
    for problem in report.problems:
        print(f"  {problem}")


if __name__ == "__main__":
    main()
