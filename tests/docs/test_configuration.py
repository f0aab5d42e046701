"""docs/configuration.md against the code: every variable, its default, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.configuration.config import load_config
from gateway.configuration.parsing import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()

NAME = re.compile(r"(?<![A-Z_])(?:OSTLER|OH)_[A-Z][A-Z_]*[A-Z](?![A-Z_])")
ROW = re.compile(r"^\| `(OSTLER_\w+)` \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)
ROWS = {match[1]: (match[2], match[3], match[4]) for match in ROW.finditer(PAGE)}

SIZES = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
SWITCH = "switch"
COUNTED = ("bytes", "seconds", "agents", "crashes", "restarts", "items", "ids", "conversations",
           "WebSockets", "connections", "factor", "fraction")  # fmt: skip
ELSEWHERE = {"OSTLER_SERVER_RESTARTS": 5.0}
"""Read by the warden, which has no Config."""

PLACEHOLDERS = {"OSTLER_DEADLINE", "OSTLER_SECRET"}
"""What is before `_...` and `_<NAME>`."""


def python_sources() -> Iterator[Path]:
    for room in ("gateway", "supervisor"):
        yield from (ROOT / room).rglob("*.py")
        yield from (ROOT / room).rglob("*.toml")


def documents() -> list[Path]:
    return [*(ROOT / "docs").glob("**/*.md"), *(ROOT / "docs").glob("**/*.service"), *ROOT.glob("*.md")]


@cache
def in_the_code() -> set[str]:
    found = {name for path in python_sources() for name in NAME.findall(path.read_text())}
    config = load_config({})
    for prefix, kind in (
        ("OSTLER_", config),
        ("OSTLER_BASH_", config.supervision.bash),
        ("OSTLER_DEADLINE_", config.supervision.deadlines),
    ):
        fields = attrs.fields(type(kind))
        found |= {f"{prefix}{f.name.upper()}" for f in fields if type(f.default) in (int, float)}
    return found


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not attrs.has(type(value)):
        return {prefix: value}
    found: dict[str, Any] = {}
    for field in attrs.fields(type(value)):
        found |= flat(getattr(value, field.name), f"{prefix}.{field.name}")
    return found


def number(text: str) -> float | None:
    match = re.match(r"([\d.]+)(?: ([KMG]iB))?$", text.strip("`"))
    return float(match[1]) * SIZES.get(match[2], 1) if match else None


def test_every_variable_of_the_code_is_on_the_page() -> None:
    assert in_the_code() - PLACEHOLDERS - set(NAME.findall(PAGE)) == set()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_no_document_names_a_variable_that_the_code_does_not_know(path: Path) -> None:
    known = in_the_code() | PLACEHOLDERS
    named = {name for name in NAME.findall(path.read_text()) if not name.startswith("OSTLER_SECRET_")}
    assert named - known == set()


def test_no_variable_has_two_rows() -> None:
    names = [match[1] for match in ROW.finditer(PAGE)]
    assert len(names) == len(set(names)) > 60


@pytest.mark.guarantee(name="a-setting-counts-or-the-server-does-not-start")
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[1] in COUNTED])
def test_the_default_of_a_number_is_the_codes(name: str) -> None:
    """Another value changes one field, and the page has what the field is without it."""
    _, unit, default = ROWS[name]
    before = flat(load_config({}))
    # Below one for fractions; for connections a number that fits into any limit of open files.
    changed = flat(load_config({name: "0.5" if unit in ("seconds", "fraction", "factor") else "7"}))
    if changed == before and "0.5" in default:
        changed = flat(load_config({name: "0.25"}))
    differing = [key for key in before if before[key] != changed[key] and "descriptors" not in key]
    if name in ELSEWHERE:
        assert (differing, number(default)) == ([], ELSEWHERE[name])
        return
    assert len(differing) == 1, differing
    value = before[differing[0]]
    if default == "`off`":
        assert value is None
    elif number(default) is not None:
        assert value == number(default)
    else:  # computed from the machine
        assert name in ("OSTLER_MAX_CONNECTIONS", "OSTLER_MEMORY_BYTES")


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[1] == SWITCH])
def test_a_switch_is_one(name: str) -> None:
    default = ROWS[name][2]
    assert default in ("off", "on")
    assert load_config({name: default}) == load_config({})
    assert default == "off" or load_config({name: "off"}) != load_config({})
    with pytest.raises(ConfigError, match=f"^{name}: 'perhaps' is not a boolean"):
        load_config({name: "perhaps"})


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[1] in COUNTED])
def test_what_is_not_a_number_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        load_config({name: "many"})


def test_off_is_a_value_where_the_page_says_so_and_nowhere_else() -> None:
    for name, (meaning, unit, _) in ROWS.items():
        if unit not in COUNTED:
            continue
        if "or `off`" in meaning:
            load_config({name: "off"})
        else:
            with pytest.raises(ConfigError):
                load_config({name: "off"})


def test_the_words_of_a_choice_are_the_codes() -> None:
    for name in (
        "OSTLER_CONTAINMENT",
        "OSTLER_WHEN_FULL",
        "OSTLER_EVENT_VOCABULARY",
        "OSTLER_WORKSPACE_ACCESS",
        "OSTLER_HOOKS",
        "OSTLER_LOG",
    ):
        words = re.findall(r"`([a-z]+)`", ROWS[name][0])
        assert len(words) >= 2
        for word in words:
            load_config({name: word})
        with pytest.raises(ConfigError):
            load_config({name: "something-else"})
