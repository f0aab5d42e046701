"""Secrets from outside the store: directories of files, and variables."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

import attrs

from supervisor.credentials.master import KEY_VARIABLES, PREVIOUS_VARIABLES
from supervisor.credentials.secret import (
    MAX_VALUE_BYTES,
    InvalidSecretName,
    InvalidSecretValue,
    Secret,
    check_name,
    check_value,
)

#: Directories of files named like their secrets, in the order in which they count: one that the operator
#: names (mounted by Docker or Kubernetes), and that in which systemd puts credentials.
DIRECTORY_VARIABLES: Final = ("OSTLER_SECRETS_DIR", "CREDENTIALS_DIRECTORY")

#: In the second of them: keys of the server's own (gateway/configuration/keys.py). No secret has such a name.
KEYS_FILE: Final = "ostler.keys"

#: Before the name of a secret.
SECRET_PREFIX: Final = "OSTLER_SECRET_"  # noqa: S105 - a prefix of names


@attrs.frozen
class FoundSecret:
    """A secret and its source.

    `source` is the kind: `store`, `directory` or `variable`. `where` names it: the path of the
    file, or the variable. `hides` are the unused sources of a secret of the same name.
    """

    name: str
    value: Secret
    source: str
    where: str | None = None
    description: str | None = None
    hides: tuple[str, ...] = ()


@attrs.frozen
class ExternalSources:
    """The sources of secrets: directories in order (path by variable), and variables."""

    directories: Mapping[str, Path]
    variables: Mapping[str, Secret] = attrs.field(repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ExternalSources:
        """The sources that the environment names."""
        directories = {
            name: Path(environ[name]).absolute() for name in DIRECTORY_VARIABLES if environ.get(name)
        }
        variables = {name: Secret(value) for name, value in environ.items() if name.startswith(SECRET_PREFIX)}
        return cls(directories, variables)

    def read(self) -> tuple[list[FoundSecret], tuple[str, ...]]:
        """Read the secrets, and the problems of invalid ones.

        A problem is a line for people that names the file or the variable and quotes no value. Blocks on the
        disk: call it in a thread.
        """
        found: list[FoundSecret] = []
        problems: list[str] = []
        for variable, directory in self.directories.items():
            _read_directory(variable, directory, found, problems)
        for variable, value in sorted(self.variables.items()):
            try:
                name = check_name(variable.removeprefix(SECRET_PREFIX))
                check_value(value.reveal())
                found.append(FoundSecret(name, value, "variable", variable))
            except (InvalidSecretName, InvalidSecretValue) as error:
                problems.append(f"variable {variable} is left out: {error}")
        return found, tuple(problems)


def merge(found: Iterable[FoundSecret]) -> dict[str, FoundSecret]:
    """Merge by name: the first one of a name wins, and lists the others in `hides`."""
    merged: dict[str, FoundSecret] = {}
    for each in found:
        first = merged.get(each.name)
        if first is None:
            merged[each.name] = each
        else:
            merged[each.name] = attrs.evolve(first, hides=(*first.hides, each.where or each.source))
    return merged


def is_private(variable: str) -> bool:
    """Whether a variable of the server holds a secret, or the key to secrets."""
    return variable in (*KEY_VARIABLES, *PREVIOUS_VARIABLES) or variable.startswith(SECRET_PREFIX)


def take_private(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Remove the variables that hold secrets, or the key to them, from this process's environment.

    So no child inherits them; where the system permits it, they are also blanked in the memory that
    `/proc/<pid>/environ` shows. The parent process keeps its own copy.
    """
    names = [name for name in environ if is_private(name)]
    if environ is os.environ:
        _blank(names)
    return {name: environ.pop(name) for name in names}


def _blank(names: Collection[str]) -> None:
    """Overwrite the values of variables where the C library has them."""
    if not names:
        return
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    for name in names:
        address = libc.getenv(os.fsencode(name))
        if address:
            ctypes.memset(address, 0, len(ctypes.string_at(address)))


def _read_directory(variable: str, directory: Path, found: list[FoundSecret], problems: list[str]) -> None:
    try:
        # Hidden entries belong to the mount mechanism: Kubernetes swaps versions with `..data`.
        names = sorted(
            path.name
            for path in directory.iterdir()
            if not path.name.startswith(".") and path.name != KEYS_FILE
        )
    except OSError as error:
        problems.append(f"{variable}: directory {directory} cannot be read: {error.strerror}")
        return
    for name in names:
        path = directory / name
        try:
            check_name(name)
            found.append(FoundSecret(name, Secret(check_value(_read_file(path))), "directory", str(path)))
        except OSError as error:
            problems.append(f"file {path} is left out: {error.strerror}")
        except UnicodeError:
            problems.append(f"file {path} is left out: it is not UTF-8")
        except (InvalidSecretName, InvalidSecretValue) as error:
            problems.append(f"file {path} is left out: {error}")


def _read_file(path: Path) -> str:
    """Read the text of a file without its last line end. Raises OSError, UnicodeError, InvalidSecretValue."""
    # Non-blocking, so that a named pipe does not wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidSecretValue("it is not a regular file")
        data = file.read(MAX_VALUE_BYTES + len(b"\r\n") + 1)
    return data.decode().removesuffix("\n").removesuffix("\r")
