"""What an agent says of the secrets it was given, and what of that anybody can read."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest
import trio

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import NotPossible
from supervisor.credentials.masking import HIDDEN
from supervisor.journal.rows import Frame, Stored
from tests.conversations.harness import answer, open_harness, ready_pid, turn, until

WORD = "tulip"
SECRET = f'sk-demo-"{WORD}"-value/1'
HALVES = (SECRET[:9], SECRET[9:])


async def follow(conversation: Conversation, into: list[str], reached: list[int]) -> None:
    """Note every frame that clients are sent, but what the user said, and how far it is."""
    cursor = conversation.log.subscribe(-1)
    while True:
        for item in await cursor.next():
            if isinstance(item, Stored):
                reached.append(item.seq)
                if item.source != "user":
                    into.append(item.body.decode())
            elif isinstance(item, Frame):
                into += [(item.legacy or b"").decode(), (item.session or b"").decode()]


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(
    "prompt",
    [
        "!env DEMO_TOKEN",
        f"!text a {SECRET} b",
        f"!text {HALVES[0]}\n!usage 1 2 3\n!text {HALVES[1]}",
        f"!text {HALVES[0]}\n!think thinking\n!text {HALVES[1]}",
        f"!think {SECRET}",
        f"!tool execute {SECRET}",
        f"!title {SECRET}",
        f"!notice {SECRET}",
        f"!error -32603 {SECRET}",
        f"!raw {SECRET}",
    ],
)
async def test_no_event_and_no_frame_holds_it(tmp_path: Path, prompt: str) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": SECRET}) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")  # its words are the title
        seen: list[str] = []
        reached = [-1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, conversation, seen, reached)
            await turn(conversation, prompt)
            await until(lambda: reached[-1] == conversation.log.last_seq, "the last event")
            nursery.cancel_scope.cancel()
        shown = "\n".join([*seen, str(conversation.info()), conversation.full_state().decode()])
        assert WORD not in shown
        if not prompt.startswith("!raw"):  # a line that is no message is nowhere but in the log
            assert HIDDEN in shown


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_output_that_comes_in_pieces(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": SECRET}) as harness:
        conversation = await harness.start()
        found = await turn(conversation, f"!streamtool {HALVES[0]} {HALVES[1]}")
        assert WORD not in str([e for e in found if e["source"] != "user"])
        assert HIDDEN in str(found)


async def test_what_is_set_aside_whole_holds_none_either(tmp_path: Path) -> None:
    secret = "o" * 5000
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": secret}) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!bigtool 300000")  # its output is this letter again and again
        assert HIDDEN in str(found)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as journal:
            stored = [
                row[0] for row in journal.execute("SELECT data FROM blobs UNION SELECT body FROM events")
            ]
        assert not [body for body in stored if secret.encode() in body]


async def test_a_file_that_the_agent_writes_holds_what_it_wrote(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": SECRET}) as harness:
        conversation = await harness.start()
        await turn(conversation, f"!fswrite key.txt {SECRET}")
        assert (tmp_path / "workspace" / "key.txt").read_text().strip() == SECRET


async def test_a_secret_of_the_conversation_counts_too(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(secrets={"OWN_TOKEN": SECRET})
        assert answer(await turn(conversation, "!env OWN_TOKEN")).strip() == f"OWN_TOKEN={HIDDEN}"


def environment(pid: int | None) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")


async def test_a_changed_secret_is_told_and_counts_from_the_next_turn_on(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": "the-first-value"}) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        first = ready_pid(conversation)
        (view,) = await harness.supervisor.agents()
        assert view.changed_secrets == []
        harness.secrets["DEMO_TOKEN"] = "the-second-value"
        (view,) = await harness.supervisor.agents()
        assert view.changed_secrets == ["DEMO_TOKEN"]
        assert ready_pid(conversation) == first  # told, and not yet applied: nobody has asked for anything
        assert "tulip" in answer(await turn(conversation, "!remember"))
        assert ready_pid(conversation) != first
        assert "DEMO_TOKEN=the-second-value" in environment(ready_pid(conversation))
        assert conversation.agent.restarts.count == 0
        second = ready_pid(conversation)
        await conversation.changes.set_secrets({"OWN_TOKEN": "another-value"})
        await turn(conversation, "hello")
        assert ready_pid(conversation) != second
        assert "OWN_TOKEN=another-value" in environment(ready_pid(conversation))
        third = ready_pid(conversation)
        await turn(conversation, "hello again")
        assert ready_pid(conversation) == third


async def test_a_session_that_could_not_come_back_is_left_to_an_operator(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": "the-first-value"}) as harness:
        conversation = await harness.start("without=resume,load")
        await turn(conversation, "hello")
        pid = ready_pid(conversation)
        del harness.secrets["DEMO_TOKEN"]
        await turn(conversation, "hello again")
        assert ready_pid(conversation) == pid
        assert (await harness.supervisor.agent(conversation.id)).changed_secrets == ["DEMO_TOKEN"]
        await harness.supervisor.restart_agent(conversation.id)
        assert not [entry for entry in environment(ready_pid(conversation)) if "DEMO_TOKEN" in entry]
        assert (await harness.supervisor.agent(conversation.id)).changed_secrets == []


async def test_choices_that_travel_as_secrets_are_not_hidden(tmp_path: Path) -> None:
    given = {
        "AGENT_MODE": "workspace-write",
        "AGENT_BASE_URL": "http://127.0.0.1:1/v1",
        "AGENT_TOKEN": SECRET,
    }
    given["OTHER_BASE_URL"] = f"https://me:{WORD}-{WORD}@host/v1"
    async with open_harness(tmp_path, secrets=given) as harness:
        conversation = await harness.start()
        said = answer(await turn(conversation, "\n".join(f"!env {name}" for name in given)))
        assert "AGENT_MODE=workspace-write" in said
        assert "AGENT_BASE_URL=http://127.0.0.1:1/v1" in said
        assert WORD not in said


async def test_a_sessions_id_is_cut_short_but_for_the_state_that_names_it(tmp_path: Path) -> None:
    """Clients take a session over by its id (`acp_resume_session_id`)."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        session_id = conversation.record.now.session_id
        assert session_id is not None
        seen: list[str] = []
        async with trio.open_nursery() as nursery:
            reached = [-1]
            nursery.start_soon(follow, conversation, seen, reached)
            await turn(conversation, f"!text go on with --resume {session_id}\n!error -32603 no {session_id}")
            await until(lambda: reached[-1] == conversation.log.last_seq, "the last event")
            nursery.cancel_scope.cancel()
        assert conversation.info()["agent_state"]["acp_session_id"] == session_id
        shown = "\n".join([*seen, str(conversation.info()), conversation.full_state().decode()])
        shown = re.sub(rf"""["']acp_session_id["']: ?["']{session_id}["']""", "", shown)
        assert session_id not in shown
        assert f"--resume …{session_id[-8:]}" in shown


async def test_secrets_of_a_conversation_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.conversations.changes.MAX_SECRETS_BYTES", 2000)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.changes.set_secrets({"ONE": "1" * 500})
        with pytest.raises(NotPossible, match="more than 2000 bytes"):
            await conversation.changes.set_secrets({"TWO": "2" * 2000})
        await conversation.changes.set_secrets({"ONE": "3" * 500})  # in place of the first
        assert list(conversation.record.secrets) == ["ONE"]
