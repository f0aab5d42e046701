"""Loaded by Schemathesis: keeps what the generated requests do on this machine below one directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import schemathesis

WORKSPACE_VARIABLE = "ATTACK_WORKSPACE"
COMMAND = [sys.executable, "-m", "supervisor.agents.demo"]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Paths that are made and commands that are run become the test's own; what does not fit stays."""
    for found in objects(body):
        path = found.get("working_dir")
        if isinstance(path, str) and path and "\0" not in path:
            found["working_dir"] = os.environ[WORKSPACE_VARIABLE]
        if isinstance(found.get("command"), str) and "\0" not in found["command"]:
            found["command"] = "true"  # what is made up must not be run
        command = found.get("acp_command")
        if isinstance(command, str):
            found["acp_command"] = " ".join(COMMAND)
        elif isinstance(command, list) and command and all(isinstance(word, str) for word in command):
            found["acp_command"] = list(COMMAND)
    return body


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    """The same for paths in queries: what is made or read is below the test's own directory."""
    path = (query or {}).get("path")
    if isinstance(path, str) and path.startswith("/") and "\0" not in path:
        query["path"] = f"{os.environ[WORKSPACE_VARIABLE]}/{path.strip('/.') or 'd'}"
    return query


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a body, the outermost first."""
    if isinstance(value, dict):
        yield value
        for each in list(value.values()):
            yield from objects(each)
    elif isinstance(value, list):
        for each in value:
            yield from objects(each)
