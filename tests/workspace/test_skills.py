"""Skills of projects and of the user: found, read, and bounded, whatever somebody put into a repository."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor.workspace.access import Admitted
from supervisor.workspace.skills import skills
from supervisor.workspace.skills.front_matter import BadHead, split_head
from supervisor.workspace.skills.skill import ASK, SkillInfo, skill_of, work_hosts
from supervisor.workspace.skills.skills import project_skills, user_skills


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def head(**properties: str) -> str:
    return "\n".join(
        ["---", *(f"{key.replace('_', '-')}: {value}" for key, value in properties.items()), "---"]
    )


def names(place: Path, root: Path | None = None) -> dict[str, SkillInfo]:
    found = project_skills(Admitted(place, root))
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


# -- a file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "properties", "content"),
    [
        ("just text", {}, "just text"),
        ("---\na: 1\n---\ntext\n", {"a": "1"}, "text"),
        ("\n---\na: x\n-----\n\n  text --- more", {"a": "x"}, "text --- more"),
        ("---\na: ~\nb:\n- c\n- {d: e}\n---\n", {"a": None, "b": ["c", {"d": "e"}]}, ""),
        ("---\na: >-\n  two\n  lines\n---\ntext", {"a": "two lines"}, "text"),
        ("---\na: 'null'\n---\n", {"a": "null"}, ""),
        ("---\n- a list\n---\ntext", {}, "text"),
        ("---\nnever closed", {}, "---\nnever closed"),
        ("text\n---\na: 1\n---\n", {}, "text\n---\na: 1\n---"),
        ("---\n---\ntext", {}, "text"),
        ("", {}, ""),
    ],
)
def test_the_properties_of_a_file(text: str, properties: dict[str, Any], content: str) -> None:
    assert split_head(text) == (properties, content)


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize(
    "properties",
    [
        "a: [",
        "a: &x [y]\nb: [*x, *x, *x]",
        "a: &x {b: c}\nd: {<<: *x}",
        "a: " + "[" * 5000,
        "a: " + "[" * 100 + "]" * 100,
        "\n".join("  " * depth + "a:" for depth in range(60)),
        "a: " + "x" * 20_000,
        "\0",
        "a: b\na: !!python/object/apply:os.system [id]\n  x",
    ],
)
def test_properties_that_are_none(properties: str) -> None:
    started = time.process_time()
    with pytest.raises(BadHead):
        split_head(f"---\n{properties}\n---\n")
    assert time.process_time() - started < 5


def test_nothing_in_properties_is_run() -> None:
    found, _ = split_head("---\na: !!python/object/apply:os.getcwd []\n---\n")
    assert found == {"a": []}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text", {"type": "repo", "triggers": ()}),
        (head(triggers="[a, b]") + "\ntext", {"type": "knowledge", "triggers": ("a", "b")}),
        (head(name="other", description="What.") + "\ntext", {"name": "other", "description": "What."}),
        (head(paths="'*.py, docs/**'", triggers="[a]"), {"type": "knowledge", "triggers": ()}),
        (head(paths="['*.py']"), {"disable_model_invocation": True}),
        (head(disable_model_invocation="true"), {"disable_model_invocation": True}),
        (head(disable_model_invocation="no"), {"disable_model_invocation": False}),
        (
            head(inputs="[]", triggers="[go]") + "\n${X}",
            {"triggers": ("go", "/mine"), "content": "${X}" + ASK},
        ),
        (head(inputs="[]") + "\ntext", {"triggers": ("/mine",), "content": "text"}),
        (head(inputs="[{name: a}]") + "\ntext", {"content": "text" + ASK}),
    ],
)
def test_a_skill_of_a_file(text: str, expected: dict[str, Any]) -> None:
    found = skill_of(text, "mine", "/p/mine.md", specified=False)
    assert {key: getattr(found, key) for key in expected} == expected
    assert (found.source, found.is_agentskills_format) == ("/p/mine.md", False)


@pytest.mark.parametrize(
    "text",
    [
        head(triggers="word"),
        head(triggers="[{}]"),
        head(paths="{}"),
        head(inputs="x"),
        head(description="[]"),
    ],
)
def test_files_that_are_no_skills(text: str) -> None:
    with pytest.raises(ValueError, match="its "):
        skill_of(text, "mine", "/p/mine.md", specified=False)


@pytest.mark.parametrize("name", ["Other", "two words", "a--b", "-a", "x" * 65, "other"])
def test_a_specified_skill_is_called_as_its_directory(name: str) -> None:
    with pytest.raises(ValueError, match="directory"):
        skill_of(head(name=f"'{name}'"), "mine" if name == "other" else name, "/p", specified=True)
    found = skill_of(head(description="x" * 2000), "mine", "/p", specified=True)
    assert (found.name, found.type, len(found.description or "")) == ("mine", "agentskills", 1024)


def test_addresses_of_applications_are_a_skill() -> None:
    assert work_hosts([("VSCODE", "http://x", 1)]) == []
    (found,) = work_hosts([("WORKER_1", "http://x", 8011), ("OTHER", "http://y", 2)])
    assert (found.name, found.source) == ("work_hosts", None)
    assert found.content.endswith("\n* http://x (port 8011)")


# -- a project --------------------------------------------------------------------------------------------


def test_the_skills_of_a_project(tmp_path: Path) -> None:
    write(tmp_path / "AGENTS.md", "---\nname: not read\n---\nBe brief.")
    write(tmp_path / ".cursorrules", "Rules.")
    write(tmp_path / "server" / "CLAUDE.md", "Of the server.")
    write(tmp_path / "server" / "node_modules" / "x" / "AGENTS.md", "Not this.")
    write(tmp_path / "server" / ".hidden" / "AGENTS.md", "Nor this.")
    write(tmp_path / ".agents/skills/knock/SKILL.md", head(name="knock", description="How.") + "\nTwice.\n")
    write(tmp_path / ".agents/skills/knock/more.md", "A part of it.")
    write(tmp_path / ".agents/skills/plain.md", "Plain.")
    write(tmp_path / ".openhands/skills/plain.md", "Shadowed.")
    write(tmp_path / ".openhands/skills/deep/er/one.md", head(triggers="[dig]") + "\nDeep.")
    write(tmp_path / ".openhands/skills/README.md", "About these.")
    write(tmp_path / ".openhands/microagents/repo.md", "Old.")
    found = names(tmp_path)
    assert {name: (each.type, each.content) for name, each in found.items()} == {
        "agents": ("repo", "---\nname: not read\n---\nBe brief."),
        "cursorrules": ("repo", "Rules."),
        "claude:server": ("knowledge", "Of the server."),
        "knock": ("agentskills", "Twice."),
        "plain": ("repo", "Plain."),
        "deep/er/one": ("knowledge", "Deep."),
        "repo": ("repo", "Old."),
    }
    assert found["knock"].source == str(tmp_path / ".agents/skills/knock/SKILL.md")
    assert found["claude:server"].disable_model_invocation is True


def test_the_repository_that_a_project_is_in_counts_too(tmp_path: Path) -> None:
    write(tmp_path / ".git/HEAD", "ref: refs/heads/main")
    write(tmp_path / "AGENTS.md", "Of all.")
    write(tmp_path / ".agents/skills/a.md", "Of all.")
    write(tmp_path / ".agents/skills/b.md", "Of all.")
    project = tmp_path / "packages" / "one"
    write(project / ".agents/skills/b.md", "Its own.")
    assert {name: each.content for name, each in names(project).items()} == {
        "agents": "Of all.", "a": "Of all.", "b": "Its own.",
    }  # fmt: skip
    # What is above the root is not looked at.
    assert set(names(project, root=project)) == {"b"}
    assert set(names(project, root=tmp_path)) == {"agents", "a", "b"}


@pytest.mark.guarantee(name="workspace-routes")
def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "secret.md", "s3cr3t")
    write(outside / "skills" / "a" / "SKILL.md", "s3cr3t")
    project = tmp_path / "project"
    write(project / "docs" / "agents.txt", "Be brief.")
    write(project / "shared" / "b" / "SKILL.md", "Shared.")
    (project / "AGENTS.md").symlink_to("docs/agents.txt")
    (project / "CLAUDE.md").symlink_to("AGENTS.md")
    (project / "GEMINI.md").symlink_to(outside / "secret.md")
    write(project / ".agents/skills/c.md", "Plain.")
    (project / ".agents/skills/b").symlink_to("../../shared/b")
    (project / ".agents/skills/a").symlink_to(outside / "skills" / "a")
    (project / ".agents/skills/d.md").symlink_to(outside / "secret.md")
    (project / ".agents/skills/loop").symlink_to("loop")
    (project / ".openhands").mkdir()
    (project / ".openhands/skills").symlink_to(outside / "skills")
    (project / "up").symlink_to("..")
    with capture_logs() as logged:
        found = names(project)
    assert {name: each.content for name, each in found.items()} == {
        "agents": "Be brief.", "b": "Shared.", "c": "Plain.",
    }  # fmt: skip
    assert "s3cr3t" not in str(logged)


def test_what_is_no_skill_costs_only_itself(tmp_path: Path) -> None:
    place = tmp_path / ".agents/skills"
    write(place / "good.md", "Good.")
    write(place / "bytes.md", b"\xff\xfe")
    write(place / "large.md", b"x" * (skills.FILE_BYTES + 1))
    write(place / "wrong.md", "---\na: [\n---\n")
    write(place / "Wrong" / "SKILL.md", "Its directory's name is not one.")
    os.mkfifo(place / "pipe.md")
    (place / "directory.md").mkdir()
    (tmp_path / "AGENTS.md").mkdir()
    os.mkfifo(tmp_path / ".cursorrules")
    with capture_logs() as logged:
        assert set(names(tmp_path)) == {"good"}
    told = {Path(each["file"]).name: each["reason"] for each in logged}
    assert set(told) == {
        "bytes.md",
        "large.md",
        "wrong.md",
        "SKILL.md",
        "pipe.md",
        "AGENTS.md",
        ".cursorrules",
    }
    assert told["bytes.md"] == "it is not text in UTF-8"


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize(
    ("limit", "value", "most"),
    [("MAX_SKILLS", 7, 7), ("ALL_BYTES", 50, 5), ("MAX_ENTRIES", 40, 30), ("SEARCH_SECONDS", -1, 0)],
)
def test_a_search_has_an_end(tmp_path: Path, monkeypatch: Any, limit: str, value: int, most: int) -> None:
    for number in range(30):
        write(tmp_path / f".agents/skills/s{number:02}.md", "ten bytes.")
    for number in range(30):
        (tmp_path / f"directory{number}").mkdir()
    monkeypatch.setattr(skills, limit, value)
    with capture_logs() as logged:
        assert len(names(tmp_path)) <= most
    (last,) = logged
    assert last["event"] == "not all skills are read"


def test_a_wide_and_deep_tree_is_searched_in_bounds(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(skills.MAX_DEPTH + 3):
        deep = deep / "d"
        write(deep / "AGENTS.md", "Deep.")
    assert len(names(tmp_path)) == skills.MAX_DEPTH


def test_the_skills_of_the_user(tmp_path: Path) -> None:
    write(tmp_path / "AGENTS.md", "Not of the user.")
    write(tmp_path / ".agents/skills/a.md", "A.")
    write(tmp_path / ".openhands/skills/b.md", "B.")
    write(tmp_path / ".openhands/skills/installed/c/SKILL.md", "C.")
    write(tmp_path / ".openhands/microagents/a.md", "Shadowed.")
    found = {each.name: each.content for each in user_skills(Admitted(tmp_path, None))}
    assert found == {"a": "A.", "b": "B."}


def test_a_place_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert names(tmp_path / "missing") == {}
    assert names(write(tmp_path / "file", "x")) == {}
