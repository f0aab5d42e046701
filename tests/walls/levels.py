"""The walls that the attempts run against: each turns the agent's command into one that runs inside.

These are made by hand.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from tests.walls.scene import Command, Scene, Wall, as_user

MB: Final = 1 << 20

LIMITS: Final = (
    "prlimit",
    "--nproc=200",
    f"--data={128 * MB}",
    f"--fsize={32 * MB}",
    "--nofile=1024",
    "--",
)
"""Below the amounts that the attempts use. Set inside the user namespace, that of processes counts the
agent's alone."""

USER_NAMESPACE: Final = "--unshare-user"
PROCESSES: Final = "--unshare-pid"
MEMORY: Final = "--unshare-ipc"
NEW_SESSION: Final = "--new-session"
CAPABILITIES: Final = "--cap-drop"
FILTER: Final = "--seccomp"
MASKS: Final = "masks"
READ_ONLY: Final = "read-only"
"""Parts of a profile, which a test takes away to see attempts succeed."""


@contextlib.contextmanager
def off(scene: Scene, argv: Sequence[str]) -> Iterator[Command]:
    """No wall, and a start that leaves a descriptor open. Ostler's leaves none, nor do those of the walls."""
    yield Command(argv, (scene.left,))


@attrs.frozen
class Bubblewrap:
    """A wall by bubblewrap, without the parts that are named."""

    strict: bool
    without: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def __call__(self, scene: Scene, argv: Sequence[str]) -> Iterator[Command]:
        descriptor = os.memfd_create("filter")
        try:
            os.write(descriptor, filter_program())
            os.lseek(descriptor, 0, os.SEEK_SET)
            words = [word for option in self._options(scene, descriptor) for word in option]
            yield Command(["bwrap", *words, "--", *LIMITS, *argv], (descriptor,))
        finally:
            os.close(descriptor)

    def _options(self, scene: Scene, descriptor: int) -> Iterator[tuple[str, ...]]:
        parts = (
            (USER_NAMESPACE,),
            (PROCESSES,),
            (MEMORY,),
            (NEW_SESSION,),
            (CAPABILITIES, "ALL"),
            (FILTER, str(descriptor)),
        )
        yield from (each for each in parts if each[0] not in self.without)
        yield ("--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")
        yield from self._strict(scene) if self.strict else self._guard(scene)
        yield ("--chdir", str(scene.workspace))

    def _strict(self, scene: Scene) -> Iterator[tuple[str, ...]]:
        for path in ("/usr", "/etc"):
            yield ("--ro-bind", path, path)
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                yield ("--symlink", os.readlink(f"/{name}"), f"/{name}")
            elif os.path.isdir(f"/{name}"):
                yield ("--ro-bind", f"/{name}", f"/{name}")
        yield from self._proc()
        yield ("--dev", "/dev")
        yield ("--tmpfs", "/tmp")
        yield from self._own(scene)
        yield ("--remount-ro", "/")

    def _guard(self, scene: Scene) -> Iterator[tuple[str, ...]]:
        yield ("--dev-bind", "/", "/")
        if PROCESSES not in self.without:
            yield from self._proc()
        yield ("--tmpfs", "/run")
        if MASKS not in self.without:
            for path in (scene.state, *scene.others):
                yield ("--tmpfs", str(path))
        yield from self._own(scene)
        if MASKS not in self.without:
            for path in (scene.state, *scene.others):
                yield ("--remount-ro", str(path))

    def _proc(self) -> Iterator[tuple[str, ...]]:
        yield ("--proc", "/proc")
        # Its files belong to root, whose id is enough to write them.
        yield ("--ro-bind", "/proc/sys", "/proc/sys")

    def _own(self, scene: Scene) -> Iterator[tuple[str, ...]]:
        for path in (scene.workspace, scene.home):
            yield ("--bind", str(path), str(path))
        yield ("--ro-bind", str(scene.install), str(scene.install))
        if READ_ONLY not in self.without:
            # A directory above one that is read-only could be moved away, with all that is in it.
            git = scene.workspace / ".git"
            yield ("--bind", str(git), str(git))
            for path in scene.run_later:
                yield ("--ro-bind", str(path), str(path))


guard: Final = Bubblewrap(strict=False)
strict: Final = Bubblewrap(strict=True)

LEVELS: Final[Mapping[str, Wall]] = {"off": off, "guard": guard, "strict": strict}


def obstacle(user: int) -> str | None:
    """Why this user can make no walls here; None if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    trial = [
        *as_user(user),
        "bwrap",
        USER_NAMESPACE,
        PROCESSES,
        "--dev-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "true",
    ]
    done = subprocess.run(trial, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"bubblewrap fails: {done.stderr.strip()}"


# -- system calls --------------------------------------------------------------------------------------------

_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X86: Final = platform.machine() == "x86_64"
_REFUSED: Final = (
    *((248, 249, 250) if _X86 else (217, 218, 219)),  # add_key, request_key, keyctl
    *(425, 426, 427),  # io_uring_*
    323 if _X86 else 282,  # userfaultfd
)
_SOCKET: Final = 41 if _X86 else 198
_AF_VSOCK: Final = 40
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_EPERM, _EAFNOSUPPORT = 1, 97


def filter_program() -> bytes:
    """A program for the kernel that refuses what namespaces do not cover."""
    words = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()]), (_RETURN, 0, 0, _ALLOW)]
    words.append((_LOAD, 0, 0, 0))
    for number in _REFUSED:
        words += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | _EPERM)]
    words += [
        (_EQUAL, 0, 3, _SOCKET),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 0, 1, _AF_VSOCK),
        (_RETURN, 0, 0, _REFUSE | _EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *word) for word in words)
