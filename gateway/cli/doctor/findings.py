"""The values that the checks of `ostler doctor` take and return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.cli.failures import BadInput
from gateway.cli.locations import agents_directory, with_server_keys

OK: Final = "OK"
WARN: Final = "WARN"
FAIL: Final = "FAIL"


class Finding(NamedTuple):
    """What was found. `advice` is what to do, empty where there is nothing."""

    name: str
    status: str
    detail: str
    advice: str = ""


class Machine(NamedTuple):
    """Where to look."""

    state: Path
    env: Mapping[str, str]

    @property
    def given(self) -> Mapping[str, str]:
        """The environment, with the keys that the server would have; without them where they are broken."""
        try:
            return with_server_keys(self.env)
        except BadInput:
            return self.env

    @property
    def agents(self) -> Path:
        """Where agents are installed."""
        return agents_directory(self.state, self.env)


Findings = Iterator[Finding]
