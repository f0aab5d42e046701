"""Permission requests in the terminal: a person answers them, or they are refused."""

from __future__ import annotations

import sys

from gateway.cli.follow.feed import Feed
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.track import Track

NOBODY = "permission refused: there is no terminal to ask in; `ostler run --yes` allows everything"


class AskInTerminal:
    """Shows the waiting calls and asks about them. `always` holds for later ones, too."""

    def __init__(self, narration: Narration) -> None:
        self._narration = narration
        self.always = False

    def __call__(self, track: Track, feed: Feed) -> bool | None:
        """True to allow, False to refuse, None when the question is over."""
        if self.always:
            return True
        question = self._narration.ask(track.asking)
        feed.calm()
        answer = None if feed.waiting else question.answer(feed.wake)
        if answer is not None:
            self._narration.answered()
        if answer == "always":
            self.always = True
        return None if answer is None else answer != "no"


class RefuseAll:
    """Refuses, and says on standard error what to do."""

    def __init__(self, narration: Narration) -> None:
        self._narration = narration
        self._told = False

    def __call__(self, track: Track, feed: Feed) -> bool | None:
        """False."""
        for call in track.asking:
            self._narration.note(f"? {call.title}")
        if not self._told:
            self._told = True
            print(f"ostler: {NOBODY}", file=sys.stderr)
        return False
