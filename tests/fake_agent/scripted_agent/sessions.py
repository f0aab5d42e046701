"""Sessions, kept in a directory so that a later process of the same home knows them."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

PREFIX = "scripted-"
SUFFIX = ".json"


class Session:
    """One session: where it works, what was said, how its options stand."""

    def __init__(self, session_id: str, cwd: str) -> None:
        self.id = session_id
        self.cwd = cwd
        self.turns: list[dict[str, Any]] = []  # {"user": text, "agent": text, "stop": reason | None}
        self.options: dict[str, Any] = {"mode": "default", "model": "small", "brave": False}
        self.tool_calls = 0
        self.cost = 0.0
        self.pending = ""  # the arguments of a `counted` call that has not ended


class Store:
    """Sessions by id. Without a directory they live as long as the process."""

    def __init__(self, home: str | None, *, numbered: bool = False) -> None:
        self._home = home
        self._numbered = numbered
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # where there is no directory
        self.open: dict[str, Session] = {}
        if self._home:
            os.makedirs(self._home, exist_ok=True)

    def count(self, what: str) -> int:
        """Count something across the processes of a home: 1 for the first time, then 2, ..."""
        with self._lock:
            if not self._home:
                self._counts[what] += 1
                return self._counts[what]
            with open(os.path.join(self._home, f"count-{what}"), "ab") as file:
                file.write(b".")
                return file.tell()

    def new(self, cwd: str) -> Session:
        session = Session(f"{PREFIX}{self._number() if self._numbered else os.urandom(6).hex()}", cwd)
        self.open[session.id] = session
        self.save(session)
        return session

    def _number(self) -> int:
        number = 1
        while (name := f"{PREFIX}{number}") in self.open or os.path.exists(self._path(name) or ""):
            number += 1
        return number

    def fork(self, source: Session, cwd: str) -> Session:
        session = self.new(cwd)
        session.turns = [dict(turn) for turn in source.turns]
        session.options = dict(source.options)
        session.pending = source.pending
        self.save(session)
        return session

    def find(self, session_id: str) -> Session | None:
        """An open session or a stored one; a stored one becomes open."""
        if session_id in self.open:
            return self.open[session_id]
        path = self._path(session_id)
        if path is None or not os.path.exists(path):
            return None
        session = Session(session_id, "")
        with open(path) as file:
            vars(session).update(json.load(file))
        self.open[session_id] = session
        return session

    def save(self, session: Session) -> None:
        path = self._path(session.id)
        if path is None:
            return
        with self._lock:
            scratch = path.removesuffix(SUFFIX) + ".part"
            with open(scratch, "w") as file:
                json.dump(vars(session), file)
            os.replace(scratch, path)

    def delete(self, session_id: str) -> None:
        self.open.pop(session_id, None)
        path = self._path(session_id)
        if path and os.path.exists(path):
            os.unlink(path)

    def all(self) -> list[Session]:
        if self._home:
            for name in os.listdir(self._home):
                if name.startswith(PREFIX) and name.endswith(SUFFIX):
                    self.find(name.removesuffix(SUFFIX))
        return list(self.open.values())

    def _path(self, session_id: str) -> str | None:
        if not self._home or not session_id.startswith(PREFIX) or "/" in session_id:
            return None
        return os.path.join(self._home, session_id + SUFFIX)
