"""A helper that agents of one HOME share: the first one starts it, the others find it by its socket.

It runs in a session of its own, as hubs and tmux servers do, and keeps in its memory which sessions there
are. A turn needs it from its first word to its last.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

from scripted_agent.wire import RpcError

NAME = ".scripted/hub/hub.sock"
PATIENCE_S = 20


class Hub:
    """The connection of an agent to the hub of its place."""

    def __init__(self, place: str) -> None:
        """`place`: the variable that leads to the directory of the hub's mark, HOME as a rule."""
        self.path = os.path.join(os.environ[place or "HOME"], NAME)
        self.pid = 0
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        try:
            self._ask({"op": "hello"})
        except OSError:
            self._start()

    def _start(self) -> None:
        import contextlib

        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        code = (
            f"import sys; sys.path.insert(0, {here!r}); import scripted_agent.hub as h; h.serve(sys.argv[1])"
        )
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen([sys.executable, "-S", "-c", code, self.path], start_new_session=True, **quiet)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._ask({"op": "hello"})
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def _ask(self, question: dict[str, str]) -> dict[str, object]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(self.path)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile() as answers:
                line = answers.readline()
        if not line:
            raise ConnectionError("the hub went away")
        answer: dict[str, object] = json.loads(line)
        self.pid = int(str(answer["pid"]))
        return answer

    def open(self, session_id: str) -> None:
        """Tell it of a session; start it again if it has ended."""
        try:
            self._ask({"op": "open", "session": session_id})
        except OSError:
            self._start()
            self._ask({"op": "open", "session": session_id})

    def need(self, session_id: str) -> None:
        """What every prompt and every word needs of it."""
        try:
            known = self._ask({"op": "known", "session": session_id})["known"]
        except OSError:
            self._start()
            known = False
        if not known:
            raise RpcError(-32603, "Internal error", {"details": f"session not found: {session_id}"})


def serve(path: str) -> None:
    """Be the hub, until somebody ends it."""
    sessions: set[str] = set()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("rw") as stream:
                question = json.loads(stream.readline() or "{}")
                if question.get("op") == "open":
                    sessions.add(question["session"])
                known = question.get("session") in sessions
                stream.write(json.dumps({"pid": os.getpid(), "known": known}) + "\n")
