"""Permission requests in the terminal: a person answers them, or they are refused."""

from __future__ import annotations

from gateway.cli.present import warn
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.track import Track

UNATTENDED = "permission refused: there is no terminal to ask in; `ostler run --yes` allows everything"


class AskInTerminal:
    """Shows the waiting calls and asks about them. `always` holds for later ones, too."""

    def __init__(self, narration: Narration) -> None:
        self._narration = narration
        self.always = False

    async def __call__(self, track: Track) -> bool:
        """True to allow, False to refuse."""
        if self.always:
            return True
        answer = await self._narration.ask(track.asking).answer()
        self._narration.answered()
        self.always = answer == "always"
        return answer != "no"


class RefuseAll:
    """Refuses, and says on standard error what to do."""

    def __init__(self, narration: Narration) -> None:
        self._narration = narration
        self._warned = False

    async def __call__(self, track: Track) -> bool:
        """False."""
        for call in track.asking:
            self._narration.note(f"? {call.title}")
        if not self._warned:
            self._warned = True
            warn(UNATTENDED)
        return False
