"""`ostler doctor`: check this machine, and say what to fix. The checks change nothing."""

from __future__ import annotations

import logging
import os
import platform
import resource
import shutil
import stat
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio
from rich.text import Text

from gateway.cli.doctor import server_checks
from gateway.cli.doctor.findings import FAIL, OK, WARN, Finding, Findings, Machine
from gateway.cli.failures import BadInput
from gateway.cli.locations import documents_of, state_directory
from gateway.cli.present import print_json
from gateway.cli.terminal import console
from gateway.cli.text import clean, one_line, size
from gateway.configuration.config import load_config
from gateway.configuration.keys import KeysError, find
from gateway.configuration.parsing import ConfigError, keyring_allowed
from supervisor.agents.catalog import Versions, load_catalog
from supervisor.agents.containment.levels import Level, obstacle
from supervisor.agents.containment.lifeline import NO_WARDEN_VARIABLE, warden_possible
from supervisor.agents.errors import InstallError, NodeMissing, PythonMissing
from supervisor.agents.install.programs import find_node, find_npm, find_python
from supervisor.agents.spawning.descriptors import UNLIMITED, shares
from supervisor.agents.walls.network import VARIABLE as NETWORK_VARIABLE
from supervisor.agents.walls.network import Network
from supervisor.agents.walls.outside import outside
from supervisor.agents.walls.wall import VARIABLE as WALLS_VARIABLE
from supervisor.agents.walls.wall import Mechanism, Wall
from supervisor.agents.walls.wall import parse as parse_wall
from supervisor.agents.walls.walls import find as find_wall
from supervisor.credentials.os_keyring import OsKeyring, find_backend, plausible
from supervisor.credentials.secret import CredentialsFailure
from supervisor.credentials.store import SECRETS_FILE, SecretStore
from supervisor.extras import how_to_install
from supervisor.switches import switched_on

GIGABYTE: Final = 1_000_000_000
ROOM: Final = GIGABYTE
"""Of the disk: the largest agent takes half of it, and as much while it is installed."""

NO_ROOM: Final = GIGABYTE // 20
"""With less free space, the journal may be unable to write within an hour."""

DESCRIPTORS: Final = 1024
"""What most systems give at least, and room for dozens of agents."""

TOO_FEW_DESCRIPTORS: Final = 256

MASTER_KEYS: Final = ("OSTLER_MASTER_KEY", "OH_SECRET_KEY")


def python(machine: Machine) -> Findings:
    """The interpreter."""
    yield Finding("python", OK, f"{platform.python_version()} ({sys.executable})")


def configuration(machine: Machine) -> Findings:
    """The server's variables."""
    try:
        load_config(machine.given, state=str(machine.state))
    except ConfigError as error:
        yield Finding(
            "configuration",
            FAIL,
            str(error),
            "Change or unset the variable: docs/configuration.md has them all.",
        )
        return
    yield Finding("configuration", OK, "the server's variables are valid")


def keys(machine: Machine) -> Findings:
    """The file of keys, or systemd's credential. What --keys-fd would give is not known here."""
    try:
        place = find(None, None, machine.env)
        count = 0 if place is None else len(place.read())
    except KeysError as error:
        yield Finding("keys", FAIL, str(error), 'docs/operations.md, "Keys", describes the file.')
        return
    if place is not None:
        yield Finding("keys", OK, f"{count} in {place.origin}")
    else:
        yield Finding("keys", OK, "no file is set (OSTLER_KEYS_FILE)")


def node(machine: Machine) -> Findings:
    """Node.js and npm, for the agents that come from npm."""
    wanted = {
        descriptor.key: descriptor.npm.min_node
        for descriptor in load_catalog().values()
        if descriptor.npm is not None and descriptor.npm.min_node is not None
    }
    try:
        found = trio.run(find_node, None, machine.env)
        newest = max(wanted.values())
        try:
            found = trio.run(find_node, newest, machine.env)
        except NodeMissing:
            lacking = sorted(key for key, minimum in wanted.items() if minimum > found.version)
            yield Finding(
                "node",
                WARN,
                f"{found.version_text} ({found.path}) is too old for {', '.join(lacking)}",
                f"Install Node.js {'.'.join(map(str, newest))} or newer, or run: {how_to_install('node')}",
            )
        else:
            yield Finding("node", OK, f"{found.version_text} ({found.path})")
    except NodeMissing:
        yield Finding(
            "node",
            WARN,
            "not found; agents from npm require it (the bundled demo does not)",
            f"Install Node.js, or run: {how_to_install('node')}",
        )
        return
    try:
        npm = trio.run(find_npm, machine.env)
    except NodeMissing as error:
        yield Finding("npm", WARN, "not found; agents cannot be installed without it", str(error))
    else:
        yield Finding("npm", OK, npm[-1])


def pythons(machine: Machine) -> Findings:
    """A Python for each agent that comes from PyPI. They do not all run on the same versions."""
    wanted: dict[Versions, list[str]] = {}
    for descriptor in load_catalog().values():
        if descriptor.pip is not None:
            wanted.setdefault(descriptor.pip.python, []).append(descriptor.key)
    for versions, keys_of in wanted.items():
        agents = ", ".join(sorted(keys_of))
        name = "python for agents"
        try:
            found = trio.run(find_python, versions, agents, machine.env)
        except PythonMissing as error:
            cause, _, advice = str(error).rpartition(". ")
            yield Finding(name, WARN, cause, f"{advice}; on Debian with the package python3-venv")
        except InstallError as error:
            yield Finding(name, WARN, f"{agents}: {error}", "Check the directories of PATH")
        else:
            version = ".".join(map(str, found.version))
            yield Finding(name, OK, f"{version} ({found.path}), for {agents}")


def _keyring_allowed(machine: Machine) -> bool:
    try:
        return keyring_allowed(machine.env)
    except ConfigError:  # the configuration has said so
        return False


def keyring(machine: Machine) -> Findings:
    """Where the key of the secrets is, or will be."""
    given = machine.given
    named = next((name for name in MASTER_KEYS if given.get(name)), None)
    if named is not None:
        yield Finding("keyring", OK, f"not needed: the master key is in {named}")
    elif not _keyring_allowed(machine):
        yield Finding("keyring", OK, "not used (OSTLER_KEYRING=off): the master key is a file")
    elif not plausible(machine.env):
        yield Finding("keyring", OK, "not found: the master key is the file master.key (0600)")
    else:
        try:
            found = find_backend()
        except CredentialsFailure as error:
            yield Finding("keyring", OK, f"{error}; the master key is the file master.key (0600)")
        except Exception as error:  # noqa: BLE001 - backends raise anything
            yield Finding(
                "keyring",
                WARN,
                f"it does not work: {one_line(str(error))}",
                "Unlock it, or set OSTLER_KEYRING=off.",
            )
        else:
            yield Finding("keyring", OK, type(found).__module__.rpartition(".")[2])


def secrets(machine: Machine) -> Findings:
    """Whether what is stored can be read."""
    try:
        documents = documents_of(machine.state, machine.env)
        if not documents.document(SECRETS_FILE).exists():
            yield Finding("secrets", OK, "none stored")
            return
    except (BadInput, OSError) as error:
        yield Finding("secrets", FAIL, one_line(str(error)), "Look at OSTLER_DATABASE, and at the database.")
        return

    async def read() -> int:
        use = OsKeyring(machine.env) if _keyring_allowed(machine) else None
        store = await SecretStore.open(machine.state, machine.given, keyring=use, documents=documents)
        return len(await store.list())

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        count = trio.run(read)
    except (CredentialsFailure, OSError) as error:
        yield Finding(
            "secrets",
            FAIL,
            one_line(str(error)),
            'docs/operations.md, "Secrets", tells where the key can be.',
        )
    else:
        yield Finding("secrets", OK, f"{count} stored, and readable")


def containment(machine: Machine) -> Findings:
    """How strongly agents can be kept together."""
    try:
        warden = warden_possible() and not switched_on(machine.env, NO_WARDEN_VARIABLE)
    except ValueError:
        return  # the configuration has said so
    reasons = {level: obstacle(level, warden=warden) for level in Level}
    possible = [level.value for level, reason in reasons.items() if reason is None]
    demanded = machine.env.get("OSTLER_CONTAINMENT") or "auto"
    if demanded in reasons and (reason := reasons[Level(demanded)]) is not None:
        yield Finding(
            "containment",
            FAIL,
            f"{demanded!r} is demanded and unavailable: {reason}",
            "Unset OSTLER_CONTAINMENT.",
        )
    elif reasons[Level.WARDEN] is not None:
        yield Finding(
            "containment",
            WARN,
            f"agents of a killed server keep running until the next start: {reasons[Level.WARDEN]}",
            "Use Linux, and unset OSTLER_NO_WARDEN.",
        )
    else:
        yield Finding("containment", OK, ", ".join(possible))
    for level in (Level.CGROUP, Level.PIDNS):
        if reasons[level] is not None:
            yield Finding(f"containment {level}", OK, f"unavailable, and not required: {reasons[level]}")


def walls(machine: Machine) -> Findings:
    """Which walls agents can have here."""
    try:
        wanted = parse_wall(machine.env.get(WALLS_VARIABLE))
    except ValueError:
        return  # the configuration has said so
    if wanted is Wall.OFF:
        yield Finding("walls", WARN, "off: an agent can reach what you can reach", f"Unset {WALLS_VARIABLE}.")
        return
    wall = wanted or Wall.GUARD
    found = find_wall(wall, outside(machine.state, load_catalog(), machine.env))
    if isinstance(found, Mechanism):
        yield Finding("walls", OK, f"{wall}, by {found}")
        return
    cause, _, remedy = found.partition(". ")
    yield Finding("walls", WARN if wanted is None else FAIL, f"none: {cause}", f"{remedy.rstrip('.')}.")


def state(machine: Machine) -> Findings:
    """Check the state directory: it exists or can be made, belongs to this user, and is private."""
    path = machine.state
    advice = "Choose another one with OSTLER_STATE or --state."
    try:
        found = path.stat()
    except FileNotFoundError:
        above = _there(path)
        if not os.access(above, os.W_OK | os.X_OK):
            yield Finding("state", FAIL, f"{path} cannot be created: {above} is not writable", advice)
        elif _holds_nothing(above):
            yield Finding("state", FAIL, f"{path} cannot be created: {above} holds no files", advice)
        else:
            yield Finding("state", OK, f"the first start creates {path}")
        return
    except OSError as error:
        yield Finding("state", FAIL, f"{path}: {error.strerror}", advice)
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("state", FAIL, f"{path} is not a directory", advice)
    elif found.st_uid != os.geteuid():
        yield Finding("state", FAIL, f"{path} belongs to user {found.st_uid}", f"chown it, or: {advice}")
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("state", FAIL, f"{path} is not writable", f"chmod 700 {path}")
    elif found.st_mode & 0o077:  # else it does not matter what its files are
        detail = f"other users can open {path}; the next start changes the mode"
        yield Finding("state", WARN, detail, f"chmod -R go-rwx {path}")
    else:
        yield Finding("state", OK, str(path))


def disk(machine: Machine) -> Findings:
    """Free disk space, and whether programs can be run from the agents' directory."""
    for name, path in (("disk", machine.state), ("disk for agents", machine.agents)):
        there = _there(path)
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            yield Finding(name, FAIL, f"{there}: {error.strerror}", "Choose another directory.")
            continue
        detail = f"{size(free)} free at {there}"
        if free < NO_ROOM:
            yield Finding(name, FAIL, detail, "Free some space: without it nothing can be stored.")
        elif free < ROOM:
            yield Finding(name, WARN, detail, "Free some space: an agent takes up to 0.5 GB.")
        else:
            yield Finding(name, OK, detail)
        if path == machine.agents and os.statvfs(there).f_flag & os.ST_NOEXEC:
            yield Finding(
                "agents",
                FAIL,
                f"programs cannot run from {there} (mounted noexec)",
                "Set OSTLER_AGENTS_DIR to another directory.",
            )


def _holds_nothing(path: Path) -> bool:
    """Whether it is of a file system without room for any file, such as /proc."""
    found = os.statvfs(path)
    return found.f_blocks == found.f_files == 0


def _there(path: Path) -> Path:
    """The path, or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def descriptors(machine: Machine) -> Findings:
    """How many files the server may have open: it raises its limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    parts = shares(count, doors=machine.env.get(NETWORK_VARIABLE) == Network.DOOR)
    detail = (
        f"{count} open files: {parts.connections} connections, {parts.agents} agents, "
        f"{parts.terminals} terminals"
    )
    if count >= DESCRIPTORS:
        yield Finding("descriptors", OK, detail)
    else:
        yield Finding(
            "descriptors",
            FAIL if count < TOO_FEW_DESCRIPTORS else WARN,
            f"only {detail}",
            f"Raise the hard limit before the start: ulimit -Hn {DESCRIPTORS}, LimitNOFILE= in a unit.",
        )


CHECKS: Final[tuple[Callable[[Machine], Findings], ...]] = (
    python,
    configuration,
    keys,
    state,
    disk,
    descriptors,
    server_checks.named,
    server_checks.control_socket,
    server_checks.port,
    containment,
    walls,
    keyring,
    secrets,
    node,
    pythons,
)
"""All checks, in the order of the report."""

STYLES: Final = {OK: "good", WARN: "asking", FAIL: "bad"}


def run(arguments: Namespace) -> int:
    """Run all checks. Returns 1 if one failed."""
    machine = Machine(state_directory(arguments.state, os.environ), os.environ)
    found: list[Finding] = []
    screen = console(sys.stdout)
    for check in CHECKS:
        for finding in check(machine):
            found.append(finding)
            if not arguments.json:
                status = Text(f"{finding.status:<5}", style=STYLES[finding.status])
                screen.print(Text.assemble(status, f"{finding.name}: {clean(finding.detail)}"))
                if finding.advice:
                    screen.print(Text(f"     {clean(finding.advice)}", style="bold"))
    failed = any(finding.status == FAIL for finding in found)
    if arguments.json:
        print_json({"findings": [finding._asdict() for finding in found], "ok": not failed})
    return int(failed)
