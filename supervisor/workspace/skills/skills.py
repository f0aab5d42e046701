"""Finds and reads the skills of a project, and those of the user. Blocking, and bounded in every way.

A link is followed only within the repository, or within the user's directory: an untrusted repository must
not expose a file from elsewhere as a skill. Nothing is run, and nothing fetched.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import structlog

from supervisor.workspace.access import AccessRefused, Admitted
from supervisor.workspace.directories import opened
from supervisor.workspace.files import Changed, open_file
from supervisor.workspace.problems import WorkspaceProblem
from supervisor.workspace.skills.skill import SKILL_FILE, THIRD_PARTY, SkillInfo, instructions, skill_of

log = structlog.get_logger(__name__)

DIRECTORIES: Final = (".agents/skills", ".openhands/skills", ".openhands/microagents")
"""Where skills are, of a project as of the user; the first one that has a name counts."""

INSTALLED: Final = "installed"
"""In the user's: what the wire's own server installed, which it manages itself."""

SEARCH_SECONDS: Final = 4.0
"""Seconds of a search; less than a visit to a path may take (patience.py)."""

MAX_ENTRIES: Final = 20_000
"""Names of files and directories that are looked at."""

MAX_SKILLS: Final = 200

FILE_BYTES: Final = 256 * 1024
"""Most bytes of a skill's file; a larger one is left out."""

ALL_BYTES: Final = 1024 * 1024
"""Most bytes of all of them together: the answer is made at once."""

MAX_DEPTH: Final = 8
"""Directories below the project's in which instructions are looked for."""

NOT_SEARCHED: Final = frozenset({"node_modules"})


class Enough(Exception):
    """A limit of the search is reached. The message says which."""


@attrs.define
class Search:
    """One search. `area` is the resolved directory that no link may lead out of."""

    area: Path
    root: Path | None
    """The directory that confines it, as in `Admitted`."""
    until: float = attrs.field(factory=lambda: time.monotonic() + SEARCH_SECONDS)
    entries: int = attrs.field(factory=lambda: MAX_ENTRIES)
    bytes: int = attrs.field(factory=lambda: ALL_BYTES)
    found: dict[str, SkillInfo] = attrs.field(factory=dict)

    def place(self, path: Path) -> Admitted | None:
        """The resolved path; None if it leads out of `area`."""
        try:
            real = Path(os.path.realpath(path))
        except OSError:  # too many links
            return None
        return Admitted(real, self.root) if real.is_relative_to(self.area) else None

    def names(self, directory: Path) -> list[tuple[str, bool, bool]]:
        """A directory's entries, sorted: name, whether it is a directory, whether it is a link.

        Empty if the directory is missing or not readable. Raises Enough.
        """
        place = self.place(directory)
        if place is None:
            return []
        found = []
        with (
            suppress(WorkspaceProblem, AccessRefused, OSError),
            opened(place) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for entry in entries:
                self._count(1)
                found.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()))
        return sorted(found)

    def _count(self, entries: int) -> None:
        self.entries -= entries
        if self.entries < 0:
            raise Enough(f"there are more than {MAX_ENTRIES} files")
        if time.monotonic() > self.until:
            raise Enough(f"it took longer than {SEARCH_SECONDS:g} s")

    def text(self, path: Path) -> str:
        """The text of a file. Raises ValueError if it cannot be read as text, and Enough."""
        self._count(0)
        place = self.place(path)
        if place is None:
            raise ValueError("it is a link that leads elsewhere")
        try:
            file = open_file(place)
            try:
                if file.size > FILE_BYTES:
                    raise ValueError(f"it has more than {FILE_BYTES} bytes")
                data = b"".join(iter(file.read, b""))
            finally:
                file.close()
        except (WorkspaceProblem, AccessRefused, Changed, OSError) as error:
            raise ValueError(str(error) or type(error).__name__) from None
        self.bytes -= len(data)
        if self.bytes < 0:
            raise Enough(f"they have more than {ALL_BYTES} bytes")
        return data.decode()

    def add(self, skill: SkillInfo) -> None:
        """Note a skill, unless there is one of its name. Raises Enough."""
        if skill.name not in self.found and len(self.found) >= MAX_SKILLS:
            raise Enough(f"there are more than {MAX_SKILLS} of them")
        self.found.setdefault(skill.name, skill)

    def instructions(self, directory: Path) -> None:
        """Note the instructions that lie in a directory itself."""
        seen: set[Path] = set()
        for name, _, _ in self.names(directory):
            called = THIRD_PARTY.get(name.lower())
            place = self.place(directory / name) if called else None
            if called is None or place is None or place.path in seen or called in self.found:
                continue
            with _logged(directory / name):
                self.add(instructions(self.text(directory / name), called, str(directory / name)))
                seen.add(place.path)

    def nested(self, directory: Path) -> None:
        """Note the instructions in directories below, shallow ones first."""
        queue = deque([(directory, 0)])
        while queue:
            here, depth = queue.popleft()
            for name, is_directory, _ in self.names(here):
                if (
                    is_directory
                    and depth < MAX_DEPTH
                    and not name.startswith(".")
                    and name not in NOT_SEARCHED
                ):
                    queue.append((here / name, depth + 1))
                called = THIRD_PARTY.get(name.lower())
                if called is None or is_directory or here == directory:
                    continue
                with _logged(here / name):
                    below = here.relative_to(directory).as_posix()
                    self.add(instructions(self.text(here / name), called, str(here / name), below))

    def directory(self, directory: Path) -> None:
        """Note the skills of a directory made for them."""
        found: list[SkillInfo] = []
        for path, name, specified in self._files(directory):
            with _logged(path):
                called = THIRD_PARTY.get(path.name.lower())
                text = self.text(path)
                found.append(
                    instructions(text, called, str(path))
                    if called
                    else skill_of(text, name, str(path), specified=specified)
                )
        for kind in ("repo", "knowledge", "agentskills"):
            for skill in found:
                if skill.type == kind:
                    self.add(skill)

    def _files(self, directory: Path) -> Iterator[tuple[Path, str, bool]]:
        """The files of skills: path, name, and whether it is a SKILL.md."""
        queue = deque([directory])
        while queue:
            here = queue.popleft()
            for name, is_directory, is_link in self.names(here):
                path = here / name
                if here == directory:
                    if name == INSTALLED:
                        continue
                    # A directory of the skills' own may be a link; further down none is followed.
                    inside = self.names(path) if is_directory or is_link else []
                    file = next((each for each, _, _ in inside if each.lower() == SKILL_FILE), None)
                    if file is not None:
                        yield path / file, name, True
                        continue
                if is_directory:
                    queue.append(path)
                elif name.endswith(".md") and name != "README.md" and name.lower() != SKILL_FILE:
                    yield path, path.relative_to(directory).with_suffix("").as_posix(), False


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Log why a file is not a valid skill, and continue with the others."""
    try:
        yield
    except ValueError as error:
        log.warning("skill is not used", file=str(path), reason=_reason(error))


def _reason(error: ValueError) -> str:
    return "it is not text in UTF-8" if isinstance(error, UnicodeError) else str(error)


def project_skills(project: Admitted) -> list[SkillInfo]:
    """The skills of a project: of its directory, and of the repository around it, within the workspaces."""
    above = _repository(project)
    search = Search(above, project.root)
    places = list(dict.fromkeys((project.path, above)))
    with _until_enough(project.path):
        for place in places:
            search.instructions(place)
        for place in places:
            for name in DIRECTORIES:
                search.directory(place / name)
        # Last: what takes longest must not cost what matters most.
        search.nested(project.path)
    return list(search.found.values())


def user_skills(home: Admitted) -> list[SkillInfo]:
    """The skills of the user whose home directory it is."""
    search = Search(home.path, home.root)
    with _until_enough(home.path):
        for name in DIRECTORIES:
            search.directory(home.path / name)
    return list(search.found.values())


@contextmanager
def _until_enough(path: Path) -> Iterator[None]:
    """Log that a limit was reached; what was found until then counts."""
    try:
        yield
    except Enough as error:
        log.warning("not all skills are read", directory=str(path), reason=str(error))


def _repository(project: Admitted) -> Path:
    """The nearest directory from the project's on up that is a repository; the project's own where none is.
    Nothing above the root is looked at."""
    for path in (project.path, *project.path.parents):
        if project.root is not None and not path.is_relative_to(project.root):
            break
        git = path / ".git"
        # An empty directory of that name is not one: sandboxes of agents leave it in `/tmp`.
        if git.is_file() or (git / "HEAD").is_file():
            return path
    return project.path
