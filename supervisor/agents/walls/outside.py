"""Looks at the machine: what walls are made of, and what an agent needs of it. It blocks: call it in a
thread."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from supervisor.agents.catalog import Descriptor
from supervisor.agents.containment.cgroup import mounted
from supervisor.agents.homes.logins import expand
from supervisor.agents.homes.short_path import PLACE, short_places
from supervisor.agents.walls.mounts import Needs, Outside

SYSTEM: Final = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
"""The system's programs, libraries and settings, and software that an administrator installed."""

RUNTIME: Final = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf")
"""Where `/etc/resolv.conf` may lead to. Nothing else of `/run`: its sockets start processes for a user."""

OWN_DEVICES: Final = frozenset(
    {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "mqueue"}
)
"""Of `/dev`: what bubblewrap makes for each agent, and what a namespace has of its own."""

LATER: Final = (".git/hooks", ".git/config", ".husky", ".vscode", ".idea", ".cursor", ".zed", ".devcontainer")
"""Places in a workspace whose content a person's git or editor runs later, outside of the walls.

`.git/config` can name other hooks, and programs.
"""

OWN_CODE: Final = Path(__file__).resolve().parents[2]
"""The package `supervisor`, which has programs of agents."""

SHEBANG_BYTES: Final = 256
"""Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE)."""

SCRIPTS_MAX: Final = 5
"""Scripts that run each other in turn: the kernel follows as many (BINPRM_MAX_RECURSION)."""


def outside(
    state: Path, catalog: Mapping[str, Descriptor], environ: Mapping[str, str], hidden: Iterable[Path] = ()
) -> Outside:
    """What this machine has. `state`: the state directory. `environ`: the server's. `hidden`: files and
    directories that are kept from agents besides."""
    home = environ.get("HOME")
    system, links = [], []
    for path in map(Path, SYSTEM):
        if path.is_symlink():
            links.append((path, str(path.readlink())))
        elif path.is_dir():
            system.append(path)
    # `ostler doctor` looks before there is a state directory; mounting something there would make it.
    found = [path.resolve() for path in (state, *hidden) if path.exists()]
    kept = tuple(path for path in found if path.is_dir())
    logins = tuple(_logins(catalog, environ))
    return Outside(
        system=tuple(system),
        private=_private_settings() if os.geteuid() == 0 else (),
        links=tuple(links),
        hidden=kept,
        hidden_files=tuple(path for path in found if path.is_file()),
        pinned=tuple(_movable((*kept, *(path for path, _ in logins)))),
        names=(state,),
        home=Path(home).resolve() if home and Path(home).is_dir() else None,
        logins=logins,
        runtime=tuple(path for path in map(Path, RUNTIME) if path.exists()),
        devices=tuple(_devices(Path("/dev"))),
        groups=tuple(groups()),
    )


def groups(mounts: Path = Path("/proc/self/mountinfo")) -> Iterator[Path]:
    """Where control groups of either version are mounted."""
    try:
        text = mounts.read_text(errors="surrogateescape")
    except OSError:
        return
    for _, place in mounted(text, "cgroup", "cgroup2"):
        if os.path.isdir(place):  # noqa: PTH112 - where this user may not look, it is none
            yield place


def _devices(directory: Path) -> Iterator[Path]:
    """The devices that this user can use, or other users can where this one is root, and the directories with
    such devices; without those that every wall has, and without terminals."""
    mask = stat.S_IROTH if os.geteuid() == 0 else 0
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.is_symlink() or entry.name in OWN_DEVICES:
                continue
            if entry.stat().st_mode & mask if mask else os.access(entry.path, os.R_OK):
                yield Path(entry.path)


def _movable(directories: Iterable[Path]) -> list[Path]:
    """The directories above these that this user can rename, the outer ones first."""
    above = {each for path in directories for each in path.parents if each != each.parent}
    return sorted(each for each in above if os.access(each.parent, os.W_OK))


@cache
def _private_settings() -> tuple[tuple[Path, bool], ...]:
    """Those of the system, as they were first."""
    return tuple(_private(Path("/etc")))


def _private(directory: Path) -> Iterator[tuple[Path, bool]]:
    """What others than root cannot read there, the outermost alone; whether it is a directory."""
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.is_symlink():
                continue
            path, inside = Path(entry.path), entry.is_dir()
            if not entry.stat().st_mode & (stat.S_IXOTH if inside else stat.S_IROTH):
                yield path, inside
            elif inside:
                yield from _private(path)


def _logins(
    catalog: Mapping[str, Descriptor], environ: Mapping[str, str]
) -> Iterator[tuple[Path, frozenset[str]]]:
    found: dict[Path, set[str]] = {}
    for key, descriptor in catalog.items():
        for file in (file for source in descriptor.credentials for file in source.files):
            path = expand(file, environ)
            if path is None or not path.parent.is_dir():
                continue
            moved = file.startswith("$") and file[1:].partition("/")[0] in descriptor.data_dir_env
            if _is_private(path.parent, environ.get("HOME")) or (moved and not file.startswith("$HOME/")):
                found.setdefault(path.parent.resolve(), set()).add(key)
    for path, keys in found.items():
        yield path, frozenset(keys)


def _is_private(directory: Path, home: str | None) -> bool:
    """Whether it is a directory of programs, with a dot in the user's home: a login that a person put among
    the own files is in none."""
    if home is None or not directory.is_relative_to(home):
        return False
    return any(part.startswith(".") for part in directory.relative_to(home).parts)


def needs_of(
    agent: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    workspace: Path,
    own: Path,
    prefix: Path,
    servers: Iterable[Sequence[str]] = (),
) -> Needs:
    """What an agent needs that is started with this command and environment. `own`: its conversation's
    directory. `prefix`: that of installed agents. `workspace`: as it is named; links in it count. `servers`:
    the commands of its MCP servers."""
    path, user = environment.get("PATH"), Path.home().resolve()
    found = {each for command in servers for each in started(command, path, user)}
    named = [workspace, prefix]
    home, temporary = environment.get("HOME"), environment.get("TMPDIR")
    if home is not None:
        named.append(Path(home).parent)  # perhaps a short name of its directory (`short_path`)
    ours = {own.resolve()}
    if temporary is not None and Path(temporary).parent.name.startswith(PLACE):
        ours.add(Path(temporary).resolve())
    known = {workspace.resolve(), prefix.resolve(), *ours}
    return Needs(
        agent=agent,
        workspace=workspace.resolve(),
        asked=workspace,
        own=tuple(sorted(ours)),
        programs=programs(argv, path, prefix, user),
        servers=tuple((each, each.resolve()) for each in sorted(found)),
        hidden=tuple(each.resolve() for each in short_places(own) if each.is_dir() and not each.is_symlink()),
        aliases=tuple(
            (name, name.resolve()) for name in named if name.is_symlink() and name.resolve() in known
        ),
        kept=kept(workspace.resolve()),
    )


def kept(workspace: Path) -> tuple[Path, ...]:
    """What is to stay as it is in a workspace: those of LATER that are there, and are no links."""
    git = workspace / ".git"
    # A worktree's `.git` is a file that names its repository: another one would have other hooks.
    found = [git] if git.is_file() else []
    found += [workspace / place for place in LATER]
    return tuple(path for path in found if path.exists() and path.resolve() == path)


def programs(argv: Sequence[str], path: str | None, prefix: Path, home: Path | None) -> tuple[Path, ...]:
    """What running this command needs besides the system: the installs of the programs that it starts,
    Ostler's own code, the directory of installed agents (`prefix`)."""
    found = {OWN_CODE, prefix.resolve()}
    names = [argv[0], *(each for each in argv[1:] if each.startswith("/"))]
    for name in names:
        found.update(_installs(name, path, home))
    return tuple(sorted(each for each in found if each.exists() and not _is_system(each)))


def started(command: Sequence[str], path: str | None, home: Path | None) -> Iterator[Path]:
    """What running an MCP server needs besides the system: the installs of its program, and files among its
    arguments. Of these not the directories: next to a script or a key in the home lies what is a person's.

    A relative path is one in the workspace.
    """
    program, *arguments = command
    if program.startswith("/") or "/" not in program:
        yield from (each for each in _installs(program, path, home) if not _is_system(each))
    for each in arguments:
        if each.startswith("/") and _is_file(Path(each)) and not _is_system(Path(each)):
            yield Path(each)


def _installs(name: str, path: str | None, home: Path | None, scripts: int = SCRIPTS_MAX) -> Iterator[Path]:
    where = name if "/" in name else shutil.which(name, path=path)
    if where is None or not _is_file(Path(where)):
        return
    named = Path(where).absolute()
    for each in (named, *_links(named)):
        yield _install_of(each, home)
    interpreter = _interpreter(named) if scripts else None
    if interpreter is not None:
        yield from _installs(interpreter, path, home, scripts - 1)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # it may not be looked at, or is no path
        return False


def _is_system(path: Path) -> bool:
    return path == path.parent or any(path.is_relative_to(each) for each in SYSTEM)


def _links(path: Path) -> Iterator[Path]:
    """The files that a link leads to, one after the other."""
    for _ in range(40):  # as many as the kernel follows
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path


def _install_of(program: Path, home: Path | None) -> Path:
    """The directory that a program was installed in: above `bin`, else its own. In the user's home it is
    never one that has more than programs (`~/.local`)."""
    directory = program.parent
    above = directory.parent
    if directory.name == "bin" and home not in (above, above.parent):
        return above
    return program if home is not None and home.is_relative_to(directory) else directory


def _interpreter(script: Path) -> str | None:
    """The program that a script's first line names; by its name where `env` looks for it."""
    try:
        with script.open("rb") as file:
            line = file.readline(SHEBANG_BYTES)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else None
