"""The file of the logins to MCP servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.documents.files import FileDocuments
from supervisor.mcp import logins as module
from supervisor.mcp.logins import LoginsError, LoginStore

pytestmark = pytest.mark.usefixtures("stores")


class Plain:
    def encrypt(self, data: bytes) -> str:
        return data.hex()

    def decrypt(self, token: str) -> bytes:
        return bytes.fromhex(token)


def test_no_more_is_stored_than_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    store = LoginStore(FileDocuments(tmp_path), Plain())
    store.put("https://one", {"token": "1"})
    with pytest.raises(LoginsError, match="more than 1000 bytes; end some with `ostler mcp logout`"):
        store.put("https://two", {"token": "2" * 1000})
    assert store.get("https://one") == {"token": "1"}
    assert store.get("https://two") is None
    assert store.drop("https://one")
