"""Operations that only the built-in agent has: condense, another language model, plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from gateway.api.errors import ApiError
from gateway.api.requests.reading import InvalidRequest, Request
from gateway.api.requests.secret_exposure import ONE_MODEL, opened
from gateway.api.routes.conversations.conversations import ONE, TAG, UNKNOWN
from gateway.api.routes.conversations.operations import ASKED
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.settings.built_in import decode_model
from supervisor.settings.errors import SettingsError, UnknownProfile

if TYPE_CHECKING:
    from gateway.api.contract import Conversation

MODEL_REFUSED: Final = "The agent is external, or refuses the model"


@attrs.frozen(kw_only=True)
class SwitchLlmRequest(Request):
    """A language model for the built-in agent of other servers."""

    llm: Mapping[str, Any] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class SwitchProfileRequest(Request):
    """A profile of a language model, by name."""

    profile_name: str


@attrs.frozen(kw_only=True)
class LoadPluginRequest(Request):
    """A plugin of a marketplace."""

    plugin_ref: str


_one: Final = Group(TAG, ONE, UNKNOWN)


@_one(
    "POST /condense",
    errors={**ASKED, 409: "The agent is external, or has no condenser, or actions wait"},
)
async def condense(conversation: Conversation) -> None:
    """Have the built-in agent summarize its history.

    The built-in agent replaces its history by a summary. External agents condense their context themselves,
    and are refused.
    """
    await conversation.condense()


@_one(
    "POST /switch_llm",
    body=SwitchLlmRequest,
    example={"llm": {"model": "openai/gpt-5.5"}},
    errors={**ASKED, 400: MODEL_REFUSED},
)
async def switch_llm(services: Services, conversation: Conversation, body: SwitchLlmRequest) -> None:
    """Give the built-in agent another language model.

    It counts from the next request to a model on, and its secrets may be encrypted by this server. External
    agents have models of their own: use `switch_acp_model`.
    """
    llm = await opened(services, body.llm, ONE_MODEL, ("body", "llm"))
    try:
        llm = decode_model(llm, ("body", "llm"))
    except SettingsError as error:
        raise InvalidRequest(*error.errors) from error
    await conversation.changes.switch_llm(await services.settings.linked_llm(llm))


@_one(
    "POST /switch_profile",
    body=SwitchProfileRequest,
    example={"profile_name": "example"},
    errors={**ASKED, 400: MODEL_REFUSED, 404: "No such conversation, or profile"},
)
async def switch_profile(services: Services, conversation: Conversation, body: SwitchProfileRequest) -> None:
    """Give the built-in agent the language model of a profile.

    The name is one of `/api/profiles`. External agents have models of their own: use `switch_acp_model`.
    """
    try:
        llm = await services.settings.usable_llm(body.profile_name)
    except UnknownProfile as error:
        raise ApiError(404, str(error)) from error
    await conversation.changes.switch_llm(llm)


@_one(
    "POST /load_plugin",
    body=LoadPluginRequest,
    example={"plugin_ref": "example"},
    errors={**ASKED, 400: "The agent is external, or refuses the plugin"},
)
async def load_plugin(conversation: Conversation, body: LoadPluginRequest) -> None:
    """Load a plugin into the built-in agent.

    The built-in agent finds it in a marketplace that it knows. External agents load no plugins of this
    server.
    """
    await conversation.load_plugin(body.plugin_ref)


GROUPS: Final = (_one,)
