"""The demo's sessions: one small JSON file each."""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

HOME_VARIABLE = "OSTLER_DEMO_HOME"
DEFAULT_HOME = ".ostler-demo"

MODES = {
    "ask": ("Ask", "Asks before it writes a file"),
    "auto": ("Auto", "Writes without asking"),
}
DEFAULT_MODE = "ask"

MODELS = {
    "demo-polite": ("Polite", "Answers in whole sentences"),
    "demo-terse": ("Terse", "Answers in few words"),
}
DEFAULT_MODEL = "demo-polite"


class Session:
    """One conversation with the demo."""

    def __init__(self, session_id: str, cwd: str) -> None:
        self.id = session_id
        self.cwd = cwd
        self.mode = DEFAULT_MODE
        self.model = DEFAULT_MODEL
        self.may_write = False
        """Whether the person has chosen to always allow writing."""
        self.turns: list[dict[str, str]] = []
        """Finished turns: what the person said and what the demo answered."""

    def options(self) -> list[dict[str, Any]]:
        """The session's configuration as the protocol lists it."""
        return [
            _select("mode", "Mode", self.mode, MODES),
            _select("model", "Model", self.model, MODELS),
        ]

    def modes(self) -> dict[str, Any]:
        """The session's modes in the older form."""
        available = [{"id": key, "name": name, "description": text} for key, (name, text) in MODES.items()]
        return {"currentModeId": self.mode, "availableModes": available}

    def choose(self, option: str, value: object) -> bool:
        """Set a configuration option; False when there is no such option or value."""
        if option == "mode" and value in MODES:
            self.mode = str(value)
        elif option == "model" and value in MODELS:
            self.model = str(value)
        else:
            return False
        return True


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)  # regardless of the umask
        file.write(text)


def _select(option: str, name: str, value: str, choices: dict[str, tuple[str, str]]) -> dict[str, Any]:
    return {
        "id": option,
        "name": name,
        "category": option,
        "type": "select",
        "currentValue": value,
        "options": [
            {"value": key, "name": title, "description": text} for key, (title, text) in choices.items()
        ],
    }


class Sessions:
    """The sessions in the demo's data directory."""

    def __init__(self) -> None:
        home = os.environ.get(HOME_VARIABLE)
        self._directory = (Path(home) if home else Path.home() / DEFAULT_HOME) / "sessions"

    def create(self, cwd: str) -> Session:
        """Make a new session, and save it."""
        session = Session(str(uuid.uuid4()), cwd)
        self.save(session)
        return session

    def load(self, session_id: str) -> Session | None:
        """Return a saved session, or None."""
        try:
            name = str(uuid.UUID(session_id))  # anything else is not an id of this agent, and may be a path
            stored = json.loads((self._directory / f"{name}.json").read_text(encoding="utf-8"))
            session = Session(name, stored["cwd"])
            session.mode, session.model = stored["mode"], stored["model"]
            session.may_write, session.turns = stored["may_write"], stored["turns"]
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        return session

    def save(self, session: Session) -> None:
        """Save the session as it is now; where nothing can be written it lasts as long as the process."""
        names = ("cwd", "mode", "model", "may_write", "turns")
        stored = {name: getattr(session, name) for name in names}
        target = self._directory / f"{session.id}.json"
        written = target.with_suffix(".new")
        with suppress(OSError):
            with suppress(FileExistsError):
                self._directory.mkdir(mode=0o700, parents=True)
                self._directory.chmod(0o700)
            _write_private(written, json.dumps(stored))
            written.replace(target)

    def listed(self, cwd: str | None) -> list[dict[str, Any]]:
        """Return the saved sessions, newest first, in the form of `session/list`."""
        try:
            files = sorted(self._directory.glob("*.json"), key=lambda file: -file.stat().st_mtime)
        except OSError:
            return []
        listed = []
        for file in files:
            session = self.load(file.stem)
            if session is not None and cwd in (None, session.cwd):
                changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(file.stat().st_mtime))
                title = session.turns[0]["user"][:60] if session.turns else "New session"
                listed.append(
                    {"sessionId": session.id, "cwd": session.cwd, "title": title, "updatedAt": changed}
                )
        return listed
