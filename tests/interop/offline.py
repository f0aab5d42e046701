"""Runs a command without any network but loopback.

    python tests/interop/offline.py pytest -m interop

The command gets a network namespace of its own in which only `lo` exists: whatever an agent tries to reach
outside fails at once, and a test that needs it fails with it. Linux only; without root it needs user
namespaces. Install the agents and the peer's environment before, by a first run with the network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def enter_empty_network() -> None:
    """Move this process into a new network namespace and bring its loopback up."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot make a network namespace")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: offline.py COMMAND [ARGUMENT...]")
    enter_empty_network()
    os.execvp(sys.argv[1], sys.argv[1:])
