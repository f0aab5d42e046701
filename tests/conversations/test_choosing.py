"""Mode and configuration options of a conversation, changed while its agent lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from supervisor.acp import Result, SessionResult, parse_session
from supervisor.conversations.agent.options import set_mode, set_option
from supervisor.conversations.agent.session_choices import set_model
from supervisor.conversations.agent.session_setup import Session
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentTimeout, NotAccepted
from supervisor.conversations.state.status import Memory
from tests.conversations.harness import QUICK, events, open_harness, say, settled, speaking, states, turn


def chosen(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By id what the options are, as the newest state says."""
    return {each["id"]: each["currentValue"] for each in states(found, "config_options")[-1]}


async def choose(conversation: Conversation, option_id: str | None, value: str | bool) -> None:
    if option_id is None:
        await conversation.changes.choose_mode(str(value))
    else:
        await conversation.changes.choose_option(option_id, value)


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize(
    ("option_id", "value", "name"),
    [(None, "plan", "mode"), ("mode", "plan", "mode"), ("model", "large", "model"), ("brave", True, "brave")],
)
async def test_it_is_done_at_once_shown_and_set_again(
    tmp_path: Path, option_id: str | None, value: str | bool, name: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=load,resume")  # whose new sessions know nothing of it
        before = chosen(await turn(conversation, "hello"))
        assert before[name] != value
        await conversation.send(say("!slow 20 20"), run=True)
        await speaking(conversation)
        await choose(conversation, option_id, value)  # in a turn, too
        await settled(conversation)
        assert chosen(await events(conversation)) == {**before, name: value}
        (asked,) = harness.log.received("session/set_config_option")
        assert (asked["params"]["configId"], asked["params"]["value"]) == (name, value)
        # The next session of a new process gets it again.
        await conversation.stop_agent()
        await turn(conversation, "again")
        assert [each["params"]["value"] for each in harness.log.received("session/set_config_option")] == [
            value,
            value,
        ]
        assert chosen(await events(conversation))[name] == value
        info = conversation.info()
        if name == "brave":
            assert info["agent_state"]["acp_options"] == {"brave": True}
        else:
            assert info["agent"]["acp_session_mode" if name == "mode" else "acp_model"] == value


async def test_it_outlives_the_server(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        await conversation.changes.choose_option("brave", True)
        identifier = conversation.id
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(identifier)
        await turn(conversation, "again")
        assert chosen(await events(conversation))["brave"] is True


async def test_an_agent_with_the_older_modes_is_put_into_one(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=config")
        await turn(conversation, "hello")
        await conversation.changes.choose_mode("plan")
        found = await events(conversation)
        assert states(found, "current_mode")[-1] == "plan"
        assert states(found, "modes")[-1]["currentModeId"] == "plan"
        assert harness.log.received("session/set_mode")[-1]["params"]["modeId"] == "plan"


async def test_an_agent_that_does_not_run_is_started(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.changes.choose_option("brave", True)
        assert len(harness.log.pids()) == 1
        assert chosen(await events(conversation))["brave"] is True


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize(
    ("modes", "option_id", "value", "reason"),
    [
        ([], "brave", "yes", "takes true or false"),
        ([], "model", True, "takes text"),
        ([], "model", "huge", "Unknown value 'huge' of the option 'model'. The agent offers: small, large"),
        ([], "colour", "red", "Unknown option 'colour'. The agent offers: mode, model, brave."),
        ([], None, "reckless", "Unknown value 'reckless' of the option 'mode'"),
        (["refuse=large"], "model", "large", "large is not for you"),
        (["refuse=~large"], "model", "large", "it answers that it has 'small'"),
        (["without=config,modes"], None, "plan", "The agent has no modes."),
        (["without=config"], None, "reckless", "Unknown mode 'reckless'"),
        (["without=config"], "brave", True, "Unknown option 'brave'. The agent offers: none."),
    ],
)
async def test_what_is_not_done_is_no_success_and_not_kept(
    tmp_path: Path, modes: list[str], option_id: str | None, value: str | bool, reason: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*modes)
        await turn(conversation, "hello")
        record = conversation.record.dump()
        with pytest.raises(NotAccepted) as refused:
            await choose(conversation, option_id, value)
        assert reason in str(refused.value)
        assert conversation.record.dump() == record


async def test_an_agent_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    async with open_harness(tmp_path, deadlines=attrs.evolve(QUICK, option=0.2)) as harness:
        conversation = await harness.start("hang=config")
        await turn(conversation, "hello")
        with pytest.raises(AgentTimeout):
            await conversation.changes.choose_option("brave", True)
        assert conversation.record.options == {}


async def test_what_a_later_session_does_not_take_is_told(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        await conversation.changes.choose_option("brave", True)
        conversation.record.options["gone"] = "x"
        await conversation.stop_agent()
        found = await turn(conversation, "again")
        (refused,) = states(found, "agent_option_refused")
        assert (refused["option"], refused["value"]) == ("gone", "x")
        assert "Unknown option" in refused["reason"]


async def test_a_chosen_mode_says_whether_it_asks(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy={"kind": "AlwaysConfirm"})
        await turn(conversation, "hello")
        await conversation.changes.choose_mode("plan")
        assert states(await events(conversation), "confirmation")[-1] == {
            "mode": "plan",
            "asks": False,
            "set": False,
        }


def offering(**current: str) -> SessionResult:
    """A session with these options, and an older mode."""
    options = [
        {"id": key, "name": key, "type": "select", "currentValue": value, "options": []}
        for key, value in current.items()
    ]
    available = [{"id": each, "name": each} for each in ("default", "plan")]
    modes = {"currentModeId": "default", "availableModes": available}
    return parse_session({"configOptions": options, "modes": modes})


class Telling:
    """An agent with a session, that tells of its options right before its answer, and right after it: before
    the task that waits for the answer runs."""

    def __init__(self, answer: Any, before: SessionResult | None, after: SessionResult | None) -> None:
        self.connection: Any = self
        self.session: Session | None = Session("s", Memory.NEW, offering(model="small", effort="low"))
        self.answer, self.before, self.after = answer, before, after

    async def request(self, method: str, params: Any, *, timeout: float, on_response: Any) -> Any:
        self.tell(self.before)
        on_response(Result(self.answer))
        self.tell(self.after)
        return self.answer

    def tell(self, result: SessionResult | None) -> None:
        if result is not None and self.session is not None:
            self.session = attrs.evolve(self.session, result=result)

    @property
    def chosen(self) -> dict[str, Any]:
        assert self.session is not None
        return {each.id: each.current for each in self.session.result.config_options or ()}


@pytest.mark.parametrize("set_it", [set_option, None])
@pytest.mark.parametrize("answer", [None, {}, offering(model="large", effort="high").raw])
async def test_what_the_agent_tells_beside_its_answer_is_kept(set_it: Any, answer: Any) -> None:
    for before, after in ((True, False), (False, True), (True, True)):
        agent = Telling(
            answer,
            offering(model="large", effort="high") if before else None,
            offering(model="large", effort="highest") if after else None,
        )
        if set_it is None:
            await set_model(agent, "large", Deadlines())
        else:
            await set_it(agent, "model", "large", Deadlines())
        effort = "highest" if after else "high" if before or answer else "low"
        assert agent.chosen == {"model": "large", "effort": effort}


async def test_a_mode_that_the_agent_tells_beside_an_answer_is_kept() -> None:
    told = parse_session({"modes": {"currentModeId": "plan", "availableModes": []}})
    agent = Telling(None, told, None)
    agent.tell(parse_session({"modes": {"currentModeId": "default", "availableModes": [{"id": "code"}]}}))
    session = await set_mode(agent, "code", Deadlines())
    assert session.result.modes is not None
    assert session.result.modes.current == "code"
    agent.after = told
    agent.tell(parse_session({"modes": {"currentModeId": "default", "availableModes": [{"id": "code"}]}}))
    session = await set_mode(agent, "code", Deadlines())
    assert session.result.modes is not None
    assert session.result.modes.current == "plan"


async def test_a_mode_that_the_agent_chose_is_the_one_that_it_is_in(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=config")
        await turn(conversation, "!mode plan")
        run = conversation.agent.ready
        assert run is not None
        assert run.session is not None
        assert run.session.result.modes is not None
        assert run.session.result.modes.current == "plan"
