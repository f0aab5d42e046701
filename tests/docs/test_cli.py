"""docs/cli.md and the parser know the same commands and options; every --help has examples, and is quick."""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.parser import build_parser
from gateway.cli.suggest import main_names, options_of, subparsers_of

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "cli.md").read_text()
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*|-[a-z])(?![\w-])")
ALWAYS = {"-h", "--help"}
COMMON = {"--json", "--url", "--state"}
"""Options of most commands, which the page describes once, above the commands."""

RUNS = 7
SLOWER_AT_MOST = 4.0  # than an interpreter that does nothing: measured, 2.6 times


def walk(parser, words=()):
    """Every command that does something, with its parser."""
    below = subparsers_of(parser)
    if below is None:
        yield " ".join(words), parser
        return
    for name in main_names(list(below.choices)):
        yield from walk(below.choices[name], (*words, name))


COMMANDS = dict(walk(build_parser()))


def sections():
    """The text below each heading that names a command."""
    found = {}
    for part in re.split(r"^##+ ", DOCUMENT, flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        assert heading.startswith("ostler "), heading
        found[heading.removeprefix("ostler ")] = text
    return found


def examples(text):
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def test_the_document_has_every_command_and_no_other():
    groups = {command.split()[0] for command in COMMANDS if " " in command}
    assert set(sections()) == set(COMMANDS) | groups


@pytest.mark.parametrize("command", COMMANDS)
def test_the_document_has_every_option_and_no_other(command):
    text = sections()[command]
    known = set(options_of(COMMANDS[command])) - ALWAYS
    # What stands in quotes or after -- is somebody else's, and other programs have options, too.
    own = re.sub(r'"[^"\n]*"| -- .*|\| jq .*|kill -9|mkdir -p', "", text)
    named = set(OPTION.findall(own))
    assert named - known == set()
    long = {option for option in known if option.startswith("--")}
    assert long - named - COMMON == set()


def test_the_document_describes_the_common_options_above_the_commands():
    above = DOCUMENT.partition("\n## ")[0]
    assert set(OPTION.findall(above)) - ALWAYS == COMMON
    of_commands = [set(options_of(parser)) for parser in COMMANDS.values()]
    assert all(sum(option in each for each in of_commands) > 5 for option in COMMON)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_document_has_examples_that_can_be_parsed(command):
    found = [line for line in examples(sections()[command]) if "ostler" in line]
    assert found
    for line in found:
        for call in re.findall(r'ostler ((?:"[^"]*"|[^|>#)"])*)', line):
            words = shlex.split(call)
            assert build_parser().parse_args(words).command == command.split()[0]


@pytest.mark.parametrize(
    "command", ["", *COMMANDS, *sorted({each.split()[0] for each in COMMANDS if " " in each})]
)
def test_every_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as info:
        build_parser().parse_args([*command.split(), "--help"])
    assert info.value.code == 0
    text = capsys.readouterr().out
    assert "\nexamples:\n  " in text
    shown = text.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert any("ostler" in line for line in shown)
    assert all(len(line) <= 110 for line in text.splitlines())


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_and_version_are_quick():
    def best(*command):
        """The least of some runs, in seconds of the processor: the clock would count others, too."""
        taken = []
        for _ in range(RUNS):
            began = children_seconds()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            taken.append(children_seconds() - began)
        return min(taken)

    nothing = best(sys.executable, "-c", "pass")
    for option in ("--help", "--version"):
        assert best(sys.executable, "-m", "gateway", option) < SLOWER_AT_MOST * nothing


def test_help_loads_no_library():
    code = (
        "import sys; from gateway.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'trio', 'rich', 'prompt_toolkit', 'attr', 'orjson', 'http.client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("chta", "did you mean chat?"),
        ("conversation list", "did you mean conversations?"),
        ("conversations lisst", "did you mean list?"),
        ("run --jsn hi", "did you mean --json?"),
        ("ps --wach", "did you mean --watch?"),
        ("agents probe demo --no-promt", "did you mean --no-prompt?"),
        ("mpc list", "did you mean mcp?"),
        ("mcp lst", "did you mean list?"),
        ("mcp list --jsn", "did you mean --json?"),
        ("mcp add x --transport http --haeder K:v http://x", "did you mean --header?"),
        ("zzzzzz", "choose from"),
    ],
)
def test_did_you_mean(words, hint):
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *words.split()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert done.stderr.count("\n") == 1
