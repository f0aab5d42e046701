"""The command of bubblewrap that runs a program behind a wall. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from supervisor.agents.walls.mounts import Kind, Mount

PROGRAM: Final = "bwrap"

NAMESPACES: Final = (
    # A user namespace, or mounting would need a privilege. Nested ones stay possible (`--disable-userns` is
    # not given): Claude's and Codex's own sandboxes are made of them.
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
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

SIGNALLED: Final = 128
"""A program that signal n ended makes bubblewrap exit with this plus n."""


def command(
    program: str, mounts: Iterable[Mount], argv: Sequence[str], *, network: bool = True, host: str = "agent"
) -> list[str]:
    """Return the command that runs `argv` with these mounts. `program`: where bubblewrap is. `network`: with
    the machine's network, else with a loopback device of its own. `host`: the name of the machine inside."""
    words = [program, *NAMESPACES, "--hostname", host]
    if not network:
        words.append(NETWORK)
    for mount in mounts:
        words += _words(mount)
    return [*words, "--", *argv]


def _words(mount: Mount) -> list[str]:
    target = str(mount.target)
    match mount.kind:
        case Kind.WRITABLE | Kind.READ_ONLY | Kind.DEVICES | Kind.LINK:
            return [f"--{mount.kind.value}", str(mount.source), target]
        case Kind.EMPTY if mount.target in SIZED:
            return ["--size", str(SHARED_MEMORY_BYTES), "--tmpfs", target]
        case _:
            return [f"--{mount.kind.value}", target]
