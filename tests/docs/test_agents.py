"""docs/agents.md has every agent of the catalogue, with what its descriptor says."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.agents.catalog import CUSTOM, load_catalog

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text()
ROWS = {
    cells[0].strip("`"): cells
    for line in PAGE.splitlines()
    if line.startswith("| `") and not line.startswith("| `acp_server`")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
AGENTS = load_catalog()


def test_every_agent_has_a_row_and_no_other() -> None:
    assert ROWS.keys() == AGENTS.keys() | {CUSTOM}


@pytest.mark.parametrize("key", sorted(AGENTS.keys() - {CUSTOM}))
def test_a_row_says_what_is_installed(key: str) -> None:
    _, _, needed, package, size, needs, tried = ROWS[key]
    agent = AGENTS[key]
    assert tried
    for name in needed.split("`")[1::2]:
        known = {*agent.secret_env, *(each.name for each in agent.file_secrets)}
        assert name in known | {each.env for each in agent.credentials}
    source = agent.npm or agent.pip
    if source is None:
        assert (package, size, needs) == ("", "", "")
        return
    assert package == f"{'npm' if agent.npm else 'PyPI'}, `{source.package}` {source.version}"
    # Without a size in the descriptor, that of what it was locked with.
    assert size == f"{source.size_mb} MB" or (source.size_mb is None and size)
    if agent.npm is not None and "Node.js" in needs:
        assert needs == f"Node.js {'.'.join(map(str, agent.npm.min_node))}"
