"""Compares Ostler's interface description with the peer's, and writes docs/compatibility.md: see
scripts/compatibility."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock as Mock

import attrs

from scripts import sequences

ROOT: Final = Path(__file__).resolve().parent.parent
PEER: Final = ROOT / "docs/compatibility/peer.json"
REASONS: Final = ROOT / "docs/compatibility/reasons.toml"
DOCUMENT: Final = ROOT / "docs/compatibility.md"
RECORDING: Final = ROOT / "tests/clients/typescript/peer.json"
"""What the peer answered to the script of `tests/clients`, which is compared with Ostler's answers."""

METHODS: Final = ("get", "head", "post", "put", "patch", "delete")

FREE: Final = "*"
"""Among fields: others may be there as well, whose names nobody says."""

Json = Mapping[str, Any]

# -- reducing --------------------------------------------------------------------------------------------


def reduced(document: Json) -> dict[str, dict[str, Any]]:
    """Of an OpenAPI document what is compared, by `METHOD path`: the names of parameters, of the body's
    fields and of the answer's, the statuses of success, and the one that it always has."""
    operations: dict[str, dict[str, Any]] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                operations[f"{method.upper()} {path}"] = _operation(document, item[method])
    return dict(sorted(operations.items(), key=lambda each: (each[0].split(" ", 1)[1], each[0])))


def _operation(document: Json, operation: Json) -> dict[str, Any]:
    asked = {each["name"] for each in operation.get("parameters", ()) if each["in"] in ("query", "header")}
    found: dict[str, Any] = {
        # A key in a header is how a request is authorized, and no parameter of the one route.
        "parameters": sorted(
            name for name in asked if name.lower() not in ("x-session-api-key", "authorization")
        ),
        "body": _fields_of_content(document, operation.get("requestBody", {}).get("content", {})),
        "statuses": [],
        "answer": [],
    }
    names: set[str] = set()
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            found["statuses"].append(int(status))
            names |= set(_fields_of_content(document, response.get("content", {})))
    found["answer"] = sorted(names)
    found["statuses"].sort()
    if not found["statuses"]:
        others = (status for status in operation["responses"] if status not in ("401", "403", "422"))
        found["always"] = int(next(others, 501))
    return found


def _fields_of_content(document: Json, content: Json) -> list[str]:
    names: set[str] = set()
    for media in content.values():
        names |= _fields(document, media.get("schema", {}))
    return sorted(names)


def _fields(document: Json, schema: Json, depth: int = 0) -> set[str]:
    """The names of the fields on top, of whatever form the value has; of a list those of its items, and of a
    page's items as well."""
    if depth > 12:
        return set()
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return _fields(document, document["components"]["schemas"].get(name, {}), depth + 1)
    names: set[str] = set()
    for key in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(key, ()):
            names |= _fields(document, each, depth + 1)
    if schema.get("type") == "array":
        names |= {f"[].{name}" for name in _fields(document, schema.get("items", {}), depth + 1)}
    names |= set(schema.get("properties", {}))
    if schema.get("additionalProperties") or (
        schema.get("type") == "object" and not schema.get("properties")
    ):
        names.add(FREE)
    return names


# -- comparing -------------------------------------------------------------------------------------------


@attrs.frozen
class Verdict:
    """What is to be said of one operation of the peer."""

    route: str
    kind: str
    words: str


OWN = (
    "What the interface description of the peer does not have; "
    "it serves `/docs`, `/redoc` and `/openapi.json`, too."
)
SAME, FIELDS, ALIKE, COMPATIBLE = "same", "same fields", "alike", "compatible"
REFUSED, ABSENT = "501", "not served"


def plain(route: str) -> str:
    """A route whatever its parameters are called."""
    return re.sub(r"\{[^}]*\}", "{}", route).rstrip("/") or route


def proven(peer: Json, recording: Json, *, by_fields: bool = False) -> set[str]:
    """The operations that succeeded before the peer's server in a step whose values are compared with
    Ostler's. `by_fields`: also those of which fields and kinds alone are compared, which an empty list has,
    too (`trace.mjs` finds out which steps do that)."""
    forms = {}
    for route in peer:
        form = re.escape(route).replace(r"\{file_path\}", ".+")  # which has slashes
        forms[route] = re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", form) + " 2..")
    steps = [step for step in recording["steps"] if by_fields or not step.get("fields")]
    asked = {request for step in steps for request in step["requests"]}
    return {route for route, form in forms.items() if any(form.fullmatch(each) for each in asked)}


def compare(
    peer: Json,
    ours: Json,
    reasons: Mapping[str, Mapping[str, str]],
    tried: Collection[str],
    by_fields: Collection[str] = (),
) -> list[Verdict]:
    """A verdict for every operation of the peer. One without words is unaccounted for. `tried`: those whose
    answers are compared, `by_fields`: in fields and kinds alone; of others the descriptions alone are."""
    known = {plain(route): operation for route, operation in ours.items()}
    verdicts = []
    for route, operation in peer.items():
        own = known.get(plain(route))
        if own is None:
            verdicts.append(Verdict(route, ABSENT, reason_of(route, reasons.get("not_served", {}))))
        elif not own["statuses"]:
            reason, always = reason_of(route, reasons.get("refused", {})), own["always"]
            if always == 501 or not reason:
                verdicts.append(Verdict(route, REFUSED, reason))
            else:
                verdicts.append(Verdict(route, COMPATIBLE, f"always {always}: {reason}"))
        else:
            said = reason_of(route, reasons.get("compatible", {}))
            words = "; ".join(filter(None, (said, *differences(operation, own))))
            compared = SAME if route in tried else FIELDS if route in by_fields else ALIKE
            kind = COMPATIBLE if words else compared
            verdicts.append(Verdict(route, kind, words))
    return verdicts


def differences(peer: Json, ours: Json) -> Iterator[str]:
    """What the peer has and Ostler has not. What Ostler has besides breaks no client."""
    if not {*peer["statuses"]} & {*ours["statuses"]}:
        yield f"answers {ours['statuses'][0]}, the peer {' or '.join(map(str, peer['statuses']))}"
    for key, said in (("parameters", "parameters"), ("body", "of the body"), ("answer", "of the answer")):
        if FREE in ours[key] and key != "parameters":
            continue  # any field may be there, and is not named
        missing = [name for name in peer[key] if name not in ours[key] and name != FREE]
        if missing:
            yield f"{said} without {', '.join(f'`{name}`' for name in missing)}"


def reason_of(route: str, table: Mapping[str, str]) -> str:
    """The words of the most precise pattern that fits; a pattern may leave the method out."""
    path = route.split(" ", 1)[1]
    fits = [each for each in table if fnmatchcase(route, each) or fnmatchcase(path, each)]
    return table[max(fits, key=len)] if fits else ""


def unaccounted(verdicts: list[Verdict]) -> list[str]:
    """Operations of the peer that are not there, and nothing says why."""
    return [each.route for each in verdicts if each.kind in (ABSENT, REFUSED) and not each.words]


def unused(verdicts: list[Verdict], reasons: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Reasons that are given for nothing that is so by now."""
    kinds = {"not_served": (ABSENT,), "refused": (REFUSED, COMPATIBLE), "compatible": (COMPATIBLE,)}
    found = []
    for section, table in reasons.items():
        of_kind = [each.route for each in verdicts if each.kind in kinds[section]]
        for pattern in table:
            paths = [route for route in of_kind if reason_of(route, {pattern: "x"})]
            if not paths:
                found.append(f"{section}: {pattern}")
    return found


# -- writing ---------------------------------------------------------------------------------------------

HEAD: Final = """\
# Compatibility

What Ostler does with the routes of the OpenHands agent server ({version}). `scripts/compatibility` writes
this page from both interface descriptions and [compatibility/reasons.toml](compatibility/reasons.toml).

*Same*, every route of the peer that is not named below: Ostler takes and gives every field that the peer
names, and the values of its answers were compared with a recording of the peer's (`tests/clients`;
`design.py` has what may differ). *Same fields*: fields and kinds of its answers were compared, not their
values (a list may be empty). *Alike*: the same by the descriptions alone. *Compatible*: it differs as
described. *501*: always refused, with a reason. *Not served*: 404.
"""


def written(peer: Json, ours: Json, verdicts: list[Verdict], version: str) -> str:
    """The page."""
    lines = [HEAD.format(version=version)]
    counts = [
        f"{sum(each.kind == kind for each in verdicts)} {kind}"
        for kind in (SAME, FIELDS, ALIKE, COMPATIBLE, REFUSED, ABSENT)
    ]
    lines.append(f"Of {len(verdicts)} operations: {', '.join(counts)}.")
    for kind, head in ((FIELDS, "Same fields"), (ALIKE, "Alike")):
        lines += [f"\n## {head}\n", *_listed(each.route for each in verdicts if each.kind == kind)]
    lines += ["\n## Different\n", "| Routes | Ostler | How they differ |", "|---|---|---|"]
    different: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.kind not in (SAME, FIELDS, ALIKE):
            different.setdefault((verdict.kind, verdict.words), []).append(verdict.route)
    for (kind, words), routes in different.items():
        shown = ", ".join(line.removeprefix("* ") for line in _listed(routes))
        lines.append(f"| {shown} | {kind} | {words.replace('|', chr(92) + '|')} |")
    peers = {plain(route) for route in peer}
    own = _listed(route for route in ours if plain(route) not in peers)
    lines += ["\n## Ostler's own\n", f"{OWN}\n", *own]
    return "\n".join(lines) + "\n"


def _listed(routes: Iterable[str]) -> Iterator[str]:
    """A line for each path, with all of its methods."""
    by_path: dict[str, list[str]] = {}
    for route in routes:
        method, path = route.split(" ", 1)
        by_path.setdefault(path, []).append(method)
    yield from (f"* `{', '.join(methods)} {path}`" for path, methods in by_path.items())


# -- reading ---------------------------------------------------------------------------------------------


def own_description() -> dict[str, Any]:
    """Ostler's interface description, of a server with the settings of its defaults."""
    from gateway.api.app import create_app
    from gateway.api.services import Services
    from gateway.configuration.config import Config

    # Nothing is asked of them: the routes are described, and none is called.
    needed = {each.name: Mock() for each in attrs.fields(Services) if each.default is attrs.NOTHING}
    app = create_app(Services(**{**needed, "config": Config()}))
    described: dict[str, Any] = json.loads(app.config["INTERFACE_DESCRIPTION"]())
    return described


@attrs.frozen
class Comparison:
    """Everything at once."""

    text: str
    verdicts: list[Verdict]
    reasons: Mapping[str, Mapping[str, str]]


def made() -> Comparison:
    """The comparison of what is in the repository. Blocks; reads three files."""
    kept = json.loads(PEER.read_text())
    reasons = tomllib.loads(REASONS.read_text())
    ours = reduced(own_description())
    recording, operations = json.loads(RECORDING.read_text()), kept["operations"]
    tried, by_fields = proven(operations, recording), proven(operations, recording, by_fields=True)
    verdicts = compare(operations, ours, reasons, tried, by_fields)
    text = written(kept["operations"], ours, verdicts, kept["version"])
    return Comparison(text + sequences.section(sequences.load(), sequences.reasons()), verdicts, reasons)


def main() -> int:
    """Status 1: a route is unaccounted for, or (`--check`) the document is not current."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--peer", type=Path, metavar="FILE", help="the peer's OpenAPI document")
    arguments.add_argument("--check", action="store_true", help="write nothing")
    asked = arguments.parse_args()
    if asked.peer is not None:
        document = json.loads(asked.peer.read_text())
        kept = {"version": document["info"]["version"], "operations": reduced(document)}
        PEER.write_text(compact(kept))
    comparison = made()
    missing = unaccounted(comparison.verdicts)
    for route in missing:
        print(f"no reason for {route}: add one to {REASONS.relative_to(ROOT)}", file=sys.stderr)
    for pattern in unused(comparison.verdicts, comparison.reasons):
        print(
            f"nothing fits the reason {pattern}: remove it from {REASONS.relative_to(ROOT)}", file=sys.stderr
        )
    if asked.check:
        current = DOCUMENT.exists() and DOCUMENT.read_text() == comparison.text
        if not current:
            print(f"{DOCUMENT.relative_to(ROOT)} is not current: run scripts/compatibility", file=sys.stderr)
        return int(bool(missing) or not current)
    DOCUMENT.write_text(comparison.text)
    return int(bool(missing))


def compact(kept: Json) -> str:
    """One line for each operation, so that a change of one is a change of one line."""
    lines = [
        f"  {json.dumps(route)}: {json.dumps(operation)}" for route, operation in kept["operations"].items()
    ]
    return f'{{"version": {json.dumps(kept["version"])}, "operations": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    sys.exit(main())
