"""Everything an agent can get wrong, against a real server: what the client is told, and what goes on.

No network and no installs: the agents are scripted. One server serves all rows, as it would in life: an agent
that misbehaves must not be felt by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from tests.support.client import answer_text, of_kind, rest_client, summary
from tests.support.processes import alive, kill
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess

CRASHED = "ACPAgentExited"


@dataclass(frozen=True)
class Row:
    """One conversation: prompts one after the other, each with the state it must settle in."""

    name: str
    modes: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]  # (prompt, state)
    said: tuple[str, ...] = ()  # must be in what the agent said, in all turns together
    errors: tuple[str, ...] = ()  # codes of the ConversationErrorEvents, in order
    starts: int = 1  # processes that were started
    prompts: int | None = None  # session/prompt requests that arrived; None: one per turn
    settings: dict[str, float] = field(default_factory=dict)


OK = "finished"
ROWS = (
    Row("normal", (), (("hello", OK),), said=("echo: hello",)),
    Row("noise", ("banner=3", "noise", "bom"), (("hello", OK),), said=("echo: hello",)),
    Row("split characters", ("dribble",), (("a é € 😀", OK), ("!split 5", OK)), said=("é € 😀", "aé€😀" * 5)),
    Row("slow start", ("slow=init:0.5", "slow=new:0.3"), (("hello", OK),), said=("echo: hello",)),
    Row("crash at start", ("crash=start:3",), (("x", "error"),), errors=("ACPInitError",), prompts=0),
    Row("crash in initialize", ("crash=init:SEGV",), (("x", "error"),), errors=("ACPInitError",), prompts=0),
    Row("crash in session/new", ("crash=new",), (("x", "error"),), errors=("ACPInitError",), prompts=0),
    Row(
        "crash in a turn, then better",
        ("crash=turn:5", "until-start=1"),
        (("one two three", "error"), ("again", OK)),
        said=("echo: one two", "echo: again"),
        errors=(CRASHED,),
        starts=2,
    ),
    Row("crash between turns", ("crash=idle", "until-start=1"), (("one", OK), ("two", OK)), starts=2),
    Row(
        "crash in a load",
        ("crash=replay", "without=resume"),
        # Twice it dies over its memory, then it is given a new session.
        (("one", OK), ("!crash 1", "error"), ("three", OK)),
        errors=(CRASHED,),
        starts=4,
    ),
    Row("stdout ends, process lives", (), (("!eof\n!hang", "error"), ("x", OK)), errors=(CRASHED,), starts=2),
    Row(
        "a grandchild holds stdout",
        ("grandchild=pipe,stubborn,plain",),
        (("!crash 9", "error"), ("x", OK)),
        errors=(CRASHED,),
        starts=2,
    ),
    Row(
        "key missing at new",
        ("key=NO", "auth=paste"),
        (("x", "error"),),
        errors=("ACPAuthRequired",),
        prompts=0,
    ),
    Row("key missing at prompt", ("prompt-key=NO",), (("x", "error"),), errors=("ACPAuthRequired",)),
    Row("another protocol version", ("protocol=2",), (("x", "error"),), errors=("ACPInitError",), prompts=0),
    Row("wrong types", ("bad-types",), (("!badtypes\nhello", OK),), said=("echo: hello",)),
    Row(
        "modes refused", ("error=mode:-32602", "error=config:-32602"), (("hello", OK),), said=("echo: hello",)
    ),
    Row("grouped models", ("grouped-models",), (("hello", OK),), said=("echo: hello",)),
    Row("legacy models", ("legacy-models",), (("hello", OK),), said=("echo: hello",)),
    Row(
        "deterministic error",
        (),
        (("!error -32603 bad model", "error"), ("x", OK)),
        errors=("ACPPromptError",),
    ),
    Row(
        "session not found",
        ("error=resume:-32002:no", "error=load:-32002:no"),
        (("the word is PINEAPPLE", OK), ("!crash 1", "error"), ("!text what was it", OK)),
        errors=(CRASHED,),
        starts=2,
    ),
    Row(
        "load answers null",
        ("null-load", "without=resume"),
        (("the word is PINEAPPLE", OK), ("!crash 1", "error"), ("!remember", OK)),
        said=('["the word is PINEAPPLE", "!crash 1"]',),
        errors=(CRASHED,),
        starts=2,
    ),
    Row(
        "resume",
        (),
        (("the word is PINEAPPLE", OK), ("!crash KILL", "error"), ("!remember", OK)),
        said=('["the word is PINEAPPLE", "!crash KILL"]',),
        errors=(CRASHED,),
        starts=2,
    ),
    Row("unknown things", (), (("!unknown\n!noid\n!strayupdate\n!duptool\nok", OK),), said=("echo: ok",)),
    Row("junk and huge frames", (), (("!junk 1000000\n!huge 70000000\nok", OK),), said=("echo: ok",)),
    Row("flood", (), (("!flood 20000", OK),), said=("d19999",)),
    Row("tool ids used again", ("same-ids",), (("!tool", OK), ("!tool", OK))),
    Row("a tool that is never closed", (), (("!opentool", OK), ("x", OK))),
    Row(
        "refusal",
        (),
        (("!text so far\n!stop refusal", "error"),),
        said=("so far",),
        errors=("UsagePolicyRefusal",),
    ),
    Row("permission storm", (), (("!perms 50", OK),), said=("allowed 50 of 50",)),
    Row("elicitation", (), (("!elicit", OK),), said=("elicitation/create -> error -32601",)),
    Row("usage that starts again", (), (("!usage 5000 200000 0.5\n!usagereset", OK),)),
    Row("chatter outside turns", ("chatty",), (("!after 2\nx", OK), ("y", OK)), said=("echo: y",)),
    Row(
        "silence",
        (),
        (("!text so far\n!hang", "error"),),
        said=("so far",),
        errors=("ACPPromptError",),
        settings={"acp_prompt_timeout": 1},
    ),
    Row(
        "no answer to initialize",
        ("hang=init",),
        (("x", "error"),),
        errors=("ACPStartupTimeout",),
        prompts=0,
        settings={"acp_startup_timeout": 1},
    ),
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ScriptedLog]:
    found = ScriptedLog(tmp_path / "log.jsonl")
    yield found
    kill([*found.pids(), *found.children()])  # a failed test leaves nothing either


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("table"))
    try:
        trio.run(running.start)
        yield running
        assert trio.run(running.stop) == 0
    finally:
        running.clean_up()


STRAYS = Row(
    "strays of a crashed agent",
    ("grandchild=session,daemon",),
    (("!crash 9", "error"), ("x", OK)),
    errors=(CRASHED,),
    starts=2,
)


@pytest.mark.parametrize(
    "row",
    [*ROWS, STRAYS],
    ids=lambda row: row.name.replace(" ", "-"),
)
async def test_row(server: ServerProcess, tmp_path: Path, log: ScriptedLog, row: Row) -> None:
    command = scripted_command(*row.modes, log=log.path, home=tmp_path / "home")
    async with rest_client(server.url) as rest:
        agent = {"acp_server": "custom", "acp_command": command, **row.settings}
        conversation = (await rest.create(tmp_path / "workspace", agent))["id"]
        for prompt, state in row.turns:
            await rest.turn(conversation, prompt, wanted=(state,))
        events = await rest.events(conversation)
        said = answer_text(events)
        for text in row.said:
            assert text in said
        codes = tuple(event["code"] for event in of_kind(events, "ConversationErrorEvent"))
        assert codes == row.errors, summary(events)
        assert len(log.pids()) == row.starts
        assert len(log.prompts()) == (len(row.turns) if row.prompts is None else row.prompts)
        assert_calls_are_closed(events)
        await rest.call("DELETE", f"/api/conversations/{conversation}")
        await gone(log)


def assert_calls_are_closed(events: list[dict[str, object]]) -> None:
    """Every tool call that began has ended in the log."""
    last = {event["tool_call_id"]: event["status"] for event in of_kind(events, "ACPToolCallEvent")}
    assert all(status in ("completed", "failed") for status in last.values()), last


async def gone(log: ScriptedLog) -> None:
    """The agent and whatever it started are gone two seconds after their conversation."""
    started = [*log.pids(), *log.children()]
    with trio.move_on_after(2):
        while any(map(alive, started)):
            await trio.sleep(0.02)
    kinds = {record["child"]: record["kind"] for record in log.records("spawn")}
    assert [kinds.get(pid, "agent") for pid in started if alive(pid)] == []
