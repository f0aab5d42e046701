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
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from scripted_agent import asking, endings, flooding, leaking, pouring  # noqa: F401 - they add their directives
from scripted_agent.agent import Agent
from scripted_agent.directives import DIRECTIVES
from scripted_agent.modes import KNOWN, Modes
from scripted_agent.sessions import Store
from scripted_agent.wire import Log, Wire


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted ACP agent for tests.")
    parser.add_argument("--mode", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("--script", type=Path, help="JSON file with modes and turns")
    parser.add_argument("--log", default=os.environ.get("SCRIPTED_LOG"))
    parser.add_argument("--home", default=os.environ.get("SCRIPTED_HOME"))
    parser.add_argument("--list-modes", action="store_true")
    parser.add_argument("--list-directives", action="store_true")
    options = parser.parse_args()
    if options.list_modes or options.list_directives:
        table = KNOWN if options.list_modes else {f"!{name}": d.help for name, d in DIRECTIVES.items()}
        for name, help_text in table.items():
            print(f"{name:<16} {help_text}")
        return
    script = json.loads(options.script.read_text()) if options.script else {}
    modes = Modes([*script.get("modes", []), *options.mode])
    log = Log(options.log)
    Agent(modes, Wire(log, modes), Store(options.home), log, turns=script.get("turns", [])).run()


if __name__ == "__main__":
    main()
