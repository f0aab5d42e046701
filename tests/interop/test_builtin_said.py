"""What is said to the built-in agent has its effect: limits, additions, profiles, every field of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop import builtin_program as p
from tests.interop.builtin_program import KEY, Program, Session, agent, call, finish, llm, says, status
from tests.interop.model_api.server import ModelApi
from tests.support.processes import environment
from tests.support.server import ServerProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.guarantee(name="a-setting-counts-or-the-server-does-not-start"),
]

OTHER_KEY = "sk-canary-of-the-other-1c2d"


def kinds(session: Session) -> list[str]:
    return [event["kind"] for event in session.events]


def told(session: Session, key: str) -> Any:
    return [state.value for state in session.states if state.key == key][-1]


@pytest.mark.guarantee(name="control-always-returns")
def test_a_budget_ends_the_run(session: Session, model_api: ModelApi) -> None:
    dear = llm(model_api, input_cost_per_token=0.5, output_cost_per_token=0.5)
    session.open(agent(model_api, "terminal", model=dear), max_budget_per_run=0.01)
    model_api.answers.extend([call("think", thought="a"), call("think", thought="b"), finish()])
    assert status(session.say("Think twice")) == "error"
    wrong = next(event for event in session.events if event["kind"] == "ConversationErrorEvent")
    assert wrong["code"] == "MaxBudgetReached"
    assert "maximum budget limit" in wrong["detail"]
    assert kinds(session).count("ActionEvent") == 1


def test_thresholds_of_a_loop(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api), stuck_detection_thresholds={"action_observation": 2})
    model_api.answers.extend([call("think", thought="the same")] * 10)
    assert status(session.say("Go in circles")) == "stuck"
    assert kinds(session).count("ActionEvent") <= 4


def test_additions_and_time_and_memory(session: Session, model_api: ModelApi) -> None:
    context = {"system_message_suffix": "First.", "current_datetime": "2001-02-03T04:05:06"}
    additions = {
        "system_message_suffix_append": "Be brief.",
        "skills": [{"name": "knock", "content": "Knock twice.", "source": None, "trigger": None}],
        "llm_profile_ref": "looked up already",
    }
    session.open(agent(model_api, agent_context=context), agent_launch_additions=additions, load_memory=True)
    made = told(session, "agent")["agent_context"]
    assert made["system_message_suffix"] == "First.\n\nBe brief."
    assert [each["name"] for each in made["skills"]] == ["knock"]
    assert made["load_memory"] is True
    assert not made["current_datetime"].startswith("2001")
    model_api.answers.append(says("Yes."))
    session.say("Hello")
    prompt = next(event for event in session.events if event["kind"] == "SystemPromptEvent")
    assert "Be brief." in str(prompt)
    assert "Knock twice." in str(prompt)


@pytest.mark.guarantee(name="keys-and-secrets")
def test_the_agent_goes_on_with_the_model_of_a_profile(session: Session, model_api: ModelApi) -> None:
    other = llm(model_api, model="openai/other-model", api_key=OTHER_KEY, usage_id="default")
    routing = {"classifier_model": "other", "classes": [{"description": "all", "model": "other"}]}
    session.open(
        {**agent(model_api), "include_default_tools": ["FinishTool", "ThinkTool", "SwitchLLMTool"]},
        llm_profiles={"other": other},
        meta_profiles={"by-size": routing},
    )
    model_api.answers.extend([call("switch_llm", profile_name="other", reason="better"), says("Done.")])
    assert status(session.say("Go on with the other one")) == "finished"
    assert [each.body["model"] for each in model_api.calls] == ["test-model", "other-model"]
    model_api.calls.clear()
    model_api.answers.append(says("A title"))
    wanted = {"profile": "other", "prompt": "Call it something: {conversation_content}"}
    assert session.ask("_ostler/title", **wanted) == {"title": "A title"}
    (asked,) = model_api.calls
    assert asked.body["model"] == "other-model"
    assert "Call it something: Go on with the other one" in str(asked.body)
    assert OTHER_KEY not in str(session.events) + str(session.states)
    assert not list(session.program.home.rglob("other.json"))


def test_a_meta_profile_routes_to_a_model(session: Session, model_api: ModelApi) -> None:
    other = llm(model_api, model="openai/other-model", usage_id="default")
    routing = {"classifier_model": "other", "classes": [{"description": "all", "model": "other"}]}
    session.open(
        agent(model_api, "ClassifyAndSwitchLLMTool"),
        llm_profiles={"other": other},
        meta_profiles={"by-size": routing},
    )
    model_api.answers.extend([call("route_task_to_model"), says("1"), says("Done.")])
    assert status(session.say("Whatever")) == "finished"
    models = [each.body["model"] for each in model_api.calls]
    assert models == ["test-model", "other-model", "other-model"]


def test_a_sub_agent_that_cannot_be_made_is_left_out(session: Session, model_api: ModelApi) -> None:
    given = [{"name": "lost", "skills": ["nowhere"]}, {"name": "found", "description": "Is there."}]
    session.open(agent(model_api, "task_tool_set"), agent_definitions=given)
    model_api.answers.append(says("Hello."))
    assert status(session.say("Hello")) == "finished"
    tools = str(session.last("SystemPromptEvent")["tools"])
    assert "found" in tools
    assert "lost" not in tools


def test_servers_have_what_acp_has_no_field_for(session: Session, model_api: ModelApi) -> None:
    more = {"cwd": "/tmp", "timeout": 5.0, "keep_alive": False}
    entry = {"command": "/bin/false", "args": [], "env": [], "_meta": {"ostler": more}}
    session.open(agent(model_api), servers=[{"name": "one", **entry}])
    assert _missing(more, told(session, "agent")["mcp_config"]["one"]) == []


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({}, True),
        ({"api_key": "sk-wrong"}, False),
        ({"base_url": "http://127.0.0.1:9/v1"}, False),
        ({"model": "nobody-knows/this"}, False),
    ],
)
def test_a_model_is_tried(program: Program, model_api: ModelApi, fields: dict[str, Any], valid: bool) -> None:
    model_api.key = KEY
    if valid:
        model_api.answers.append(says("p"))
    answer = program.ask("_ostler/try_model", llm=llm(model_api, **fields))
    assert answer["valid"] is valid, answer
    if valid:
        assert answer["error"] is None
        assert len(model_api.calls) == 1
    else:
        assert answer["error"]["type"]
        assert answer["error"]["message"]


def test_a_limit_of_the_rate_is_no_reason_against_a_model(program: Program, model_api: ModelApi) -> None:
    model_api.status = 429
    assert program.ask("_ostler/try_model", llm=llm(model_api)) == {"valid": True, "error": None}
    with pytest.raises(p.Refused):
        program.ask("_ostler/try_model", llm={"model": 1})


def test_why_a_model_is_refused_says_none_of_its_keys(program: Program) -> None:
    keys = {"api_key": "sk-of-a-draft-123456", "aws_session_token": "token-of-a-draft-123456"}
    header = "bearer-of-a-draft-123456"
    with pytest.raises(p.Refused) as caught:
        program.ask(
            "_ostler/try_model",
            llm={
                "model": "m",
                **keys,
                "extra_headers": {"Authorization": header},
                "capability_overrides": {" ".join((*keys.values(), header)): [1]},
            },
        )
    assert "capability_overrides" in str(caught.value)
    assert "of-a-draft" not in str(caught.value)


CONDENSERS = [
    {"kind": "NoOpCondenser"},
    {
        "kind": "LLMSummarizingCondenser",
        "llm": {"model": "openai/x", "usage_id": "condenser"},
        "max_size": 99,
    },
    {"kind": "PipelineCondenser", "condensers": [{"kind": "NoOpCondenser"}]},
]
CRITICS = [
    {"kind": "AgentFinishedCritic"},
    {"kind": "PassCritic"},
    {"kind": "EmptyPatchCritic"},
    {
        "kind": "APIBasedCritic",
        "api_key": "sk-of-a-critic-123",
        "server_url": "http://127.0.0.1:9",
        "iterative_refinement": {"success_threshold": 0.5, "max_iterations": 2},
    },
]
ANALYZERS = [
    {"kind": "LLMSecurityAnalyzer"},
    {"kind": "PatternSecurityAnalyzer"},
    {"kind": "PolicyRailSecurityAnalyzer"},
    {"kind": "GraySwanAnalyzer", "api_key": "sk-of-gray-swan-123"},
    {"kind": "EnsembleSecurityAnalyzer", "analyzers": [{"kind": "PatternSecurityAnalyzer"}]},
    None,
]


def test_every_field_of_an_agent_reaches_it(program: Program, tmp_path: Path, model_api: ModelApi) -> None:
    fields = {
        "agent_context": {
            "skills": [{"name": "a", "content": "b"}],
            "system_message_suffix": "s",
            "user_message_suffix": "u",
            "disabled_skills": ["c"],
            "load_memory": True,
        },
        "filter_tools_regex": "^(think|finish|terminal)$",
        "include_default_tools": ["FinishTool"],
        "persona": "A pirate.",
        "security_policy_filename": "",
        "system_prompt": None,
        "system_prompt_filename": "system_prompt.j2",
        "system_prompt_kwargs": {"llm_security_analyzer": False},
        "tool_concurrency_limit": 3,
    }
    places = (tmp_path / str(number) for number in range(100))
    for condenser, critic in zip([*CONDENSERS, None], [*CRITICS], strict=True):
        place = next(places)
        place.mkdir()
        session = Session(program, place).open(
            agent(model_api, "terminal", **fields, condenser=condenser, critic=critic)
        )
        made = told(session, "agent")
        given = {**fields, "condenser": condenser, "critic": critic}
        assert _missing(given, made) == []
        assert "sk-of-a-critic-123" not in str(session.states)
        for analyzer in ANALYZERS:
            session.ask("_ostler/configure", security_analyzer=analyzer)
        with pytest.raises(p.Refused, match="security_analyzer"):
            session.ask("_ostler/configure", security_analyzer={"kind": "Nobody"})


def test_every_field_of_the_settings_reaches_it(session: Session, model_api: ModelApi) -> None:
    settings = {
        "agent_kind": "openhands",
        "llm": llm(model_api),
        "tools": [{"name": "terminal"}],
        "tool_concurrency_limit": 4,
        "persona": "A pirate.",
        "agent_context": {"system_message_suffix": "s"},
        "condenser": {"condenser_kind": "llm_summarizing", "max_size": 77, "keep_first": 3},
        "verification": {
            "critic_enabled": True,
            "critic_api_key": "sk-of-a-critic-123",
            "critic_mode": "all_actions",
            "critic_server_url": "http://127.0.0.1:9",
            "critic_model_name": "critic",
            "enable_iterative_refinement": True,
            "critic_threshold": 0.7,
            "max_refinement_iterations": 5,
        },
        "enable_classify_and_switch_llm_tool": True,
        "active_meta_profile": "by-size",
        "meta_profile": {"classifier_model": "x", "classes": [{"description": "all", "model": "x"}]},
        "meta_profile_llms": {"x": llm(model_api)},
    }
    session.program.ask(
        "session/new",
        cwd=str(session.workspace),
        mcpServers=[],
        _meta={
            "ostler": {
                "persistence_dir": str(session.persistence),
                "conversation_id": session.id,
                "agent_settings": settings,
            }
        },
    )
    made = told(session, "agent")
    assert (made["tool_concurrency_limit"], made["persona"]) == (4, "A pirate.")
    assert (made["condenser"]["max_size"], made["condenser"]["keep_first"]) == (77, 3)
    critic = made["critic"]
    assert (critic["mode"], critic["server_url"], critic["model_name"]) == (
        "all_actions",
        "http://127.0.0.1:9",
        "critic",
    )
    assert critic["iterative_refinement"] == {"success_threshold": 0.7, "max_iterations": 5}
    routed = next(tool for tool in made["tools"] if tool["name"] == "ClassifyAndSwitchLLMTool")
    assert routed["params"]["active_meta_profile"] == "by-size"


def _missing(given: Any, made: Any, where: str = "") -> list[str]:
    """Where what was said is not in what was made; secrets apart."""
    if isinstance(given, dict) and isinstance(made, dict):
        return [
            each
            for key, value in given.items()
            if key != "api_key"
            for each in _missing(value, made.get(key), f"{where}.{key}")
        ]
    if isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        pairs = enumerate(zip(given, made, strict=True))
        return [each for number, (a, b) in pairs for each in _missing(a, b, f"{where}[{number}]")]
    return [] if given == made else [f"{where}: {given!r} became {made!r}"]


@pytest.mark.guarantee(name="keys-and-secrets")
async def test_a_server_tries_a_profile_and_entitles_with_one(
    agents_server: ServerProcess, builtin_python: Path, model_api: ModelApi, tmp_path: Path
) -> None:
    rest, model = agents_server.rest, {**llm(model_api), "model": "openai/other-model"}
    model_api.key = KEY
    validate = "/api/profiles/fast/validate"
    assert await rest.call("POST", validate, {"llm": model}) == {"valid": True, "error": None}
    (asked,) = model_api.calls
    assert (asked.key, asked.body["model"]) == (KEY, "other-model")
    answer = await rest.call("POST", validate, {"llm": {**model, "api_key": "sk-a-wrong-one-123456"}})
    assert (answer["valid"], answer["error"]["type"]) == (False, "LLMAuthenticationError")
    assert "sk-a-wrong-one" not in str(answer)
    assert not list((agents_server.state / "data").glob("*/*"))
    for pid in [each.pid for each in agents_server.tree()]:
        assert KEY not in str(environment(pid))
        assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in agents_server.state.rglob("*"):
        if path.is_file() and "agents" not in path.relative_to(agents_server.state).parts:
            assert KEY.encode() not in path.read_bytes(), path
    await rest.call("POST", "/api/profiles/fast", {"llm": model})
    model_api.calls.clear()
    workspace = tmp_path / "workspace"
    info = await rest.call(
        "POST",
        "/api/conversations",
        {
            "agent": agent(model_api),
            "workspace": {"working_dir": str(workspace)},
            "title_llm_profile": "fast",
            "prompt": "Entitle {conversation_content}",
            "initial_message": {"content": [{"type": "text", "text": "Hello."}], "run": True},
        },
    )
    with trio.fail_after(p.HANGS_SECONDS):
        while len(model_api.calls) < 2:
            await trio.sleep(0.05)
    first, second = model_api.calls
    assert (first.body["model"], second.body["model"]) == ("test-model", "other-model")
    assert "Entitle Hello." in str(second.body)
    with trio.fail_after(p.HANGS_SECONDS):
        while (await rest.info(info["id"]))["title"] == "Hello.":
            await trio.sleep(0.05)
