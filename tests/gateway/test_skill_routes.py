"""POST /api/skills: the skills of a project and of the user, and where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.workspace.access import Access

PATH = "/api/skills"
NONE = {"sandbox": 0, "registered_marketplaces": 0, "sdk_base": 0, "org": 0, "project": 0}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the gateway of these tests takes the user to be at home."""
    return tmp_path


async def test_skills_and_their_sources(gateway: Any, tmp_path: Path, home: Path) -> None:
    project = tmp_path / "project"
    write(project / ".agents/skills/knock/SKILL.md", "---\nname: knock\ndescription: How.\n---\nTwice.\n")
    write(project / "AGENTS.md", "Be brief.")
    write(home / ".agents/skills/agents.md", "Of the user.")
    write(home / ".agents/skills/mine.md", "Of the user.")
    body = {
        "project_dir": str(project),
        "marketplace_path": None,
        "registered_marketplaces": [],
        "org_configs": None,
    }
    status, answer = await gateway.call("POST", PATH, body)
    assert status == 200
    assert answer["sources"] == {**NONE, "sdk_base": 2, "project": 2}
    found = {each["name"]: each for each in answer["skills"]}
    assert found["knock"] == {
        "name": "knock",
        "type": "agentskills",
        "content": "Twice.",
        "triggers": [],
        "source": str(project / ".agents/skills/knock/SKILL.md"),
        "description": "How.",
        "is_agentskills_format": True,
        "disable_model_invocation": False,
    }
    # The project's goes before the user's.
    assert (found["agents"]["content"], set(found)) == ("Be brief.", {"agents", "mine", "knock"})
    for flag, kept in (("load_user", {"agents", "knock"}), ("load_project", {"agents", "mine"})):
        _, answer = await gateway.call("POST", PATH, {**body, flag: False})
        assert {each["name"] for each in answer["skills"]} == kept
    hosts = {"exposed_urls": [{"name": "WORKER_1", "url": "http://x", "port": 8011}]}
    _, answer = await gateway.call("POST", PATH, {"load_user": False, "sandbox_config": hosts})
    assert (answer["sources"], answer["skills"][0]["name"]) == ({**NONE, "sandbox": 1}, "work_hosts")


@pytest.mark.parametrize("place", [None, "", "/does/not/exist", "relative", "a\0b"])
async def test_a_place_without_skills(gateway: Any, home: Path, place: str | None) -> None:
    assert await gateway.call("POST", PATH, {"project_dir": place}) == (200, {"skills": [], "sources": NONE})
    assert await gateway.call("POST", PATH, {}) == (200, {"skills": [], "sources": NONE})


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize(
    ("access", "names"),
    [(Access.OFF, set()), (Access.WORKSPACES, {"inside"}), (Access.ALL, {"inside", "user"})],
)
async def test_an_operator_keeps_directories_from_clients(
    gateway_with: Any, tmp_path: Path, home: Path, access: Access, names: set[str]
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write(inside / ".agents/skills/inside.md", "In.")
    write(outside / ".agents/skills/outside.md", "Out.")
    write(home / ".agents/skills/user.md", "Of the user.")
    (inside / ".openhands").symlink_to(outside)
    (inside / "AGENTS.md").symlink_to(outside / ".agents/skills/outside.md")
    async with gateway_with(workspace_access=access) as gateway:
        conversation = await gateway.conversation()
        conversation.request = conversation.request.__class__(working_dir=str(inside))
        _, answer = await gateway.call("POST", PATH, {"project_dir": str(inside)})
        assert {each["name"] for each in answer["skills"]} == names
        _, answer = await gateway.call("POST", PATH, {"project_dir": str(outside), "load_user": False})
        assert {each["name"] for each in answer["skills"]} == ({"outside"} if access is Access.ALL else set())


@pytest.mark.parametrize(
    "body", [{"project_dir": 5}, {"sandbox_config": {"exposed_urls": [{"name": "x"}]}}, []]
)
async def test_what_is_refused(gateway: Any, body: Any) -> None:
    assert (await gateway.call("POST", PATH, body))[0] == 422
