"""`ostler restart`: give an agent a new process."""

from __future__ import annotations

from argparse import Namespace

from gateway.cli.client import Server
from gateway.cli.present import print_json


def run(server: Server, arguments: Namespace) -> None:
    """Restart the agent of a conversation. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id)
    answer = server.post(f"/api/agents/{conversation_id}/restart", {"force": arguments.force})
    print_json(answer) if arguments.json else print(f"restarted the agent of {conversation_id}")
