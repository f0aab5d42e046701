"""Run by the SDK's Python: some turns in a conversation that is there already.

    real.py URL WORKSPACE CONVERSATION PROMPT...

Prints one JSON line, `{"answers", "status", "kinds"}`.
"""

from __future__ import annotations

import json
import sys
import uuid

from openhands.sdk.conversation.impl.remote_conversation import RemoteConversation
from openhands.sdk.workspace import RemoteWorkspace
from world import kinds, say, status


def main() -> None:
    url, directory, identity, *prompts = sys.argv[1:]
    workspace = RemoteWorkspace(host=url, working_dir=directory)
    conversation = RemoteConversation.attach(workspace, uuid.UUID(identity), visualizer=None)
    conversation.delete_on_close = False
    try:
        answers = [say(conversation, prompt) for prompt in prompts]
        line = {"answers": answers, "status": status(conversation), "kinds": kinds(conversation)}
    finally:
        conversation.close()
    print(json.dumps(line))


if __name__ == "__main__":
    main()
