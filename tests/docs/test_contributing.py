"""CONTRIBUTING.md is walked through: its files are there, and its pieces of code do what it says."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from quart_trio import QuartTrio

from gateway.api.openapi import describe
from gateway.api.routing import Group, register
from gateway.cli.arguments import Commands
from gateway.cli.parser import build_parser
from gateway.cli.suggest import subparsers_of
from supervisor import events
from supervisor.agents import catalog

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PLACE = re.compile(
    r"`((?:\.ci|docs|gateway|requirements|scripts|supervisor|tests)/[\w./-]*|[A-Z]+\.md|setup\.cfg)"
)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, language: str, number: int = 0, of: int = 1) -> str:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", section(title), re.MULTILINE | re.DOTALL)
    assert len(found) == of
    return textwrap.dedent(found[number][1])


def test_every_file_that_a_step_names_is_there() -> None:
    named = set(PLACE.findall(PAGE))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_descriptor_that_is_added_is_in_the_catalogue(tmp_path: Path, monkeypatch: Any) -> None:
    directory = tmp_path / "catalog"
    shutil.copytree(catalog.CATALOG_DIR, directory, ignore=shutil.ignore_patterns("locks"))
    (directory / "my-agent.toml").write_text(block("Add an agent", "toml", of=2))
    monkeypatch.setattr(catalog, "CATALOG_DIR", directory)
    try:
        catalog.load_catalog.cache_clear()
        found = catalog.load_catalog()["my-agent"]
    finally:
        monkeypatch.undo()
        catalog.load_catalog.cache_clear()
    assert (found.name, found.args) == ("My Agent", ("--acp",))
    assert found.npm is not None
    assert found.npm.version == "1.2.3"
    (credential,) = found.credentials
    assert credential.env == "MY_AGENT_API_KEY"
    # What a descriptor does not know is refused.
    (directory / "my-agent.toml").write_text('colour = "red"\n' + block("Add an agent", "toml", of=2))
    with pytest.raises(catalog.CatalogError, match="colour: Extra inputs are not permitted"):
        catalog.decode_descriptor((directory / "my-agent.toml").read_text(), "my-agent.toml")


def test_an_event_that_is_added_is_written_and_read(tmp_path: Path) -> None:
    """In a process of its own: a class of events belongs to the codec from its definition on."""
    head = (
        "from __future__ import annotations\nimport json\nfrom typing import ClassVar\nimport attrs\n"
        "from supervisor.events import Event, decode_event, dump_event, new_event_id, timestamp_now\n"
        "from supervisor.events.parts import Source\n"
    )
    tail = (
        "one = WeatherEvent(id=new_event_id(), timestamp=timestamp_now(), degrees=21.5)\n"
        "written = json.loads(dump_event(one))\n"
        "assert decode_event(written) == one\n"
        "print(written['kind'], written['degrees'], written['source'])\n"
    )
    program = tmp_path / "weather.py"
    program.write_text(head + block("Add a kind of event", "python") + tail)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)}
    )
    assert (done.stdout, done.stderr) == ("WeatherEvent 21.5 environment\n", "")


def test_every_kind_of_event_is_exported() -> None:
    source = (ROOT / "supervisor" / "events" / "types.py").read_text()
    kinds = re.findall(r"^class (\w+)\(Event\):", source, re.MULTILINE)
    assert len(kinds) > 10
    assert set(kinds) - set(events.__all__) == set()


def test_a_descriptor_of_pypi_is_one() -> None:
    text = block("Add an agent", "toml", of=2).split("[npm]")[0] + block("Add an agent", "toml", 1, of=2)
    found = catalog.decode_descriptor(text, "my-agent.toml")
    assert found.pip is not None
    assert found.pip.entry == "bin/my-agent"


async def test_a_route_that_is_added_answers_and_is_described() -> None:
    names: dict[str, Any] = {"Any": Any, "Final": Final, "Group": Group}
    exec(block("Add a route", "python"), names)
    (group,) = names["GROUPS"]
    services: Any = SimpleNamespace(config=SimpleNamespace(max_page=1))
    routes = group.routes(services)
    app = QuartTrio("contributing")
    register(app, routes)
    answer = await app.test_client().get("/api/weather")
    assert (answer.status_code, await answer.get_json()) == (200, {"degrees": 21})
    described = json.loads(describe(routes))
    assert described["paths"]["/api/weather"]["get"]["summary"] == "The weather"


def test_a_command_that_is_added_is_parsed() -> None:
    parser = argparse.ArgumentParser()
    exec(block("Add a command", "python"), {"commands": Commands(parser, "command")})
    arguments = parser.parse_args(["weather", "--json"])
    assert (arguments.command, arguments.json) == ("weather", True)
    assert (arguments.run, arguments.remote) == ("operate.weather:run", True)


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands and actions."""
    below = subparsers_of(parser)
    for each in below.choices.values() if below is not None else ():
        yield from leaves(each)
    if below is None:
        yield parser


def test_every_command_has_its_function() -> None:
    for parser in leaves(build_parser()):
        if not parser.prog.endswith(" serve"):
            module, _, function = parser.get_default("run").partition(":")
            source = (ROOT / f"gateway/cli/{module.replace('.', '/')}.py").read_text()
            assert f"def {function}(" in source
