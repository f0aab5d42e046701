"""A repository found on disk, and a stand-in for its `.git` without its configuration. Blocking.

A repository's configuration and hooks name programs that git runs: file system monitors, filters, textconv,
signature checkers, transports. They are untrusted. So git never gets the repository's own directory, but a
fresh one (`make_stand_in`) with links to its objects, refs and index, and with a configuration written by
Ostler. Git sees only the settings listed in `KEPT`, so settings of future git versions are excluded too.

The owner of the repository does not matter then: git checks it (safe.directory) only because of the
configuration that it would read.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from supervisor.patience import read_opened, read_regular
from supervisor.state_directory import TEMPORARY_PREFIX
from supervisor.workspace.access import Admitted
from supervisor.workspace.problems import Denied, Unfit

GIT: Final = ".git"

MAX_POINTER_BYTES: Final = 8192
"""Of a `.git` file, of `commondir` and of HEAD: one path or one ref."""

MAX_CONFIG_BYTES: Final = 1024 * 1024
"""Of a configuration. Git's own are a few hundred bytes."""

MAX_ALTERNATES: Final = 16
"""Object directories that a repository borrows from, in all."""

MAX_LOOKED_AT: Final = 200_000
"""Most entries of a `.git` that are checked for links, where clients are confined. Takes some hundred
milliseconds."""

OUTSIDE: Final = "The repository keeps its data outside of the workspaces"

KEPT: Final[Mapping[str, re.Pattern[str]]] = {
    "core.filemode": re.compile("true|false"),
    "core.ignorecase": re.compile("true|false"),
    "core.symlinks": re.compile("true|false"),
    "core.precomposeunicode": re.compile("true|false"),
    "core.autocrlf": re.compile("true|false|input"),
    "core.eol": re.compile("lf|crlf|native"),
    "extensions.objectformat": re.compile("sha1|sha256"),
    "extensions.refstorage": re.compile("files|reftable"),
}
"""The settings taken from a repository's own configuration: how objects are stored and files compared."""

EMPTY_TREES: Final = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}

_SECTION: Final = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_COMMENT: Final = re.compile(r"\s[;#].*")
_ENTRY: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*?))?\s*")

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of change of a few files. Another stamp is another state of the repository."""


@attrs.frozen
class Confines:
    """What may be read: everything, or what is below `root`, a resolved directory."""

    root: Path | None = None

    def hold(self, resolved: Path) -> bool:
        """Whether a resolved path may be read."""
        return self.root is None or resolved.is_relative_to(self.root)

    def require(self, path: Path) -> Path:
        """Resolve a path. Raises Denied for one that leads out."""
        resolved = Path(os.path.realpath(path))
        if not self.hold(resolved):
            raise Denied(OUTSIDE)
        return resolved

    def read(self, path: Path, most: int) -> bytes:
        """The first `most` bytes of a regular file. Links are followed first, and judged; the file is then
        opened without following any, so that one put there meanwhile leads nowhere.

        Raises Denied, and OSError as `read_regular`.
        """
        if self.root is None:
            return read_regular(path, most)
        return read_opened(Admitted(self.require(path), self.root).open(os.O_RDONLY), str(path), most)


class NotARepository(Exception):
    """Neither this path nor a parent is in a repository."""


@attrs.frozen
class Repository:
    """Where a repository is. All paths are resolved."""

    root: Path
    """The top of its working tree."""
    directory: Path
    """Its `.git`, or that of one of its linked working trees."""
    common: Path
    """Where its objects and refs are."""
    objects: tuple[Path, ...]
    """Its object directory, and those that it borrows from."""
    settings: Mapping[str, str]
    """The part of its configuration that is kept, by name in lower case."""
    origin: str | None
    """The address of its remote `origin`, as it is written."""

    @property
    def empty_tree(self) -> str:
        """The id of the tree without files."""
        return EMPTY_TREES[self.settings.get("extensions.objectformat", "sha1")]


def find(path: Path, confines: Confines) -> Repository:
    """The repository that holds `path`, a resolved directory.

    Raises NotARepository, and Denied for one whose data are where the client may not read.
    """
    for root in (path, *path.parents):
        if not confines.hold(root):
            raise NotARepository
        if (directory := git_directory(root, confines)) is not None:
            break
    else:
        raise NotARepository
    common = confines.require(_common(directory, confines))
    if not is_directory(common / "objects") or not os.path.isfile(directory / "HEAD"):  # noqa: PTH113 - as below
        raise NotARepository
    objects = tuple(_object_directories(common, confines))
    for place in (*objects, common / "refs", directory / "index"):
        confines.require(place)
    settings = _configuration(common / "config", confines)
    kept = {name: settings[name] for name, form in KEPT.items() if form.fullmatch(settings.get(name, ""))}
    return Repository(root, directory, common, objects, kept, settings.get("remote.origin.url"))


def require_within(repository: Repository, confines: Confines) -> None:
    """Check everything that git will read of a repository. Raises Denied for links to where the client may
    not read, and for a repository with more than MAX_LOOKED_AT entries.

    It cannot see a link created after this check: git's walls hold then (command.py).
    """
    common, directory = repository.common, repository.directory
    waiting = [
        *(common / name for name in LINKED),
        *(common / "config", common / "info" / "exclude", directory / "HEAD", directory / "index"),
        *directory.glob("sharedindex.*"),
        *repository.objects,
    ]
    seen: set[Path] = set()
    looked_at = 0
    while waiting:
        place = confines.require(waiting.pop())
        if place in seen or not is_directory(place):
            continue
        seen.add(place)
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    looked_at += 1
                    if looked_at > MAX_LOOKED_AT:
                        raise Denied("The repository has too many files to be looked at.")
                    if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                        waiting.append(place / entry.name)
        except OSError:
            continue  # git cannot read it either


def stamp_of(repository: Repository) -> Stamp:
    """A stamp to compare with a later one: of HEAD, the index, `info/exclude` and the top-level
    `.gitignore`."""
    found: list[tuple[int, int, int] | None] = []
    own, ignored = repository.directory, (repository.root / ".gitignore", repository.common / "info/exclude")
    for place in (own / "HEAD", own / "index", *ignored):
        try:
            seen = place.stat()
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return tuple(found)


def is_directory(path: Path) -> bool:
    """Whether it is a directory; False if it is unreadable or its name too long (Path.is_dir would raise)."""
    return os.path.isdir(path)  # noqa: PTH112


def git_directory(root: Path, confines: Confines) -> Path | None:
    """The resolved `.git` of a working tree; None where there is none. Raises Denied for one elsewhere."""
    place = root / GIT
    try:
        found = place.stat()
        if stat.S_ISDIR(found.st_mode):
            return confines.require(place)
        text = _text(place, confines)
    except (OSError, ValueError):
        return None
    prefix, _, target = text.partition(":")
    if prefix != "gitdir" or not target.strip():
        return None
    directory = confines.require(root / target.strip())
    return directory if is_directory(directory) else None


def _common(directory: Path, confines: Confines) -> Path:
    try:
        return directory / _text(directory / "commondir", confines).strip()
    except (OSError, ValueError):
        return directory


def _object_directories(common: Path, confines: Confines) -> list[Path]:
    """The repository's own objects, and all that it borrows."""
    found = [common / "objects"]
    for place in found:  # the loop extends the list
        try:
            lines = confines.read(place / "info" / "alternates", MAX_POINTER_BYTES).splitlines()
        except OSError:
            continue
        lines = [line for line in lines if line and not line.startswith(b"#")]
        if any(line.startswith(b'"') for line in lines):
            raise Unfit("The repository borrows objects from a path with unusual characters.")
        found += [place / os.fsdecode(line) for line in lines]
        if len(found) > MAX_ALTERNATES:
            raise Unfit("The repository borrows objects from too many others.")
    return found


def _text(path: Path, confines: Confines) -> str:
    data = confines.read(path, MAX_POINTER_BYTES + 1)
    if len(data) > MAX_POINTER_BYTES or b"\0" in data:
        raise ValueError
    return os.fsdecode(data)


def _configuration(path: Path, confines: Confines) -> dict[str, str]:
    """The entries of a configuration by name, the last one of each. Includes are not followed.

    Quoted entries and those that continue on the next line are skipped: no kept setting needs them.
    """
    try:
        text = confines.read(path, MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        rest = line.strip()
        if heading := _SECTION.match(rest):
            section = heading[1].lower() + ("" if heading[2] is None else f".{heading[2]}")
            rest = rest[heading.end() :]
        entry = _ENTRY.fullmatch(rest)
        if entry is not None and section:
            value = "true" if entry[2] is None else _COMMENT.sub("", entry[2]).strip('"')
            name = entry[1].lower()
            found[f"{section}.{name}"] = value if section.startswith("remote.") else value.lower()
    return found


LINKED: Final = ("packed-refs", "refs", "reftable", "shallow")
"""What the stand-in shares with the repository, besides objects and index."""


def make_stand_in(repository: Repository, confines: Confines, temporary: Path | None = None) -> Path:
    """Make a directory that git takes for the repository's `.git`. The caller removes it. Raises OSError, and
    Denied for a HEAD that leads out by now.

    `temporary`: where it is made; None: in the system's directory for temporary files. The path is resolved:
    git's walls let it write to no other.

    Git writes nothing into the repository through it: objects and indexes that are made are put into it.
    """
    if temporary is not None:
        temporary.mkdir(mode=0o700, exist_ok=True)
    above = os.path.realpath(temporary or tempfile.gettempdir())
    place = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=above))
    try:
        for name in LINKED:
            target = repository.common / name
            if os.path.lexists(target):
                (place / name).symlink_to(target)
        if not (place / "refs").exists():
            (place / "refs").mkdir()
        (place / "HEAD").write_bytes(confines.read(repository.directory / "HEAD", MAX_POINTER_BYTES))
        (place / "info").mkdir()
        (place / "info" / "exclude").symlink_to(repository.common / "info" / "exclude")
        for number, shared in enumerate(repository.directory.glob("sharedindex.*")):
            if number < MAX_ALTERNATES:
                (place / shared.name).symlink_to(shared)
        (place / "objects" / "info").mkdir(parents=True)
        borrowed = [_quoted(each) for each in repository.objects]
        (place / "objects" / "info" / "alternates").write_bytes(b"\n".join(borrowed) + b"\n")
        (place / "config").write_text(_written(repository.settings), encoding="utf-8")
    except BaseException:
        remove_stand_in(place)
        raise
    return place


def remove_stand_in(place: Path) -> None:
    """Remove it; what it leads to stays."""
    shutil.rmtree(place, ignore_errors=True)


def _quoted(path: Path) -> bytes:
    """A path quoted as in C, as git reads it in a list; safe for any characters."""
    return b'"' + b"".join(b"\\%03o" % byte for byte in os.fsencode(path)) + b'"'


def _written(settings: Mapping[str, str]) -> str:
    version = 1 if any(name.startswith("extensions.") for name in settings) else 0
    lines = [f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n"]
    for name, value in settings.items():
        section, _, key = name.partition(".")
        lines.append(f"[{section}]\n\t{key} = {value}\n")
    return "".join(lines)
