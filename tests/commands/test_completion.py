"""`ostler completion`: the shells themselves source the scripts and complete."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sysconfig

import pytest

from gateway.cli.completion import candidates
from gateway.cli.parser import build_parser
from gateway.cli.suggest import main_names, options_of, subparsers_of
from tests.support.terminal import Terminal

BASH = """
set -eu
PATH="{programs}:$PATH"
eval "$(ostler completion bash)"
complete -p ostler
complete_words() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _ostler
    printf '%s\\n' "${{COMPREPLY[@]}}"
}}
complete_words ostler {words}
"""


def bash(place, *words):
    """What bash completes, the last word being under way."""
    script = BASH.format(programs=sysconfig.get_path("scripts"), words=shlex.join(words))
    done = subprocess.run(
        ["bash", "-c", script],
        env=place.env,
        cwd=place.work,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    registered, *found = done.stdout.splitlines()
    assert registered == "complete -F _ostler ostler"
    return [each for each in found if each]


PARSER = build_parser()


def offered(*words):
    return [word for word, _ in candidates(PARSER, list(words))]


# -- what is offered


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["co"], ["conversations", "completion"]),
        (["to"], ["top"]),
        (["top", "--js"], ["--json"]),
        (["ver"], ["version"]),
        (["hel"], ["help"]),
        (["help", "secrets", "un"], ["unset"]),
        (["conversations", "r"], ["remove", "rm"]),
        (["mcp", "de"], ["delete"]),
        (["restart", "--a"], ["--all", "--agent"]),
        (["restart", "--agent", "cod"], ["codex"]),
        (["secrets", "list", "--st"], ["--state"]),
        (["conversations", ""], ["list", "show", "diff", "export", "delete"]),
        (["conversations", "export", "f", "--fo"], ["--format"]),
        (["conversations", "export", "f", "--format", ""], ["jsonl", "md"]),
        (["run", "--agent", "cl"], ["claude-code", "cline"]),
        (["run", "--cont"], ["--continue"]),
        (["agents", "install", "g"], ["gemini-cli"]),
        (["agents", "probe", "--no-prompt", "d"], ["demo"]),
        (["secrets", "check", "ki"], ["kimi-code"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["serve", "--po"], ["--port"]),
        (["--vers"], ["--version"]),
        (["serve", "--containment", ""], ["auto", "tree", "warden", "cgroup", "pidns"]),
        (["serve", "--containment", "=", "cg"], ["cgroup"]),
        (["serve", "--containment", "="], ["auto", "tree", "warden", "cgroup", "pidns"]),
        (["serve", "--containment=cg"], ["--containment=cgroup"]),
        (["settings", "set", "acp_server", "cu"], ["custom"]),
        (["settings", "set", "acp_server", "cl"], ["claude-code", "cline"]),
        (["settings", "set", "acp_model", ""], []),
        (["settings", "set", "acp_server", "custom", ""], []),
        (["mcp", "lo"], ["login", "logout"]),
        (["mcp", "test", "--ti"], ["--timeout"]),
        (["mcp", "add", "x", "--transport", ""], ["http", "sse", "stdio"]),
        (["mcp", "add", ""], []),
        (["nothing", ""], []),
        (["status", ""], []),
        (["run", "--model", ""], []),
    ],
)
def test_what_is_offered(words, wanted):
    assert offered(*words) == wanted


def test_every_command_and_every_option_is_offered():
    def walk(parser, words):
        for option in options_of(parser):
            if option.startswith("--"):
                assert option in offered(*words, option), (words, option)
        below = subparsers_of(parser)
        if below is not None:
            assert offered(*words, "") == main_names(list(below.choices))
            for name, each in below.choices.items():
                assert name in offered(*words, name)
                walk(each, [*words, name])

    walk(PARSER, [])


def test_paths(tmp_path, monkeypatch):
    (tmp_path / "work-here").mkdir()
    (tmp_path / "work.txt").write_text("")
    (tmp_path / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    assert offered("run", "--cwd", "w") == ["work-here/"]
    assert offered("run", "--cwd", "") == ["work-here/"]
    assert offered("conversations", "export", "f", "-o", "w") == ["work-here/", "work.txt"]
    assert offered("run", "--cwd", f"{tmp_path}/wo") == [f"{tmp_path}/work-here/"]


def test_mcp_servers(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTLER_STATE", str(tmp_path))
    assert offered("mcp", "get", "") == []
    servers = {"files": {"command": "c"}, "web": {"url": "http://127.0.0.1:1", "enabled": False}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    for action in ("get", "remove", "rm", "test", "login", "logout"):
        assert offered("mcp", action, "") == ["files", "web"]
        assert offered("mcp", action, "--json", "w") == ["web"]
    assert offered("mcp", "enable", "") == ["web"]
    assert offered("mcp", "disable", "") == ["files"]
    assert offered("mcp", "get", "--state", str(tmp_path / "other"), "") == []
    assert offered("mcp", "get", "files", "") == []
    (tmp_path / "mcp.json").write_text("{")
    assert offered("mcp", "get", "") == []


# -- shells


def test_bash(place):
    assert bash(place, "conv") == ["conversations"]
    assert bash(place, "run", "--ag") == ["--agent"]
    assert bash(place, "conversations", "") == ["list", "show", "diff", "export", "delete"]
    assert bash(place, "agents", "install", "cod") == ["codex"]
    assert bash(place, "ps", "--") == ["--help", "--url", "--json", "--watch"]
    assert bash(place, "agents", "probe", "--", "dem") == ["demo"]


def test_bash_completes_ids_of_the_server(served):
    assert served.run("run", "one").returncode == 0
    newest = served.newest()
    assert bash(served, "logs", newest[:6]) == [newest]
    assert newest in bash(served, "conversations", "delete", "")
    assert bash(served, "run", "--resume", newest[:6]) == [newest]
    assert "acp_model" in bash(served, "settings", "get", "acp_m")
    assert bash(served, "settings", "set", "acp_server", "cod") == ["codex"]


def test_ids_without_a_server(place):
    assert bash(place, "logs", "") == []


def test_a_person_in_bash(place):
    env = {**place.env, "PATH": f"{sysconfig.get_path('scripts')}:{place.env['PATH']}", "PS1": "$ "}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], env, place.work) as terminal:
        terminal.type('eval "$(ostler completion bash)" && echo so""urced\r')
        terminal.wait_for("\nsourced")
        terminal.type("ostler conv\t")
        terminal.wait_for("$ ostler conversations")
        terminal.type("ex\t")
        terminal.wait_for("$ ostler conversations export")
        terminal.type("\x15ostler ps --\t\t")
        terminal.wait_for(lambda text: re.search(r"--help +--json .*\n\$ ostler ps --\s*$", text))
        terminal.type("wa\t")
        terminal.wait_for("$ ostler ps --watch")
        terminal.type("\x15ostler serve --containment=cg\t")
        terminal.wait_for("$ ostler serve --containment=cgroup")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_a_person_in_zsh(place):
    env = {**place.env, "PATH": f"{sysconfig.get_path('scripts')}:{place.env['PATH']}"}
    with Terminal(["zsh", "-f", "-i"], env, place.work) as terminal:
        terminal.type(
            'autoload -U compinit && compinit -u -D && eval "$(ostler completion zsh)" && echo so""urced\r'
        )
        terminal.wait_for("\nsourced")
        terminal.type("ostler conv\t")
        terminal.wait_for("ostler conversations")
        terminal.type("ex\t")
        terminal.wait_for("ostler conversations export")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish(place):
    script = f"set -x PATH {sysconfig.get_path('scripts')} $PATH; ostler completion fish | source; "
    done = subprocess.run(
        ["fish", "--no-config", "-c", script + "complete -C 'ostler conv'; complete -C 'ostler run --ag'"],
        env=place.env, cwd=place.work, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert words == ["conversations", "--agent"]


def test_a_shell_that_there_is_not(place):
    done = place.run("completion", "bsh")
    assert done.returncode == 2
    assert "did you mean bash?" in done.stderr
