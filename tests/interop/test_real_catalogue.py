"""Every agent of the catalogue: what `ostler agents probe` says of it, and those that `test_real_agents.py`
does not drive, in one conversation each.
"""

from __future__ import annotations

import json
import os
import signal
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.catalog import load_catalog
from supervisor.agents.errors import PythonMissing
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import (
    MORE_AGENTS,
    REAL_AGENTS,
    WITHOUT_A_MODEL,
    RealAgent,
    install,
)
from tests.interop.talk import ASK_ME, TURN_S, Open
from tests.support.client import answer_text, of_kind, summary
from tests.support.processes import alive

pytestmark = pytest.mark.interop

PROBE_S = 480.0
ANSWER_S = "60"  # one that imports its libraries needs half of that on a busy machine
INTERRUPT_S = 2.5  # what the server promises (2 s) and a little for the way

ALL = {**REAL_AGENTS, **MORE_AGENTS, **WITHOUT_A_MODEL}

each_more = pytest.mark.parametrize("agent", MORE_AGENTS.values(), ids=MORE_AGENTS)


async def ready(agent: RealAgent, prefix: Path) -> None:
    """Install it, unless there is no Python for it."""
    try:
        await install(agent, prefix)
    except PythonMissing as error:
        pytest.skip(str(error))


def test_every_agent_of_the_catalogue_is_tried() -> None:
    # What Ostler brings along itself, and the built-in agent, have tests of their own.
    others = {key for key, each in load_catalog().items() if each.package is None or each.native_events}
    assert set(ALL) | others == set(load_catalog())


@pytest.mark.parametrize("agent", ALL.values(), ids=ALL)
async def test_a_descriptor_is_probed(
    agent: RealAgent, agents_prefix: Path, model_api: ModelApi, tmp_path: Path
) -> None:
    await ready(agent, agents_prefix)
    state, home = tmp_path / "state", tmp_path / "home"
    state.mkdir(mode=0o700)
    home.mkdir()
    agent.put_files(model_api.url, home)
    (state / "agents").symlink_to(agents_prefix)
    secrets = {f"OSTLER_SECRET_{name}": value for name, value in agent.secrets(model_api.url).items()}
    probe = [str(Path(sysconfig.get_path("scripts")) / "ostler"), "agents", "probe", agent.key, "--json"]
    if agent.key in WITHOUT_A_MODEL:
        probe.append("--no-prompt")
    with trio.fail_after(PROBE_S):
        done = await trio.run_process(
            [*probe, "--timeout", ANSWER_S, "--state", str(state)],
            env={"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **secrets},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.stdout, done.stderr.decode()
    found = {each["check"]: each for each in json.loads(done.stdout)["results"]}
    failed = {check for check, each in found.items() if each["result"] == "FAIL"}
    said = json.dumps(list(found.values()), indent=1)
    assert failed <= agent.deviates | agent.at_times, said
    assert agent.deviates <= failed, (
        f"{agent.key} deviates no longer, which is to be said in its entry: {said}"
    )
    if agent.key not in WITHOUT_A_MODEL:
        assert found["session/prompt"]["result"] == "PASS"
        assert found["shell"]["result"] == "PASS" or "shell" in agent.deviates


def echo(events: list[Any]) -> str:
    """The script's answer to a text, in which the agent's own context may stand before it."""
    text = answer_text(events)
    assert "ECHO: " in text, summary(events)
    return text


@each_more
async def test_an_agent_from_its_start_to_its_resumption(
    talk: Open, agent: RealAgent, agents_prefix: Path, model_api: ModelApi
) -> None:
    await ready(agent, agents_prefix)
    policy = {"confirmation_policy": ASK_ME} if agent.asks else {}
    async with talk(agent, **policy) as one:
        # It starts, and answers.
        assert "remember the word PINEAPPLE" in echo(await one.turn("remember the word PINEAPPLE"))

        # It asks, waits, and runs what is accepted.
        if agent.asks:
            before = await one.begin("TOOL: echo made > made.txt")
            events = await one.settle(before, "waiting_for_confirmation")
            assert not (one.workspace / "made.txt").exists()
            await one.rest.respond(one.id, accept=True)
            events = await one.settle(before + len(events), "finished")
        else:
            events = await one.turn("TOOL: echo made > made.txt")
        assert (one.workspace / "made.txt").read_text() == "made\n", summary(events)
        assert "TOOL-DONE" in answer_text(events)

        # It is interrupted.
        calls = len(model_api.calls)
        before = await one.begin("SLOW 600 50")
        await one.answering(calls)
        begin = trio.current_time()
        await one.rest.act(one.id, "interrupt")
        assert trio.current_time() - begin < INTERRUPT_S
        events = await one.settle(before, "paused")
        assert of_kind(events, "InterruptEvent")
        assert "s599" not in answer_text(events)
        assert "go on" in echo(await one.turn("go on"))

        # It is killed, comes back, and remembers.
        pid = one.pids()[0]  # the first: others are helpers that it has left to themselves
        os.kill(pid, signal.SIGKILL)
        with trio.fail_after(TURN_S):
            while alive(pid):
                await trio.sleep(0.02)
        await trio.sleep(0.3)  # the server sees it a moment later
        assert "what was the word" in echo(await one.turn("what was the word"))
        assert pid not in one.pids()
        assert "PINEAPPLE" in json.dumps(model_api.last_saying("what was the word").body)
