"""POST /api/sub-agents: those of the project, of the user, and of the library."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.api.routes.workspace import sub_agents as routes
from supervisor.agents.sdk_facts import Browsers, known
from supervisor.workspace.skills import sub_agents
from supervisor.workspace.skills.sub_agents import sub_agent_of

PATH = "/api/sub-agents"
BUILT_IN = {"bash-runner", "code-explorer", "general-purpose", "web-researcher"}

REVIEWER = """---
name: reviewer
description: Reads code. <example> Look at this </example>
model: fast
tools: [terminal, grep]
skills: a, b
permission_mode: Always_Confirm
max_iteration_per_run: 7
max_budget_per_run: 0.5
condenser: none
hooks:
  Stop: [{hooks: [{command: ./check, timeout: 5}]}]
mcp_config:
  one: {command: one, env: {TOKEN: "12345678901"}, timeout: 3}
team: red
---
You are a reviewer.
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def ask(gateway: Any, **asked: Any) -> dict[str, Any]:
    status, answer = await gateway.call("POST", PATH, asked)
    assert status == 200, answer
    found = {each["name"]: each for each in answer["agents"]}
    assert len(found) == len(answer["agents"])
    return found


async def test_those_of_the_project_go_before_the_users_and_these_before_the_librarys(
    gateway: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    write(project / ".agents/agents/reviewer.md", REVIEWER)
    write(project / ".openhands/agents/reviewer.md", "---\ndescription: Later.\n---\n")
    write(project / ".agents/agents/README.md", "No agent.")
    write(project / ".agents/agents/below/deep.md", "No agent.")
    write(tmp_path / ".agents/agents/reviewer.md", "Of the user.")
    write(tmp_path / ".openhands/agents/mine.md", "Do what I mean.")
    write(tmp_path / ".openhands/agents/bash-runner.md", "Mine, too.")
    monkeypatch.setattr(Browsers, "there", lambda self, environ: True)
    found = await ask(gateway, project_dir=str(project))
    assert set(found) == {"reviewer", "mine"} | BUILT_IN
    one = {"command": "one", "env": {"TOKEN": "**********"}, "timeout": 3}
    hooks = found["reviewer"].pop("hooks")
    assert hooks["stop"][0]["hooks"][0]["timeout"] == 5
    assert found["reviewer"] == {
        "name": "reviewer",
        "description": "Reads code. <example> Look at this </example>",
        "model": "fast",
        "color": None,
        "tools": ["terminal", "grep"],
        "skills": ["a", "b"],
        "system_prompt": "You are a reviewer.",
        "when_to_use_examples": ["Look at this"],
        "permission_mode": "always_confirm",
        "max_iteration_per_run": 7,
        "max_budget_per_run": 0.5,
        "mcp_config": {"one": one},
        "mcp_servers": {"one": one},
        "profile_store_dir": None,
        "condenser": {"kind": "NoOpCondenser"},
        "metadata": {"team": "red"},
        "level": "project",
        "source": str(project / ".agents/agents/reviewer.md"),
        "is_builtin": False,
    }
    assert (found["mine"]["level"], found["mine"]["system_prompt"]) == ("user", "Do what I mean.")
    assert found["bash-runner"]["level"] == "user"
    general = found["general-purpose"]
    assert (general["level"], general["is_builtin"]) == ("builtin", True)
    assert general["tools"] == ["terminal", "file_editor", "task_tracker"]
    for flag, gone in (
        ("load_project", set()),  # the user has one of that name
        ("load_user", {"mine"}),
        ("load_builtin", BUILT_IN - {"bash-runner"}),
    ):
        assert set(await ask(gateway, project_dir=str(project), **{flag: False})) == set(found) - gone


async def test_without_a_browser_none_needs_one(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Browsers, "there", lambda self, environ: False)
    assert set(await ask(gateway, load_user=False)) == BUILT_IN - {"web-researcher"}
    assert {each["name"] for each in known().sub_agents} == BUILT_IN


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: [a]\n---\n",
        "---\npermission_mode: sometimes\n---\n",
        "---\nmax_budget_per_run: much\n---\n",
        "---\nmax_iteration_per_run: 0\n---\n",
        "---\ncondenser: 7\n---\n",
        "---\nmcp_config: x\n---\n",
        "---\nhooks: {Stop: x}\n---\n",
        "---\na: &a [x]\nb: *a\n---\n",
        "\udcff",
    ],
)
async def test_what_is_none_is_left_out(gateway: Any, tmp_path: Path, text: str) -> None:
    directory = tmp_path / "project/.agents/agents"
    write(directory / "good.md", "Good.")
    (directory / "bad.md").write_bytes(text.encode(errors="surrogateescape"))
    (directory / "elsewhere.md").symlink_to("/etc/passwd")
    found = await ask(gateway, project_dir=str(tmp_path / "project"), load_user=False, load_builtin=False)
    assert set(found) == {"good"}


async def test_no_more_than_some(gateway: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub_agents, "MOST", 3)
    for number in range(5):
        write(tmp_path / f"project/.agents/agents/{number}.md", "One.")
    found = await ask(gateway, project_dir=str(tmp_path / "project"), load_user=False, load_builtin=False)
    assert set(found) == {"0", "1", "2"}
    assert await ask(gateway, project_dir="/nowhere", load_user=False, load_builtin=False) == {}


async def test_what_files_say_is_not_judged_on_the_loop(
    gateway: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, hide = [], routes.hidden_within

    def seen(value: Any) -> Any:
        threads.append(threading.current_thread())
        return hide(value)

    monkeypatch.setattr(routes, "hidden_within", seen)
    write(tmp_path / "project/.agents/agents/one.md", "One.")
    found = await ask(gateway, project_dir=str(tmp_path / "project"), load_user=False, load_builtin=False)
    assert set(found) == {"one"}
    assert threads
    assert threading.main_thread() not in threads


async def test_files_that_are_refused_are_told_in_one_line(gateway: Any, tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"project/.agents/agents/{number}.md", "---\nname: [a]\n---\n")
    with structlog.testing.capture_logs() as logs:
        assert not await ask(
            gateway, project_dir=str(tmp_path / "project"), load_user=False, load_builtin=False
        )
    assert [each.get("count") for each in logs if "sub-agent" in each["event"]] == [20]


def test_examples_without_an_end_cost_no_more_each_the_more_there_are() -> None:
    def cost(times: int) -> float:
        text = f"---\ndescription: {'<example>' * times}\n---\n"
        taken = []
        for _ in range(3):
            started = time.thread_time()
            assert sub_agent_of(text, "n", "s", "project").when_to_use_examples == ()
            taken.append(time.thread_time() - started)
        return min(taken)

    assert cost(1600) < 3 * cost(800)


@pytest.mark.parametrize(
    ("description", "examples"),
    [
        ("<example>a</example> b <EXAMPLE> c\n</Example>", ("a", "c")),
        ("</example><example>a<example>b</example></example>", ("a<example>b",)),
        ("<example> </example><example>a", ()),
    ],
)
def test_examples(description: str, examples: tuple[str, ...]) -> None:
    text = f"---\ndescription: {json.dumps(description)}\n---\n"
    assert sub_agent_of(text, "n", "s", "project").when_to_use_examples == examples
