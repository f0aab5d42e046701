"""`ostler chat`, in a terminal."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import time
from contextlib import suppress

import pytest

from gateway.cli.client import Server
from gateway.cli.failures import BadInput
from gateway.cli.talk.enclosures import FILES_BYTES, parts
from gateway.cli.talk.talk import HISTORY
from tests.support.terminal import CTRL_C, CTRL_D, SHIFT_TAB, UP

PROMPT = "\n>"
ALLOW = "Allow it?"
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def ready(text):
    return text.endswith(PROMPT)


def chat(served, *arguments, **more):
    return served.terminal("chat", *arguments, **more)


def say(terminal, text, answer):
    terminal.type(f"{text}\r")
    terminal.wait_for(answer)
    terminal.wait_for(ready)


def test_a_conversation(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        assert f"custom in {served.work}" in terminal.text
        say(terminal, "!think hm", "hm")
        say(terminal, "hello", "echo: hello")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert f"ostler chat --resume {served.newest()[:8]}" in terminal.text
    assert served.said_by_user(served.newest()) == ["!think hm", "hello"]


@pytest.mark.parametrize("new_line", ["\x1b\r", "\\\r"])
def test_several_lines(served, new_line):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(f"!text one{new_line}")
        say(terminal, "!text two", "onetwo")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert served.said_by_user(served.newest()) == ["!text one\n!text two"]


def test_what_is_pasted_is_one_message(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("\x1b[200~!text a\n!text b\n!text c\x1b[201~")
        say(terminal, "", "abc")
        terminal.type(CTRL_D)
        terminal.end()
    assert served.said_by_user(served.newest()) == ["!text a\n!text b\n!text c"]


def test_the_history_is_kept_and_private(served):
    for _ in range(2):
        with chat(served) as terminal:
            terminal.wait_for(PROMPT)
            say(terminal, "remember me", "echo: remember me")
            terminal.type(UP)
            terminal.wait_for(lambda text: text.endswith("> remember me"))
            terminal.type(CTRL_C + CTRL_D)
            assert terminal.end() == 0
    assert (served.state / "chat-history").stat().st_mode & 0o777 == 0o600


def test_permissions(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        for answer, said in (("n", "rejected"), ("y", "allowed"), ("a", "allowed")):
            before = terminal.text.count(ALLOW)
            terminal.type("!perm\r")
            terminal.wait_for(lambda text, before=before: text.count(ALLOW) > before)
            terminal.type(f"{answer}\r")
            terminal.wait_for(lambda text, said=said: said in text.rpartition(ALLOW)[2] and ready(text))
        asked = terminal.text.count(ALLOW)
        say(terminal, "!perm", lambda text: text.count("allowed") == 3)
        assert terminal.text.count(ALLOW) == asked  # always: in this chat
        terminal.type(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_question_is_asked_once_whatever_else_the_agent_says_meanwhile(served):
    with chat(served, "--agent", "demo") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Please write a file.\r")
        terminal.wait_for(ALLOW)
        conversation = served.newest()
        terminal.type("ye")
        for number in range(3):  # events that tell nothing new of the question
            Server(served.server.url, None).call(
                "PATCH", f"/api/conversations/{conversation}", {"title": f"title {number}"}
            )
        terminal.type("s\r")
        terminal.wait_for(lambda text: "I wrote hello-from-ostler.txt" in text and ready(text))
        assert terminal.text.count(ALLOW) == 1
        assert terminal.text.count("? Write hello-from-ostler.txt") == 1
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_commands_of_ours(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "/help", "/permissions")
        say(terminal, "/permissions", "ask: you are asked")
        say(terminal, "/permissions allow", "allow: every request")
        say(terminal, "!perm", "allowed")
        say(terminal, "/permissions ask", lambda text: text.count("ask: you are asked") == 2)
        say(terminal, "/permissions perhaps", "/permissions ask, or")
        say(terminal, "/model", "model: small")
        say(terminal, "/mode", "mode: ")
        say(terminal, "/interrupt", "no turn is running")
        say(terminal, "/stop", "the agent is stopped")
        say(terminal, "/stop", "no agent is running")
        shutil.rmtree(served.home / "agent")  # its sessions
        say(terminal, "!text back", "could not be restored")
        say(terminal, "/hlep", "did you mean help?")
        say(terminal, "/clear now", "the agent has no command /clear; /help lists them")
        first = served.newest()
        say(terminal, "/model huge", "The agent offers: small, large")
        say(terminal, "/mode sleepy", "The agent offers: default, yolo, plan")
        say(terminal, "/model large", "model large")
        say(terminal, "/new", "a new conversation begins")
        say(terminal, "!text fresh", "fresh")
        say(terminal, "/model", "model: large")
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert served.newest() != first
    assert served.said_by_user(served.newest()) == ["!text fresh"]


def test_model_and_mode_change_in_the_running_conversation(served):
    with chat(served, "--agent", "demo") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(SHIFT_TAB)
        terminal.wait_for("has named no modes yet")
        terminal.wait_for(ready)
        say(terminal, "hello", "demo-polite · ask · ")
        assert " tokens" in terminal.text.splitlines()[-2]
        say(terminal, "/mode", "Writes without asking")
        say(terminal, "/mode auto", "demo-polite · auto · ")
        say(terminal, "/model demo-terse", "demo-terse · auto · ")
        terminal.type(SHIFT_TAB)
        terminal.wait_for(lambda text: "demo-terse · ask · " in text and ready(text))
        say(terminal, "hello again", "Demo. You said: hello again")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    shown = served.json("conversations", "show", served.newest())
    assert shown["current_model_id"] == "demo-terse"


def test_a_choice_before_the_first_message_is_checked(served):
    before = len(served.json("conversations", "list", "-n", "100")["conversations"])
    with chat(served, "--agent", "demo") as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "/model foo", "demo-polite, demo-terse")
        say(terminal, "/mode foo", "ask, auto")
        assert "\nmodel foo\n" not in terminal.text
        say(terminal, "/model demo-terse", "demo-terse · ask")
        say(terminal, "hello @nofile, you", "there is no file nofile: only the words are sent")
        say(terminal, "/mode auto", "demo-terse · auto · ")
        # A mode that a person chose is no fault of the agent.
        say(terminal, "please write a file", "hello-from-ostler.txt")
        assert "without asking, although" not in terminal.text
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    with chat(served, "--agent", "demo") as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "/mode auto", "mode auto")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "continue with" not in terminal.text
    # A conversation that was opened for a choice alone does not stay.
    assert len(served.json("conversations", "list", "-n", "100")["conversations"]) == before + 1


def test_modes_of_the_older_kind(served):
    with served.modes("without=config"), chat(served) as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "hello", "default")
        terminal.type(SHIFT_TAB)
        terminal.wait_for(lambda text: "yolo" in text and ready(text))
        say(terminal, "/mode plan", lambda text: text.count("plan") > 2)
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_files_and_images_come_along(served):
    (served.work / "notes.txt").write_text("what is in it")
    (served.work / "dot.png").write_bytes(DOT)
    with chat(served, "--image", "dot.png") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!text read @no\t")
        terminal.wait_for("@notes.txt")
        say(terminal, " and @nobody, please", "read @notes.txt and @nobody, please")
        say(terminal, "see @dot.png", "echo: see @dot.png")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    sent = [
        event["llm_message"]["content"]
        for event in served.events(served.newest())
        if event["kind"] == "MessageEvent" and event["source"] == "user"
    ]
    assert [[part["type"] for part in content] for content in sent] == [
        ["text", "image", "text"],
        ["text", "image"],
    ]
    assert sent[0][2]["text"] == f"\n\nThe file {served.work}/notes.txt:\nwhat is in it"
    assert sent[0][1]["image_urls"] == [f"data:image/png;base64,{base64.b64encode(DOT).decode()}"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none.png", "cannot read none.png"), ("notes.txt", "is no image"), ("pipe.png", "is not a file")],
)
def test_an_image_that_cannot_be_sent(served, name, reason):
    (served.work / "notes.txt").write_text("words")
    with suppress(FileExistsError):
        os.mkfifo(served.work / "pipe.png")
    done = served.run("run", "--image", name, "hello")
    assert done.returncode == 2
    assert reason in done.stderr


def test_files_are_bounded(tmp_path):
    (tmp_path / "large").write_bytes(b"x" * (FILES_BYTES + 1))
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name, reason in (("large", "too large"), ("bytes", "not text")):
        with pytest.raises(BadInput, match=reason):
            parts(f"see @{name}.", [], tmp_path)
    assert parts("mail@large @other", [], tmp_path) == [{"type": "text", "text": "mail@large @other"}]


def test_commands_complete(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/perm\t")
        terminal.wait_for("> /permissions")
        terminal.type(CTRL_C)
        terminal.wait_for(ready)
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_commands_of_the_agent_complete_and_go_to_it(served):
    with served.modes("chatty"), chat(served) as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "!commands", lambda text: text.count(">") > 1)
        say(terminal, "/help", "of the agent:")
        name = terminal.text.split("of the agent:")[1].split("/")[1].split()[0]
        terminal.type(f"/{name[:3]}")
        terminal.wait_for(f"/{name}")
        terminal.type(CTRL_C)
        say(terminal, f"/{name} now", f"echo: /{name} now")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_what_the_agent_offers_is_known_again_after_many_events(served):
    with served.modes("chatty"):
        assert served.run("run", "--yes", "\n".join(["!tool"] * HISTORY)).returncode == 0
    with chat(served, "--continue") as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "/help", "of the agent:")
        say(terminal, "/mode", "plan")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_mcp_goes_to_the_server(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/mcp\r")
        terminal.wait_for(lambda text: ready(text) and "/mcp" in text)
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert served.said_by_user(served.newest()) == ["/mcp"]


@pytest.mark.guarantee(name="control-always-returns")
def test_ctrl_c_interrupts_the_turn_and_the_chat_goes_on(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!slow 1000 50\r")
        terminal.wait_for("s3 ")
        terminal.type(CTRL_C)
        terminal.wait_for("interrupted")
        terminal.wait_for(ready)
        say(terminal, "!text on", "on")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_second_ctrl_c_leaves(served):
    with served.modes("cancel=ignore"), chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!slow 300 50\r")
        terminal.wait_for("s3 ")
        terminal.type(CTRL_C)
        time.sleep(0.3)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    assert served.run("stop", served.newest()).returncode == 0  # it would go on for a while


def test_the_first_ctrl_c_leaves_a_dead_server(serve):
    place = serve("--no-warden")
    with chat(place) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!slow 1000 50\r")
        terminal.wait_for("s3 ")
        place.server.signal(signal.SIGKILL)
        terminal.wait_for("connection lost (")
        terminal.wait_for(f"the server at {place.server.url} is gone; start it again with `ostler serve`")
        terminal.type(CTRL_C)
        assert terminal.end(timeout=2) == 130
        assert "left, since the server does not answer" in terminal.text


def test_ctrl_c_twice_at_the_prompt_leaves(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_C)
        terminal.wait_for("again, or Ctrl-D")
        terminal.wait_for(ready)
        terminal.type(CTRL_C)
        assert terminal.end() == 130


@pytest.mark.parametrize("which", ["--continue", "--resume"])
def test_going_on(served, which):
    assert served.run("run", "what I said").returncode == 0
    first = served.newest()
    arguments = [which] if which == "--continue" else [which, first[:8]]
    with chat(served, *arguments) as terminal:
        terminal.wait_for(ready)
        assert "> what I said" in terminal.text
        assert "echo: what I said" in terminal.text
        say(terminal, "and more", "echo: and more")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert served.said_by_user(first) == ["what I said", "and more"]


def test_going_on_shows_who_said_what(served):
    with served.modes("chatty"):
        assert served.run("run", "what I said").returncode == 0
        shutil.rmtree(served.home / "agent")  # its sessions
        assert served.run("run", "--continue", "more").returncode == 0
    with chat(served, "--continue") as terminal:
        terminal.wait_for(ready)
        notice, said = (
            next(line for line in terminal.text.splitlines() if words in line)
            for words in ("could not be restored", "what I said")
        )
        assert said == "> what I said"
        assert not notice.startswith(">")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_going_on_with_a_turn_that_is_under_way(served):
    with served.going_on("run", "!tool execute ls\n!slow 60 50\n!text over") as other:
        while "✓ ls" not in other.stderr.readline():
            pass
        with chat(served, "--continue") as terminal:
            terminal.wait_for("over")
            terminal.wait_for(ready)
            terminal.type(CTRL_D)
            assert terminal.end() == 0
        other.communicate(timeout=30)


def test_a_turn_that_fails_does_not_end_the_chat(served):
    with served.modes("error=prompt:-32603:kaputt"), chat(served) as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "hello", "kaputt")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_what_is_typed_during_a_turn_is_not_lost_and_not_in_between(served):
    with chat(served) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!slow 40 50\r")
        terminal.wait_for("s3 ")
        terminal.type("typed ahead")
        terminal.wait_for("s39")
        terminal.wait_for("> typed ahead")
        assert "typed" not in terminal.text.rpartition("> ")[0]
        terminal.type(CTRL_C + CTRL_D)
        assert terminal.end() == 0


def test_chat_needs_a_terminal(served):
    done = served.run("chat", given="hello\n")
    assert done.returncode == 2
    assert done.stderr == "ostler: chat requires a terminal; use `ostler run` in scripts and pipes\n"


def test_no_color(served):
    with chat(served, NO_COLOR="1") as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "!think hm\n", "hm")
        terminal.type(CTRL_D)
        terminal.end()
        assert b"\x1b[2;3m" not in terminal.raw
        assert b"\x1b[31m" not in terminal.raw
