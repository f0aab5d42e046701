"""Run by the SDK's Python: the checks, each against the server at URL.

    run.py URL DIRECTORY NAMES COMMAND...

NAMES are the checks to run, separated by commas, or `all`; COMMAND starts a scripted agent. Prints one
JSON line per
check, `{"check", "seconds", "error"}`, and one with `uncovered`: public methods that no check is about,
and `stale`: those
that a check names though the SDK has no such method.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

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


def public() -> set[str]:
    """Every public method and property of the SDK's own, inherited ones too."""
    found = set()
    for each in CLASSES:
        for base in each.__mro__:
            if not base.__module__.startswith("openhands.sdk.") or base.__module__.startswith(
                "openhands.sdk.utils."
            ):
                continue
            for name, member in vars(base).items():
                if name.startswith("_") or (hasattr(BaseModel, name) and issubclass(each, BaseModel)):
                    continue
                if inspect.isroutine(member) or isinstance(member, property):
                    found.add(f"{each.__name__}.{name}")
    return found


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
    chosen = list(CHECKS) if names == "all" else names.split(",")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        trials = [pool.submit(tried, name, World(url, Path(directory) / name, command)) for name in chosen]
        for trial in as_completed(trials):
            print(json.dumps(trial.result()), flush=True)
    found = public()
    line = {
        "sdk": openhands.sdk.__version__,
        "uncovered": sorted(found - set(COVERED)),
        "stale": sorted(set(COVERED) - found),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
