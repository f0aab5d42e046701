"""`ostler mcp import`: take over MCP servers of other clients, the chosen ones alone."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.cli.arguments import CLIENTS
from gateway.cli.failures import BadInput, Failure, Missing
from gateway.cli.mcp.foreign import (
    Converted,
    Surroundings,
    converted,
    read_document,
    servers_in,
    valid_name,
)
from gateway.cli.mcp.mcp import LATER, change
from gateway.cli.mcp.servers import file_of, masked, server_of, state_of, target_of
from gateway.cli.present import print_json, print_table, warn
from gateway.cli.suggest import did_you_mean
from gateway.cli.terminal import asks
from gateway.cli.text import clean, one_line
from supervisor.documents.shared_files import UnusableError, read_regular
from supervisor.mcp.file import McpFile, McpFileError

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of one file: Claude Code keeps its history in the same one."""

COLUMNS: Final = ("NAME", "STATE", "TRANSPORT", "FROM", "TARGET")

NEW, THERE, HIDDEN, UNUSABLE = "new", "in mcp.json", "hidden", "unusable"


@attrs.frozen
class Place:
    """A file of a client, and the project that its paths are about."""

    client: str
    path: Path
    surroundings: Surroundings


@attrs.frozen
class Offer:
    """A server of a file. `entry` is None where `reason` says why it cannot be used."""

    name: str
    given_name: str
    path: Path
    found: Converted | None = attrs.field(repr=False)
    state: str
    reason: str | None = None

    def dump(self) -> dict[str, Any]:
        """Its JSON, without credentials."""
        return {
            "name": self.name,
            "path": str(self.path),
            "state": self.state,
            "reason": self.reason,
            "entry": None if self.found is None else masked(self.found.entry),
        }

    def row(self, home: Path) -> tuple[str, ...]:
        """Its row of the table."""
        path = str(self.path)
        shown = f"~{path[len(str(home)) :]}" if path.startswith(f"{home}/") else path
        if self.found is None:
            return (self.name, self.state, "-", shown, "-")
        transport = server_of(self.name, "file", self.found.entry).transport or "-"
        return (self.name, self.state, transport, shown, target_of(masked(self.found.entry)))


def run(arguments: Namespace) -> None:
    """List what there is, ask which of it, and add that to mcp.json. Raises Failure."""
    file = file_of(state_of(arguments))
    try:
        present = file.read().servers
    except McpFileError as error:
        raise Failure(str(error)) from None
    places = _places(arguments.origin, os.environ)
    offers, problems = offered(places, present)
    chosen = _named(offers, arguments)
    if not arguments.json:
        rows = [each.row(Path.home()) for each in offers]
        if rows and chosen is None:
            print_table(COLUMNS, rows)
        for each in offers:
            if each.reason is not None and (chosen is None or arguments.all):
                warn(f"{each.name}: {each.reason} (in {each.path})")
        sys.stdout.flush()
    for problem in problems:
        warn(problem)
    new = [each for each in offers if each.state == NEW]
    if chosen is None and not arguments.json:
        if not new:
            print("nothing to import; this looked into:", *(each.path for each in places), sep="\n  ")
            return
        if not asks():
            raise BadInput("nothing is imported: name the servers, or give --all")
        chosen = _ask(new)
    added = _add(file, chosen or [])
    if arguments.json:
        print_json(
            {
                "servers": [each.dump() for each in offers],
                "imported": [each.name for each in added],
                "problems": problems,
            }
        )
        return
    print(f"imported {', '.join(each.name for each in added)}; {LATER}" if added else "nothing imported")
    sys.stdout.flush()
    _tell(added)


def importable(state: Path, origin: str | None) -> list[tuple[str, str]]:
    """The names that can be imported, each with its file. Raises Failure."""
    try:
        present = file_of(state).read().servers
    except McpFileError as error:
        raise Failure(str(error)) from None
    offers, _ = offered(_places(origin, os.environ), present)
    return [(each.name, str(each.path)) for each in offers if each.state == NEW]


def offered(places: Sequence[Place], present: Mapping[str, Any]) -> tuple[list[Offer], list[str]]:
    """The servers of these files, in their order, and lines about files that cannot be read."""
    offers: dict[tuple[str, Path], Offer] = {}
    problems: list[str] = []
    for place in places:
        try:
            data, _ = read_regular(place.path, MAX_BYTES)
            document = read_document(data.decode("utf-8-sig"))
        except FileNotFoundError:
            continue
        except (OSError, UnusableError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            problems.append(f"{place.path} cannot be read: {reason or error}")
            continue
        except (ValueError, RecursionError):
            problems.append(f"{place.path} cannot be read: it is not JSON")
            continue
        for given_name, entry in servers_in(document, place.surroundings.project):
            offer = _offer(str(given_name), entry, place, present, [each.name for each in offers.values()])
            offers.setdefault((offer.name, offer.path), offer)
    return list(offers.values()), problems


def _offer(
    given_name: str, entry: object, place: Place, present: Mapping[str, Any], before: Sequence[str]
) -> Offer:
    name = valid_name(given_name)
    found: Converted | None = None
    if not name:
        return Offer("-", given_name, place.path, None, UNUSABLE, "its name has neither letters nor digits")
    try:
        found = converted(entry, place.surroundings)
    except ValueError as error:
        return Offer(name, given_name, place.path, None, UNUSABLE, str(error))
    if name in present:
        return Offer(name, given_name, place.path, found, THERE)
    if name in before:
        why = "a file above has a server of that name; --from chooses"
        return Offer(name, given_name, place.path, found, HIDDEN, why)
    return Offer(name, given_name, place.path, found, NEW)


def _places(origin: str | None, env: Mapping[str, str]) -> list[Place]:
    """The files to look into. Raises BadInput."""
    home, here = Path.home(), Path.cwd()
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    project, alone = Surroundings(here, home), Surroundings(home, home)
    claude_code = Path(env.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
    known = [
        Place("project", here / ".mcp.json", project),
        Place("cursor", here / ".cursor" / "mcp.json", project),
        Place("vscode", here / ".vscode" / "mcp.json", project),
        Place("claude-code", claude_code, project),
        Place("cursor", home / ".cursor" / "mcp.json", alone),
        Place("claude-desktop", config / "Claude" / "claude_desktop_config.json", alone),
        Place("vscode", config / "Code" / "User" / "mcp.json", alone),
    ]
    if origin is None or origin in CLIENTS:
        found = [each for each in known if origin in (None, each.client)]
        return list({each.path: each for each in reversed(found)}.values())[::-1]
    path = Path(origin).expanduser().absolute()
    if not path.exists():
        raise BadInput(
            f"--from: {one_line(origin)!r} is neither a file nor one of {', '.join(CLIENTS)}"
            f"{did_you_mean(origin, CLIENTS)}"
        )
    inside = path.parent.parent if path.parent.name in (".vscode", ".cursor") else path.parent
    return [Place("path", path, Surroundings(inside, home))]


def _named(offers: Sequence[Offer], arguments: Namespace) -> list[Offer] | None:
    """The servers that the arguments choose; None where they choose none. Raises Failure."""
    if arguments.all:
        if arguments.names:
            raise BadInput("--all and NAME exclude each other")
        return [each for each in offers if each.state == NEW]
    if not arguments.names:
        return None
    return _of_names(offers, arguments.names)


def _of_names(offers: Sequence[Offer], names: Sequence[str]) -> list[Offer]:
    chosen = []
    for name in names:
        named = [each for each in offers if name in (each.name, each.given_name)]
        if not named:
            if name in CLIENTS:
                raise Missing(f"no file has an MCP server {name}; to choose where to look: --from {name}")
            known = [each.name for each in offers]
            raise Missing(f"no file has an MCP server {name}{did_you_mean(name, known)}")
        offer = named[0]
        if offer.found is None:
            raise Failure(f"{offer.name} of {offer.path} cannot be imported: {offer.reason}")
        if offer.state == THERE:
            raise Failure(f"{offer.name} is in mcp.json already; `ostler mcp remove {offer.name}` first")
        chosen.append(offer)
    return chosen


def _ask(new: Sequence[Offer]) -> list[Offer]:
    """What a person chooses of these; nothing at the end of the input."""
    while True:
        try:
            answer = input("Import which? [a]ll, [n]one, or names: ").strip()
        except EOFError:
            print()
            return []
        if answer.lower() in ("a", "all"):
            return list(new)
        if answer.lower() in ("n", "none", "no"):
            return []
        if answer:
            try:
                return _of_names(new, answer.replace(",", " ").split())
            except Failure as error:
                warn(str(error))


def _add(file: McpFile, chosen: Sequence[Offer]) -> list[Offer]:
    """Add these, but none in the place of another, and return the added ones. Raises Failure."""

    def edit(servers: dict[str, Any]) -> list[Offer]:
        added = []
        for each in chosen:
            if each.found is not None and each.name not in servers:
                servers[each.name] = each.found.entry
                added.append(each)
        return added

    return change(file, edit) if chosen else []


def _tell(added: Sequence[Offer]) -> None:
    """Say what is different from the other client, and which secrets are needed."""
    secrets: dict[str, None] = {}
    for each in added:
        if each.found is None:
            continue
        if each.name != each.given_name:
            warn(f"{clean(each.given_name)!r} is called {each.name} here")
        for note in each.found.notes:
            warn(f"{each.name}: {note}")
        secrets |= dict.fromkeys(each.found.secrets)
    if secrets:
        warn(f"they need {', '.join(secrets)}: store each with `ostler secrets set NAME`")
