"""Loaded by Schemathesis: keeps what the generated requests do on this machine below one directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import schemathesis

from supervisor.agents.catalog import load_catalog

WORKSPACE_VARIABLE = "ATTACK_WORKSPACE"
COMMAND = [sys.executable, "-m", "supervisor.agents.demo"]


SHORT = 1000
"""Characters of a command that no rule refuses for its length."""

INSTALLED = frozenset(load_catalog()) - {"demo"}
"""Agents that are installed when they are needed."""


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Paths that are made and commands that are run become the test's own; what does not fit stays."""
    for found in objects(body):
        path = found.get("working_dir")
        if isinstance(path, str) and path and "\0" not in path:
            found["working_dir"] = os.environ[WORKSPACE_VARIABLE]
        if isinstance(found.get("command"), str) and "\0" not in found["command"]:
            found["command"] = "true"  # what is made up must not be run
        if isinstance(found.get("acp_server"), str) and found["acp_server"] in INSTALLED:
            found["acp_server"] = "demo"  # another would be installed first, to be asked for its models
        most = found.get("max_iterations")
        if "objective" in found and isinstance(most, int) and not isinstance(most, bool) and most >= 1:
            found["max_iterations"] = 1  # a goal that no judge calls reached keeps its agent busy
        command = found.get("acp_command")
        if isinstance(command, str):
            found["acp_command"] = " ".join(COMMAND)
        elif isinstance(command, list) and command and all(isinstance(word, str) for word in command):
            found["acp_command"] = list(COMMAND)
    return body


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """The same for what is run, where bodies are listed and not made up: `map_body` does not see these. What
    is long is wrong, and stays so."""
    for found in objects(case.body):
        if isinstance(found.get("command"), str) and len(found["command"]) < SHORT:
            found["command"] = "true"
        if isinstance(found.get("acp_server"), str) and found["acp_server"] in INSTALLED:
            found["acp_server"] = "demo"
        if found.get("acp_command") == [] and found.get("acp_server") is None:
            found["acp_server"] = "demo"  # whoever stands in the settings otherwise


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
