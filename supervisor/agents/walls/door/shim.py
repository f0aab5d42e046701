"""Hands an agent's door to the server, then becomes the agent.

    python3 -I -S shim.py SOCKET -- PROGRAM ARGUMENT...

It runs inside of the agent's network namespace, before any code of the agent: it listens on the two ports of
the door, passes both listeners through SOCKET (SCM_RIGHTS), waits for the server's answer, closes everything
and executes the program. The ports are fixed, so that the agent's environment is known before its start.

Runs on the Python that the agent sees, from 3.9 on. It imports the modules behind `socket` and `signal`,
since these two take longer to import than everything else here together.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found, unused-ignore]
import _socket
import os
import sys

HOST = "127.0.0.1"

API_PORT = 6801
"""The door to the APIs of the agent's keys. Not a port that development servers use, and below those that the
kernel gives to connections."""

PROXY_PORT = 6802
"""The door to other hosts: an HTTP proxy."""

BACKLOG = 128
"""Connections that wait in the kernel while the server takes no more of the agent."""

ANSWER_SECONDS = 30.0
"""Seconds for the server's answer, which takes a millisecond on an idle machine."""

DESCRIPTOR_BYTES = 4
"""Bytes of a descriptor in a message: a C `int`."""

FAILED = 127
"""Exit status where the program cannot be executed, as a shell's."""


def listeners() -> list[_socket.socket]:
    """Return the two listeners, the API's first. Raises OSError."""
    found = []
    for port in (API_PORT, PROXY_PORT):
        # IPv4 alone, since a kernel may refuse IPv6.
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
        found.append(listener)
    return found


def hand_over(path: str) -> None:
    """Pass the listeners to the server at this socket, and wait for its answer. Raises OSError."""
    handed = listeners()
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    channel.settimeout(ANSWER_SECONDS)
    # By the descriptor of its directory: the path of a socket has 107 bytes at most.
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    channel.connect(f"/proc/self/fd/{opened}/{name}")
    os.close(opened)
    rights = b"".join(each.fileno().to_bytes(DESCRIPTOR_BYTES, sys.byteorder) for each in handed)
    channel.sendmsg([b"d"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    if not channel.recv(1):
        raise OSError(0, "the server refused it; its log says why")
    for each in (*handed, channel):
        each.close()


def become(argv: list[str]) -> None:
    """Execute the program. Raises OSError."""
    # The interpreter ignores both, which the program would inherit: it would not end with its reader, nor at
    # its limit of a file's size.
    for name in ("SIGPIPE", "SIGXFSZ"):
        _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    os.execvp(argv[0], argv)  # noqa: S606 - no shell


def main(words: list[str]) -> int:
    """Run the command line. Return the exit status of a failure."""
    path, mark, *argv = words
    if mark != "--" or not argv:
        raise ValueError("use: shim.py SOCKET -- PROGRAM ARGUMENT...")
    try:
        hand_over(path)
    except OSError as error:
        sys.stderr.write(f"ostler: the agent's network door does not open: {error.strerror or error}\n")
        return FAILED
    try:
        become(argv)
    except OSError as error:
        sys.stderr.write(f"ostler: {argv[0]} cannot be started: {error.strerror}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
