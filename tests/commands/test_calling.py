"""How a person who does not look is called, and what a terminal shows of waits, failures and errors."""

from __future__ import annotations

import base64
import io
import json
import sys

import pytest

from gateway.cli.talk import talk
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.track import State
from gateway.cli.terminal import console
from tests.support.terminal import CTRL_D, Terminal

ALLOW = "Allow it?"
PROMPT = "\n>"
NOTIFICATION = b"\a\x1b]9;"

IMPATIENT = """
import sys
import gateway.cli.operate.notify as notify
notify.LONG_SECONDS = 0.0
from gateway.cli import main
sys.exit(main(sys.argv[1:]))
"""


def impatient(served, *arguments):
    """The command, for which every turn is a long one."""
    return Terminal([sys.executable, "-c", IMPATIENT, *arguments], served.env, served.work)


# -- bells and notifications


def test_a_command_is_run_when_a_turn_waits_and_when_it_is_done(served):
    told = served.directory / "told"
    notify = ("--notify", f'echo "$OSTLER_ID $OSTLER_STATUS $OSTLER_TITLE" >> {told}; echo noise')
    with served.terminal("run", *notify, "!write called.txt hello") as terminal:
        terminal.wait_for(ALLOW)
        conversation = served.newest()
        title = "!write called.txt hello"
        assert told.read_text() == f"{conversation} waiting_for_confirmation {title}\n"
        terminal.type("y\r")
        assert terminal.end() == 0
    assert told.read_text().splitlines()[1:] == [f"{conversation} finished {title}"]
    done = served.process("run", *notify, "!text answer")
    assert (done.returncode, done.stdout) == (0, "answer\n")
    assert told.read_text().splitlines()[2].endswith("finished !text answer")
    done = served.run("run", "--detach", *notify, "hi")
    assert done.returncode == 2
    assert "`ostler wait ID --notify COMMAND` does" in done.stderr


def test_a_terminal_is_called_after_a_long_turn_and_not_after_a_quick_one(served):
    for terminal, rings in ((served.terminal("chat"), 0), (impatient(served, "chat"), 1)):
        with terminal:
            terminal.wait_for(PROMPT)
            terminal.type("!text so\r")
            terminal.wait_for(lambda text: "\nso" in text and text.endswith(PROMPT))
            assert terminal.raw.count(NOTIFICATION) == rings
            assert terminal.raw.count(f"{served.newest()[:8]} finished !text so".encode()) == rings
            terminal.type(CTRL_D)
            assert terminal.end() == 0


def test_a_terminal_that_is_attached_is_called_once_for_a_question_and_when_all_is_done(served):
    conversation = served.run("run", "--detach", "!write rings.txt hello").stdout.strip()
    with impatient(served, "attach", conversation) as terminal:
        terminal.wait_for(ALLOW)
        assert terminal.raw.count(NOTIFICATION) == 1
        assert f"{conversation[:8]} waiting_for_confirmation !write".encode() in terminal.raw
        terminal.type("what\r")
        terminal.wait_for(lambda text: text.count(ALLOW) == 2)
        terminal.type("y\r")
        terminal.wait_for("finished after")
        assert terminal.raw.count(NOTIFICATION) == 2


# -- the end of the input


def test_ctrl_d_at_a_prompt_ends_its_line(served):
    with served.terminal("secrets", "set", "FOO") as terminal:
        terminal.wait_for("Value of FOO:")
        terminal.type(CTRL_D)
        assert terminal.end() == 2
        first, second = terminal.text.splitlines()[:2]
        assert first == "Value of FOO:"
        assert second.startswith("ostler: the value is blank")
    assert served.run("run", "hi").returncode == 0
    with served.terminal("conversations", "delete", served.newest()) as terminal:
        terminal.wait_for("[y]es, [n]o:")
        terminal.type(CTRL_D)
        assert terminal.end() == 1
        assert terminal.text.endswith("[y]es, [n]o:\nostler: nothing was deleted")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["ps", "--url", "nonsense"],
            "ostler: 'nonsense' is not the address of a server, such as http://127.0.0.1:8000",
        ),
        (
            ["ps", "--jsn"],
            "ostler: unrecognized arguments: --jsn; did you mean --json? (see ostler ps --help)",
        ),
    ],
)
def test_an_error_on_a_terminal_is_folded_at_words(place, command, message):
    with place.terminal(*command, columns=30) as terminal:
        assert terminal.end() == 2
        assert terminal.text.split() == message.split()
        assert len(terminal.text.splitlines()) > 2
    done = place.process(*command)
    assert done.stderr == f"{message}\n"


# -- calls of a model that fail


def failing(words):
    update = {"sessionUpdate": "session_info_update", "_meta": {"codex": {"error": {"message": words}}}}
    frame = {
        "jsonrpc": "2.0",
        "method": "session/update",
        "params": {"sessionId": "SESSION", "update": update},
    }
    return f"!bytes {base64.b64encode(json.dumps(frame).encode()).decode()}"


def test_each_failed_call_is_told_and_the_silence_once(served, monkeypatch):
    monkeypatch.setattr(talk, "SILENCE_SECONDS", 0.4)
    tries = [f"{failing(f'Reconnecting... {number}/5')}\n!sleep 0.7" for number in range(1, 6)]
    done = served.run("run", "\n".join([*tries, "!text over"]))
    assert done.returncode == 0, done.stderr
    for number in range(1, 6):
        times = f" ({number} times)" if number > 1 else ""
        assert f"model failed{times}: Reconnecting... {number}/5" in done.stderr
    assert done.stderr.count("nothing from the agent for 0.4 s") == 1


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "failed: no route"),
        ({"times": 1, "attempt": None, "next_seconds": None}, "failed: no route"),
        ({"times": 3, "next_seconds": 8.5}, "failed (3 times, next in 8.5 s): no route"),
        ({"attempt": 2, "attempts": 5, "next_seconds": 4}, "failed (attempt 2 of 5, next in 4 s): no route"),
    ],
)
def test_what_failed_how_often_and_when_next(known, said):
    written = io.StringIO()
    narration = Narration(console(written))
    narration.tell(State("model_call_failed", {"words": "[-32603] Internal error: no route", **known}))
    assert written.getvalue() == f"the agent's call of its model {said}\n"
