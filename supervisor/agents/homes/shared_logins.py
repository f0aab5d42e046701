"""Credential files that several agents share and rotate without invalidating each other's login.

A refresh token works once: its user gets the next one, and a later use of an old copy may cost the login. So
agents with one login share one file: every data directory has a hard link to it, so all agents see what one
of them writes in place. The file stands for a *lineage*: the value that was given, and all its rotations. A
value of the same lineage leads to that file wherever it is given; any other value is a new login with a new
file.

The file is checked when an agent has ended, and at every start, so that a killed server loses nothing. A file
that an agent replaced instead of writing in place is merged; the later rotation wins. The newest value is
offered to the secret's keeper together with the lineage, so that it does not replace a value that was stored
there meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from supervisor.agents.homes.credential import held_in, tokens_in
from supervisor.agents.homes.data_dir import make_directory, write_private
from supervisor.patience import KeyedLimiters, in_time, read_regular

T = TypeVar("T")

VALUE: Final = "value"
NEWEST: Final = "newest"
"""A copy of the newest value: an agent may overwrite the file with an older value, or empty it."""

LINEAGE: Final = "lineage.json"
"""Digests of the values, the newest last, and the users of the file."""

MAX_VALUE_BYTES: Final = 1 << 20
"""Bytes of a credential file: they take a few kilobytes, a service account's too."""

MAX_LINEAGE_BYTES: Final = 16 << 20
"""Bytes of the file of digests and users: there are as many users as conversations."""

LINEAGE_LENGTH: Final = 200
"""Values whose digests are kept. A token rotates a few times a day."""

LOOKING: Final = KeyedLimiters(1)

WRITING: Final = KeyedLimiters(1)
"""One thread at a time for the credential files of one name.

An abandoned thread keeps its slot until it ends, so that no other one interleaves its reads and writes.
"""


@attrs.frozen(kw_only=True)
class Rotated:
    """The newest value of a login, and its lineage."""

    name: str
    value: str = attrs.field(repr=False)
    lineage: frozenset[str] = attrs.field(repr=False)

    def known(self, value: str) -> bool:
        """Whether the newest value may replace `value`."""
        return _digest(value) in self.lineage


Keep = Callable[[Rotated], Awaitable[None]]
"""Stores the newest value where the secret is kept, if an earlier one of its lineage is there."""


@attrs.frozen(kw_only=True)
class Lease:
    """An agent's credential file. `handed` is the digest of the value that it got."""

    name: str
    target: Path
    generation: Path
    handed: str = attrs.field(repr=False)
    tokens: frozenset[str] = attrs.field(repr=False)
    """The values in it that must never be shown."""


@attrs.define(eq=False)
class SharedLogins:
    """The credential files of one server, below `root`. Owns no task and no open file.

    Each secret's name has a lock, which makes reads and writes under it atomic for other tasks. File
    operations run in threads; cancellation waits for them, at most PATH_SECONDS, and a begun change is
    finished. Methods raise OSError, including PathTimeout, and BlockingIOError if an agent holds a lease on
    its file.
    """

    root: Path
    keep: Keep
    _locks: dict[str, trio.Lock] = attrs.field(factory=dict, init=False)

    async def checkout(self, name: str, value: str, *, user: str, target: Path) -> Lease:
        """Put the login that `value` belongs to at `target` (0600) for an agent of `user`.

        The file has the newest value of the login, which may be later than `value`. It replaces a file of
        another login.
        """
        await _answers(target)
        async with self._lock(name):
            lease, rotated = await _in_thread(name, partial(self._checkout, name, value, user, target))
            await self._offer(rotated)
        return lease

    async def release(self, lease: Lease) -> None:
        """Take over what the agent rotated, after its end. Raises as described for the class."""
        await _answers(lease.target)
        async with self._lock(lease.name):
            await self._offer(await _in_thread(lease.name, partial(_take_over, lease)))

    async def revoke(self, name: str, *, user: str, target: Path) -> None:
        """Remove the file that `user` got for a credential that is no longer used."""
        await _answers(target)
        async with self._lock(name):
            await _in_thread(name, partial(self._revoke, name, user, target, None))

    async def same(self, name: str, one: str, other: str) -> bool:
        """Whether both values belong to one login, so that an agent with one already has the other."""
        async with self._lock(name):
            return await _in_thread(name, partial(self._same, name, {_digest(one), _digest(other)}))

    async def forget(self, user: str) -> None:
        """Forget `user`, which starts no agent any more.

        A login without other users is offered to its keeper a last time, then its file is removed.
        """
        for name in await _in_thread("", self._names):
            async with self._lock(name):
                for generation in await _in_thread(name, partial(self._without_users, name, user)):
                    await self._offer(await _in_thread(name, partial(_settle, name, generation)))
                    await _in_thread(name, partial(shutil.rmtree, generation, ignore_errors=True))

    def _lock(self, name: str) -> trio.Lock:
        return self._locks.setdefault(name, trio.Lock())

    async def _offer(self, rotated: Rotated | None) -> None:
        if rotated is not None:
            await self.keep(rotated)

    # -- in a thread, under the lock --------------------------------------------------------------------

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self.root.iterdir())
        return []

    def _generations(self, name: str) -> list[Path]:
        with suppress(FileNotFoundError):
            return sorted(path for path in (self.root / name).iterdir() if (path / LINEAGE).exists())
        return []

    def _same(self, name: str, digests: set[str]) -> bool:
        return any(digests.issubset(_Lineage.read(path).digests) for path in self._generations(name))

    def _checkout(self, name: str, value: str, user: str, target: Path) -> tuple[Lease, Rotated | None]:
        given = _digest(value)
        generation = next(
            (path for path in self._generations(name) if given in _Lineage.read(path).digests), None
        )
        if generation is None:
            generation = self.root / name / given[:32]
            make_directory(self.root)
            make_directory(self.root / name)
            make_directory(generation)
            write_private(generation / VALUE, value)
            write_private(generation / NEWEST, value)
            _Lineage([given], []).write(generation)
        self._revoke(name, user, target, generation)
        rotated = _settle(name, generation)
        file = generation / VALUE
        lineage = _Lineage.read(generation)
        if user not in lineage.users:
            lineage.users.append(user)
            lineage.write(generation)
        _link(file, target)
        content = read_regular(file, MAX_VALUE_BYTES).decode()
        tokens, digest = tokens_in(content), _digest(content)
        return Lease(name=name, target=target, generation=generation, handed=digest, tokens=tokens), rotated

    def _revoke(self, name: str, user: str, target: Path, but: Path | None) -> None:
        for generation in self._generations(name):
            lineage = _Lineage.read(generation)
            if generation != but and user in lineage.users:
                target.unlink(missing_ok=True)
                lineage.users.remove(user)
                lineage.write(generation)

    def _without_users(self, name: str, user: str) -> list[Path]:
        left = []
        for generation in self._generations(name):
            lineage = _Lineage.read(generation)
            if user in lineage.users:
                lineage.users.remove(user)
                lineage.write(generation)
            if not lineage.users:
                left.append(generation)
        return left


@attrs.define
class _Lineage:
    digests: list[str]
    users: list[str]

    @classmethod
    def read(cls, generation: Path) -> _Lineage:
        try:
            document = json.loads(read_regular(generation / LINEAGE, MAX_LINEAGE_BYTES))
            return cls([str(each) for each in document["values"]], [str(each) for each in document["users"]])
        except BlockingIOError:
            raise  # not lost: another process holds a lease on it
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return cls([], [])  # unusable

    def write(self, generation: Path) -> None:
        document = {"values": self.digests[-LINEAGE_LENGTH:], "users": self.users}
        write_private(generation / LINEAGE, json.dumps(document) + "\n")


def _take_over(lease: Lease) -> Rotated | None:
    """Merge the agent's version with changes that other agents made meanwhile."""
    file = lease.generation / VALUE
    own = _sound(lease.target)
    if own is None or not file.exists() or lease.target.samefile(file):
        return _settle(lease.name, lease.generation)
    # The agent replaced the shared file by a separate one.
    lineage = _Lineage.read(lease.generation)
    digest = _digest(own)
    if digest not in lineage.digests:
        shared = _sound(file)
        alone = shared is None or _digest(shared) == lease.handed
        written = lease.target.stat().st_mtime_ns
        if alone or written > file.stat().st_mtime_ns:
            _overwrite(file, own)
            os.utime(file, ns=(written, written))  # the time of its rotation, for the next comparison
        else:
            lineage.digests.insert(0, digest)  # a rotation of this login, but an older one
            lineage.write(lease.generation)
    return _settle(lease.name, lease.generation)


def _settle(name: str, generation: Path) -> Rotated | None:
    """Return the newest value, recorded in the lineage; None if there is none.

    A file that an agent emptied (it logged out, or died while writing), or wrote an older value into, is
    restored to the newest one.
    """
    lineage = _Lineage.read(generation)
    value = _sound(generation / VALUE)
    if value is not None and (digest := _digest(value)) not in lineage.digests:
        lineage.digests.append(digest)
        write_private(generation / NEWEST, value)
        lineage.write(generation)
    newest = _sound(generation / NEWEST)
    if newest is None:
        return None
    if newest != value:
        _overwrite(generation / VALUE, newest)
    return Rotated(name=name, value=newest, lineage=frozenset(lineage.digests))


def _sound(path: Path) -> str | None:
    """Return the content of a credential file; None if it is missing, empty, or half written.

    Raises BlockingIOError when another process holds a lease on it.
    """
    try:
        data = read_regular(path, MAX_VALUE_BYTES + 1)
        text = data.decode()
    except BlockingIOError:
        raise  # another process holds a lease on it: its content is unknown
    except (OSError, ValueError):
        return None
    if len(data) > MAX_VALUE_BYTES or not held_in(text, ()):
        return None
    if text.lstrip().startswith("{"):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return None
    return text


def _overwrite(file: Path, value: str) -> None:
    """Overwrite the file in place: agents with a hard link to it must see the change."""
    if not file.exists():
        write_private(file, value)
        return
    # Non-blocking: an error at once if another process holds a lease on it, or if it is a pipe by now.
    descriptor = os.open(file, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.truncate(0)
        opened.write(value)


def _link(file: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        if target.samefile(file):
            return
    make_directory(target.parent)
    target.unlink(missing_ok=True)
    # A hard link: some agents refuse to read a credential through a symbolic one.
    os.link(file, target)


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


async def _answers(target: Path) -> None:
    """Check that an agent's own directory answers, before the name's lock is taken. Raises PathTimeout."""
    look = partial(os.path.lexists, target)
    await in_time(look, f"to look for {target.name}", limiter=LOOKING.of(str(target)), shield=True)


async def _in_thread(name: str, work: Callable[[], T]) -> T:
    what = f"to read and write the login {name}" if name else "to look for logins"
    return await in_time(work, what, limiter=WRITING.of(name), shield=True)
