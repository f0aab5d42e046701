"""The command of bubblewrap that runs a program behind a wall. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from supervisor.agents.walls.mounts import Kind, Mount

PROGRAM: Final = "bwrap"

USER_NAMESPACE: Final = "--unshare-user"
"""Without it mounting needs a privilege. Nested ones stay possible (`--disable-userns` is not given):
Claude's and Codex's own sandboxes are made of them."""

NAMESPACES: Final = (
    "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    # The kernel kills everything inside when bubblewrap's parent ends.
    "--die-with-parent",
    # Without a controlling terminal, into which characters could be pushed.
    "--new-session",
    "--cap-drop", "ALL",
)  # fmt: skip

NETWORK: Final = "--unshare-net"

SHARED_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Bytes of `/dev/shm` and of each `/tmp` inside: they take memory, and Chromium uses 64 MB."""

SIZED: Final = frozenset({Path("/dev/shm")})  # noqa: S108

SETPRIV: Final = "setpriv"
"""The program that becomes another user (util-linux)."""

BECOMING: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
"""Capabilities that root needs to enter the working directory and become another user. It has none then."""

ACCOUNTS: Final = Path("/etc/passwd")

ACCOUNTS_DESCRIPTOR: Final = 99
"""The descriptor with the accounts of the machine and that of an agent's own user. Above those that the
spawner has open."""

SIGNALLED: Final = 128
"""A program that signal n ended makes bubblewrap exit with this plus n."""


def command(
    program: str,
    mounts: Iterable[Mount],
    argv: Sequence[str],
    *,
    network: bool = True,
    host: str = "agent",
    user: int | None = None,
) -> list[str]:
    """Return the command that runs `argv` with these mounts. `program`: where bubblewrap is. `network`: with
    the machine's network, else with a loopback device of its own. `host`: the name of the machine inside.
    `user`: the user that root becomes, in place of a user namespace; ACCOUNTS_DESCRIPTOR is open then."""
    words = [program, *NAMESPACES, "--hostname", host]
    if user is None:
        words.append(USER_NAMESPACE)
    else:
        words += [word for name in BECOMING for word in ("--cap-add", name)]
    if not network:
        words.append(NETWORK)
    reachable: set[Path] = set()
    for mount in mounts:
        if user is not None and mount.kind is not Kind.SEALED:
            words += _reachable(mount.target, reachable)
            if mount.kind is Kind.EMPTY:
                words += ["--perms", "1777"]  # bubblewrap makes it for root
        words += _words(mount)
    if user is not None:
        words += ["--perms", "0444", "--ro-bind-data", str(ACCOUNTS_DESCRIPTOR), str(ACCOUNTS)]
        argv = [
            *(SETPRIV, f"--reuid={user}", f"--regid={user}", "--clear-groups"),
            *("--bounding-set=-all", "--inh-caps=-all", "--", *argv),
        ]
    return [*words, "--", *argv]


def _reachable(target: Path, made: set[Path]) -> list[str]:
    """Words that make the directories above a place such that every user gets through; bubblewrap makes them
    for root. What is there already stays."""
    new = [path for path in reversed(target.parents) if path not in made and path != path.parent]
    made.update(new)
    return [word for path in new for word in ("--dir", str(path))]


def _words(mount: Mount) -> list[str]:
    target = str(mount.target)
    match mount.kind:
        case Kind.WRITABLE | Kind.READ_ONLY | Kind.DEVICES | Kind.LINK:
            return [f"--{mount.kind.value}", str(mount.source), target]
        case Kind.EMPTY if mount.target in SIZED:
            return ["--size", str(SHARED_MEMORY_BYTES), "--tmpfs", target]
        case _:
            return [f"--{mount.kind.value}", target]
