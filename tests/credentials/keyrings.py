"""Keyrings in memory."""

from __future__ import annotations

from supervisor.credentials.os_keyring import OsKeyring

BUS = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}


class FakeBackend:
    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.asked = 0

    def get_password(self, service: str, username: str) -> str | None:
        self.asked += 1
        return self.entries.get(username)

    def set_password(self, service: str, username: str, password: str) -> None:
        self.asked += 1
        self.entries[username] = password

    def delete_password(self, service: str, username: str) -> None:
        self.asked += 1
        del self.entries[username]


class Locked(FakeBackend):
    def get_password(self, service: str, username: str) -> str | None:
        raise RuntimeError("locked")

    def set_password(self, service: str, username: str, password: str) -> None:
        raise RuntimeError("locked")


def ring(backend: FakeBackend) -> OsKeyring:
    return OsKeyring(BUS, find=lambda: backend)
