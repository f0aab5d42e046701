"""`ostler conversations`, `events` and `settings`: what there is, and what new conversations start with."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.terminal import CTRL_C

NOBODY = "ffffffff-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def talked(served):
    """The id of a conversation with a bit of everything."""
    done = served.run(
        "run", "--yes", "!think pondering\n!text first\n!diff new.txt\n!plan\n!failtool\n!text the end"
    )
    assert done.returncode == 0, done.stderr
    return served.newest()


# -- list and show


def test_list(served, talked):
    done = served.run("conversations", "list")
    header, first, *_ = done.stdout.splitlines()
    assert header.split() == ["ID", "STATUS", "AGENT", "CHANGED", "TITLE"]
    assert first.split()[:3] == [talked[:8], "finished", "custom"]
    assert served.json("conversations", "list", "-n", "1")["conversations"][0]["id"] == talked
    assert served.json("conversations", "list", "-n", "0") == {"conversations": []}
    assert served.run("conversations", "list", "--status", "error").stdout == "no conversations\n"


def test_a_status_that_there_is_not(served):
    done = served.run("conversations", "list", "--status", "sleeping")
    assert done.returncode == 2
    assert "status" in done.stderr


def test_show(served, talked):
    done = served.run("conversations", "show", talked[:8])
    assert done.returncode == 0
    for line in (
        f"id:          {talked}",
        f"directory:   {served.work}",
        "answer:      the end",
        "status:      finished",
    ):
        assert line in done.stdout
    shown = served.json("conversations", "show", talked)
    assert (shown["id"], shown["events"]) == (talked, len(served.events(talked)))


def test_what_was_used(served):
    assert served.run("run", "--detach", "!usage 100 1000 0.25\n!text so").returncode == 0
    conversation = served.newest()
    assert served.run("wait", conversation).returncode == 0
    (agent,) = [each for each in served.json("ps")["agents"] if each["conversation_id"] == conversation]
    assert agent["usage"]["costs"] == {"USD": 0.25}
    shown = served.run("conversations", "show", conversation).stdout
    assert f"used:        {agent['usage']['tokens']} tokens" in shown
    assert ", $0.25" in shown
    (row,) = [line for line in served.run("ps").stdout.splitlines() if line.startswith(conversation[:8])]
    assert "$0.25" in row
    assert "usage:" in served.run("status").stdout
    assert served.run("stop", conversation).returncode == 0


def test_a_narrow_terminal_shows_state_and_title(served, talked):
    with served.terminal("conversations", "list", columns=60) as terminal:
        assert terminal.end() == 0
        header, *rows = terminal.text.splitlines()
    assert header.split() == ["ID", "STATUS", "AGENT", "TITLE"]
    assert len(rows) == len(served.json("conversations", "list")["conversations"])


def test_what_the_agent_changed(served, talked):
    done = served.run("conversations", "diff", talked[:8])
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"--- {served.work}/new.txt (new)"
    assert "+new" in done.stdout
    (edit,) = served.json("conversations", "diff", talked)["edits"]
    assert edit["path"].endswith("new.txt")
    assert served.run("run", "!text nothing").returncode == 0
    done = served.run("conversations", "diff", served.newest())
    assert (done.returncode, done.stdout) == (0, "")
    assert "no change of a file" in done.stderr


def test_a_changed_secret_says_which_agents_have_the_old_one(served):
    assert "old" not in served.run("secrets", "set", "A_TOKEN", given="first-value-1").stderr
    assert served.run("run", "--detach", "hi").returncode == 0
    conversation = served.newest()
    assert served.run("wait", conversation).returncode == 0
    done = served.run("secrets", "set", "A_TOKEN", given="second-value-2")
    assert "1 running agent has the old A_TOKEN until the next turn" in done.stderr
    done = served.run("secrets", "unset", "A_TOKEN")
    assert "1 running agent has the old A_TOKEN" in done.stderr
    assert served.run("stop", conversation).returncode == 0


# -- export


def test_export_as_lines_of_json(served, talked, tmp_path):
    events = served.events(talked)
    assert events[0]["kind"] == "MessageEvent"
    file = tmp_path / "talk.jsonl"
    done = served.run("conversations", "export", talked, "-o", str(file))
    assert (done.returncode, done.stdout) == (0, "")
    assert [json.loads(line) for line in file.read_text().splitlines()] == events
    assert file.stat().st_mode & 0o777 == 0o600


def test_export_as_markdown(served, talked, tmp_path):
    file = tmp_path / "talk.md"
    file.write_text("before")
    done = served.run("conversations", "export", talked[:8], "--format", "md", "-o", str(file))
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    for part in (
        "## User",
        "> pondering",
        "## custom\n\nfirst",
        "**Edit new.txt** (completed)",
        "```diff",
        "+new",
    ):
        assert part in text
    assert "**false** (failed)" in text
    assert "* [x] " in text
    assert text.rindex("first") < text.index("+new") < text.rindex("the end")
    assert list(tmp_path.iterdir()) == [file]


def test_an_export_that_fails_leaves_what_was_there(served, talked, tmp_path):
    file = tmp_path / "kept"
    file.write_text("before")
    done = served.run("conversations", "export", NOBODY, "-o", str(file))
    assert done.returncode == 1
    assert file.read_text() == "before"
    done = served.run("conversations", "export", talked, "-o", str(tmp_path / "no" / "such"))
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


# -- delete


def test_delete(served):
    assert served.run("run", "one").returncode == 0
    one = served.newest()
    assert served.run("run", "two").returncode == 0
    two = served.newest()
    refused = served.run("conversations", "delete", one)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    done = served.run("conversations", "delete", one[:8], two[:8], "--yes")
    assert (done.returncode, done.stdout) == (0, f"deleted {one}\ndeleted {two}\n")
    assert served.run("conversations", "show", one).returncode == 1
    again = served.run("conversations", "delete", one, "--yes")
    assert again.returncode == 1
    assert one in again.stderr


def test_stop_says_whether_an_agent_ran(served):
    one = served.run("run", "--detach", "hello").stdout.strip()
    assert served.run("wait", one).returncode == 0
    assert served.run("stop", one).stdout == f"stopped the agent of {one}\n"
    assert served.run("stop", one).stdout == f"no agent runs for {one}\n"
    assert served.json("stop", one) == {"success": True}


def test_ctrl_c_at_a_question_leaves_the_prompt_a_line(served):
    with served.terminal("secrets", "set", "SOME_KEY") as terminal:
        terminal.wait_for("Value of SOME_KEY:")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert terminal.screen.cursor.x == 0


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_delete_asks_in_a_terminal(served, answer, status):
    assert served.run("run", "to be deleted").returncode == 0
    one = served.newest()
    with served.terminal("conversations", "delete", one[:8]) as terminal:
        assert "to be deleted" in terminal.wait_for("Delete it with all its events?")
        terminal.type(f"{answer}\r")
        assert terminal.end() == status
    assert (served.run("conversations", "show", one).returncode == 0) is (answer == "n")


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["conversations", "show", NOBODY], 1, "not found"),
        (["conversations", "show", "ffffffff"], 1, "no conversation"),
        (["conversations", "show", "nonsense"], 2, "is not an id"),
        (["conversations", "shwo", "f"], 2, "did you mean show?"),
        (["conversations"], 2, "ACTION"),
        (["conversations", "list", "-n", "-1"], 2, "not a whole number"),
        (["conversations", "export", "f", "--format", "pdf"], 2, "no 'pdf'"),
        (["events", NOBODY], 1, "no such conversation"),
        (["events", "f", "--since-seq", "x"], 2, "not a whole number"),
        (["conversations", "list", "--url", "http://127.0.0.1:1"], 3, "no server"),
        (["events", NOBODY, "--url", "http://127.0.0.1:1"], 3, "no server"),
        (["settings", "get", "--url", "http://127.0.0.1:1"], 3, "no server"),
    ],
)
def test_what_is_wrong_is_one_line(served, arguments, status, reason):
    done = served.run(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


# -- events


def test_events(served, talked):
    done = served.run("events", talked[:8])
    lines = done.stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(served.events(talked))))
    assert any("MessageEvent" not in line and "Message" in line and "first" in line for line in lines)
    since = served.run("events", talked, "--since-seq", "3").stdout.splitlines()
    assert since == lines[3:]
    assert served.run("events", talked, "--since-seq", "100000").stdout == ""


def test_events_as_json(served, talked):
    frames = [json.loads(line) for line in served.run("events", talked, "--json").stdout.splitlines()]
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert [frame["event"]["id"] for frame in frames] == [event["id"] for event in served.events(talked)]


def test_following_events(served):
    assert served.run("run", "one").returncode == 0
    conversation = served.newest()
    with served.going_on("events", conversation, "--follow", "--json") as following:
        first = json.loads(following.stdout.readline())
        assert first["seq"] == 0
        assert served.run("run", "--resume", conversation, "!text something new").returncode == 0
        while "something new" not in following.stdout.readline():
            pass
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
        following.stdout.read()


# -- settings


def test_settings(served):
    done = served.run("settings", "get")
    assert "acp_server = custom" in done.stdout
    assert served.json("settings", "get", "acp_server") == "custom"
    try:
        changed = served.run("settings", "set", "acp_server", "codex")
        assert changed.returncode == 0, changed.stderr
        assert "acp_server = codex" in changed.stdout
        assert "acp_command = " in changed.stdout  # it follows
        assert served.run("settings", "set", "acp_server", "openhands").stdout == "acp_server = openhands\n"
        assert served.run("settings", "get", "acp_server").stdout == "openhands\n"
        assert "acp_server = codex\n" in served.run("settings", "set", "acp_server", "codex").stdout
        wrong = served.run("settings", "set", "acp_server", "gemini")
        assert (wrong.returncode, "; did you mean gemini-cli? (see" in wrong.stderr) == (2, True)
        assert served.run("settings", "set", "acp_model", "5").stdout == "acp_model = 5\n"
        assert served.json("settings", "get", "acp_model") == "5"
        assert served.run("settings", "set", "acp_model", "null").stdout == "acp_model = null\n"
        assert served.run("settings", "set", "acp_prompt_timeout", "12.5").returncode == 0
        assert served.json("settings", "get", "acp_prompt_timeout") == 12.5
        done = served.run("settings", "set", "acp_args", '["--a", "b c"]')
        assert done.stdout == 'acp_args = ["--a", "b c"]\n'
        assert served.run("settings", "set", "acp_args", "x 'y z'").stdout == 'acp_args = ["x", "y z"]\n'
    finally:
        served.run("settings", "set", "acp_args", "[]")
        served.run("settings", "set", "acp_prompt_timeout", "1800")
        served.scripted()


def test_values_are_written_for_people(served, talked):
    done = served.run("settings", "get")
    (secrets,) = [line for line in done.stdout.splitlines() if line.startswith("acp_file_secrets = ")]
    assert secrets.startswith("acp_file_secrets = secret_name: CODEX_AUTH_JSON, filename: auth.json")
    assert "{" not in secrets
    assert isinstance(served.json("settings", "get", "acp_file_secrets"), list)
    lines = served.run("events", talked).stdout.splitlines()
    (options,) = [line for line in lines if "config_options: " in line][:1]
    assert "{" not in options
    assert not [line for line in lines if '={"' in line or "=[" in line]


def test_an_agent_that_was_chosen_before_comes_back_as_it_was(serve):
    served = serve()

    def chosen(*pairs):
        for key, value in pairs:
            done = served.process("settings", "set", key, value)
            assert done.returncode == 0, done.stderr
        found = served.json("settings", "get")
        return found["acp_server"], found["acp_model"], found["acp_command"]

    first = served.json("settings", "get", "acp_command")
    there = (("acp_server", "codex"), ("acp_model", "m1"), ("agent_kind", "openhands"))
    assert chosen(*there, ("agent_kind", "acp"))[:2] == ("codex", "m1")
    assert chosen(("acp_server", "custom")) == ("custom", "m1", first)
    own = ["my-agent", "--acp"]
    assert chosen(("acp_command", "my-agent --acp"), ("acp_server", "codex"), ("acp_server", "custom")) == (
        "custom", "m1", own,
    )  # fmt: skip
    assert chosen(("acp_server", "copilot"), ("acp_server", "custom"))[2] == own
    assert chosen(("acp_server", "openhands"), ("acp_server", "null"))[0] == "claude-code"


def test_a_custom_agent_needs_a_command(place):
    done = place.process("settings", "set", "acp_server", "custom")
    assert done.returncode == 2
    assert (
        "acp_server: no command of a custom agent was ever set; `ostler settings set acp_command"
        in done.stderr
    )


def test_settings_below_settings_and_their_secrets(served):
    server = json.dumps({"command": "true", "args": ["a"], "env": {"TOKEN": "very-secret-value"}})
    try:
        done = served.run("settings", "set", "mcp_config.tools", server)
        assert done.returncode == 0, done.stderr
        for arguments in (["get"], ["get", "--json"], ["get", "mcp_config.tools.env.TOKEN"]):
            done = served.run("settings", *arguments)
            assert done.returncode == 0, done.stderr
            assert "very-secret-value" not in done.stdout
        assert served.json("settings", "get", "mcp_config.tools.args.0") == "a"
    finally:
        assert served.run("settings", "set", "mcp_config.tools", "null").returncode == 0
    assert served.json("settings", "get", "mcp_config") == {}


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["get", "acp_sever"], 1, "did you mean acp_server?"),
        (["get", "mcp_config.nothing"], 1, "no setting"),
        (["set", "acp_sever", "codex"], 2, "did you mean acp_server?"),
        (["set", "acp_server", "cdex"], 2, "acp_server: "),
        (["set", "acp_prompt_timeout", "soon"], 2, "acp_prompt_timeout must be "),
        (["set", "acp_prompt_timeout", "-1"], 2, "acp_prompt_timeout must be "),
        (["set", "acp_command", "'open"], 2, "not a valid command"),
        (["set", "acp_server"], 2, "VALUE"),
    ],
)
def test_wrong_settings_name_the_field(served, arguments, status, reason):
    done = served.run("settings", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert served.json("settings", "get", "acp_server") == "custom"
