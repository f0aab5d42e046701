"""A real PostgreSQL: a cluster of its own on a unix socket. Debian's server is enough."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from supervisor.database.address import Database, parse

USER: Final = "ostler"
SETTINGS: Final = ("max_connections=400", "shared_buffers=64MB", "log_min_messages=fatal")
UNSAFE: Final = ("fsync=off", "full_page_writes=off")
"""For tests that kill no database: half of the time."""

_UNPRIVILEGED: Final = "postgres"


def binaries() -> Path | None:
    """Where the server's programs are: the newest of Debian's, or those on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda each: int(each.parts[-3]))
    if found:
        return found[-1].parent
    known = shutil.which("postgres")
    return None if known is None else Path(known).parent


class Cluster:
    """A running PostgreSQL. `durable`: as it is run in earnest, with fsync."""

    def __init__(self, directory: Path, programs: Path, *, durable: bool = False, listen: str = "") -> None:
        self.directory = directory
        self.programs = programs
        self.data = directory / "data"
        self._settings = [*SETTINGS, *(() if durable else UNSAFE), f"listen_addresses={listen}"]
        self._numbers = itertools.count()

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs as the user that owns the cluster: PostgreSQL refuses root."""
        return subprocess.run(
            [*self._prefix(), str(self.programs / program), *arguments],
            check=True,
            capture_output=True,
            text=True,
            cwd=self.directory,
        )

    def _prefix(self) -> Sequence[str]:
        if os.geteuid() != 0:
            return ()
        return ("setpriv", f"--reuid={_UNPRIVILEGED}", f"--regid={_UNPRIVILEGED}", "--clear-groups")

    def create(self) -> None:
        """Make the files of the cluster."""
        self._own()
        options = ("-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.run("initdb", "-D", str(self.data), *options)

    def _own(self) -> None:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_UNPRIVILEGED)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)

    def start(self) -> None:
        """Start it; it accepts connections on return."""
        options = " ".join(f"-c {each}" for each in self._settings)
        options += f" -c unix_socket_directories={self.directory}"
        log = str(self.directory / "log")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-l", log, "-o", options, "start")

    def trust(self, addresses: str) -> None:
        """Accept connections from these addresses (CIDR), without a password."""
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {addresses} trust\n")
        self.run("pg_ctl", "-D", str(self.data), "reload")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: `smart`, `fast`, or `immediate`, which is as if it crashed."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-m", mode, "stop")

    def follow(self, primary: Cluster) -> None:
        """Make the files of a standby of another cluster, which streams to this one once it is started."""
        self._own()
        options = ("-h", str(primary.directory), "-U", USER, "-R", "-X", "stream", "-c", "fast")
        primary.run("pg_basebackup", "-D", str(self.data), *options)

    def promote(self) -> None:
        """Make a standby the primary; it takes writes on return."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "promote")

    def address(self, name: str) -> Database:
        """The address of a database."""
        return parse(f"postgresql://{USER}@/{name}?host={self.directory}")

    def database(self, template: str | None = None) -> Database:
        """A new database: empty, or a copy of another one."""
        import psycopg

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.address("postgres").conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return self.address(name)


class Missing(Exception):
    """There is no PostgreSQL on this machine."""


@contextmanager
def running(
    *, durable: bool = False, listen: str = "", standby_of: Cluster | None = None
) -> Iterator[Cluster]:
    """A running cluster in a temporary directory. Raises Missing."""
    programs = binaries()
    if programs is None:
        raise Missing("PostgreSQL is missing. Install the package postgresql.")
    # A short path: that of a unix socket has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="ostler-pg-"))
    found = Cluster(directory, programs, durable=durable, listen=listen)
    try:
        if standby_of is None:
            found.create()
        else:
            found.follow(standby_of)
        found.start()
        try:
            yield found
        finally:
            with suppress(subprocess.CalledProcessError):
                found.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
