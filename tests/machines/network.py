"""Machines of their own: network namespaces on a bridge of their own, with links that can be cut. Needs
root."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PREFIX_LENGTH = 24


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """A bridge with an address of this machine, and namespaces on it. Names begin with `tag`."""

    def __init__(self, tag: str, subnet: str) -> None:
        self.tag = tag
        self._subnet = subnet
        self._places: list[str] = []

    @property
    def gateway(self) -> str:
        """The address of this machine: of the database, and of clients."""
        return f"{self._subnet}.1"

    @property
    def range(self) -> str:
        return f"{self._subnet}.0/{PREFIX_LENGTH}"

    def create(self) -> None:
        _ip("link", "add", self.tag, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/{PREFIX_LENGTH}", "dev", self.tag)
        _ip("link", "set", self.tag, "up")

    def add(self) -> tuple[str, str]:
        """Another machine: the name of its namespace, and its address."""
        number = len(self._places) + 2
        place, link = f"{self.tag}-{number}", f"{self.tag}v{number}"
        _ip("netns", "add", place)
        self._places.append(place)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", place)
        _ip("link", "set", link, "master", self.tag, "up")
        address = f"{self._subnet}.{number}"
        for command in (
            ("addr", "add", f"{address}/{PREFIX_LENGTH}", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", place, *command)
        return place, address

    def connect(self, place: str, *, up: bool) -> None:
        """Cut the link of a machine, or mend it."""
        number = place.rpartition("-")[2]
        _ip("link", "set", f"{self.tag}v{number}", "up" if up else "down")

    def remove(self) -> None:
        for place in self._places:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", place)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.tag)


@contextmanager
def network() -> Iterator[Network]:
    """A network that is removed with the block. Skips the test where there can be none, but for CI."""
    possible = os.geteuid() == 0 and shutil.which("ip") and Path("/proc/self/ns/net").exists()
    required = os.environ.get("CI") == "true"
    tag = f"ost{secrets.token_hex(2)}"
    found = Network(tag, f"10.{77 + secrets.randbelow(100)}.{secrets.randbelow(250)}")
    try:
        try:
            if not possible:
                raise OSError("not root, or no `ip`")
            found.create()
        except (OSError, subprocess.CalledProcessError) as error:
            if required:
                raise
            pytest.skip(f"no network namespaces: {error}")
        yield found
    finally:
        found.remove()
