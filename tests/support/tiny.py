"""The smallest agent that there is: for tests with a hundred of them."""

from __future__ import annotations

import sys

CODE = r"""
import json, os, sys
{setup}
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if number is None or method is None:
        continue
    if method == "initialize":
        result = {{"protocolVersion": 1, "agentCapabilities": {{}}, "authMethods": []}}
    elif method == "session/new":
        result = {{"sessionId": "tiny"}}
    else:
        result = {{"stopReason": "end_turn"}}
    print(json.dumps({{"jsonrpc": "2.0", "id": number, "result": result}}), flush=True)
"""

CHILD = (
    'os.posix_spawnp("sleep", ["sleep", "600"], os.environ, setsid=True, '
    'file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)])'
)
"""A child in a session of its own. `subprocess` would take its time to import."""


def tiny_command(setup: str = "") -> list[str]:
    """An agent that answers everything at once. `setup` is code that it runs first."""
    return [sys.executable, "-I", "-S", "-c", CODE.format(setup=setup)]
