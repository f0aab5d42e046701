"""LLM profiles, provider connections, meta-profiles: kept, encrypted at rest, never pointed to in vain."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from supervisor.documents.files import FileDocuments
from supervisor.mcp.server import server_errors
from supervisor.settings.agent import BuiltInSettings
from supervisor.settings.connections import ConnectionStore
from supervisor.settings.document import public
from supervisor.settings.errors import (
    ProfileExists,
    ProfileReferenced,
    SettingsCorrupt,
    SettingsError,
    TooManyProfiles,
    UnknownProfile,
)
from supervisor.settings.exposure import Expose
from supervisor.settings.profiles.llm_profiles import LlmProfileStore, MetaProfileStore
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.storage.store import SettingsStore
from tests.support.documents import FILES_ALONE

pytestmark = pytest.mark.usefixtures("stores")

PRESETS = {"demo": ("demo",)}
KEY = "sk-very-secret"
LLM = {"model": "anthropic/claude", "api_key": KEY, "aws_secret_access_key": "aws-secret", "temperature": 0.5}
BUILT_IN = {"agent_settings_diff": {"agent_kind": "openhands"}}


class Reversed:
    """A cipher that anybody can break."""

    def encrypt(self, data: bytes) -> str:
        return f"gAAAA{data.decode()[::-1]}"

    def decrypt(self, token: str) -> bytes:
        return token.removeprefix("gAAAA")[::-1].encode()


@attrs.frozen
class Stores:
    settings: SettingsStore
    agents: AgentProfileStore
    llms: LlmProfileStore
    connections: ConnectionStore
    metas: MetaProfileStore


def open_stores(state: Path, *, encrypted: bool = True) -> Stores:
    settings = SettingsStore(FileDocuments(state), PRESETS, server_errors, Reversed() if encrypted else None)
    agents = AgentProfileStore(settings)
    return Stores(
        settings, agents, LlmProfileStore(agents), ConnectionStore(settings), MetaProfileStore(settings)
    )


@FILES_ALONE
@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_profile_is_whole_after_a_restart_and_its_keys_are_nowhere_on_the_disk(
    tmp_path: Path,
) -> None:
    stores = open_stores(tmp_path)
    await stores.llms.save("mine", LLM)
    await stores.settings.patch({**BUILT_IN, "active_profile": "mine"})
    await stores.connections.create({"display_name": "c", "api_key": "sk-shared"})
    again = open_stores(tmp_path)
    found = await again.llms.get("mine")
    assert {key: found[key] for key in LLM} == LLM
    assert (found["num_retries"], found["is_subscription"], found["base_url"]) == (5, False, None)
    assert (await again.settings.get()).agent_settings["llm"]["api_key"] == KEY
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        for secret in (KEY, "aws-secret", "sk-shared"):
            assert secret not in path.read_text(), path.name


async def test_profiles_are_listed_by_name_with_what_they_have(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    connection = await stores.connections.create(
        {"display_name": "c", "api_key": "k", "base_url": "https://b"}
    )
    await stores.llms.save("z", {"model": "m", "base_url": "https://x"})
    await stores.llms.save(
        "linked", {**LLM, "provider_connection_id": connection["id"], "base_url": "https://y"}
    )
    await stores.llms.save("broken", {"model": "m", "provider_connection_id": "gone"})
    await stores.llms.save("bare", LLM, include_secrets=False)
    rows = {row["name"]: row for row in await stores.llms.list()}
    assert list(rows) == ["bare", "broken", "linked", "z"]
    assert rows["z"] == {
        "name": "z",
        "model": "m",
        "base_url": "https://x",
        "provider_connection_id": None,
        "provider_connection_broken": False,
        "api_key_set": False,
    }
    assert [rows["linked"][key] for key in ("api_key_set", "provider_connection_broken")] == [True, False]
    assert [rows["broken"][key] for key in ("api_key_set", "provider_connection_broken")] == [False, True]
    assert (await stores.llms.get("bare"))["api_key"] is None
    # A linked profile keeps no copy, and is used with what the connection has now.
    linked = await stores.llms.get("linked")
    assert (linked["api_key"], linked["base_url"]) == (None, None)
    await stores.connections.update(connection["id"], {"api_key": "rotated", "base_url": None})
    usable = await stores.llms.usable("linked")
    assert (usable["api_key"], usable["base_url"]) == ("rotated", None)
    with pytest.raises(SettingsError, match="does not exist"):
        await stores.llms.usable("broken")


@pytest.mark.parametrize(
    ("llm", "loc", "kind"),
    [
        ({}, ("model",), "missing"),
        ({"model": ""}, ("model",), "string_too_short"),
        ({"model": 1}, ("model",), "string_type"),
        ({"model": "m", "top_p": 2}, ("top_p",), "less_than_equal"),
        ({"model": "m", "num_retries": -1}, ("num_retries",), "greater_than_equal"),
        ({"model": "m", "auth_type": "x"}, ("auth_type",), "enum"),
        ({"model": "m", "api_key": 1}, ("api_key",), "string_type"),
        ([], (), "dict_type"),
    ],
)
async def test_a_bad_model_is_refused_with_its_place(tmp_path: Path, llm: Any, loc: Any, kind: str) -> None:
    stores = open_stores(tmp_path)
    with pytest.raises(SettingsError) as caught:
        await stores.llms.save("x", llm)
    assert [(each.loc, each.type) for each in caught.value.errors] == [(("body", "llm", *loc), kind)]
    assert await stores.llms.list() == []


@pytest.mark.parametrize("blank", ["", "  ", "**********"])
async def test_a_blank_key_is_none(tmp_path: Path, blank: str) -> None:
    stores = open_stores(tmp_path)
    await stores.llms.save("x", {**LLM, "api_key": blank})
    assert (await stores.llms.get("x"))["api_key"] is None


@pytest.mark.parametrize("name", ["", ".x", "../x", "a b", "a\n", "x" * 65])
async def test_bad_names(tmp_path: Path, name: str) -> None:
    stores = open_stores(tmp_path)
    await stores.llms.save("good", LLM)
    for call in (
        stores.llms.save(name, LLM),
        stores.llms.get(name),
        stores.llms.delete(name),
        stores.llms.rename("good", name),
        stores.llms.activate(name),
        stores.metas.save(name, {"classifier_model": "m"}),
    ):
        with pytest.raises(SettingsError):
            await call


async def test_the_fifty_first_profile_is_refused_and_the_fiftieth_can_be_replaced(tmp_path: Path) -> None:
    stores = open_stores(tmp_path, encrypted=False)
    async with stores.settings.llm_profiles.lock:
        await stores.settings.llm_profiles.replace({f"p{number}": LLM for number in range(50)})
    with pytest.raises(TooManyProfiles, match="50"):
        await stores.llms.save("one-more", LLM)
    await stores.llms.save("p49", {"model": "other"})
    assert (await stores.llms.get("p49"))["model"] == "other"
    async with stores.settings.connections.lock:
        await stores.settings.connections.replace({f"c{number}": {} for number in range(64)})
    with pytest.raises(TooManyProfiles, match="64"):
        await stores.connections.create({"display_name": "c", "api_key": "k"})
    async with stores.settings.meta_profiles.lock:
        await stores.settings.meta_profiles.replace({f"m{number}": {} for number in range(50)})
    with pytest.raises(TooManyProfiles, match="50"):
        await stores.metas.save(
            "one-more", {"classifier_model": "m", "classes": [{"description": "", "model": "m"}]}
        )


async def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await stores.settings.patch(BUILT_IN)
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(stores.llms.save, f"p{number}", LLM)
            nursery.start_soon(stores.connections.create, {"display_name": f"c{number}", "api_key": "k"})
            nursery.start_soon(stores.settings.patch, {"misc_settings_diff": {f"m{number}": 1}})
    again = open_stores(tmp_path)
    assert len(await again.llms.list()) == len(await again.connections.list()) == 8
    assert len((await again.settings.get()).misc_settings) == 8

    async def deletes(name: str) -> None:
        with suppress(ProfileReferenced):  # the listing may have made a profile that names it
            await stores.llms.delete(name)

    async def activates(name: str) -> None:
        with suppress(UnknownProfile):  # it may be deleted already
            await stores.llms.activate(name)

    # What deletes, renames, activates and lists at once does not wait for itself, nor points to nothing.
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stores.llms.rename, "p0", "q0")
            nursery.start_soon(stores.llms.delete, "p1")
            nursery.start_soon(activates, "p2")
            nursery.start_soon(stores.agents.list)
            nursery.start_soon(deletes, "p2")
    names = {row["name"] for row in await stores.llms.list()}
    assert (await stores.settings.get()).active_profile in {None, *names}


async def test_an_active_profile_gives_the_built_in_agent_its_model(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await stores.llms.save("mine", LLM)
    assert await stores.llms.activate("mine") is False  # an ACP agent has no model here
    document = await stores.settings.get()
    assert (document.active_profile, "llm" in document.agent_settings) == ("mine", False)
    await stores.settings.patch(BUILT_IN)
    assert await stores.llms.activate("mine") is True
    assert (await stores.settings.get()).agent_settings["llm"]["model"] == LLM["model"]
    # The pointer alone does the same; a model in the same change goes before it.
    own = {"active_profile": "mine", "agent_settings_diff": {"llm": {"model": "own"}}}
    assert (await stores.settings.patch(own)).agent_settings["llm"]["model"] == "own"
    assert (await stores.settings.patch({"active_profile": "mine"})).agent_settings["llm"]["api_key"] == KEY
    cleared = await stores.settings.patch({"active_profile": None})
    assert (cleared.active_profile, cleared.agent_settings["llm"]["model"]) == (None, LLM["model"])
    before = await stores.settings.get()
    for pointer in ("active_profile", "active_meta_profile"):
        with pytest.raises(UnknownProfile):
            await stores.settings.patch({pointer: "nobody", "misc_settings_diff": {"a": 1}})
    assert await stores.settings.get() == before


async def test_what_names_a_profile_follows_its_name_and_keeps_it(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await stores.llms.save("a", LLM)
    await stores.llms.save("b", LLM)
    await stores.llms.activate("a")
    agent = await stores.agents.save("user", {"agent_kind": "openhands", "llm_profile_ref": "a"})
    with pytest.raises(ProfileReferenced, match="user"):
        await stores.llms.delete("a")
    with pytest.raises(ProfileExists):
        await stores.llms.rename("a", "b")
    await stores.llms.rename("a", "a")
    await stores.llms.rename("a", "c")
    again = open_stores(tmp_path)
    assert (await again.agents.by_id(agent.id)).summary()["llm_profile_ref"] == "c"
    assert (await again.settings.get()).active_profile == "c"
    await again.agents.delete("user")
    assert await again.llms.delete("c") is True
    assert await again.llms.delete("c") is False
    assert (await again.settings.get()).active_profile is None
    with pytest.raises(UnknownProfile):
        await again.llms.rename("c", "d")


async def test_a_connection_in_use_stays(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    connection = await stores.connections.create({"display_name": "c", "provider": "openai", "api_key": "k"})
    assert connection == {
        "id": connection["id"],
        "display_name": "c",
        "provider": "openai",
        "base_url": None,
        "created_at": connection["created_at"],
        "updated_at": connection["created_at"],
        "api_key_set": True,
    }
    await stores.llms.save("user", {"model": "m", "provider_connection_id": connection["id"]})
    with pytest.raises(ProfileReferenced, match="user"):
        await stores.connections.delete(connection["id"])
    await stores.llms.delete("user")
    assert (await stores.connections.delete(connection["id"]))["id"] == connection["id"]
    for call in (stores.connections.delete("x"), stores.connections.update("x", {"provider": "p"})):
        with pytest.raises(UnknownProfile):
            await call


@FILES_ALONE
async def test_the_settings_have_what_a_connection_has_now_and_keep_no_copy(tmp_path: Path) -> None:
    stores = open_stores(tmp_path, encrypted=False)
    connection = await stores.connections.create(
        {"display_name": "c", "api_key": "sk-first", "base_url": "https://first"}
    )
    llm = {"model": "m", "provider_connection_id": connection["id"], "api_key": "sk-own"}
    await stores.llms.save("mine", llm)
    await stores.settings.patch({**BUILT_IN, "active_profile": "mine"})

    async def shown() -> tuple[Any, Any]:
        found = public(await stores.settings.linked(await stores.settings.get()), Expose.PLAINTEXT)
        model = found["agent_settings"]["llm"]
        assert found["llm_api_key_is_set"] is True
        return model["api_key"], model["base_url"]

    assert await shown() == ("sk-first", "https://first")
    await stores.connections.update(connection["id"], {"api_key": "sk-second", "base_url": None})
    assert await shown() == ("sk-second", None)
    # A client that writes back what it read makes no copy either.
    await stores.settings.patch({"agent_settings_diff": {"llm": {**llm, "api_key": "sk-second"}}})
    await stores.settings.patch({"agent_settings_diff": {"meta_profile_llms": {"mine": llm}}})
    text = (tmp_path / "settings.json").read_text()
    assert not [key for key in ("sk-first", "sk-second", "sk-own") if key in text]
    await stores.llms.delete("mine")
    with pytest.raises(ProfileReferenced, match="agent settings"):
        await stores.connections.delete(connection["id"])
    away = {"llm": {"provider_connection_id": None}, "meta_profile_llms": None}
    await stores.settings.patch({"agent_settings_diff": away})
    await stores.connections.delete(connection["id"])
    found = public(await stores.settings.linked(await stores.settings.get()), Expose.PLAINTEXT)
    assert (found["agent_settings"]["llm"]["api_key"], found["llm_api_key_is_set"]) == (None, False)


@FILES_ALONE
async def test_a_copy_that_an_earlier_release_made_is_not_used(tmp_path: Path) -> None:
    stores = open_stores(tmp_path, encrypted=False)
    connection = await stores.connections.create({"display_name": "c", "api_key": "sk-now"})
    await stores.settings.patch(
        {"agent_settings_diff": {"agent_kind": "openhands", "llm": {"model": "m", "api_key": "sk-old"}}}
    )
    path = tmp_path / "settings.json"
    stored = json.loads(path.read_text())
    stored["agent_settings"]["llm"]["provider_connection_id"] = connection["id"]
    path.write_text(json.dumps(stored))
    again = open_stores(tmp_path, encrypted=False)
    document = await again.settings.get()
    assert document.agent_settings["llm"]["api_key"] is None
    assert (await again.settings.linked(document)).agent_settings["llm"]["api_key"] == "sk-now"


async def test_meta_profiles_follow_the_name_of_a_profile(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    for name in ("big", "small"):
        await stores.llms.save(name, LLM)
    classes = [{"description": "UI", "model": "big"}, {"description": "text", "model": "small"}]
    await stores.metas.save("route", {"classifier_model": "big", "classes": classes})
    template = {"classifier_model": "small", "prompt_template": "big? {{ instance_text }}"}
    await stores.metas.save("other", template)
    await stores.settings.patch({**BUILT_IN, "active_meta_profile": "route"})
    await stores.settings.patch({"agent_settings_diff": {"meta_profile_llms": {"big": {"model": "m"}}}})
    await stores.llms.rename("big", "large")
    again = open_stores(tmp_path)
    found = await again.metas.get("route")
    assert found["classifier_model"] == "large"
    assert [each["model"] for each in found["classes"]] == ["large", "small"]
    other = await again.metas.get("other")
    assert (other["classifier_model"], other["prompt_template"]) == ("small", template["prompt_template"])
    settings = (await again.settings.get()).agent_settings
    assert settings["meta_profile"] == found
    assert list(settings["meta_profile_llms"]) == ["large"]


@pytest.mark.parametrize(
    "change",
    [{}, {"api_key": None}, {"api_key": " "}, {"display_name": None}, {"provider": ""}, {"x": 1}, []],
)
async def test_a_bad_change_of_a_connection(tmp_path: Path, change: Any) -> None:
    stores = open_stores(tmp_path)
    connection = await stores.connections.create({"display_name": "c", "api_key": "k"})
    with pytest.raises(SettingsError):
        await stores.connections.update(connection["id"], change)
    with pytest.raises(SettingsError):
        await stores.connections.create({"display_name": "c", "api_key": "**********"})
    assert await stores.connections.list() == [connection]


async def test_meta_profiles(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    classes = [{"description": "UI", "model": "big"}]
    await stores.metas.save("route", {"classifier_model": "small", "classes": classes})
    whole = {"classifier_model": "small", "classes": classes, "prompt_template": None, "model_table": None}
    assert await open_stores(tmp_path).metas.get("route") == whole
    assert await stores.metas.list() == [{"name": "route", "classifier_model": "small", "num_classes": 1}]
    assert await stores.metas.activate("route") is False  # an ACP agent routes nothing
    assert (await stores.settings.get()).active_meta_profile is None
    await stores.settings.patch(BUILT_IN)
    assert await stores.metas.activate("route") is True
    document = await stores.settings.get()
    assert document.agent_settings["meta_profile"] == whole
    assert document.agent_settings["enable_classify_and_switch_llm_tool"] is True
    back = await stores.settings.patch({"agent_settings_diff": {"agent_kind": "acp", "acp_server": "demo"}})
    assert back.active_meta_profile is None
    await stores.settings.patch({**BUILT_IN, "active_meta_profile": "route"})
    assert await stores.metas.delete("route") is True
    assert await stores.metas.delete("route") is False
    document = await stores.settings.get()
    assert (document.active_meta_profile, document.agent_settings["meta_profile"]) == (None, None)
    with pytest.raises(UnknownProfile):
        await stores.metas.get("route")


@pytest.mark.parametrize(
    "body",
    [
        {"classifier_model": "m"},
        {"classes": [{"description": "", "model": "m"}]},
        {"classifier_model": "m", "prompt_template": "no place"},
        {
            "classifier_model": "m",
            "prompt_template": "{{ instance_text }}",
            "classes": [{"description": "", "model": "m"}],
        },
        {"classifier_model": "m", "classes": [{"model": "m"}]},
        [],
    ],
)
async def test_a_meta_profile_has_to_route(tmp_path: Path, body: Any) -> None:
    stores = open_stores(tmp_path)
    with pytest.raises(SettingsError):
        await stores.metas.save("x", body)
    await stores.metas.save("x", {"classifier_model": "m", "prompt_template": "Take {{instance_text}}"})


@FILES_ALONE
@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"version":2,"items":{}}', '{"version":1}', '{"version":1,"items":[]}'),
        *(f'{{"version":1,"items":{{"a":{item}}}}}' for item in ("1", "null", '"x"', "[]", "[{}]")),
    ],
)
@pytest.mark.parametrize("name", ["llm-profiles.json", "provider-connections.json", "meta-profiles.json"])
async def test_a_corrupt_file_is_told_and_left_alone(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    stores = open_stores(tmp_path)
    calls: dict[str, tuple[Any, ...]] = {
        "llm-profiles.json": (stores.llms.list(), stores.llms.save("x", LLM)),
        "provider-connections.json": (
            stores.connections.list(),
            stores.connections.create({"display_name": "c", "api_key": "k"}),
        ),
        "meta-profiles.json": (
            stores.metas.list(),
            stores.metas.save("x", {"classifier_model": "m", "prompt_template": "{{instance_text}}"}),
        ),
    }
    for call in (each for key, each_calls in calls.items() for each in each_calls if key == name):
        with pytest.raises(SettingsCorrupt, match=name):
            await call
    for key, others in calls.items():
        if key != name:
            for other in others:
                other.close()
    assert (tmp_path / name).read_text() == content


async def test_the_first_profile_of_the_built_in_agent_names_the_model_of_the_settings(
    tmp_path: Path,
) -> None:
    stores = open_stores(tmp_path)
    await stores.settings.patch({"agent_settings_diff": {"agent_kind": "openhands", "llm": LLM}})
    (profile,) = await stores.agents.list()
    assert profile.summary() | {"id": ""} == {
        "id": "",
        "name": "default",
        "agent_kind": "openhands",
        "revision": 0,
        "llm_profile_ref": "default",
        "mcp_server_refs": None,
    }
    assert (await stores.llms.get("default"))["api_key"] == KEY
    assert (await stores.settings.get()).active_agent_profile_id == profile.id
    found = await stores.agents.launch_settings(profile.id)
    assert isinstance(found, BuiltInSettings)
    assert found.document is not None
    given = found.document["agent_settings"]
    assert (given["agent_kind"], given["llm"]["api_key"]) == ("openhands", KEY)
    assert found.shown["llm"]["api_key"] == "**********"


@FILES_ALONE
async def test_a_model_that_nobody_set_up_makes_no_profile(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await stores.settings.patch(BUILT_IN)
    (profile,) = await stores.agents.list()
    assert profile.summary()["llm_profile_ref"] == "default"
    assert await stores.llms.list() == []
    assert (
        json.loads((tmp_path / "agent-profiles.json").read_text())["profiles"][0]["agent_kind"] == "openhands"
    )


async def test_the_models_that_an_agent_may_go_on_with(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    assert await stores.settings.routing() == {"llm_profiles": {}, "meta_profiles": {}}
    connection = await stores.connections.create({"display_name": "c", "api_key": "sk-of-c"})
    await stores.llms.save("own", LLM)
    await stores.llms.save("linked", {"model": "m", "provider_connection_id": connection["id"]})
    await stores.llms.save("dangling", {"model": "m", "provider_connection_id": "gone"})
    classes = [{"description": "UI", "model": "own"}]
    await stores.metas.save("route", {"classifier_model": "own", "classes": classes})
    found = await stores.settings.routing()
    keys = {name: llm["api_key"] for name, llm in found["llm_profiles"].items()}
    assert keys == {"own": KEY, "linked": "sk-of-c"}
    assert found["meta_profiles"]["route"]["classes"] == classes
