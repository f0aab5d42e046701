"""The description of a language model: what LLM profiles hold, and the built-in agent's settings.

Nothing here calls one. The values are kept for clients and for the built-in agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs

from supervisor.reading.model import Location, described, said
from supervisor.reading.rules import FILLED, Limit
from supervisor.reading.shapes import as_json
from supervisor.settings.errors import read
from supervisor.settings.exposure import CREDENTIALS, erase_placeholders
from supervisor.settings.names import Setting

DEFAULT_MODEL: Final = "gpt-5.6"
"""The wire's."""

FROM_ZERO: Final = Limit(ge=0)
FROM_ONE: Final = Limit(ge=1)

DIRECT_OPENAI: Final = ("https://api.openai.com", "https://api.openai.com/")
"""Base URLs that clients write where they mean the provider's own."""

AZURE_VERSION: Final = "2024-12-01-preview"
"""The API version of an Azure model that names none; the wire's."""


def _or_none(text: str | None) -> str | None:
    """A blank credential is none."""
    return text if text and text.strip() else None


def _secret(text: str = "") -> Any:
    return attrs.field(default=None, repr=False, converter=_or_none, metadata=described(text))


@attrs.frozen(kw_only=True)
class LLM(Setting):
    """A language model. Times are in seconds, costs in dollars. What is not known is ignored."""

    model: Annotated[str, FILLED] = said(DEFAULT_MODEL, "Model name.")
    api_key: str | None = _secret("API key.")
    provider_connection_id: str | None = said(
        None, "Provider connection whose API key and base URL the profile uses instead of its own."
    )
    auth_type: Literal["api_key", "subscription"] = said("api_key", "Authentication mode.")
    subscription_vendor: Literal["openai"] | None = said(None, "Provider of the subscription.")
    base_url: str | None = said(None, "Custom base URL.")
    api_version: str | None = said(None, "API version (for Azure).")
    aws_access_key_id: str | None = _secret()
    aws_secret_access_key: str | None = _secret()
    aws_session_token: str | None = _secret()
    aws_region_name: str | None = None
    aws_profile_name: str | None = None
    aws_role_name: str | None = None
    aws_session_name: str | None = None
    aws_bedrock_runtime_endpoint: str | None = None
    openrouter_site_url: str = "https://docs.all-hands.dev/"
    openrouter_app_name: str = "OpenHands"
    num_retries: Annotated[int, FROM_ZERO] = 5
    retry_multiplier: Annotated[float, FROM_ZERO] = attrs.field(default=8.0, converter=float)
    retry_min_wait: Annotated[int, FROM_ZERO] = 8
    retry_max_wait: Annotated[int, FROM_ZERO] = 64
    timeout: Annotated[int, FROM_ZERO] | None = said(300, "Seconds for a request; null for no limit.")
    stream_idle_timeout: Annotated[float, FROM_ZERO] | None = said(
        300, "Seconds between two pieces of a streamed answer; null for no limit."
    )
    max_message_chars: Annotated[int, FROM_ONE] = said(30_000, "Characters of an event that are sent.")
    temperature: Annotated[float, FROM_ZERO] | None = said(None, "Sampling temperature.")
    top_p: Annotated[float, Limit(ge=0, le=1)] | None = said(None, "Nucleus sampling, from 0 to 1.")
    top_k: Annotated[float, FROM_ZERO] | None = None
    max_input_tokens: Annotated[int, FROM_ONE] | None = said(None, "Most tokens of a request.")
    max_output_tokens: Annotated[int, FROM_ONE] | None = said(None, "Most tokens of an answer.")
    model_canonical_name: str | None = said(None, "The name by which the model's capabilities are known.")
    api_mode: Literal["auto", "chat", "responses"] = said("auto", "Endpoint of the API.")
    capability_overrides: Mapping[str, bool | str] = attrs.field(
        factory=dict, metadata=described("Capabilities of the model, where they are known better here.")
    )
    extra_headers: Mapping[str, str] | None = attrs.field(
        default=None, repr=False, metadata=described("HTTP headers that are sent with every request.")
    )
    input_cost_per_token: Annotated[float, FROM_ZERO] | None = said(None, "Cost of a token that is sent.")
    output_cost_per_token: Annotated[float, FROM_ZERO] | None = said(
        None, "Cost of a token that is answered."
    )
    ollama_base_url: str | None = None
    stream: bool = said(False, "Whether answers are streamed.")
    drop_params: bool = True
    disable_vision: bool | None = said(None, "Whether images are left out.")
    disable_stop_word: bool | None = said(False, "Whether no stop word is sent.")
    caching_prompt: bool = said(True, "Whether prompts are cached.")
    log_completions: bool = said(False, "Whether answers are logged.")
    log_completions_folder: str = said("logs/completions", "The directory of that log.")
    custom_tokenizer: str | None = said(None, "The tokenizer that counts tokens.")
    native_tool_calling: bool = said(True, "Whether the model's own tool calls are used.")
    force_string_serializer: bool | None = said(None, "Whether content is sent as one string.")
    inline_image_urls: bool | None = said(None, "Whether images are fetched and sent in the request.")
    reasoning_effort: str | None = said("high", "none, minimal, low, medium, high, xhigh, max ...")
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = said(
        None, "Level of detail of reasoning summaries."
    )
    enable_encrypted_reasoning: bool = said(True, "Whether encrypted reasoning is asked for.")
    prompt_cache_retention: str | None = said("24h", "How long the provider keeps cached prompts.")
    extended_thinking_budget: int | None = said(200_000, "Most tokens of extended thinking.")
    seed: int | None = said(None, "Seed of the sampling.")
    usage_id: str = said("default", "The name under which usage is counted.")
    litellm_extra_body: Mapping[str, Any] = attrs.field(
        factory=dict, repr=False, metadata=described("More properties of every request.")
    )
    is_subscription: bool = False

    SCHEMA: ClassVar[Mapping[str, Any]] = {"description": "A language model"}


@attrs.frozen(kw_only=True)
class ProfileLLM(LLM):
    """The same where its model has to be named."""

    model: Annotated[str, FILLED]


def decode_llm(obj: object, loc: Location) -> dict[str, Any]:
    """The language model of a profile as JSON, every property present.

    A credential that is blank, or the placeholder that clients are shown, is none. Raises SettingsError.
    """
    return completed_llm(read(ProfileLLM, obj, loc))


def completed_llm(llm: LLM) -> dict[str, Any]:
    """The JSON of it, with what the model's name implies, and without what its connection has."""
    if llm.model.startswith("azure") and not llm.api_version:
        llm = attrs.evolve(llm, api_version=AZURE_VERSION)
    if llm.model.startswith("openai/") and llm.base_url in DIRECT_OPENAI:
        llm = attrs.evolve(llm, base_url=None)
    if llm.provider_connection_id:
        # Its connection has them; a copy here would differ one day.
        llm = attrs.evolve(llm, api_key=None, base_url=None)
    found: dict[str, Any] = erase_placeholders({"llm": as_json(llm)})["llm"]
    return {**found, **{name: found.get(name) for name in CREDENTIALS}}


def without_credentials(llm: Mapping[str, Any]) -> dict[str, Any]:
    """The same without its secrets."""
    return {**llm, **dict.fromkeys(CREDENTIALS)}


def has_key(llm: Mapping[str, Any]) -> bool:
    """Whether it has an API key itself."""
    key = llm.get("api_key")
    return isinstance(key, str) and bool(key.strip())


def connection_of(llm: Any) -> str | None:
    """The id of the model's provider connection; None where it has none."""
    return llm.get("provider_connection_id") or None if isinstance(llm, Mapping) else None


def models_of(settings: Mapping[str, Any]) -> list[Any]:
    """Every language model in agent settings."""
    routed, condenser = settings.get("meta_profile_llms"), settings.get("condenser")
    return [
        settings.get("llm"),
        *(routed.values() if isinstance(routed, Mapping) else ()),
        condenser.get("llm") if isinstance(condenser, Mapping) else None,
    ]


def linked_settings(
    settings: Mapping[str, Any], connections: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Agent settings whose models have the key and the URL of their connections, as these are now.

    Settings keep only the connection's id: a copy of its key would outlive a change of it. What is not a
    model stays as it is: the SDK judges agents that clients spell out.
    """
    found = dict(settings)
    if "llm" in found:
        found["llm"] = _linked_if_model(found["llm"], connections)
    routed, condenser = found.get("meta_profile_llms"), found.get("condenser")
    if isinstance(routed, Mapping):
        found["meta_profile_llms"] = {
            name: _linked_if_model(llm, connections) for name, llm in routed.items()
        }
    if isinstance(condenser, Mapping) and "llm" in condenser:
        found["condenser"] = {**condenser, "llm": _linked_if_model(condenser["llm"], connections)}
    return found


def _linked_if_model(llm: Any, connections: Mapping[str, Mapping[str, Any]]) -> Any:
    return linked(llm, connections) if isinstance(llm, Mapping) else llm


def linked(llm: Mapping[str, Any], connections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A model with the key and the URL of its connection, if it has one and that is there."""
    connection = connections.get(str(llm.get("provider_connection_id")))
    if connection is None:
        return dict(llm)
    return {**llm, "base_url": connection["base_url"], "api_key": connection["api_key"] or llm.get("api_key")}
