"""The clients with `ostler acp`: the same walk, with agents that a server keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.editors.behind import PROMPTS, Behind, behind
from tests.interop.editors.clients import Client, example
from tests.interop.editors.walk import walk, walk_with_acpx
from tests.interop.model_api.server import ModelApi
from tests.interop.npm import Packages

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=PROMPTS)
def kept(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    agents_prefix: Path,
    _model_api: ModelApi,
) -> Iterator[Behind]:
    """A server for each agent."""
    with behind(request.param, tmp_path_factory.mktemp(request.param), agents_prefix, _model_api) as one:
        yield one


def test_the_clients_do_the_walk(editor: Client, kept: Behind, tmp_path: Path) -> None:
    session = walk(editor, kept.agent(tmp_path), kept.prompts)
    assert kept.call("GET", f"/api/conversations/{session}")["execution_status"] == "finished"


def test_acpx_does_the_walk(acpx_packages: Packages, kept: Behind, tmp_path: Path) -> None:
    walk_with_acpx(acpx_packages, kept.agent(tmp_path), kept.prompts)


def test_the_example_client_of_the_python_sdk(
    example_client: tuple[str, str], kept: Behind, tmp_path: Path
) -> None:
    """It prints what the agent says."""
    spoken, said = kept.prompts.text
    assert said in example(example_client, kept.agent(tmp_path), spoken)
