"""A process that holds a write lease on files: whoever opens one waits for most of a minute, or for its
end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# As an attacker would: told by the kernel to let go (SIGIO), it does not. A lease that the kernel has taken
# away is taken again.
HOLDER = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
files = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
told = False
while True:
    for file in files:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            if not told:
                sys.exit(str(error))
    if not told:
        print("held", flush=True)
        told = True
    time.sleep(0.2)
"""

BREAK_SECONDS = Path("/proc/sys/fs/lease-break-time")


@contextmanager
def leased(*paths: Path) -> Iterator[None]:
    """The files are under a lease for the length of the block. Skips where the file system has none."""
    import pytest

    command = [sys.executable, "-I", "-S", "-c", HOLDER, *map(str, paths)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "held\n":
                pytest.skip(f"no lease to be had here: {holder.stderr.read()}")
            yield
        finally:
            holder.kill()
