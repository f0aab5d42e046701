"""The settings file: durable, private, whole, and never overwritten when it is not ours."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import trio

from supervisor.documents.files import FileDocuments
from supervisor.mcp.server import server_errors
from supervisor.settings.errors import SettingsCorrupt, SettingsEmpty, SettingsError, UnknownProfile
from supervisor.settings.storage.files import MAX_DOCUMENT_BYTES
from supervisor.settings.storage.store import SettingsStore
from tests.support.documents import FILES_ALONE

pytestmark = pytest.mark.usefixtures("stores")

PRESETS = {"demo": ("demo",), "claude-code": ("npx", "claude@1"), "codex": ("npx", "codex@1")}


def open_store(state: Path, presets: dict[str, tuple[str, ...]] = PRESETS) -> SettingsStore:
    return SettingsStore(FileDocuments(state), presets, server_errors)


@FILES_ALONE
async def test_change_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    state = tmp_path / "state"
    changed = await open_store(state).patch(
        {"agent_settings_diff": {"acp_server": "codex", "acp_model": "m"}, "misc_settings_diff": {"a": 1}}
    )
    assert await open_store(state).get() == changed
    assert stat.S_IMODE((state / "settings.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [path.name for path in state.iterdir()] == ["settings.json"]


@FILES_ALONE
async def test_reading_writes_nothing(tmp_path: Path) -> None:
    assert (await open_store(tmp_path).get()).agent(PRESETS).acp_server == "demo"
    assert list(tmp_path.iterdir()) == []


async def test_preset_command_follows_a_new_release(tmp_path: Path) -> None:
    await open_store(tmp_path).patch({"agent_settings_diff": {"acp_server": "codex"}})
    newer = {**PRESETS, "codex": ("npx", "codex@2")}
    agent = (await open_store(tmp_path, newer).get()).agent(newer)
    assert (agent.acp_server, agent.acp_command) == ("codex", ("npx", "codex@2"))


async def test_own_command_stays_over_releases(tmp_path: Path) -> None:
    await open_store(tmp_path).patch(
        {"agent_settings_diff": {"acp_server": "codex", "acp_command": ["mine"]}}
    )
    agent = (await open_store(tmp_path).get()).agent(PRESETS)
    assert (agent.acp_server, agent.acp_command) == ("codex", ("mine",))


async def test_provider_that_is_gone_can_be_repaired(tmp_path: Path) -> None:
    await open_store(tmp_path).patch({"agent_settings_diff": {"acp_server": "codex"}})
    fewer = {"demo": ("demo",)}
    store = open_store(tmp_path, fewer)
    with pytest.raises(SettingsError):
        (await store.get()).agent(fewer)
    repaired = await store.patch({"agent_settings_diff": {"acp_server": "demo"}})
    assert repaired.agent(fewer).acp_command == ("demo",)


@FILES_ALONE
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, SettingsEmpty),
        ({"misc_settings_diff": {"a": 1}, "agent_settings_diff": {"acp_model": 1}}, SettingsError),
        ({"misc_settings_diff": {"a": "x" * MAX_DOCUMENT_BYTES}}, SettingsError),
        (
            {
                "misc_settings_diff": {"a": 1},
                "active_agent_profile_id": "12345678-1234-1234-1234-123456789012",
            },
            UnknownProfile,
        ),
    ],
)
async def test_refused_change_changes_nothing(tmp_path: Path, body: object, error: type[Exception]) -> None:
    store = open_store(tmp_path)
    before = await store.patch({"misc_settings_diff": {"kept": True}})
    data = (tmp_path / "settings.json").read_bytes()
    with pytest.raises(error):
        await store.patch(body)
    assert await store.get() == before
    assert (tmp_path / "settings.json").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


@FILES_ALONE
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"version":1,"agent_settings":[]}',
        b"[" * 100_000,
    ],
)
async def test_corrupt_file_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    store = open_store(tmp_path)
    with pytest.raises(SettingsCorrupt, match=r"settings\.json"):
        await store.get()
    with pytest.raises(SettingsCorrupt):
        await store.patch({"misc_settings_diff": {"a": 1}})
    assert path.read_bytes() == content
    # Once a person has repaired it, it is used without a restart.
    path.unlink()
    assert (await store.patch({"misc_settings_diff": {"a": 1}})).misc_settings == {"a": 1}


@FILES_ALONE
async def test_file_of_an_older_release_is_read(tmp_path: Path) -> None:
    await open_store(tmp_path).patch({"misc_settings_diff": {"a": 1}})
    path = tmp_path / "settings.json"
    written = json.loads(path.read_text())
    for name in ("active_profile", "active_agent_profile_id", "active_meta_profile"):
        del written[name]
    path.write_text(json.dumps({**written, "no_longer_known": {"x": 1}}))
    document = await open_store(tmp_path).get()
    assert (document.misc_settings, document.active_profile) == ({"a": 1}, None)


@FILES_ALONE
async def test_file_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    await open_store(tmp_path).patch({"misc_settings_diff": {"a": 1}})
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(SettingsCorrupt, match="another version"):
        await open_store(tmp_path).get()


async def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(store.patch, {"misc_settings_diff": {f"k{number}": number}})
    expected = {f"k{number}": number for number in range(10)}
    assert (await open_store(tmp_path).get()).misc_settings == expected


@FILES_ALONE
async def test_failed_write_leaves_the_old_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    await store.patch({"misc_settings_diff": {"a": 1}})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="space"):
            await store.patch({"misc_settings_diff": {"a": 2}})
    for reader in (store, open_store(tmp_path)):
        assert (await reader.get()).misc_settings == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


class Reversed:
    """A cipher that anybody can break, and that knows one key."""

    def __init__(self, key: str = "k") -> None:
        self.key = key

    def encrypt(self, data: bytes) -> str:
        return f"gAAAA{self.key}{data.decode()[::-1]}"

    def decrypt(self, token: str) -> bytes:
        if not token.startswith(f"gAAAA{self.key}"):
            raise RuntimeError("another key")
        return token.removeprefix(f"gAAAA{self.key}")[::-1].encode()


MCP = {"files": {"command": "x", "env": {"TOKEN": "mcp-secret"}, "args": ["plain"]}}


@FILES_ALONE
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_credentials_are_encrypted_on_the_disk(tmp_path: Path) -> None:
    def sealed(key: str = "k") -> SettingsStore:
        return SettingsStore(FileDocuments(tmp_path), PRESETS, server_errors, Reversed(key))

    # A file from before, in the clear, is read as it is and encrypted with the next change.
    await open_store(tmp_path).patch({"agent_settings_diff": {"mcp_config": MCP}})
    assert (await sealed().get()).agent(PRESETS).mcp_config == MCP
    await sealed().patch({"misc_settings_diff": {"a": 1}})
    content = (tmp_path / "settings.json").read_text()
    assert "mcp-secret" not in content
    assert json.loads(content)["agent_settings"]["mcp_config"]["files"] == {
        **MCP["files"],
        "env": {"TOKEN": "gAAAAkterces-pcm"},
    }
    assert (await sealed().get()).agent(PRESETS).mcp_config == MCP
    # Another key opens nothing, and destroys nothing.
    with pytest.raises(RuntimeError, match="another key"):
        await sealed("other").patch({"misc_settings_diff": {"a": 2}})
    assert (tmp_path / "settings.json").read_text() == content
