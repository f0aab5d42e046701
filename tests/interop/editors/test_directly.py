"""The clients with agents that they start themselves: what goes wrong here is not Ostler's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.interop.editors.clients import Agent, Client, example
from tests.interop.editors.subjects import DEMO, SCRIPTED, Prompts
from tests.interop.editors.walk import walk, walk_with_acpx
from tests.interop.npm import Packages
from tests.support.scripted import scripted_command

pytestmark = pytest.mark.interop

SUBJECTS = {"demo": DEMO, "scripted": SCRIPTED}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Agent, Prompts]:
    """An agent's own command."""
    commands = {
        "demo": [sys.executable, "-m", "supervisor.agents.demo"],
        "scripted": scripted_command("usage", home=tmp_path / "sessions"),
    }
    cwd = tmp_path / "workspace"
    cwd.mkdir()
    return Agent(commands[request.param], cwd), SUBJECTS[request.param]


def test_the_clients_do_the_walk(editor: Client, subject: tuple[Agent, Prompts]) -> None:
    walk(editor, *subject)


def test_acpx_does_the_walk(acpx_packages: Packages, subject: tuple[Agent, Prompts]) -> None:
    walk_with_acpx(acpx_packages, *subject)


def test_the_example_client_of_the_python_sdk(
    example_client: tuple[str, str], subject: tuple[Agent, Prompts]
) -> None:
    """It prints what the agent says."""
    agent, prompts = subject
    spoken, said = prompts.text
    assert said in example(example_client, agent, spoken)
