"""The front door for programs: the example of the documentation runs, and what it opened is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import supervisor
from supervisor.conversations.state.errors import InvalidStart
from tests.support.processes import mentioning

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "without_http.py"


def test_the_example_runs_an_agent(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OSTLER_KEYRING": "off"}
    done = subprocess.run(
        [sys.executable, EXAMPLE], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "\nfinished You said: What is a nursery?\n" in done.stdout
    assert not mentioning(tmp_path)
    assert len(EXAMPLE.read_text().splitlines()) <= 20


async def test_an_agent_that_nobody_knows_is_refused_with_the_names_of_those_that_are_known(
    tmp_path: Path,
) -> None:
    async with supervisor.open(tmp_path, environ={}, keyring=False, containment=None) as ostler:
        with pytest.raises(InvalidStart, match=r"Unknown agent 'claud'.*claude-code.*demo"):
            await ostler.start("claud", working_dir=tmp_path)
        conversation = await ostler.start("demo", working_dir=tmp_path)
        assert await conversation.final_response() == ""
        await conversation.ask("hello")
        assert "You said: hello" in await conversation.final_response()
        assert not conversation.busy
