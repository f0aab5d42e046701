"""Ostler's model profiles for the SDK's tools: in memory, since they hold keys.

The SDK reads profiles from files in the home. Its stores of that directory find Ostler's first, by their
names; stores of other directories (`profile_store_dir` of a sub-agent) are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openhands.sdk.llm import LLM, llm_profile_store, meta_profile_store
from openhands.sdk.llm.llm_profile_store import LLMProfileStore, canonical_profile_name
from openhands.sdk.llm.meta_profile_store import MetaProfile, MetaProfileStore

from .headers import is_credential

SECRETS = ("api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")

llms: dict[str, dict[str, Any]] = {}
routings: dict[str, dict[str, Any]] = {}
"""Routing profiles by name, as Ostler sends them. One process has one conversation."""


def offer(given: Mapping[str, Any]) -> None:
    """Replace the profiles by those of a session."""
    for known, name in ((llms, "llm_profiles"), (routings, "meta_profiles")):
        known.clear()
        found = given.get(name)
        known.update(found if isinstance(found, Mapping) else {})


def secrets() -> set[str]:
    """The secrets in the models."""
    return {text for llm in llms.values() for text in secrets_of(llm)}


def secrets_of(llm: Any) -> set[str]:
    """Return the secrets in one model, as Ostler sends it, and in its fallbacks."""
    if isinstance(llm, list):
        return set().union(*map(secrets_of, llm))
    if not isinstance(llm, Mapping):
        return set()
    found = set().union(*map(secrets_of, llm.values()))
    headers = llm.get("extra_headers")
    headers = headers if isinstance(headers, Mapping) else {}
    texts = (
        *(llm.get(name) for name in SECRETS),
        *(value for name, value in headers.items() if is_credential(name)),
    )
    return found | {text for text in texts if isinstance(text, str)}


def model(name: str) -> LLM | None:
    """Return the model of a profile with its key; None if there is none, or the SDK refuses it."""
    try:
        return LLM.model_validate(llms[name]) if name in llms else None
    except ValueError:
        return None


def mend() -> None:
    """Make the SDK's stores find them. Once per process."""
    names, load, summaries = LLMProfileStore.list, LLMProfileStore.load, LLMProfileStore.list_summaries
    meta_names, meta_load = MetaProfileStore.list, MetaProfileStore.load

    def usual(store: Any) -> bool:
        return bool(store.base_dir == llm_profile_store._DEFAULT_PROFILE_DIR)

    def all_names(self: Any) -> list[str]:
        return sorted({*(names(self)), *(f"{name}.json" for name in llms if usual(self))})

    def any_model(self: Any, name: str, **how: Any) -> LLM:
        called = canonical_profile_name(name)
        if usual(self) and called in llms:
            return LLM.model_validate(llms[called])
        return load(self, name, **how)

    def all_summaries(self: Any) -> list[dict[str, Any]]:
        own = llms if usual(self) else {}
        rest = [each for each in summaries(self) if each["name"] not in own]
        return sorted([*map(_summary, own.items()), *rest], key=lambda each: str(each["name"]))

    def all_routings(self: Any) -> list[str]:
        own = routings if _usual_routing(self) else {}
        return sorted({*meta_names(self), *own})

    def any_routing(self: Any, name: str) -> MetaProfile:
        called = name.removesuffix(".json")
        if _usual_routing(self) and called in routings:
            return MetaProfile.model_validate(routings[called])
        return meta_load(self, name)

    LLMProfileStore.list = all_names
    LLMProfileStore.load = any_model
    LLMProfileStore.list_summaries = all_summaries
    MetaProfileStore.list = all_routings
    MetaProfileStore.load = any_routing


def _usual_routing(store: Any) -> bool:
    return bool(store.base_dir == meta_profile_store.default_meta_profile_dir())


def _summary(named: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    name, llm = named
    return {
        "name": name,
        "model": llm.get("model"),
        "base_url": llm.get("base_url"),
        "provider_connection_id": llm.get("provider_connection_id"),
        "provider_connection_broken": False,
        "api_key_set": bool(llm.get("api_key")),
    }
