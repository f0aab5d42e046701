"""Run by the SDK's Python: the checks, each against the server at URL.

    run.py URL DIRECTORY NAMES COMMAND...

NAMES are the checks to run, separated by commas, or `all`; COMMAND starts a scripted agent. Prints one JSON
line per check, `{"check", "seconds", "error"}`, and one with `uncovered`: public methods that no check is
about; `uncalled`: those that did not run; `stale`: those that a check names and the SDK has not.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import CodeType
from typing import Any

import conversation_checks  # noqa: F401 - they add their checks
import openhands.sdk
import workspace_checks  # noqa: F401 - they add their checks
from openhands.sdk.conversation.impl.remote_conversation import (
    RemoteConversation,
    RemoteEventsList,
    RemoteState,
    WebSocketCallbackClient,
)
from openhands.sdk.workspace import AsyncRemoteWorkspace, RemoteWorkspace
from pydantic import BaseModel
from world import CHECKS, COVERED, World

AT_ONCE = 6  # checks; most of the time each waits for a socket's thread to end
CLASSES = (
    RemoteConversation,
    RemoteState,
    RemoteEventsList,
    WebSocketCallbackClient,
    RemoteWorkspace,
    AsyncRemoteWorkspace,
)


def public() -> dict[str, CodeType | None]:
    """Every public method and property of the SDK's own, inherited ones too, and its code."""
    found: dict[str, CodeType | None] = {}
    for each in CLASSES:
        for base in reversed(each.__mro__):
            if not base.__module__.startswith("openhands.sdk.") or base.__module__.startswith(
                "openhands.sdk.utils."
            ):
                continue
            for name, member in vars(base).items():
                if name.startswith("_") or (hasattr(BaseModel, name) and issubclass(each, BaseModel)):
                    continue
                if isinstance(member, property):
                    found[f"{each.__name__}.{name}"] = code_of(member.fget)
                elif inspect.isroutine(member):
                    found[f"{each.__name__}.{name}"] = code_of(getattr(member, "__func__", member))
    return found


def code_of(member: Any) -> CodeType | None:
    return getattr(inspect.unwrap(member), "__code__", None)


def watch(found: dict[str, CodeType | None]) -> set[str]:
    """From here on, the names of those that have run."""
    called: set[str] = set()
    names: dict[CodeType, list[str]] = {}
    for name, code in found.items():
        if code is not None:
            names.setdefault(code, []).append(name)

    def begun(code: CodeType, _: int) -> None:
        own = names[code]
        if len(own) > 1:  # inherited by several: of the one whose object it is
            first = sys._getframe(1).f_locals.get(code.co_varnames[0])
            of = first if isinstance(first, type) else type(first)
            own = [name for name in own if name.partition(".")[0] in {base.__name__ for base in of.__mro__}]
        called.update(own)

    tool = sys.monitoring.COVERAGE_ID
    sys.monitoring.use_tool_id(tool, "checks")
    sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, begun)
    for code in names:
        sys.monitoring.set_local_events(tool, code, sys.monitoring.events.PY_START)
    return called


def tried(name: str, world: World) -> dict[str, object]:
    begin = time.monotonic()
    error = None
    try:
        CHECKS[name](world)
    except BaseException:
        error = traceback.format_exc()
    try:
        world.close()
    except Exception:
        error = error or traceback.format_exc()
    return {"check": name, "seconds": round(time.monotonic() - begin, 2), "error": error}


def main() -> None:
    url, directory, names, *command = sys.argv[1:]
    found = public()
    called = watch(found)
    chosen = list(CHECKS) if names == "all" else names.split(",")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        trials = [pool.submit(tried, name, World(url, Path(directory) / name, command)) for name in chosen]
        for trial in as_completed(trials):
            print(json.dumps(trial.result()), flush=True)
    line = {
        "sdk": openhands.sdk.__version__,
        "uncovered": sorted(found.keys() - COVERED.keys()),
        "uncalled": sorted(found.keys() - called),
        "stale": sorted(COVERED.keys() - found.keys()),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
