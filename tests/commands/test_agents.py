"""`ostler agents`: without a server."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys

import pytest

from tests.support.processes import alive, mentioning, wait_until
from tests.support.scripted import scripted_command
from tests.support.terminal import CTRL_C

FAKE_NPM = """#!/bin/sh
# What npm does, as far as it matters: takes a while, and leaves the program.
mkdir -p node_modules/@google/gemini-cli/bundle
head -c 3000000 /dev/zero > node_modules/@google/gemini-cli/bundle/large
{more}
sleep 1.2
echo ok > node_modules/@google/gemini-cli/bundle/gemini.js
"""


def results(done):
    return {result["check"]: result for result in json.loads(done.stdout)["results"]}


# -- list


def test_list(place):
    done = place.run(
        "agents", "list", ANTHROPIC_API_KEY="not passed on", OSTLER_SECRET_OPENAI_API_KEY="value-of-it"
    )
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0]
    assert header.split() == ["AGENT", "NAME", "INSTALLED", "VERSION", "CREDENTIAL"]
    assert re.search(r"^demo +Demo +bundled", done.stdout, re.M)
    assert re.search(r"^codex +Codex +no +\S+ +API key OPENAI_API_KEY", done.stdout, re.M)
    assert re.search(r"^claude-code +Claude Code +no +\S+ +none", done.stdout, re.M)
    assert "value-of-it" not in done.stdout
    assert not place.state.exists()  # looking changes nothing


def test_list_knows_what_is_installed(place):
    for key, version in (("codex", "0.0.1"), ("opencode", None)):
        agents = {each["agent"]: each for each in place.json("agents", "list")["agents"]}
        directory = place.state / "agents" / key / "somewhere"
        directory.mkdir(parents=True)
        (directory / ".ostler-installed.json").write_text(
            json.dumps({"version": version or agents[key]["version"]})
        )
    agents = {each["agent"]: each for each in place.json("agents", "list")["agents"]}
    assert (agents["codex"]["installed"], agents["codex"]["version"]) == ("older", "0.0.1")
    assert agents["opencode"]["installed"] == "yes"


def test_list_with_a_store_that_cannot_be_read(place):
    place.state.mkdir(mode=0o700)
    (place.state / "secrets.json").write_text("{")
    done = place.run("agents", "list")
    assert done.returncode == 1
    assert done.stderr.startswith("ostler: the secrets cannot be read")
    assert (place.state / "secrets.json").read_text() == "{"


# -- install


@pytest.fixture
def npm(place):
    """A PATH with an npm of our own."""
    programs = place.directory / "programs"
    programs.mkdir()

    def make(more=""):
        (programs / "npm").write_text(FAKE_NPM.replace("{more}", more))
        (programs / "node").write_text("#!/bin/sh\necho v24.0.0\n")
        for name in ("npm", "node"):
            (programs / name).chmod(0o755)
        return {"PATH": f"{programs}:{os.environ['PATH']}"}

    return make


def test_install_shows_bytes_in_a_terminal(place, npm):
    with place.terminal("agents", "install", "gemini-cli", **npm()) as terminal:
        terminal.wait_for(lambda text: re.search(r"Installing Gemini CLI .*3 MB of about 100 MB", text))
        assert terminal.end() == 0
        assert "is installed in" in terminal.text
        assert "Installing" not in terminal.text  # the bar is gone


def test_leaving_an_installation(place, npm):
    with place.terminal("agents", "install", "gemini-cli", **npm("sleep 60")) as terminal:
        terminal.wait_for("Installing Gemini CLI")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "interrupted; Gemini CLI is not installed" in terminal.text


def test_install_tells_in_a_pipe(place, npm):
    done = place.run("agents", "install", "gemini-cli", **npm())
    assert done.returncode == 0, done.stderr
    assert "Installing Gemini CLI" in done.stderr
    # How much of it is told in a pipe, which has no bar, depends on when it is looked at.
    assert re.search(r"^  \d+ MB of about 100 MB$", done.stderr, re.MULTILINE)
    assert "\x1b" not in done.stderr
    assert "is installed in" in done.stdout
    agents = {each["agent"]: each for each in place.json("agents", "list")["agents"]}
    assert agents["gemini-cli"]["installed"] == "yes"
    again = place.run("agents", "install", "gemini-cli")
    assert (again.returncode, again.stderr) == (0, "")


def test_install_that_fails_says_why(place, npm):
    done = place.run("agents", "install", "gemini-cli", **npm("echo 'no space left' >&2; exit 7"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(
        r"ostler: Installing Gemini CLI failed: npm exited with code 7 after \d+\.\d s: no space left",
        done.stderr.splitlines()[-1],
    )
    assert list((place.state / "agents" / "gemini-cli").glob(".staging-*")) == []


def test_the_cause_of_a_failed_install_is_one_line_and_the_output_of_npm_its_own_lines(place, npm):
    said = ("npm error code E404", "npm error 404 Not Found - GET gemini", "npm error A complete log is in x")
    fails = f"printf '%s\\n' {shlex.join(said)} >&2; exit 1"
    done = place.run("agents", "install", "gemini-cli", **npm(fails))
    *_, first, second, third, last = done.stderr.splitlines()
    assert (first, second, third) == said
    assert last.startswith("ostler: Installing Gemini CLI failed: npm exited with code 1 after ")
    assert last.endswith(" s: npm error 404 Not Found - GET gemini")


@pytest.mark.guarantee(name="nothing-survives")
def test_ctrl_c_in_the_middle_of_an_install_leaves_nothing(place, npm):
    """The registry does not answer: npm waits for it."""
    with place.going_on(
        "agents", "install", "gemini-cli", **npm(f"echo $$ > {place.directory}/pid; exec sleep 600")
    ) as process:
        assert wait_until((place.directory / "pid").exists, 30)
        assert wait_until(lambda: (place.directory / "pid").read_text().strip().isdigit())
        pid = int((place.directory / "pid").read_text())
        assert alive(pid)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "")
    assert "Traceback" not in said
    assert wait_until(lambda: not alive(pid))
    assert list((place.state / "agents" / "gemini-cli").glob(".staging-*")) == []
    assert json.loads(place.run("agents", "list", "--json").stdout)["agents"]
    assert mentioning(place.directory) == []


def test_ctrl_c_in_the_middle_of_an_install_at_a_terminal(place, npm):
    with place.terminal(
        "agents", "install", "gemini-cli", **npm(f"echo $$ > {place.directory}/pid; exec sleep 600")
    ) as terminal:
        terminal.wait_for("Installing Gemini CLI")
        assert wait_until((place.directory / "pid").exists, 30)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text
    assert wait_until(lambda: mentioning(place.directory) == [])


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["install", "cdex"], 2, "did you mean codex?"),
        (["install", "custom"], 1, "has no package to install"),
        (["install"], 2, "NAME"),
        (["probe", "cdex"], 2, "did you mean codex?"),
        (["probe", "custom"], 2, "ostler agents probe -- COMMAND"),
        (["probe"], 2, "NAME"),
        (["probe", "demo", "--timeout", "0"], 2, "not a number of seconds"),
        (["lst"], 2, "did you mean list?"),
    ],
)
def test_what_is_wrong_is_one_line(place, arguments, status, reason):
    done = place.run("agents", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_bundled_one_needs_no_install(place):
    done = place.run("agents", "install", "demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "bundled" in done.stdout


# -- probe


def test_probe_of_an_agent_that_keeps_to_it(place):
    done = place.run("agents", "probe", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    title, header, *rows = done.stdout.splitlines()
    assert title.startswith("ostler-demo ")
    assert header.split() == ["CHECK", "RESULT", "TIME", "WHAT"]
    assert len(rows) == 16
    # It has no shell.
    assert [row.split()[0] for row in rows if " PASS " not in row] == ["shell", "permission", "cut-off"]
    assert sum(" SKIPPED " in row for row in rows) == 3
    assert mentioning(place.directory) == []
    assert list(place.work.iterdir()) == []


def test_probe_of_any_command(place):
    command = scripted_command("without=load,resume,close", home=place.directory / "agent")
    done = place.run("agents", "probe", "--json", "--", *command)
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert (answer["name"], answer["version"], answer["passed"]) == ("scripted-agent", "1.0", True)
    assert answer["models"] == ["small", "large"]
    found = results(done)
    for check in ("session/load", "session/resume", "session/close"):
        assert found[check]["result"] == "NOT OFFERED"
    assert mentioning(place.directory) == []


@pytest.mark.parametrize(
    ("modes", "check", "reason"),
    [
        (["crash=init:3"], "initialize", "3"),
        (["hang=init"], "initialize", "did not answer initialize"),
        (["protocol=2"], "initialize", "2"),
        (["error=new:-32603:kaputt"], "session/new", "kaputt"),
        (["key=NO_SUCH_KEY"], "session/new", ""),
        (["error=prompt:-32603:kaputt"], "session/prompt", "kaputt"),
        (["hang=prompt"], "session/prompt", "session/prompt"),
        (["crash=turn:4"], "session/prompt", "4"),
        (["error=load:-32603:kaputt"], "session/load", "kaputt"),
        (["error=resume:-32603:kaputt"], "session/resume", "kaputt"),
        (["error=close:-32603:kaputt"], "session/close", "kaputt"),
        (["banner=2"], "output", "2 lines are not messages"),
    ],
)
def test_probe_finds_what_is_wrong(place, modes, check, reason):
    command = scripted_command(*modes, home=place.directory / "agent")
    done = place.run("agents", "probe", "--json", "--timeout", "5", "--", *command)
    assert done.returncode == 1, done.stdout
    found = results(done)
    assert found[check]["result"] == "FAIL", found
    assert reason in found[check]["detail"]
    assert mentioning(place.directory) == []


def test_probe_cancels_when_the_turn_says_something(place):
    command = scripted_command("cancel=early", home=place.directory / "agent")
    done = place.run("agents", "probe", "--json", "--timeout", "10", "--", *command)
    assert results(done)["session/cancel"]["result"] == "PASS", done.stdout


def test_leaving_a_probe_waits_for_no_agent(place):
    with place.terminal("agents", "probe", "--", "sleep", "100") as terminal:
        terminal.wait_for("trying initialize")
        terminal.type(CTRL_C)
        assert terminal.end(timeout=5) == 130
    assert mentioning(place.directory) == []


def test_probe_of_an_agent_that_does_not_end(place):
    command = scripted_command("ignore-eof", home=place.directory / "agent")
    done = place.run("agents", "probe", "--json", "--no-prompt", "--", *command)
    assert done.returncode == 1
    assert results(done)["exit"]["result"] == "FAIL"
    assert results(done)["session/prompt"]["result"] == "SKIPPED"
    assert mentioning(place.directory) == []


def test_probe_of_what_is_no_agent(place):
    done = place.run(
        "agents", "probe", "--json", "--timeout", "2", "--", sys.executable, "-c", "print('hello')"
    )
    assert done.returncode == 1
    assert results(done)["initialize"]["result"] == "FAIL"
    done = place.run("agents", "probe", "--", "/no/such/program", "x")
    assert done.returncode == 1
    assert re.search(r"^start +FAIL", done.stdout, re.M)


SHELL = """
import json, pathlib, re, subprocess, sys
mode = sys.argv[1]
def send(**m): print(json.dumps({"jsonrpc": "2.0", **m}), flush=True)
def call(method, **params):
    send(id="c", method=method, params={"sessionId": "s", **params})
    while (m := json.loads(sys.stdin.readline())).get("id") != "c" or "method" in m: pass
    return m
def update(**u): send(method="session/update", params={"sessionId": "s", "update": u})
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        can = {"loadSession": mode in ("leaves", "resumes", "forgets", "falls")}
        send(id=m["id"], result={"protocolVersion": 1, "agentCapabilities": can})
    elif m.get("method") == "session/load" and mode == "falls": sys.exit(3)
    elif m.get("method") == "session/load" and mode == "forgets":
        send(id=m["id"], error={"code": -32603, "message": "forgotten"})
    elif m.get("method") == "session/load": send(id=m["id"], result={})
    elif m.get("method") == "session/new": send(id=m["id"], result={"sessionId": "s"})
    elif m.get("method") == "session/prompt":
        found = re.search("printed: (.*)", m["params"]["prompt"][0]["text"])
        pending = pathlib.Path("pending")
        if mode == "resumes" and pending.exists():
            subprocess.run(pending.read_text().replace("60", "0"), shell=True)
        if found:
            command, said = found[1], "nothing"
            tool = {"toolCallId": "t", "title": command, "kind": "execute"}
            update(sessionUpdate="tool_call", status="pending", **tool)
            if mode == "asks":
                options = [{"optionId": "always", "name": "a", "kind": "allow_always"},
                           {"optionId": "once", "name": "o", "kind": "allow_once"}]
                answer = call("session/request_permission", toolCall=tool, options=options)
                assert answer["result"]["outcome"]["optionId"] == "once"
            if mode in ("apart", "mixed"):
                if mode == "mixed":
                    update(sessionUpdate="tool_call", status="pending", toolCallId="u", title="rm -rf /")
                asked = {"toolCallId": "confirmation", "title": "Confirm", "kind": "other"}
                answer = call("session/request_permission", toolCall=asked, options=[
                    {"optionId": "yes", "name": "y", "kind": "allow_once"},
                    {"optionId": "no", "name": "n", "kind": "reject_once"}])
                if answer["result"]["outcome"]["optionId"] == "no": command = "true"
            if mode == "misses":
                call("terminal/start", command=command)
            elif mode == "terminal":
                made = call("terminal/create", command="sh", args=["-c", command])["result"]["terminalId"]
                call("terminal/wait_for_exit", terminalId=made)
                said = call("terminal/output", terminalId=made)["result"]["output"]
            else:
                pending.write_text(command)
                said = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
                pending.unlink()
            update(sessionUpdate="tool_call_update", toolCallId="t", status="completed", rawOutput=said)
        update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "ready"})
        send(id=m["id"], result={"stopReason": "end_turn"})
    elif "id" in m and "method" in m: send(id=m["id"], error={"code": -32601, "message": "no"})
"""


@pytest.mark.parametrize(
    ("mode", "shell", "permission", "methods"),
    [
        ("asks", "PASS", "PASS", "PASS"),
        ("terminal", "PASS", "NOT OFFERED", "PASS"),
        ("misses", "FAIL", "SKIPPED", "FAIL"),
        ("apart", "PASS", "PASS", "PASS"),
        ("mixed", "FAIL", "PASS", "PASS"),
    ],
)
def test_a_probe_tries_a_shell(place, mode, shell, permission, methods):
    program = place.directory / "shell.py"
    program.write_text(SHELL)
    done = place.run("agents", "probe", "--json", "--", sys.executable, str(program), mode)
    found = results(done)
    assert found["shell"]["result"] == shell, done.stdout
    assert found["permission"]["result"] == permission
    assert found["client methods"]["result"] == methods
    if mode == "asks":
        assert found["permission"]["detail"] == "asked; always: allow_always, once: allow_once"
    if mode == "misses":
        assert "it asked for terminal/start" in found["shell"]["detail"]
        assert found["client methods"]["detail"] == "called without being offered: terminal/start"


@pytest.mark.parametrize(
    ("mode", "result", "detail"),
    [
        ("leaves", "PASS", "left alone"),
        ("resumes", "FAIL", "runs again with the next prompt, unasked"),
        ("plain", "NOT OFFERED", "no session is restored"),
        ("forgets", "SKIPPED", "the session was not restored: [-32603] forgotten"),
        ("falls", "SKIPPED", "the session was not restored: "),
    ],
)
def test_a_probe_finds_out_whether_a_command_that_was_cut_off_runs_again(place, mode, result, detail):
    program = place.directory / "shell.py"
    program.write_text(SHELL)
    done = place.run("agents", "probe", "--json", "--", sys.executable, str(program), mode)
    found = results(done)["cut-off call"]
    assert (found["result"], detail in found["detail"]) == (result, True), done.stdout
    restored = results(done).get("session/load", {"result": "NOT OFFERED"})["result"]
    assert done.returncode == (1 if "FAIL" in (result, restored) else 0)
    assert mentioning(place.directory) == []


def test_a_probe_takes_a_result_of_an_unknown_method(place):
    """The Python SDK's agents answer `{}` to whatever may be an extension."""
    program = place.directory / "shell.py"
    program.write_text(
        SHELL.replace(
            'send(id=m["id"], error={"code": -32601, "message": "no"})', 'send(id=m["id"], result={})'
        )
    )
    done = place.run("agents", "probe", "--json", "--", sys.executable, str(program), "plain")
    found = results(done)["unknown method"]
    assert (found["result"], found["detail"]) == ("PASS", "a result instead of an error: {}")


def test_each_process_of_a_probe_has_its_home_and_its_temporary_files(place):
    """What an agent has of them goes with its process; the next one is started as in a conversation."""
    command = scripted_command("keep=HOME", "hub=TMPDIR")
    done = place.run("agents", "probe", "--json", "--", *command)
    found = results(done)
    for check in ("session/load", "session/resume"):
        assert found[check]["result"] == "PASS", done.stdout


def test_a_probe_allows_nothing(place):
    program = place.directory / "asks.py"
    program.write_text(
        "import json, sys\n"
        "def send(**m): print(json.dumps({'jsonrpc': '2.0', **m}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m.get('method') == 'initialize': send(id=m['id'], result={'protocolVersion': 1})\n"
        "    elif m.get('method') == 'session/new': send(id=m['id'], result={'sessionId': 's'})\n"
        "    elif m.get('method') == 'session/prompt':\n"
        "        asked = m['id']\n"
        "        options = [{'optionId': 'yes', 'name': 'y', 'kind': 'allow_always'},\n"
        "                   {'optionId': 'no', 'name': 'n', 'kind': 'reject_once'}]\n"
        "        send(id='p', method='session/request_permission', params={'sessionId': 's',\n"
        "             'toolCall': {'toolCallId': 'c', 'title': 'rm'}, 'options': options})\n"
        "    elif m.get('id') == 'p':\n"
        "        update = {'sessionUpdate': 'agent_message_chunk', 'content': {'type': 'text',\n"
        "                  'text': m['result']['outcome']['optionId']}}\n"
        "        send(method='session/update', params={'sessionId': 's', 'update': update})\n"
        f"        open({str(place.directory / 'answer')!r}, 'w').write(m['result']['outcome']['optionId'])\n"
        "        send(id=asked, result={'stopReason': 'end_turn'})\n"
        "    elif 'id' in m: send(id=m['id'], error={'code': -32601, 'message': 'no'})\n"
    )
    done = place.run("agents", "probe", "--json", "--", sys.executable, str(program))
    assert results(done)["session/prompt"]["result"] == "PASS", done.stdout
    assert (place.directory / "answer").read_text() == "no"
