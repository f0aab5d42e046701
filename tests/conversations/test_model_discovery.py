"""Which models an agent offers: an agent is started for that, ended, and leaves nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from supervisor.acp import RequestTimeout, RpcError
from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.agent.side import model_discovery
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure, AtCapacity, ModelRefused
from supervisor.events import Message, TextContent
from supervisor.settings.agent import AgentSettings
from tests.conversations.harness import Harness, open_harness, turn, until
from tests.support.processes import alive


async def ask(harness: Harness, *modes: str, **more: Any) -> dict[str, Any]:
    return await harness.supervisor.models(harness.agent(*modes), {}, **more)


@pytest.mark.parametrize("mode", ["normal", "legacy-models"])
async def test_the_models_are_told_and_nothing_is_left(tmp_path: Path, mode: str) -> None:
    async with open_harness(tmp_path) as harness:
        found = await ask(harness, mode, "version=3.1")
        assert [each["model_id"] for each in found["available_models"]] == ["small", "large"]
        assert found["current_model_id"] == "small"
        assert (found["agent_name"], found["agent_version"]) == ("scripted-agent", "3.1")
        assert (found["supports_runtime_model_switch"], found["error"]) == (True, None)
        (pid,) = harness.log.pids()
        assert not alive(pid)
        assert harness.log.records("start")[0]["cwd"].startswith(str(tmp_path / "data"))
        assert list((tmp_path / "data").iterdir()) == []
        assert len(harness.log.received("session/delete")) == 1
        assert harness.supervisor.figures().live_agents == 0
        assert await harness.supervisor.count() == 0


async def test_an_answer_is_kept_by_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        first = await ask(harness)
        assert await ask(harness) is first
        assert len(harness.log.pids()) == 1
        await ask(harness, refresh=True)
        await ask(harness, "models=3")
        await harness.supervisor.models(harness.agent(), {"TOKEN": "another"})
        assert len(harness.log.pids()) == 4
        monkeypatch.setattr(model_discovery, "KEPT_SECONDS", -1.0)
        await ask(harness, "models=4")
        await ask(harness, "models=4")
        assert len(harness.log.pids()) == 6


async def test_who_asks_the_same_at_once_waits_for_one_agent_and_few_run_at_a_time(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, harness.supervisor.figures().live_agents)
                await trio.sleep(0.01)

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(ask, harness, "slow=new:0.2")
                for number in range(1, 5):
                    nursery.start_soon(ask, harness, "slow=new:0.2", f"models={number}")
            watching.cancel_scope.cancel()
        assert len(harness.log.pids()) == 5
        assert most == model_discovery.AT_ONCE


@pytest.mark.parametrize(
    ("modes", "code", "words"),
    [
        (["crash=init:7", "stderr=1"], "ACPInitError", "code 7"),
        (["key=NO_KEY"], "ACPAuthRequired", "Authentication required"),
        (["error=new:-32603:broken"], "ACPInitError", "broken"),
        (["protocol=2"], "ACPInitError", "version"),
    ],
)
async def test_what_goes_wrong_is_in_the_answer_and_is_not_kept(
    tmp_path: Path, modes: list[str], code: str, words: str
) -> None:
    async with open_harness(tmp_path) as harness:
        for count in (1, 2):
            found = await ask(harness, *modes)
            assert found["error"]["code"] == code
            assert words in found["error"]["detail"]
            assert found["available_models"] == []
            assert len(harness.log.pids()) == count
        assert list((tmp_path / "data").iterdir()) == []


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        agent = AgentSettings(acp_server="custom", acp_command=("/nowhere/agent",))
        found = await harness.supervisor.models(agent, {})
        assert found["error"]["code"] == "ACPSpawnError"


async def test_who_goes_away_ends_the_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, harness, "hang=new")
            await until(lambda: harness.log.received("session/new"))
            nursery.cancel_scope.cancel()
        (pid,) = harness.log.pids()
        assert not alive(pid)
        assert list((tmp_path / "data").iterdir()) == []
        await turn(await harness.start(), "hello")


@pytest.mark.parametrize("full", ["queue", "refuse"])
async def test_a_full_server_says_so_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    monkeypatch.setattr(model_discovery, "WAIT_SECONDS", 0.1)
    async with open_harness(tmp_path, limits=Limits(agents=1, full=full)) as harness:
        busy = await harness.start()
        await busy.send(Message(role="user", content=(TextContent(text="!hang"),)), run=True)
        await until(lambda: harness.log.received("session/prompt"))
        with trio.fail_after(20), pytest.raises(AtCapacity) as caught:
            await ask(harness)
        assert caught.value.retry_after > 0
        assert len(harness.log.pids()) == 1
        assert list((tmp_path / "data").iterdir()) == [tmp_path / "data" / busy.id]
        await busy.interrupt()
        # An idle agent makes room (its process ends). This one may yet end its turn: the server is full then.
        monkeypatch.setattr(model_discovery, "WAIT_SECONDS", 30)
        found = None
        with trio.fail_after(20):
            while found is None:
                with suppress(AtCapacity):
                    found = await ask(harness)
                await trio.sleep(0.01)
        assert found["error"] is None


async def test_nobody_waits_for_others_that_ask_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_discovery, "WAIT_SECONDS", 0.2)
    async with open_harness(tmp_path) as harness, trio.open_nursery() as nursery:
        for number in range(model_discovery.AT_ONCE):
            nursery.start_soon(ask, harness, "hang=new", f"models={number + 1}")
        await until(lambda: len(harness.log.received("session/new")) == model_discovery.AT_ONCE)
        for modes in (("normal",), ("hang=new", "models=1")):  # another, and the same
            with trio.fail_after(20), pytest.raises(AtCapacity):
                await ask(harness, *modes)
        nursery.cancel_scope.cancel()


async def tried(monkeypatch: pytest.MonkeyPatch, request: Any) -> dict[str, Any]:
    """Try a model with an agent that answers the request so."""

    async def no_handshake(*_: Any, **__: Any) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(model_discovery, "handshake", no_handshake)
    run: Any = SimpleNamespace(connection=SimpleNamespace(request=request))
    record: Any = SimpleNamespace(agent=AgentSettings(acp_startup_timeout=600))
    return await model_discovery._tried({"model": "m"}, run, record, Deadlines())


@pytest.mark.guarantee(name="malicious-agents")
async def test_why_a_model_does_not_answer_is_told_in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    async def says_pages(*_: Any, **__: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return {"valid": False, "error": {"type": "T" * 100_000, "message": "<html>" * 100_000}}

    answer = await tried(monkeypatch, says_pages)
    assert answer["error"]["message"].startswith("<html><html>")
    assert all(2000 < len(said) < 2200 for said in answer["error"].values())


async def test_a_model_that_the_library_refuses_is_another_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: Any, **__: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise RpcError(code, "llm.fallback_strategy: Unknown kind 'x'" + "y" * 100_000)

    code = -32602
    with pytest.raises(ModelRefused) as caught:
        await tried(monkeypatch, refuses)
    assert caught.value.detail.startswith("llm.fallback_strategy: Unknown kind 'x'")
    assert len(caught.value.detail) < 2200
    code = -32603
    with pytest.raises(RpcError):
        await tried(monkeypatch, refuses)


async def test_a_trial_that_blocks_ends_long_before_the_start_of_an_agent(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def blocks(method: str, _: Any, *, timeout: float) -> Any:
        await trio.sleep(timeout)
        raise RequestTimeout(method, timeout)

    begun = trio.current_time()
    with pytest.raises(AgentFailure, match="did not try the model within 45 s"):
        await tried(monkeypatch, blocks)
    assert trio.current_time() - begun == pytest.approx(model_discovery.TRIAL_SECONDS)
