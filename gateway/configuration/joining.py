"""How a server joins the one that had it started: by a key that is good once, for the keys of all servers.

A child process asks, and writes into a pipe: what it gets was never in the memory of this process, the later
warden, which others of the user may have opened before it could hide itself. The standard library alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Final, NoReturn

from gateway.configuration.keys import JOIN_KEY_VARIABLE as JOIN_KEY
from gateway.configuration.keys import JOIN_VARIABLE as JOIN
from gateway.configuration.keys import KeysError, Place, keep

HEADER: Final = "X-Ostler-Join"
"""Has the key in the request."""

PATH: Final = "/api/servers/join"

JOIN_SECONDS: Final = 50
"""Seconds until the other server must have answered: a network that is being set up takes some."""

ANSWER_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0
"""Seconds for one attempt, and between two of them."""

REFUSED: Final = 1


class Joined(Place):
    """What the other server handed over: variables, as JSON."""

    def read(self) -> dict[str, str]:
        """Return the variables, and release the memory. Raises KeysError."""
        import json

        try:
            found = json.loads(self.take())
            return {str(name): str(value) for name, value in found.items()}
        except (ValueError, AttributeError):
            raise KeysError(
                f"{self.origin} did not answer with keys; is it an Ostler of this version?"
            ) from None


def join(environ: Mapping[str, str], variables: Mapping[str, str]) -> Place | None:
    """Join the server that the environment names; None if it names none. `variables`: the keys that were in
    the environment. Raises KeysError. Blocks for `JOIN_SECONDS` at most."""
    url, key = environ.get(JOIN, ""), {**environ, **variables}.get(JOIN_KEY, "")
    if not url and not key:
        return None
    if not url or not key:
        raise KeysError(f"{JOIN} and {JOIN_KEY} belong together; set both, as OSTLER_PROVISION got them")
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _ask(url, key, theirs)
    os.close(theirs)
    try:
        place = keep(ours, f"{JOIN}: {url}")
    finally:
        os.close(ours)
        _, status = os.waitpid(child, 0)
    if status == 0:
        return Joined(place.origin, place.content)
    reason = place.take().decode("utf-8", "replace")
    raise KeysError(f"{place.origin} {reason or f'did not answer within {JOIN_SECONDS} s'}")


def _ask(url: str, key: str, pipe: int) -> NoReturn:
    """In the child: write the answer, or why there is none. It ends here in any case."""
    status = REFUSED
    try:
        signal.alarm(JOIN_SECONDS)
        try:
            text, status = _answer(url, key), 0
        except Exception as error:  # noqa: BLE001 - the parent says it
            text = (" ".join(str(error).split()) or type(error).__name__).encode()
        with open(pipe, "wb") as file:
            file.write(text)
    finally:
        os._exit(status)


def _answer(url: str, key: str) -> bytes:
    """What the server at `url` hands over. Raises OSError or ValueError."""
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("is not an address such as http://10.0.0.5:8000")
    until = time.monotonic() + JOIN_SECONDS - ANSWER_SECONDS
    while True:
        connection = HTTPConnection(parts.hostname, parts.port or 80, timeout=ANSWER_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            if time.monotonic() > until:
                raise OSError(f"cannot be reached: {error.strerror or error}") from None
        else:
            try:
                # Sent once: the key is good for no other request.
                connection.request("POST", PATH, headers={HEADER: key, "Content-Length": "0"})
                answer = connection.getresponse()
                text = answer.read()
            except OSError as error:
                raise OSError(f"ended the connection: {error.strerror or error}") from None
            if answer.status == 200:
                return text
            if answer.status == 401:
                raise OSError(f"refused {JOIN_KEY}: it was used before, or its time is over")
            if answer.status != 503 or time.monotonic() > until:
                raise OSError(f"answered with status {answer.status}")
        finally:
            connection.close()
        time.sleep(PAUSE_SECONDS)
