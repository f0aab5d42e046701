"""`ostler attach` at a terminal: follow a running conversation, and answer its questions."""

from __future__ import annotations

import sys
from argparse import Namespace

from gateway.cli.client import Server
from gateway.cli.follow import events
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.question import unseen_typing
from gateway.cli.talk.start_request import introduced
from gateway.cli.talk.talk import AskInTerminal, Talk
from gateway.cli.talk.track import AT_REST, WAITING, Item, UserSaid
from gateway.cli.terminal import asks, console
from gateway.cli.text import SHORT_ID


class Watching(Narration):
    """Also shows what others write to the agent. `working`: the agent is in a turn."""

    working = False

    def begin(self) -> None:
        """Note that a turn begins, or that one is waited for."""
        super().begin()
        if not self.working:
            self.end()

    def tell(self, item: Item) -> None:
        """Write an item."""
        if isinstance(item, UserSaid) and not item.note:
            self.line(f"> {item.text}", "bold")
        super().tell(item)


def attach(server: Server, arguments: Namespace) -> None:
    """Follow until interrupted: with questions at a terminal, else as lines. Raises Failure."""
    if arguments.json or arguments.all or not (asks() and sys.stdout.isatty()):
        events.attach(server, arguments)
        return
    conversation_id = server.conversation_id(arguments.id) if arguments.id else server.newest()
    narration = Watching(console(sys.stdout))
    info = server.get(f"/api/conversations/{conversation_id}")
    narration.note(f"attached to {introduced(info)}")
    talk = Talk(server, conversation_id, narration, AskInTerminal(narration))
    talk.title = info.get("title") or ""
    with unseen_typing():
        talk.join()
        if talk.track.status in AT_REST:
            narration.note("it is idle; Ctrl-C leaves")
        try:
            while True:
                narration.working = talk.track.status not in AT_REST
                outcome = talk.outcome()
                narration.note(f"{outcome.status} after {outcome.seconds:.1f} s")
        except KeyboardInterrupt:
            if talk.track.status == WAITING:
                narration.note(f"the question stays open; ostler approve {conversation_id[:SHORT_ID]}")
            raise
