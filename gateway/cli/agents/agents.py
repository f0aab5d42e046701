"""`ostler agents`: list the catalogue, install an agent, and test how an agent follows the protocol."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from gateway.cli.agents.names import DONE_FILE
from gateway.cli.failures import BadInput, Failure, first, leaves
from gateway.cli.locations import agents_directory, documents_of, state_directory, with_server_keys
from gateway.cli.present import print_json, print_table, warn
from gateway.cli.suggest import did_you_mean
from gateway.cli.terminal import MEGABYTE, Installing, Waiting, console, installed
from gateway.cli.text import clean, one_line, without_codes
from gateway.configuration.parsing import keyring_allowed
from supervisor.agents.catalog import Descriptor, load_catalog
from supervisor.agents.errors import InstallError
from supervisor.agents.install.install import ensure_installed
from supervisor.credentials.secret import CredentialsFailure
from supervisor.documents.port import DocumentsUnavailable
from supervisor.offline.agents import open_launcher
from supervisor.offline.probe import FAIL, Probe

COLUMNS: Final = ("AGENT", "NAME", "INSTALLED", "VERSION", "CREDENTIAL")

INSTALL_SECONDS: Final = 1800.0
"""For one installation: half a gigabyte at 0.3 MB/s."""

CODE_LINE: Final = re.compile(r"npm error (code|errno|syscall|path)\b")
"""npm's lines that say least come first."""

TICK_SECONDS: Final = 0.2

REPORT_SECONDS: Final = 5.0
"""Seconds between two lines of progress without a terminal."""

KINDS: Final[Mapping[str, str]] = {"api_key": "API key"}


@asynccontextmanager
async def _launcher(state: Path) -> AsyncIterator[Any]:
    env = os.environ
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    agents, keys = agents_directory(state, env), with_server_keys(env)
    try:
        documents = documents_of(state, env)
        async with open_launcher(
            state, agents, env, keys, keyring=keyring_allowed(env), documents=documents
        ) as launcher:
            yield launcher
    except (CredentialsFailure, DocumentsUnavailable) as error:
        raise Failure(f"the secrets cannot be read: {error}") from None


# -- list -------------------------------------------------------------------------------------------------


def do_list(arguments: Namespace) -> int:
    """List the catalogue."""
    found = trio.run(_listed, state_directory(arguments.state, os.environ))
    if arguments.json:
        print_json({"agents": found})
        return 0
    rows = [
        (
            each["agent"],
            each["name"],
            each["installed"],
            each["version"] or "-",
            " ".join(
                filter(None, (KINDS.get(each["credential"], each["credential"]), each["credential_name"]))
            ),
        )
        for each in found
    ]
    print_table(COLUMNS, rows)
    return 0


async def _listed(state: Path) -> list[dict[str, Any]]:
    prefix = agents_directory(state, os.environ)
    found = []
    async with _launcher(state) as launcher:
        for descriptor in launcher.catalog.values():
            installed = await trio.to_thread.run_sync(installation, descriptor, prefix)
            credential = (await launcher.credentials(descriptor.key)).credential
            found.append(
                {
                    "agent": descriptor.key,
                    "name": descriptor.name,
                    **installed,
                    "credential": str(credential.kind),
                    "credential_name": credential.name or credential.file,
                    "credential_source": credential.origin,
                }
            )
    return found


def installation(descriptor: Descriptor, prefix: Path) -> dict[str, Any]:
    """Whether the agent is installed, and which version: `bundled`, `yes`, `older`, `no`; `-` for none."""
    if descriptor.module is not None:
        return {"installed": "bundled", "version": None, "size_mb": None}
    if descriptor.package is None:
        return {"installed": "-", "version": None, "size_mb": None}
    versions = []
    for done in (prefix / descriptor.key).glob(f"*/{DONE_FILE}"):
        try:
            versions.append(str(json.loads(done.read_text())["version"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    pinned = descriptor.package.version
    state = "yes" if pinned in versions else "older" if versions else "no"
    version = pinned if pinned in versions or not versions else max(versions)
    return {"installed": state, "version": version, "size_mb": descriptor.package.size_mb}


# -- install ------------------------------------------------------------------------------------------------


def do_install(arguments: Namespace) -> int:
    """Install an agent, and show the progress. Raises Failure."""
    catalog = load_catalog()
    if arguments.name not in catalog:
        raise BadInput(
            f"there is no agent {arguments.name!r}{did_you_mean(arguments.name, catalog)} "
            "(`ostler agents list` shows them)"
        )
    descriptor = catalog[arguments.name]
    prefix = agents_directory(state_directory(arguments.state, os.environ), os.environ)
    if descriptor.package is None:
        if descriptor.module is None:
            raise Failure(
                f"{descriptor.name} has no package to install; "
                "set its command with `ostler settings set acp_command`"
            )
        print_json({"agent": descriptor.key, "installed": "bundled"}) if arguments.json else print(
            f"{descriptor.name} is bundled with Ostler: there is nothing to install"
        )
        return 0
    try:
        trio.run(ensure, descriptor, prefix)
    except BaseException as error:
        if isinstance(first(error), KeyboardInterrupt):
            warn(f"interrupted; {descriptor.name} is not installed")
        raise
    found = installation(descriptor, prefix)
    if arguments.json:
        print_json({"agent": descriptor.key, **found})
    else:
        print(f"{descriptor.name} {found['version']} is installed in {prefix / descriptor.key}")
    return 0


async def ensure(descriptor: Descriptor, prefix: Path) -> None:
    """Install an agent unless it is installed. Progress goes to standard error. Raises Failure."""
    screen = console(sys.stderr)
    waiting = Waiting(screen)
    measure = Installing(prefix, descriptor.key)
    megabytes = None if descriptor.package is None else descriptor.package.size_mb
    total = None if megabytes is None else megabytes * MEGABYTE
    reported = ""

    def progress(line: str) -> None:
        nonlocal reported
        reported = line
        if not screen.is_terminal:
            print(line, file=sys.stderr, flush=True)

    async def draw() -> None:
        last = -REPORT_SECONDS
        while True:
            if reported:
                done = await trio.to_thread.run_sync(measure.measured)
                waiting.show(reported.split(" (")[0], done=done, total=total)
                if not screen.is_terminal and trio.current_time() - last > REPORT_SECONDS and done:
                    last = trio.current_time()
                    print(f"  {installed(done, total)}", file=sys.stderr, flush=True)
            await trio.sleep(TICK_SECONDS)

    failure: Failure | None = None
    said: list[str] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(draw)
            await ensure_installed(descriptor, prefix, progress=progress, seconds=INSTALL_SECONDS)
            nursery.cancel_scope.cancel()
    except* InstallError as errors:
        reason, *others = leaves(errors)
        summary, output = _cause(str(reason))
        said = output
        failure = Failure("; ".join([summary, *(one_line(str(error)) for error in others)]))
    finally:
        waiting.hide()
    if failure is not None:
        for line in said:
            print(clean(line), file=sys.stderr)
        raise failure


def _cause(text: str) -> tuple[str, list[str]]:
    """What to say of a failed installation: in one line, with the first line of the package manager's that is
    a reason; and before it all of its lines."""
    head, *lines = text.splitlines() or [""]
    reasons = (line for line in lines if line.strip() and not CODE_LINE.match(line))
    reason = one_line(next(reasons, ""))
    return (f"{head}: {reason}" if reason else head), lines


# -- probe -----------------------------------------------------------------------------------------------

PROBE_COLUMNS: Final = ("CHECK", "RESULT", "TIME", "WHAT")


def do_probe(arguments: Namespace) -> int:
    """Probe an agent. Returns 1 if a check failed. Raises Failure."""
    state = state_directory(arguments.state, os.environ)
    catalog = load_catalog()
    word, *others = arguments.words
    if word in catalog and not others:
        descriptor, command = catalog[word], ()
        if descriptor.package is not None:
            trio.run(ensure, descriptor, agents_directory(state, os.environ))
        elif descriptor.module is None:
            raise BadInput(
                f"{word} has no default command; give one: ostler agents probe -- COMMAND ARGUMENTS"
            )
    elif not others and shutil.which(word) is None:
        raise BadInput(
            f"there is neither an agent nor a program {word!r}{did_you_mean(word, catalog)} "
            "(`ostler agents list` shows the agents)"
        )
    else:
        descriptor, command = None, tuple(arguments.words)
    found = Probe(descriptor, command, prompt=not arguments.no_prompt, seconds=arguments.timeout)
    waiting = Waiting(console(sys.stderr))

    async def probed() -> list[Any]:
        async with _launcher(state) as launcher:
            return await found.run(launcher, lambda name: waiting.show(f"trying {name}"))

    try:
        results = trio.run(probed)
    finally:
        waiting.hide()
    failed = any(result.result == FAIL for result in results)
    if arguments.json:
        print_json(
            {**found.about(), "results": [result._asdict() for result in results], "passed": not failed}
        )
    else:
        print(" ".join(filter(None, (found.name, found.version))))
        rows = [
            (each.check, each.result, f"{each.seconds:.2f} s", without_codes(one_line(each.detail)))
            for each in results
        ]
        print_table(PROBE_COLUMNS, rows)
    return int(failed)
