"""`ostler stop`: end an agent's process; the conversation remains."""

from __future__ import annotations

from argparse import Namespace

from gateway.cli.client import Server
from gateway.cli.present import print_json


def run(server: Server, arguments: Namespace) -> None:
    """Stop the agent of a conversation. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id)
    answer = server.post(f"/api/agents/{conversation_id}/stop")
    print_json(answer) if arguments.json else print(f"stopped the agent of {conversation_id}")
