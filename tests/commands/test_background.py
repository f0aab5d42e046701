"""Runs in the background: `run --detach`, `wait`, `approve`, `deny`, and `attach` at a terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from gateway.cli.talk.narration import Narration
from gateway.cli.terminal import console
from tests.support.processes import wait_until
from tests.support.terminal import CTRL_C

ALLOW = "Allow it?"


@pytest.fixture
def asked(served):
    """Begins a turn whose agent asks before it writes this file; the conversation's id."""

    def begin(name):
        done = served.run("run", "--detach", f"!write {name} hello")
        assert done.returncode == 0, done.stderr
        conversation = done.stdout.strip()
        assert wait_until(lambda: state(served, conversation) == "waiting_for_confirmation")
        return conversation

    return begin


def state(served, conversation):
    return served.json("conversations", "show", conversation)["execution_status"]


def live(served):
    return {agent["conversation_id"] for agent in served.json("ps")["agents"] if agent["pid"]}


def test_a_run_goes_on_without_its_command_and_is_waited_for(served):
    done = served.run("run", "--detach", "!sleep 0.5\n!text so")
    assert done.returncode == 0
    one = done.stdout.strip()
    assert f"`ostler wait {one[:8]}` waits for it" in done.stderr
    done = served.run("run", "--detach", "--json", "!crash 9")
    other = json.loads(done.stdout)["conversation_id"]
    assert done.stderr == ""
    done = served.run("wait", one[:8])
    assert (done.returncode, done.stdout) == (0, f"{one[:8]}  finished  !sleep 0.5 !text so\n")
    done = served.run("wait", one, other)
    assert done.returncode == 1
    assert f"{other[:8]}  error" in done.stdout
    found = json.loads(served.run("wait", one, "--json").stdout)
    assert (found["status"], found["response"]) == ("finished", "so")


def test_a_conversation_is_continued_in_the_background(served):
    assert served.run("run", "one").returncode == 0
    first = served.newest()
    done = served.run("run", "--detach", "--continue", "two")
    assert done.stdout.strip() == first
    assert served.run("wait", first).returncode == 0
    assert served.said_by_user(first) == ["one", "two"]


def test_what_waits_is_said_once_and_first_in_the_list(served, asked):
    served.run("run", "--detach", "!sleep 20")
    other = served.newest()
    conversation = asked("waits.txt")
    told = served.directory / "told"
    with served.going_on(
        "wait", conversation, "--notify", f'echo "$OSTLER_ID $OSTLER_STATUS $OSTLER_TITLE" >> {told}'
    ) as process:
        assert "waits for a person: waits.txt" in process.stderr.readline()
        assert served.run("ps").stdout.splitlines()[1].startswith(conversation[:8])
        done = served.run("approve", conversation[:8])
        assert (done.returncode, done.stdout) == (0, "allowed: waits.txt\n")
        assert process.wait(30) == 0
    assert (served.work / "waits.txt").read_text() == "hello"
    first, last = told.read_text().splitlines()
    assert first.startswith(f"{conversation} waiting_for_confirmation !write")
    assert last.startswith(f"{conversation} finished !write")
    assert served.run("stop", other).returncode == 0


def test_a_person_refuses_with_a_reason(served, asked):
    conversation = asked("denied.txt")
    done = served.run("deny", conversation, "--reason", "not there", "--json")
    (refused,) = json.loads(done.stdout)["refused"]
    assert refused["title"] == "denied.txt"
    served.run("wait", conversation)
    assert not (served.work / "denied.txt").exists()
    assert any(event.get("rejection_reason") == "not there" for event in served.events(conversation))
    again = served.run("approve", conversation)
    assert again.returncode == 1
    assert "waits for nothing" in again.stderr


def test_the_only_one_that_waits_needs_no_id(serve):
    place = serve()
    for command in ("approve", "deny", "wait"):
        done = place.run(command)
        assert done.returncode == 1
        assert done.stderr.startswith("ostler: no conversation ")
    busy = place.run("run", "--detach", "!sleep 20").stdout.strip()
    place.run("run", "--detach", "!write only.txt hello")
    conversation = place.newest()
    assert wait_until(lambda: state(place, conversation) == "waiting_for_confirmation")
    completed = place.run("completion", "bash", "--", "approve", "").stdout.splitlines()
    assert [each.split("\t")[0] for each in completed] == [conversation]
    several = place.run("wait")
    assert (several.returncode, "several are possible" in several.stderr) == (2, True)
    assert place.run("approve").stdout == "allowed: only.txt\n"
    assert place.run("stop", busy).returncode == 0
    place.run("wait", conversation, busy)
    assert (place.work / "only.txt").read_text() == "hello"


def test_a_terminal_gets_a_bell_and_a_notification(served):
    done = served.run("run", "--detach", "!text so")
    with served.terminal("wait", done.stdout.strip()) as terminal:
        assert terminal.end() == 0
        assert b"\a\x1b]9;" in terminal.raw
        assert "finished" in terminal.text


def test_questions_are_answered_where_a_terminal_is_attached(served, asked):
    conversation = asked("attached.txt")
    with served.terminal("attach", conversation[:8]) as terminal:
        terminal.wait_for(ALLOW)
        assert "+hello" in terminal.text
        terminal.type("y\r")
        terminal.wait_for("finished after")
        assert (served.work / "attached.txt").exists()
        # It goes on with the next turn, of another client.
        assert served.run("run", "--detach", "--resume", conversation, "!text more").returncode == 0
        terminal.wait_for(lambda text: "> !text more" in text and text.count("finished after") == 2)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    assert state(served, conversation) == "finished"


def test_leaving_a_question_or_an_idle_conversation(served, asked):
    conversation = asked("open.txt")
    with served.terminal("attach", conversation) as terminal:
        terminal.wait_for(ALLOW)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert f"the question stays open; ostler approve {conversation[:8]}" in terminal.text
    assert served.run("deny", conversation).returncode == 0
    served.run("wait", conversation)
    with served.terminal("attach", conversation) as terminal:
        terminal.wait_for("it is idle; Ctrl-C leaves")
        terminal.type(CTRL_C)
        assert terminal.end() == 130


def test_ctrl_c_in_the_moment_of_a_question_ends_its_line(monkeypatch):
    """Who reads the question may answer before the program goes on behind its last write."""

    class Screen(io.StringIO):
        def flush(self):
            if "Allow it?" in self.getvalue() and not answered:
                answered.append(CTRL_C)
                raise KeyboardInterrupt

    answered = []
    screen = Screen()
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        narration = Narration(console(screen, {}))
        with pytest.raises(KeyboardInterrupt):
            narration.ask(())
        narration.end()
        narration.note("the question stays open")
    asked, question, left = screen.getvalue().splitlines()
    assert asked == "? the agent asks for permission"
    assert question.count(ALLOW) == 1
    assert left == "the question stays open"


def test_leaving_a_terminal_that_is_attached_interrupts_nothing(served):
    conversation = served.run("run", "--detach", "!slow 60 50\n!text over").stdout.strip()
    with served.terminal("attach", conversation) as terminal:
        terminal.wait_for("s9 ")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    assert served.run("wait", conversation).returncode == 0


def test_it_requires_a_server_that_stays(place):
    done = place.run("run", "--detach", "hi")
    assert done.returncode == 3
    assert "start one with `ostler serve`" in done.stderr
    assert not place.state.exists()


def test_a_run_ends_the_agent_that_it_started_and_no_other(served):
    assert served.run("run", "hi").returncode == 0
    conversation = served.newest()
    assert conversation not in live(served)
    assert served.run("run", "--resume", conversation, "again").returncode == 0
    assert conversation not in live(served)
    served.run("run", "--detach", "--resume", conversation, "and again")
    assert served.run("wait", conversation).returncode == 0
    assert conversation in live(served)
    assert served.run("run", "--resume", conversation, "once more").returncode == 0
    assert conversation in live(served)


def test_an_agent_that_would_forget_stays_and_that_is_said(served):
    with served.modes("without=load,resume"):
        done = served.run("run", "hi")
        conversation = served.newest()
        assert f"`ostler stop {conversation[:8]}` ends it" in done.stderr
        assert conversation in live(served)
