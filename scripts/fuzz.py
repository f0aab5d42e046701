"""The long run of the fuzzers; what they do is in tests/attack, where a short run is a test."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from tests.attack.fuzz_run import SHARES, Report, fuzz, plan
from tests.attack.schema_run import run as run_schema

INPUTS = 100_000
ROUND = 10_000  # inputs between two looks at the clock, in a run by time
SCHEMA_EXAMPLES = 100  # per operation and phase


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=INPUTS, help=f"in all, shared out (default {INPUTS})")
    parser.add_argument("--seconds", type=float, help="go on for so long instead")
    parser.add_argument("--seed", type=int, help="of every choice (default: a new one, printed)")
    parser.add_argument("--target", choices=sorted(SHARES), help="this one alone")
    parser.add_argument("--case", type=int, help="this case of the target alone")
    parser.add_argument("--schema", action="store_true", help="Schemathesis instead")
    parser.add_argument(
        "--examples", type=int, default=SCHEMA_EXAMPLES, help="of Schemathesis, per operation"
    )
    options = parser.parse_args()
    if options.case is not None and options.target is None:
        parser.error("--case needs --target")
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="ostler-fuzz-")).resolve()
    failed = schema(directory, seed, options.examples) if options.schema else attack(directory, seed, options)
    if failed:
        sys.exit(f"fuzz: what the servers left is in {directory}")
    shutil.rmtree(directory)


def attack(directory: Path, seed: int, options: argparse.Namespace) -> bool:
    """Fuzz in rounds, each with a server of its own; whether anything failed."""
    until = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    total = Report(seed)
    number = 0
    while True:
        inputs = options.inputs if options.seconds is None else ROUND
        if options.case is not None:
            inputs = 1
        # Every round has cases of its own.
        first = options.case if options.case is not None else number * ROUND
        attacked = partial(fuzz, first=first, until=until)
        report = trio.run(attacked, directory / str(number), seed, plan(inputs, options.target))
        total.inputs += report.inputs
        total.known += report.known
        total.failed += report.failed
        total.failures += report.failures
        for target, seconds in report.seconds.items():
            total.seconds[target] = total.seconds.get(target, 0.0) + seconds
        number += 1
        if options.seconds is None or time.monotonic() > until:
            break
    show(total)
    return bool(total.failures)


def show(report: Report) -> None:
    print(f"{'target':<20} {'inputs':>8} {'seconds':>8} {'failed':>7} {'known':>6}")
    for target, count in report.inputs.items():
        print(
            f"{target:<20} {count:>8} {report.seconds[target]:>8.1f}"
            f" {report.failed[target]:>7} {report.known[target]:>6}"
        )
    print(f"{'all':<20} {report.inputs.total():>8} {sum(report.seconds.values()):>8.1f}", end=" ")
    print(f"{report.failed.total():>7} {report.known.total():>6}")
    for failure in report.failures:
        print(f"--seed {failure.seed} --target {failure.target} --case {failure.case}: {failure.what}")


def schema(directory: Path, seed: int, examples: int) -> bool:
    done = trio.run(lambda: run_schema(directory / "schema", seed=seed, examples=examples))
    print(done.output)
    print(f"{done.requests} requests to {done.operations} operations, {done.untested} untested")
    if done.failures:
        print(done.failures)
    return bool(done.failures)


if __name__ == "__main__":
    main()
