"""`ostler database copy`: move a whole state between a state directory and a PostgreSQL database."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from gateway.cli.failures import BadInput, Failure
from gateway.cli.locations import state_directory
from gateway.cli.present import print_json, warn
from supervisor.extras import missing
from supervisor.offline.copying.copying import copy
from supervisor.offline.copying.ends import CannotCopy
from supervisor.offline.copying.sqlite import Directory

if TYPE_CHECKING:
    from supervisor.offline.copying.postgres import Shared

BY_NAME: Final = "env:"
"""Before the name of a variable that holds the address: its password is then in no list of processes."""

REPORT_SECONDS: Final = 2.0
"""Seconds between two lines of progress."""


def do_copy(arguments: Namespace) -> None:
    """Copy, compare, and say what is there now. Raises Failure, BadInput."""
    source, target = (_address(each, os.environ) for each in (arguments.source, arguments.target))
    try:
        with _open(source, target=False) as here, _open(target, target=True) as there:
            found = copy(here, there, _reporter())
    except CannotCopy as error:
        raise Failure(str(error)) from None
    if arguments.json:
        print_json(attrs.asdict(found))
        return
    print(
        f"copied and compared {found.conversations} conversations with {found.events} events and "
        f"{found.blobs} files, {found.documents} documents, {found.cursors} positions of webhooks"
    )
    sys.stdout.flush()
    warn("the master key is not copied: servers of the copy need the one of the source (docs/operations.md)")


def _address(text: str, env: Mapping[str, str]) -> str:
    if not text.startswith(BY_NAME):
        return text
    name = text.removeprefix(BY_NAME)
    if not env.get(name):
        raise BadInput(f"the variable {name} is not set")
    return env[name]


@contextmanager
def _open(text: str, *, target: bool) -> Iterator[Directory | Shared]:
    """One end of the copy, while the block runs. Raises CannotCopy, BadInput."""
    end: Directory | Shared
    if "://" in text:
        end = _database(text, target=target)
    else:
        end = Directory(state_directory(text, {}), target=target)
    try:
        yield end
    finally:
        end.close()


def _database(text: str, *, target: bool) -> Shared:
    if problem := missing("postgres", "a database"):
        raise BadInput(problem)
    from supervisor.database.address import parse
    from supervisor.offline.copying.postgres import Shared

    try:
        database = parse(text)
    except ValueError as error:
        raise BadInput(f"the address of the {'target' if target else 'source'}: {error}") from None
    return Shared(database, target=target)


def _reporter() -> Callable[[str, int], None]:
    """Prints a line to standard error now and then."""
    said = time.monotonic()

    def report(what: str, number: int) -> None:
        nonlocal said
        if time.monotonic() - said >= REPORT_SECONDS:
            said = time.monotonic()
            print(f"{what} {number} conversations", file=sys.stderr, flush=True)

    return report
