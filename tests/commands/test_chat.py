"""`ostler chat`, in a terminal."""

from __future__ import annotations

import shutil
import time

import pytest

from gateway.cli.client import Server
from tests.support.terminal import CTRL_C, CTRL_D, UP

PROMPT = "\n>"
ALLOW = "Allow it?"


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
        say(terminal, "/stop", "the agent is stopped")
        shutil.rmtree(served.home / "agent")  # its sessions
        say(terminal, "!text back", "could not be restored")
        say(terminal, "/hlep", "did you mean help?")
        first = served.newest()
        say(terminal, "/model large", "in the next conversation")
        say(terminal, "/new", "a new conversation begins")
        say(terminal, "!text fresh", "fresh")
        say(terminal, "/model", "model: large")
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert served.newest() != first
    assert served.said_by_user(served.newest()) == ["!text fresh"]


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
