"""Containment levels: what each requires, and which one is available here."""

from __future__ import annotations

import enum
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from supervisor.agents.containment import cgroup


class Level(enum.StrEnum):
    """How the processes of agents are contained, from the weakest level to the strongest."""

    TREE = "tree"
    """Sessions, walks through /proc, tags. After a server was killed, the next start ends what it left."""

    WARDEN = "warden"
    """Like `tree`, plus a parent of the server that ends what a killed server left."""

    CGROUP = "cgroup"
    """A control group (version 2) for each agent, killed by one write."""

    PIDNS = "pidns"
    """A PID namespace for each agent: the kernel kills all of it with its first process, or the server."""


AUTO: Final = "auto"
"""`warden` if there is one, else `tree`. The other levels must be chosen explicitly: a cgroup must be
delegated, and a namespace changes what the agent sees."""

PROBE_SECONDS: Final = 10.0
"""Seconds for one trial of the programs that make a namespace; they need a few milliseconds."""


class LevelUnavailable(Exception):
    """The level that was asked for is unavailable. The message is one line for the terminal."""


def parse(text: str | None) -> Level | None:
    """Return the level that the operator asks for; None for `auto` or nothing. Raises ValueError."""
    if not text or text == AUTO:
        return None
    try:
        return Level(text)
    except ValueError:
        raise ValueError(f"{text!r} is not one of {', '.join([AUTO, *Level])}") from None


def choose(demanded: Level | None, *, warden: bool) -> Level:
    """Choose the level. `warden`: whether the server has one.

    Blocks for the time of a probe (see `obstacle`). Raises LevelUnavailable.
    """
    if demanded is None:
        return Level.WARDEN if warden else Level.TREE
    reason = obstacle(demanded, warden=warden)
    if reason is not None:
        raise LevelUnavailable(
            f"containment {demanded.value!r} is unavailable: {reason}; auto takes what there is"
        )
    return demanded


def obstacle(level: Level, *, warden: bool) -> str | None:
    """Return why a level is unavailable; None if it is available. Tries the upper two out, in
    milliseconds."""
    match level:
        case Level.TREE:
            return None
        case Level.WARDEN:
            return None if warden else "the server runs without a warden"
        case Level.CGROUP:
            group = cgroup.agents_group()
            if group is None:
                return "this process is not in a cgroup v2 group"
            return cgroup.probe(group)
        case Level.PIDNS:
            return _try_namespace()


def _try_namespace() -> str | None:
    missing = [name for name in ("unshare", "setpriv", "sh") if shutil.which(name) is None]
    if missing:
        return f"the program {missing[0]} is not installed"
    try:
        trial = subprocess.run(
            in_namespace(["true"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial failed: {error}"
    if trial.returncode == 0:
        return None
    lines = trial.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the trial ended with status {trial.returncode}"


NAMESPACE: Final = (
    # The kernel kills the namespace when the server ends, even if it is killed.
    "setpriv", "--pdeathsig", "KILL",
    # The same user inside; a /proc for the namespace, or programs would read other processes' entries.
    "unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork", "--kill-child",
    # Orphans go to the first process of a namespace, which must reap them. Agents do not, a shell does.
    "sh", "-c", '"$@"; exit $?', "sh",
)  # fmt: skip


def in_namespace(argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in a PID namespace. An end by signal n has status 128 + n."""
    return [*NAMESPACE, *argv]


def in_cgroup(argv: Sequence[str], group: Path) -> list[str]:
    """Return the command that enters the cgroup and becomes `argv`, so that nothing is forked outside of
    it."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / cgroup.PROCESSES_FILE), *argv]
