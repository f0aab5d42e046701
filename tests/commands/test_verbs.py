"""Words for commands: several for one action, commands without an id, and what is said of other words."""

from __future__ import annotations

import json

import pytest

from gateway.cli.suggest import REMOVING, UNSUGGESTED
from tests.support.processes import wait_until
from tests.support.scripted import scripted_command
from tests.support.terminal import CTRL_D

LONG = "!sleep 30"


@pytest.fixture
def running(served):
    """Starts agents that work until the test has ended; their conversations' ids."""
    begun = []

    def begin(*arguments):
        done = served.run("run", "--detach", *arguments, LONG)
        assert done.returncode == 0, done.stderr
        begun.append(done.stdout.strip())
        assert wait_until(lambda: begun[-1] in pids(served))
        return begun[-1]

    yield begin
    assert served.run("stop", "--all").returncode == 0


def pids(served):
    return {agent["conversation_id"]: agent["pid"] for agent in served.json("ps")["agents"] if agent["pid"]}


# -- one action, several words


@pytest.mark.parametrize("word", REMOVING)
def test_removing_has_one_meaning_everywhere(served, word):
    assert served.run("secrets", "set", "A_TOKEN", given="a-value-to-keep").returncode == 0
    assert served.run("secrets", word, "A_TOKEN").stdout == "removed A_TOKEN\n"
    assert served.run("run", "hi").returncode == 0
    conversation = served.newest()
    done = served.run("conversations", word, conversation[:8], "--yes")
    assert done.stdout == f"deleted {conversation}\n"
    state = ("--state", str(served.server.state))
    assert served.run("mcp", "add", "files", "--transport", "stdio", "x", *state).returncode == 0
    assert served.run("mcp", word, "files", *state).returncode == 0
    assert json.loads(served.run("mcp", "list", "--json", *state).stdout)["servers"] == []
    assert served.run("settings", "set", "acp_model", "m").returncode == 0
    assert served.run("settings", word, "acp_model").stdout == "acp_model = null\n"


def test_a_setting_of_many_parts_is_removed_whole_or_in_part(serve):
    place = serve()
    assert place.run("settings", "set", "acp_env", '{"A": "1", "B": "2"}').returncode == 0
    assert place.run("settings", "unset", "acp_env.A").returncode == 0
    assert set(place.json("settings", "get", "acp_env")) == {"B"}
    assert place.run("settings", "unset", "acp_env").returncode == 0
    done = place.run("settings", "get", "acp_env")
    assert done.returncode == 1
    done = place.run("settings", "unset", "acp_prompt_timeout")
    assert (done.returncode, done.stderr) == (2, "ostler: acp_prompt_timeout cannot be null\n")


def test_limits_are_set_one_by_one(serve):
    place = serve()
    assert place.run("settings", "set", "acp_limits.memory", "2000000000").returncode == 0
    assert place.run("settings", "set", "acp_limits.cpus", "1.5").returncode == 0
    found = place.json("settings", "get", "acp_limits")
    assert (found["memory"], found["cpus"], found["disk"]) == (2_000_000_000, 1.5, None)
    assert place.run("settings", "unset", "acp_limits.cpus").stdout == "acp_limits.cpus = null\n"
    assert "acp_limits.memory" in place.run("settings", "set", "acp_limits.memory", "2G").stderr
    assert place.run("settings", "unset", "acp_limits.memory").returncode == 0
    assert place.run("settings", "get", "acp_limits").returncode == 1


def test_paths_are_set_as_words(serve):
    place = serve()
    assert place.run("settings", "set", "acp_walls_read", "/data /srv/sets").returncode == 0
    assert place.json("settings", "get", "acp_walls_read") == ["/data", "/srv/sets"]
    assert "acp_walls_read" in place.run("settings", "set", "acp_walls_read", "data").stderr
    assert place.run("settings", "unset", "acp_walls_read").returncode == 0
    assert place.run("settings", "get", "acp_walls_read").returncode == 1


def test_the_agent_of_a_fresh_state_comes_back(serve):
    place = serve()
    place.run("settings", "set", "acp_server", "codex")
    assert place.run("settings", "unset", "acp_server").returncode == 0
    assert place.run("settings", "get", "acp_server").stdout == "demo\n"
    assert place.run("settings", "list").stdout == place.run("settings", "get").stdout
    assert place.run("settings", "show", "acp_server").stdout == "demo\n"
    assert place.run("run", "--yes", "hi").returncode == 0
    shown = place.run("conversations", "show", place.newest()).stdout
    assert "allows every request of the agent" in shown


def test_a_custom_agent_without_a_command(place):
    assert place.run("settings", "get", "acp_server").stdout == "demo\n"
    done = place.run("run", "--agent", "custom", "hi")
    assert done.returncode == 2
    assert "`ostler settings set acp_command 'my-agent --acp'`" in done.stderr


@pytest.mark.parametrize(
    ("word", "same"),
    [("version", "--version"), ("-V", "--version"), ("help", "--help"), ("help stop", "stop --help")],
)
def test_words_for_options(place, word, same):
    done = place.process(*word.split())
    assert done.returncode == 0
    assert done.stdout == place.process(*same.split()).stdout != ""


def test_top_repeats_the_list(served):
    with served.terminal("top", "0.2") as terminal:
        terminal.wait_for("no agents")
        assert terminal.process.poll() is None


# -- without an id


@pytest.mark.parametrize("command", ["restart", "stop"])
def test_the_only_agent_needs_no_id(serve, command):
    place = serve()
    done = place.run(command)
    assert (done.returncode, done.stderr) == (1, "ostler: no agent runs\n")
    conversation = place.run("run", "--detach", "hi").stdout.strip()
    assert place.run("wait", conversation).returncode == 0
    before = pids(place)
    done = place.run(command)
    assert done.returncode == 0, done.stderr
    assert conversation in done.stdout
    assert pids(place).get(conversation) != before[conversation]


def test_of_several_a_script_is_told_and_a_person_chooses(served, running):
    first, second = running(), running()
    for command in ("restart", "stop", "logs"):
        done = served.run(command)
        assert done.returncode == 2
        assert done.stderr.startswith("ostler: several are possible, give the ID of one: ")
        assert done.stderr.count("\n") == 1
        assert first[:8] in done.stderr
        assert second[:8] in done.stderr
    assert served.run("events").returncode == 2
    with served.terminal("stop") as terminal:
        shown = terminal.wait_for("Which one? 1 to 2:")
        number = next(line for line in shown.splitlines() if second[:8] in line)[0]
        terminal.type("9\r")
        terminal.wait_for(lambda text: text.count("Which one?") == 2)
        terminal.type(f"{number}\r")
        assert terminal.end() == 0
        assert f"stopped the agent of {second}" in terminal.text
    assert set(pids(served)) == {first}
    running()
    with served.terminal("stop") as terminal:
        terminal.wait_for("Which one?")
        terminal.type(CTRL_D)
        assert terminal.end() == 1
        assert "\nostler: none was chosen" in terminal.text
    assert len(pids(served)) == 2


def test_the_logs_and_events_of_the_only_conversation(serve):
    place = serve()
    for command in ("logs", "events"):
        done = place.run(command)
        assert (done.returncode, done.stderr) == (1, "ostler: there is no conversation yet\n")
    assert place.run("run", "!complain so it is\n!text done").returncode == 0
    assert place.run("logs").stdout == "so it is\n"
    assert "Message" in place.run("events").stdout


def test_all_agents_or_those_of_a_name(served, running):
    one, other = running(), running("--agent", "demo")
    before = pids(served)
    done = served.run("restart", "--agent", "demo", "--force")
    assert (done.returncode, done.stdout) == (0, f"restarted the agent of {other}\n")
    after = pids(served)
    assert after[one] == before[one]
    assert after[other] != before[other]
    assert set(served.json("restart", "--all", "--force")["restarted"]) == {one, other}
    assert all(pid != after[each] for each, pid in pids(served).items())
    assert set(served.json("stop", "--all")["stopped"]) == {one, other}
    assert served.run("restart", "--all").stdout == "no agents run\n"
    done = served.run("restart", "--agent", "demoo")
    assert done.returncode == 2
    assert "there is no agent 'demoo'; did you mean demo?" in done.stderr
    assert served.run("stop", one, "--all").returncode == 2


# -- other words


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("--versio", "there is no option --versio; did you mean --version?"),
        ("rm", "there is no 'rm'; `ostler conversations`, `ostler mcp`, `ostler secrets`"),
        ("kill", "there is no 'kill'; `ostler stop ID` ends an agent"),
        ("list", "there is no 'list'; there are `list` of `ostler agents`"),
        ("show", "there is no 'show'; there are `ostler conversations show ID`"),
        ("login", "there is no 'login'; agents take keys from `ostler secrets set`"),
        ("agent", "there is no 'agent'; did you mean agents?"),
        ("secrets add X", "there is no 'add'; did you mean set?"),
        ("conversations get f", "there is no 'get'; did you mean show?"),
        ('mcp add-json j {"comand":"npx"}', 'JSON: "comand" is not known; give "command" or "url"'),
        ("agents uninstall codex", "there is no 'uninstall'; an installed agent is a directory"),
        (
            "secrets set A_B hello",
            "the value is typed at the prompt, or piped: echo VALUE | ostler secrets set A_B;",
        ),
        ("secrets set aB hello", "values are not given as arguments (see ostler secrets set --help)"),
        ("completion", "give a shell: bash, zsh or fish"),
        ("completion ksh", "give a shell: bash, zsh or fish"),
        ("run --yolo hi", "unrecognized arguments: --yolo (see ostler run --help)"),
    ],
)
def test_what_is_meant_is_said(place, command, said):
    done = place.process(*command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    "command",
    ["stpo", "sto", "top2", "secrets unse", "secrets rotat", "mcp disabl", "run --ye x", "mcp logot"],
)
def test_nothing_destructive_is_suggested(place, command):
    done = place.run(*command.split())
    assert done.returncode == 2
    for word in UNSUGGESTED:
        assert f"did you mean {word}?" not in done.stderr


# -- the state directory


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (["secrets", "set", "A_TOKEN"], "a-value-to-keep"),
        (["settings", "set", "acp_model", "demo-terse"], ""),
        (["run", "--agent", "demo", "hi"], ""),
    ],
)
@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_server_with_another_state_directory_is_not_used(served, command, given, how):
    """A server at the address, as at the default one, and a state directory that is another."""
    other = served.directory / f"other-{how}"
    env = {"OSTLER_URL": "", "OSTLER_PORT": served.server.url.rpartition(":")[2]}
    env["OSTLER_STATE"] = str(other) if how == "variable" else ""
    state = ["--state", str(other)] if how == "option" else []

    def known():
        return [
            served.json(*words)
            for words in (("conversations", "list"), ("secrets", "list"), ("settings", "get"))
        ]

    before = known()
    done = served.process(*command, *state, given=given, **env)
    assert done.returncode == 0, done.stderr
    assert known() == before
    assert (other / "journal.sqlite3").exists()
    if command[0] == "secrets":
        assert (other / "secrets.json").exists()
        assert "A_TOKEN" in served.process("secrets", "list", *state, **env).stdout


@pytest.mark.parametrize("command", [["ps"], ["stop"], ["run", "--detach", "hi"]])
def test_a_command_that_needs_the_server_says_which_state_it_has(served, command):
    env = {"OSTLER_URL": "", "OSTLER_PORT": served.server.url.rpartition(":")[2]}
    done = served.process(*command, OSTLER_STATE="/nowhere", **env)
    assert (done.returncode, done.stderr) == (
        3,
        f"ostler: no server has the state directory /nowhere (the one at {served.server.url} has "
        f"{served.server.state}); start one with `ostler serve`, or name one with --url or OSTLER_URL\n",
    )


@pytest.mark.parametrize("command", ["secrets list", "settings get", "conversations list", "events", "logs"])
def test_commands_about_the_state_take_its_directory(place, command):
    other = place.directory / "other"
    done = place.run(*command.split(), "--state", str(other))
    assert "unrecognized" not in done.stderr
    assert (other / "journal.sqlite3").exists()
    assert not place.state.exists()


# -- nothing in the log


def test_the_log_of_an_agent_that_wrote_nothing(served, running):
    done = served.run("logs", running())
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "ostler: no standard error: the agent that runs has written nothing\n"


def test_the_last_words_of_an_agent_outlive_the_server(place):
    command = json.dumps(scripted_command(home=place.home / "agent"))
    assert place.run("settings", "set", "acp_command", command).returncode == 0
    assert place.run("run", "!complain so it ends\n!crash 9").returncode == 1
    done = place.run("logs")
    assert done.returncode == 0
    # The turn and the process end at the same time, and the later one is shown: either may be that.
    told = [json.loads(each)["event"] for each in place.run("events", "--json").stdout.splitlines()]
    ends = [each for each in told if each.get("key") == "agent_exit" or "Error" in each["kind"]]
    head, words = "the last failure, on ", "Its last words:\nso it ends\n"
    if ends[-1].get("key") == "agent_exit":
        head, words = "the agent's last exit: 9, on ", "so it ends\nscripted agent: fatal line 1\n"
    assert words in done.stdout
    first, second = done.stderr.splitlines()
    assert first == (
        'ostler: no agent runs, so there is no log to show; "ostler events" shows the conversation'
    )
    assert second.startswith(f"ostler: {head}")
