"""Agent profiles: what they launch, who owns their ids, and which one is active."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.documents.files import FileDocuments
from supervisor.mcp.server import server_errors
from supervisor.reading.shapes import as_json
from supervisor.settings.document import to_stored
from supervisor.settings.errors import (
    ProfileExists,
    SettingsCorrupt,
    SettingsError,
    TooManyProfiles,
    UnknownProfile,
)
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.storage.store import SettingsStore
from tests.support.documents import FILES_ALONE

pytestmark = pytest.mark.usefixtures("stores")

PRESETS = {"demo": ("demo",), "claude-code": ("npx", "claude@1"), "codex": ("npx", "codex@1")}


def open_profiles(state: Path) -> tuple[AgentProfileStore, SettingsStore]:
    settings = SettingsStore(FileDocuments(state), PRESETS, server_errors)
    return AgentProfileStore(settings), settings


async def test_first_listing_seeds_a_default_from_the_settings(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    await settings.patch(
        {"agent_settings_diff": {"acp_command": ["/my agent", "--acp"], "acp_args": ["-x"], "acp_model": "m"}}
    )
    (profile,) = await profiles.list()
    assert (profile.name, profile.acp_server, profile.acp_command) == (
        "default",
        "custom",
        "'/my agent' --acp",
    )
    assert (await settings.get()).active_agent_profile_id == profile.id
    assert await profiles.launch_settings(profile.id) == (await settings.get()).agent(PRESETS)
    assert await profiles.list() == [profile]
    again, _ = open_profiles(tmp_path)
    assert await again.list() == [profile]


async def test_what_a_profile_has_no_words_for_is_the_servers(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    file = {"secret_name": "MY_AUTH", "filename": "auth.json", "env_var": "MY_HOME", "subdir": "x"}
    context = {"system_message_suffix": "be brief"}
    diff = {"acp_isolate_data_dir": True, "acp_file_secrets": [file], "agent_context": context}
    await settings.patch({"agent_settings_diff": diff})
    (profile,) = await profiles.list()
    launched = await profiles.launch_settings(profile.id)
    assert launched == (await settings.get()).agent(PRESETS)
    assert launched.acp_isolate_data_dir
    assert [each.secret_name for each in launched.acp_file_secrets] == ["MY_AUTH"]


async def test_seed_of_a_preset_leaves_the_command_to_it(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    (profile,) = await profiles.list()
    assert (profile.acp_server, profile.acp_command) == ("demo", None)
    assert await profiles.launch_settings(profile.id) == (await settings.get()).agent(PRESETS)


@FILES_ALONE
async def test_no_seed_of_an_agent_that_cannot_run(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    stored = {
        **to_stored(await settings.get(), PRESETS),
        "agent_settings": {"agent_kind": "acp", "acp_server": "gone"},
    }
    (tmp_path / "settings.json").write_text(json.dumps(stored))
    profiles, settings = open_profiles(tmp_path)
    assert await profiles.list() == []
    assert (await settings.get()).active_agent_profile_id is None


async def test_one_profile_is_always_active(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)

    async def active() -> str:
        listed = {profile.id: profile.name for profile in await profiles.list()}
        return listed[(await settings.get()).active_agent_profile_id or ""]

    mine = await profiles.save("mine", BODY)
    assert await active() == "default"
    await profiles.activate(mine.id)
    assert await active() == "mine"
    await profiles.delete("mine")
    assert await active() == "default"
    await settings.patch({"active_agent_profile_id": None})
    assert await active() == "default"
    await profiles.delete("default")
    assert await active() == "default"


BODY: dict[str, Any] = {
    "schema_version": 4,
    "agent_kind": "acp",
    "name": "ignored",
    "mcp_server_refs": ["a", "missing"],
    "secret_refs": ["KEY"],
    "acp_server": "codex",
    "acp_model": "m",
    "acp_session_mode": "plan",
    "acp_prompt_timeout": 5.0,
    "acp_startup_timeout": 6.0,
    "acp_command": "run 'with space' --acp",
    "acp_args": ["-x"],
}


async def test_save_round_trip_and_revisions(tmp_path: Path) -> None:
    profiles, _ = open_profiles(tmp_path)
    foreign = {"id": "12345678-1234-1234-1234-123456789012", "revision": 7}
    first = await profiles.save("mine", {**BODY, **foreign})
    assert as_json(first) == {**BODY, "name": "mine", "id": first.id, "revision": 0}
    assert first.id != foreign["id"]
    second = await profiles.save("mine", {**BODY, **foreign, "acp_model": None})
    assert (second.id, second.revision, second.acp_model) == (first.id, 1, None)
    reopened, _ = open_profiles(tmp_path)
    assert await reopened.get("mine") == second
    assert await reopened.by_id(first.id.replace("-", "").upper()) == second
    assert second.summary() == {
        "id": first.id,
        "name": "mine",
        "agent_kind": "acp",
        "revision": 1,
        "llm_profile_ref": None,
        "mcp_server_refs": ["a", "missing"],
    }


async def test_launch_takes_the_referenced_servers_of_the_settings(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    servers = {"a": {"command": "x"}, "b": {"command": "y"}}
    await settings.patch({"agent_settings_diff": {"mcp_config": servers}})
    launched = await profiles.launch_settings((await profiles.save("mine", BODY)).id)
    assert launched.acp_command == ("run", "with space", "--acp")
    assert (launched.acp_server, launched.acp_args, launched.acp_model) == ("codex", ("-x",), "m")
    assert (launched.acp_session_mode, launched.acp_prompt_timeout, launched.acp_startup_timeout) == (
        "plan",
        5,
        6,
    )
    assert launched.mcp_config == {"a": {"command": "x"}}
    every = await profiles.save("all", {"acp_server": "codex"})
    launched = await profiles.launch_settings(every.id)
    assert launched.mcp_config == servers
    assert launched.acp_command == PRESETS["codex"]
    none = await profiles.save("none", {"acp_server": "codex", "mcp_server_refs": []})
    assert (await profiles.launch_settings(none.id)).mcp_config == {}


@pytest.mark.parametrize(
    ("change", "loc", "kind"),
    [
        ({"extra": 1}, ("extra",), "extra_forbidden"),
        ({"mcp_config": {}}, ("mcp_config",), "extra_forbidden"),
        ({"llm_profile_ref": "x"}, ("llm_profile_ref",), "extra_forbidden"),
        ({"agent_kind": "x"}, ("agent_kind",), "enum"),
        ({"acp_command": ["run"]}, ("acp_command",), "string_type"),
        ({"acp_command": "run 'open"}, ("acp_command",), "value_error"),
        ({"acp_server": "nobody"}, ("acp_server",), "enum"),
        ({"acp_server": "custom", "acp_command": " "}, ("acp_command",), "value_error"),
        ({"acp_prompt_timeout": -1}, ("acp_prompt_timeout",), "greater_than"),
        ({"mcp_server_refs": "a"}, ("mcp_server_refs",), "list_type"),
        ({"id": "x"}, ("id",), "string_pattern_mismatch"),
        ({"revision": -1}, ("revision",), "greater_than_equal"),
    ],
)
async def test_refused(tmp_path: Path, change: dict[str, Any], loc: tuple[str, ...], kind: str) -> None:
    profiles, _ = open_profiles(tmp_path)
    with pytest.raises(SettingsError) as caught:
        await profiles.save("mine", {**BODY, **change})
    assert [(error.loc, error.type) for error in caught.value.errors] == [(("body", *loc), kind)]
    with pytest.raises(UnknownProfile):
        await profiles.get("mine")


@pytest.mark.parametrize("name", ["", ".x", "../x", "a b", "a\n", "x" * 65])
async def test_bad_names(tmp_path: Path, name: str) -> None:
    profiles, _ = open_profiles(tmp_path)
    await profiles.save("mine", BODY)
    with pytest.raises(SettingsError):
        await profiles.save(name, BODY)
    with pytest.raises(SettingsError) as caught:
        await profiles.rename("mine", name)
    assert caught.value.errors[0].loc == ("body", "new_name")


async def test_body_that_is_no_object(tmp_path: Path) -> None:
    profiles, _ = open_profiles(tmp_path)
    with pytest.raises(SettingsError):
        await profiles.save("mine", [])


async def test_rename_keeps_id_and_revision(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    saved = await profiles.save("one", BODY)
    await profiles.save("other", BODY)
    await profiles.activate(saved.id)
    renamed = await profiles.rename("one", "two")
    assert (renamed.name, renamed.id, renamed.revision) == ("two", saved.id, saved.revision)
    assert [profile.name for profile in await profiles.list()] == ["other", "two"]
    assert (await settings.get()).active_agent_profile_id == saved.id
    assert await profiles.rename("two", "two") == renamed
    with pytest.raises(ProfileExists):
        await profiles.rename("two", "other")
    with pytest.raises(UnknownProfile):
        await profiles.rename("one", "three")


async def test_activate_and_delete(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    one, two = await profiles.save("one", BODY), await profiles.save("two", BODY)
    await profiles.activate(one.id)
    assert (await settings.get()).active_agent_profile_id == one.id
    assert await profiles.delete("two")
    assert (await settings.get()).active_agent_profile_id == one.id
    assert await profiles.delete("one")
    assert not await profiles.delete("one")
    assert (await settings.get()).active_agent_profile_id is None
    with pytest.raises(UnknownProfile):
        await profiles.activate(two.id)
    with pytest.raises(UnknownProfile):
        await settings.patch({"active_agent_profile_id": two.id})


async def test_patch_may_point_at_a_profile(tmp_path: Path) -> None:
    profiles, settings = open_profiles(tmp_path)
    saved = await profiles.save("one", BODY)
    document = await settings.patch({"active_agent_profile_id": saved.id.upper()})
    assert document.active_agent_profile_id == saved.id


async def test_there_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.settings.profiles.profiles.MAX_PROFILES", 1)
    profiles, _ = open_profiles(tmp_path)
    await profiles.save("one", BODY)
    with pytest.raises(TooManyProfiles):
        await profiles.save("two", BODY)
    assert (await profiles.save("one", BODY)).revision == 1


async def test_concurrent_saves_are_all_kept(tmp_path: Path) -> None:
    profiles, _ = open_profiles(tmp_path)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(profiles.save, f"p{number}", BODY)
    reopened, _ = open_profiles(tmp_path)
    assert {profile.name for profile in await reopened.list()} == {"default", *(f"p{n}" for n in range(10))}


@FILES_ALONE
@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"version":1,"profiles":[1]}', b'{"version":1,"profiles":[{}]}']
)
async def test_corrupt_file_is_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent-profiles.json"
    path.write_bytes(content)
    profiles, _ = open_profiles(tmp_path)
    with pytest.raises(SettingsCorrupt, match=r"agent-profiles\.json"):
        await profiles.list()
    with pytest.raises(SettingsCorrupt):
        await profiles.save("mine", BODY)
    assert path.read_bytes() == content
