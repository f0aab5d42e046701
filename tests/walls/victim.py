"""What an agent attacks. A program of its own that runs as the scene's user.

    python3 -I -S victim.py victim COMMAND_LINE_SECRET
    python3 -I -S victim.py session DESCRIPTION SECRET COMMAND [ARGUMENT ...]

`victim` is the server, or another agent: it reads one JSON line with what it has to be, prints one with its
addresses, and ends with its standard input. `session` is the login in which an operator starts the server:
standard input becomes the terminal of a new session, and the secret a key of a new session keyring; the
command inherits both.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import termios
from typing import Any

PULSE_S = 0.02
IPC_CREAT = 0o1000
SYS_ADD_KEY = 248 if os.uname().machine == "x86_64" else 217
SYS_KEYCTL = 250 if os.uname().machine == "x86_64" else 219
KEYCTL_SET_TIMEOUT, KEYCTL_UNLINK, KEYCTL_JOIN_SESSION_KEYRING = 15, 9, 1
KEY_SPEC_SESSION_KEYRING, KEY_SPEC_USER_KEYRING = -3, -4
KEY_SECONDS = 300
"""Keys go by themselves, if nothing else ends them."""

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.syscall.restype = ctypes.c_long


def keyctl(operation: int, *arguments: int | None) -> None:
    """Change a keyring, if there are any."""
    words = [None if each is None else ctypes.c_long(each) for each in arguments]
    libc.syscall(ctypes.c_long(SYS_KEYCTL), ctypes.c_long(operation), *words)


def add_key(description: str, secret: str, keyring: int) -> int:
    """Put a secret into a keyring of the kernel. Returns its number, or -1 where there are no keyrings."""
    size = ctypes.c_size_t(len(secret))
    words = (b"user", description.encode(), secret.encode(), size, ctypes.c_long(keyring))
    key = int(libc.syscall(ctypes.c_long(SYS_ADD_KEY), *words))
    if key != -1:
        keyctl(KEYCTL_SET_TIMEOUT, key, KEY_SECONDS)
    return key


def share(wanted: dict[str, Any]) -> tuple[int, Any, int]:
    """Make shared memory and a queue with secrets. Returns segment, library and queue."""
    secret = wanted["segment"].encode()
    segment = libc.shmget(wanted["segment_key"], ctypes.c_size_t(4096), IPC_CREAT | 0o600)
    assert segment != -1
    address = libc.shmat(segment, None, 0)
    ctypes.memmove(address, secret, len(secret))
    library = libc if hasattr(libc, "mq_open") else ctypes.CDLL("librt.so.1")
    name, mode = wanted["queue_name"].encode(), ctypes.c_uint(0o600)
    queue = library.mq_open(name, os.O_CREAT | os.O_RDWR, mode, None)
    if queue != -1:
        message = wanted["queue"].encode()
        library.mq_send(queue, message, ctypes.c_size_t(len(message)), 0)
    return segment, library, queue


def be_victim() -> None:
    wanted = json.loads(sys.stdin.readline())
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    witness = os.open(wanted["witness"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(text: str) -> None:
        os.write(witness, f"{text}\n".encode())

    for number in range(signal.SIGRTMIN + 1, signal.SIGRTMIN + 8):
        signal.signal(number, lambda number, _: note(f"{wanted['role']} signal {number}"))
    memory = ctypes.create_string_buffer(wanted["memory"].encode())
    canary = ctypes.create_string_buffer(64)
    held = os.open(wanted["to_hold"], os.O_RDONLY)
    os.unlink(wanted["to_hold"])
    os.chdir(wanted["directory"])
    if wanted["leads"]:
        os.setpgid(0, 0)
    ready: dict[str, Any] = {
        "pid": os.getpid(),
        "memory_address": ctypes.addressof(memory),
        "canary_address": ctypes.addressof(canary),
        "held_descriptor": held,
    }
    if wanted["user_keyring"]:
        description, secret = wanted["user_keyring"]
        user_key = add_key(description, secret, KEY_SPEC_USER_KEYRING)
        ready["has_keyring"] = user_key != -1
    shared = share(wanted) if wanted["role"] == "agent" else None
    ready["has_queue"] = shared is not None and shared[2] != -1

    selector = selectors.DefaultSelector()
    for family, address, answer in wanted["listeners"]:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.bind(tuple(address) if isinstance(address, list) else address)
        listening.listen()
        selector.register(listening, selectors.EVENT_READ, answer)
        if family == socket.AF_INET:
            ready["port"] = listening.getsockname()[1]
    if wanted["role"] == "server":
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind(("127.0.0.1", 0))
        ready["names_port"] = names.getsockname()[1]
        selector.register(names, selectors.EVENT_READ, None)
    selector.register(0, selectors.EVENT_READ)
    print(json.dumps(ready), flush=True)
    try:
        while True:
            for key, _ in selector.select(PULSE_S if wanted["pulse"] else None):
                if key.fileobj == 0:
                    return
                if key.data is None:
                    note(f"asked {key.fileobj.recv(4096)!r}")  # type: ignore[union-attr]
                else:
                    connection, _address = key.fileobj.accept()  # type: ignore[union-attr]
                    with connection:
                        connection.send(key.data.encode())
            if wanted["pulse"]:
                os.utime(wanted["pulse"])
    finally:
        if wanted["user_keyring"]:
            keyctl(KEYCTL_UNLINK, user_key, KEY_SPEC_USER_KEYRING)
        if shared is not None:
            libc.shmctl(shared[0], 0, None)  # IPC_RMID
            shared[1].mq_unlink(wanted["queue_name"].encode())


def be_session(description: str, secret: str, command: list[str]) -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)  # the terminal stays that of the session
    keyctl(KEYCTL_JOIN_SESSION_KEYRING, None)
    add_key(description, secret, KEY_SPEC_SESSION_KEYRING)
    os.execvp(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "session":
        be_session(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        be_victim()
