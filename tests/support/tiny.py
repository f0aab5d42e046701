"""The smallest agent that there is: for tests with a hundred of them."""

from __future__ import annotations

import sys

CODE = r"""
import json, subprocess, sys
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

CHILD = 'subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, start_new_session=True)'


def tiny_command(setup: str = "") -> list[str]:
    """An agent that answers everything at once. `setup` is code that it runs first."""
    return [sys.executable, "-I", "-S", "-c", CODE.format(setup=setup)]
