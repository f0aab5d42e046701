"""A scripted ACP agent: a process that behaves, or misbehaves, exactly as a test asks.

Standard library only. It is started like any agent and speaks ACP version 1 on its pipes::

    python scripted.py [--mode NAME[=VALUE]]... [--script FILE] [--log FILE] [--home DIR]

Modes (`--list-modes` prints them) choose what holds for the whole process; lines of a prompt that begin
with `!` choose what one turn does (`--list-directives` prints them). Other lines are echoed, one chunk per
word, so that one process serves a whole scenario. `--script FILE` holds a JSON object
`{"modes": [...], "turns": ["!tool", ...]}`: the n-th prompt of the process runs `turns[n]` in place of its
own text while there is one.

What it received, started and spawned goes to `--log` (or SCRIPTED_LOG) as JSON lines, one `write` each, so
that several incarnations may share the file. Sessions live in `--home` (or SCRIPTED_HOME), so that a later
incarnation can load or resume them. The arguments exist because a supervisor hands its agents no
environment but its own choice.

Hundreds of it start in a run of the tests: what is slow to import is imported where it is needed.
"""

from __future__ import annotations

import getopt
import json
import os
import sys

from scripted_agent import (  # noqa: F401 - they add their directives
    asking,
    endings,
    flooding,
    leaking,
    loads,
    pouring,
    questions,
    recorded,
    taking,
    telling,
)
from scripted_agent.agent import Agent
from scripted_agent.directives import DIRECTIVES
from scripted_agent.modes import KNOWN, Modes
from scripted_agent.sessions import Store
from scripted_agent.wire import Log, Wire

OPTIONS = ("mode=", "script=", "log=", "home=", "list-modes", "list-directives")


def main() -> None:
    try:
        given, rest = getopt.getopt(sys.argv[1:], "", OPTIONS)
    except getopt.GetoptError as error:
        sys.exit(f"scripted.py: {error}")
    if rest:
        sys.exit(f"scripted.py: unknown argument {rest[0]}")
    options = dict(given)
    if "--list-modes" in options or "--list-directives" in options:
        table = KNOWN if "--list-modes" in options else {f"!{name}": d.help for name, d in DIRECTIVES.items()}
        for name, help_text in table.items():
            print(f"{name:<16} {help_text}")
        return
    script = {}
    if "--script" in options:
        with open(options["--script"]) as file:
            script = json.load(file)
    modes = Modes([*script.get("modes", []), *(value for name, value in given if name == "--mode")])
    log = Log(options.get("--log") or os.environ.get("SCRIPTED_LOG"))
    home = options.get("--home") or os.environ.get("SCRIPTED_HOME")
    if "keep" in modes:
        variable, _, below = modes.text("keep").partition("/")
        home = os.path.join(os.environ[variable], below, ".scripted", "sessions")
    store = Store(home, numbered="numbered" in modes)
    Agent(modes, Wire(log, modes), store, log, turns=script.get("turns", [])).run()


if __name__ == "__main__":
    main()
