"""Where the server's session keys, master keys and secrets come from, and how they stay private.

There are three sources: variables, which are removed from the environment; a file; a descriptor. Content of a
file or descriptor goes into kernel memory (memfd_create(2)), which the server alone reads. A process of the
same user may have opened the memory of the first process, the later warden, before that process could hide
itself.

The standard library alone, and little of it: nothing is hidden before this module is imported.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import stat
import time
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import suppress

KEY_NAMES = frozenset(
    {
        "OSTLER_SESSION_API_KEY", "OSTLER_SESSION_API_KEYS", "SESSION_API_KEY", "OH_SESSION_API_KEYS",
        "OSTLER_MASTER_KEY", "OH_SECRET_KEY", "OSTLER_PREVIOUS_MASTER_KEYS", "OH_PREVIOUS_SECRET_KEYS",
        "OSTLER_API_KEY", "OSTLER_DATABASE", "OSTLER_JOIN_KEY", "OSTLER_WEBHOOKS", "OH_WEBHOOKS",
    }
)  # fmt: skip
"""Variables that hold keys: the server's, that of the commands, and those that webhooks send along."""

KEY_PREFIXES = ("OSTLER_SECRET_", "OH_SESSION_API_KEYS_", "OH_WEBHOOKS_")

FILE_VARIABLE = "OSTLER_KEYS_FILE"
JOIN_VARIABLE = "OSTLER_JOIN"
JOIN_KEY_VARIABLE = "OSTLER_JOIN_KEY"
FILE_OPTION = "--keys-file"
DESCRIPTOR_OPTION = "--keys-fd"

CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
CREDENTIAL = "ostler.keys"
"""The file of keys among the credentials that systemd passes. No secret can have that name."""

MOST_BYTES = 1024 * 1024
"""The most bytes of a file of keys: more than any environment can hold."""

DESCRIPTOR_SECONDS = 60.0
"""Seconds that the writer of a descriptor may take: a person may have to type a phrase first."""

PIECE_BYTES = 64 * 1024

LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")


class KeysError(Exception):
    """Keys are unreadable or invalid. The message is one line, names the source, and quotes no value."""


def is_key(variable: str) -> bool:
    """Whether a variable holds a key, or a secret for agents."""
    return variable in KEY_NAMES or variable.startswith(KEY_PREFIXES)


def take_variables(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Remove the keys from the environment, for children and /proc/self/environ, too, and return them."""
    keys = {name: environ.pop(name) for name in [name for name in environ if is_key(name)]}
    if keys and environ is os.environ:
        _blank(keys)
    return keys


def _blank(names: Collection[str]) -> None:
    """Overwrite the values in the kernel's copy of the environment."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - no pathlib in here: it takes too long
            text = file.read()
        # The command name, in parentheses, may hold anything (proc(5)); fields 50 and 51 of all.
        start, end = map(int, text[text.rfind(b")") + 2 :].split()[47:49])
    except (OSError, ValueError):
        return
    if not 0 < start < end:
        return
    wanted = {os.fsencode(name) for name in names}
    for entry in re.finditer(rb"([^=\0]+)=([^\0]*)", ctypes.string_at(start, end - start)):
        if entry[1] in wanted:
            ctypes.memset(start + entry.start(2), 0, len(entry[2]))


class Place:
    """Keys from a file or a descriptor: their origin, and the memory that holds them until `read`.

    That is a memory file of the kernel, or bytes of this process on systems that have none.
    """

    def __init__(self, origin: str, content: int | bytes) -> None:
        self.origin = origin
        self.content = content

    def read(self) -> dict[str, str]:
        """Return the keys by the names of their variables, and release the memory. Raises KeysError."""
        return parse(self.take(), self.origin)

    def take(self) -> bytes:
        """Return the content, and release the memory."""
        if isinstance(self.content, bytes):
            return self.content
        with open(self.content, "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(0)
            return file.read(MOST_BYTES + 1)


def find(descriptor: str | None, path: str | None, environ: Mapping[str, str]) -> Place | None:
    """Find the keys: the source in the arguments, else that of the variable, else systemd's credentials.

    Returns None if there is none. A descriptor is read to its end and closed. Raises KeysError.
    """
    if descriptor is not None and path is not None:
        raise KeysError(f"{DESCRIPTOR_OPTION} and {FILE_OPTION} exclude each other; give one of them")
    if descriptor is not None:
        return _from_descriptor(descriptor)
    if path is not None:
        return _from_file(path, FILE_OPTION)
    if environ.get(FILE_VARIABLE):
        return _from_file(environ[FILE_VARIABLE], FILE_VARIABLE)
    if environ.get(CREDENTIALS_VARIABLE):
        path = os.path.join(environ[CREDENTIALS_VARIABLE], CREDENTIAL)  # noqa: PTH118
        if os.path.lexists(path):
            return _from_file(path, CREDENTIALS_VARIABLE)
    return None


def parse(data: bytes, origin: str) -> dict[str, str]:
    """Parse lines `NAME=value`, as in the environment files of systemd and Docker.

    Blank lines and lines that begin with `#` are skipped. Blanks around a value, and one pair of quotes
    around it, are removed. Nothing else is special. Raises KeysError.
    """
    if len(data) > MOST_BYTES:
        raise KeysError(f"{origin} has more than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeysError(f"{origin} is not valid UTF-8") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        if found is None or "\0" in line:
            raise KeysError(f"{origin}, line {number}: the line is not NAME=value")
        name, value = found.groups()
        if not is_key(name):
            raise KeysError(f"{origin}, line {number}: {name} is not the name of a key; set it as a variable")
        if name in keys:
            raise KeysError(f"{origin}, line {number}: {name} is given twice")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        keys[name] = value
    return keys


def _from_file(path: str, option: str) -> Place:
    origin = f"{option}: file {path}"
    try:
        # Not to wait for the other end of what turns out to be a pipe.
        source = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # noqa: PTH111
    except (OSError, ValueError) as error:
        raise KeysError(f"{origin} cannot be read: {getattr(error, 'strerror', error)}") from None
    try:
        _check(os.fstat(source), origin)
        return keep(source, origin)
    finally:
        os.close(source)


def _check(found: os.stat_result, origin: str) -> None:
    """Check that only this user can read or write the file. Raises KeysError.

    A file of root (systemd and mounted secrets) may be readable by a group, as that is how this process can
    read it.
    """
    if not stat.S_ISREG(found.st_mode):
        raise KeysError(f"{origin} is not a regular file; give a pipe with {DESCRIPTOR_OPTION}")
    if found.st_uid not in (os.geteuid(), 0):
        raise KeysError(f"{origin} belongs to another user (uid {found.st_uid}); make it your own")
    others = 0o077 if found.st_uid == os.geteuid() else 0o037
    if found.st_mode & others:
        raise KeysError(f"{origin} is open to others (mode {found.st_mode & 0o777:04o}); chmod 600 it")


def _from_descriptor(text: str) -> Place:
    origin = f"{DESCRIPTOR_OPTION}: descriptor {text}"
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else -1
    if number < 0 or number in (1, 2):
        raise KeysError(f"{DESCRIPTOR_OPTION}: {text!r} is not a descriptor to read from, such as 3")
    try:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise KeysError(f"{origin} is a directory")
        return keep(number, origin)
    except OSError as error:
        raise KeysError(f"{origin} cannot be read: {error.strerror}") from None
    finally:
        _close(number)


def _close(number: int) -> None:
    try:
        if number == 0:  # the next file to be opened must not become standard input
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(nothing, 0)
            os.close(nothing)
        else:
            os.close(number)
    except OSError:
        return


def keep(source: int, origin: str) -> Place:
    """Read the source into a memory file of the kernel, if available. Raises KeysError, OSError."""
    memory = os.memfd_create("ostler", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else bytearray()
    try:
        _move_all(source, origin, memory)
    except BaseException:
        if isinstance(memory, int):
            os.close(memory)
        raise
    return Place(origin, memory if isinstance(memory, int) else bytes(memory))


def _move_all(source: int, origin: str, memory: int | bytearray) -> None:
    """Move everything. Raises KeysError if it takes too long, or is too much."""
    until = time.monotonic() + DESCRIPTOR_SECONDS
    poll = select.poll()
    poll.register(source, select.POLLIN)
    total = 0
    while True:
        wait = until - time.monotonic()
        if wait <= 0 or not poll.poll(wait * 1000):
            raise KeysError(
                f"{origin} did not end within {DESCRIPTOR_SECONDS:g} s; close the other end after writing"
            )
        moved = _move(source, memory)
        if not moved:
            return
        total += moved
        if total > MOST_BYTES:
            raise KeysError(f"{origin} has more than {MOST_BYTES} bytes")


def _move(source: int, memory: int | bytearray) -> int:
    """Move what is available, and return how many bytes.

    Where the kernel can do that, nothing goes through memory of this process.
    """
    if isinstance(memory, int):
        with suppress(AttributeError, OSError):
            return os.sendfile(memory, source, None, PIECE_BYTES)
        with suppress(AttributeError, OSError):
            return os.splice(source, memory, PIECE_BYTES)
    data = os.read(source, PIECE_BYTES)
    if isinstance(memory, int):
        return os.write(memory, data) if data else 0
    memory += data
    return len(data)
