"""What real agents are given and what they use of it: keys alone on an empty machine, and logins found there.

A proxy that nobody answers at stands before everything but loopback, so that what an agent wants from its
provider fails in the same way with and without a network. It makes Codex slow: with its own provider it asks
for a list of models, again and again, before each session and each turn.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.fake_logins import FAKE_LOGINS
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import KEY, RealAgent
from tests.interop.talk import MARKER, Open, Talk
from tests.support.client import Rest, answer_text, of_kind, summary
from tests.support.processes import environment
from tests.support.server import ServerProcess

pytestmark = pytest.mark.interop

INITIALIZE_S = 8.0  # of the agent whose login cannot be checked: it never answers
LOOK_S = 0.03  # between two looks at the processes

# A key, the base URL, and nothing that any of them would have to be told besides.
KEY_ALONE = {
    agent.key: agent
    for agent in (
        RealAgent("claude-code", lambda url: {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}),
        RealAgent("codex", lambda url: {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"}),
        RealAgent("gemini-cli", lambda url: {"GEMINI_API_KEY": KEY, "GEMINI_BASE_URL": url}),
    )
}

# Where each looks for its base URL; None in a process that is none of its own, such as `node --version`.
BASE_URL: dict[str, Callable[[dict[str, str]], str | None]] = {
    "claude-code": lambda env: env.get("ANTHROPIC_BASE_URL"),
    "codex": lambda env: (
        json.loads(env["CODEX_CONFIG"])["openai_base_url"].removesuffix("/v1")
        if "CODEX_CONFIG" in env
        else None
    ),
    "gemini-cli": lambda env: env.get("GOOGLE_GEMINI_BASE_URL"),
}

each_agent = pytest.mark.parametrize("agent", KEY_ALONE.values(), ids=KEY_ALONE)


@pytest.fixture
def server_environment() -> dict[str, str]:
    nowhere = "http://127.0.0.1:9"
    return {
        "HTTPS_PROXY": nowhere,
        "HTTP_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
        "OSTLER_DEADLINE_INITIALIZE": str(INITIALIZE_S),
    }


@pytest.mark.guarantee(name="secrets-stay-in")
@each_agent
async def test_a_key_is_enough_on_an_empty_machine(
    talk: Open, agents_server: ServerProcess, agent: RealAgent, model_api: ModelApi
) -> None:
    assert not list(agents_server.home.iterdir())
    async with talk(agent) as one:
        name, base_url = agent.secrets(model_api.url)
        used = await credentials(one.rest, agent)
        assert (used["credential"]["kind"], used["credential"]["name"]) == ("api_key", name)
        assert used["base_url"]["name"] == base_url
        assert used["withheld"] == []
        assert "ECHO: say hello please" in answer_text(await one.turn("say hello please"))
        await one.turn("TOOL: echo made > made.txt")
        assert (one.workspace / "made.txt").read_text() == "made\n"
        assert {call.key for call in model_api.calls} == {KEY}
        assert model_api.last_saying("say hello please").request.tools
        assert files_with(agents_server.home, KEY) == []


@pytest.mark.guarantee(name="secrets-stay-in")
@each_agent
async def test_a_login_that_is_found_wins(
    talk: Open, agents_server: ServerProcess, agent: RealAgent, model_api: ModelApi
) -> None:
    login = FAKE_LOGINS[agent.key]()
    login.put_into(agents_server.home)
    async with talk(agent) as one, seen_environments(agents_server) as seen:
        name, base_url = agent.secrets(model_api.url)
        used = await credentials(one.rest, agent)
        assert used["credential"]["kind"] == "login"
        assert used["credential"]["file"] == login.file_in(agents_server.home)
        assert used["base_url"]["name"] == base_url
        ((withheld, reason),) = [(each["name"], each["reason"]) for each in used["withheld"]]
        assert withheld == name
        assert "login takes priority" in reason

        if agent.key == "gemini-cli":
            # It checks the login with Google before it says anything, and then asks on its standard input for
            # a code, for which it takes our first message.
            events = await one.turn("say hello please", wanted=("error",))
            (error,) = of_kind(events, "ConversationErrorEvent")
            assert error["code"] == "ACPStartupTimeout"
            assert "initialize" in error["detail"]
            assert model_api.calls == []
        else:
            await one.turn("TOOL: echo made > made.txt; sleep 0.1")
            assert (one.workspace / "made.txt").read_text() == "made\n"
            # The key would open the model API now, and the login does not.
            model_api.key = KEY
            await refused(one)
            assert {call.key for call in model_api.calls} == {login.token}

        assert len(seen) >= (1 if agent.key == "gemini-cli" else 3), seen
        for variables in (each for environments in seen.values() for each in environments):
            assert name not in variables
            assert KEY not in "\n".join(variables.values())
        urls = {BASE_URL[agent.key](each) for environments in seen.values() for each in environments}
        assert urls - {None} == {model_api.url}
        assert login.is_untouched_in(agents_server.home)
        assert files_with(agents_server.directory, KEY) == []


async def refused(one: Talk) -> None:
    """A turn whose credential is refused ends, and says so."""
    events = await one.turn("say hello please", wanted=("error", "finished"))
    assert "ECHO" not in answer_text(events)
    errors = of_kind(events, "ConversationErrorEvent")
    if one.agent.key == "codex":
        # It ends its turn in order, and says as a text that it could not renew the login.
        assert not errors, summary(events)
        assert "auth.openai.com" in answer_text(events)
    else:
        assert [error["code"] for error in errors] == ["ACPAuthRequired"], summary(events)
        choices = (await one.rest.info(one.id))["agent_state"]["needs_credentials"]
        assert "ANTHROPIC_API_KEY" in choices["secrets"]


async def credentials(rest: Rest, agent: RealAgent) -> dict[str, Any]:
    answer = await rest.call("GET", f"/api/agents/credentials?agent={agent.key}")
    (found,) = answer["agents"]
    return dict(found)


@asynccontextmanager
async def seen_environments(server: ServerProcess) -> AsyncIterator[dict[int, list[dict[str, str]]]]:
    """By its id every process of an agent that lives while the block runs, with the environments it had:
    those of what it was forked from may be seen first."""
    seen: dict[int, list[dict[str, str]]] = defaultdict(list)

    async def look() -> None:
        while True:
            for process in server.tree():
                variables = environment(process.pid)
                if MARKER in variables and variables not in seen[process.pid]:
                    seen[process.pid].append(variables)
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield seen
        nursery.cancel_scope.cancel()


def files_with(directory: Path, text: str) -> list[Path]:
    """The files below, links not followed, that hold the text. An agent may remove one meanwhile."""
    found = []
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes():
                found.append(path)
    return found
