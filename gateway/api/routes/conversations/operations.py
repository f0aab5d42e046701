"""What else can be done with a conversation: fork it, move in it, ask its agent, switch its model, pursue
goals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import MAX_TITLE_CHARACTERS, Secrets, Tags, json_body
from gateway.api.requests.limits import admit
from gateway.api.requests.paths import admitted
from gateway.api.requests.reading import (
    AnyUuid,
    InvalidRequest,
    Request,
    Whole,
    attempt_body,
    read_body,
    refuse,
)
from gateway.api.requests.secret_exposure import ONE_MODEL, opened
from gateway.api.requests.secret_sources import resolve_secrets
from gateway.api.requests.start_request import ACP_SETTINGS
from gateway.api.responses import json_response, success
from gateway.api.routes.conversations.conversations import AT_CAPACITY, UNKNOWN, find, own_origins
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.conversations.agent.side.model_discovery import failed
from supervisor.conversations.children import Worktrees, child_told
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.secret_box import split_secrets
from supervisor.credentials.lookup import LookupFailed
from supervisor.reading.model import Errors, Named, described
from supervisor.reading.rules import Form, Limit
from supervisor.settings.agent import decode_agent_settings
from supervisor.settings.built_in import decode_model
from supervisor.settings.errors import SettingsError, UnknownProfile
from supervisor.workspace.access import AccessRefused, Admitted
from supervisor.workspace.git.command import Git
from supervisor.workspace.git.worktree import WORKTREES_DIR, drop_worktree, make_worktree

TAG: Final = "Conversations"

QUESTION_CHARACTERS: Final = 256 * 1024
"""Longest side question: it is one prompt."""

OBJECTIVE_CHARACTERS: Final = 64 * 1024
"""Longest objective of a goal: it is in every state of the goal, and in each of its prompts."""

MODEL_CHARACTERS: Final = 1000
"""Longest name of a model."""

GOAL_ITERATIONS: Final = 10

RUNTIME: Final = {"runtime_status": "available", "can_resume": True, "runtime_error": None}
"""Every conversation's agent is started here, when it is needed."""


@attrs.frozen(kw_only=True)
class ForkConversationRequest(Request):
    """What a fork is to be. Without from_event_id it has the whole active branch."""

    id: AnyUuid | None = None
    title: Annotated[str, Limit(max_length=MAX_TITLE_CHARACTERS)] | None = None
    tags: Tags | None = None
    reset_metrics: bool = True
    from_event_id: str | None = None


@attrs.frozen(kw_only=True)
class NavigateConversationRequest(Request):
    """The event that the next one is to follow; null is the beginning."""

    event_id: str | None = None


@attrs.frozen(kw_only=True)
class AskAgentRequest(Request):
    """A side question that does not become part of the conversation."""

    question: Annotated[str, Limit(max_length=QUESTION_CHARACTERS)]


def _option_value(value: Any) -> str | bool:
    if not isinstance(value, bool | str) or (isinstance(value, str) and len(value) > MODEL_CHARACTERS):
        raise ValueError(f"not true, false, or a text of at most {MODEL_CHARACTERS} characters")
    return value


OptionValue = Annotated[
    Any,
    Form(
        _option_value,
        {"anyOf": [{"type": "string", "maxLength": MODEL_CHARACTERS}, {"type": "boolean"}]},
    ),
]


@attrs.frozen(kw_only=True)
class SwitchAcpModeRequest(Request):
    """The mode that the agent is to be in from now on: an id of the state `modes`, or of its option."""

    mode: Annotated[str, Limit(min_length=1, max_length=MODEL_CHARACTERS)]


@attrs.frozen(kw_only=True)
class SetAcpOptionRequest(Request):
    """An option of the state `config_options`, and one of its values; of a switch, true or false."""

    option_id: Annotated[str, Limit(min_length=1, max_length=MODEL_CHARACTERS)]
    value: OptionValue


@attrs.frozen(kw_only=True)
class SwitchAcpModelRequest(Request):
    """The model that the agent is to use from now on."""

    model: Annotated[str, Limit(max_length=MODEL_CHARACTERS)]


@attrs.frozen(kw_only=True)
class StartGoalRequest(Request):
    """An objective, and how often the agent is prompted for it at the most."""

    objective: Annotated[str, Limit(max_length=OBJECTIVE_CHARACTERS)]
    max_iterations: Annotated[Whole, Limit(ge=1)] = GOAL_ITERATIONS


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


@attrs.frozen(kw_only=True)
class StartChildConversationRequest(Request):
    """A task for a child conversation with the same agent."""

    task: Annotated[str, Limit(min_length=1)]
    title: Annotated[str, Limit(min_length=1, max_length=MAX_TITLE_CHARACTERS)] | None = None
    isolation: Literal["worktree", "shared"] = attrs.field(
        default="worktree",
        metadata=described("worktree: a git worktree of its own, where the workspace is a git repository"),
    )


@attrs.frozen(kw_only=True)
class ACPModelDiscoveryRequest(Request):
    """An agent that is asked which models it offers. `refresh`: a kept answer does not count."""

    agent_settings: Annotated[Any, Named(ACP_SETTINGS)] = attrs.field(repr=False)
    secrets: Secrets = attrs.field(factory=dict, repr=False)
    refresh: bool = False


@attrs.frozen
class ConversationOperationRoutes:
    """Handlers of what is done with a conversation besides talking."""

    services: Services
    git: Git

    async def fork(self, conversation_id: str) -> Response:
        """201 with the new conversation, idle."""
        source = await find(self.services, conversation_id)
        body = await json_body(request, required=False)
        wanted = read_body(ForkConversationRequest, {} if body is None else body)
        await admit(self.services, None)
        made = await self.services.supervisor.fork(
            source.id,
            ForkRequest(
                conversation_id=wanted.id,
                title=(wanted.title or "").strip() or None,
                tags=wanted.tags,
                reset_metrics=wanted.reset_metrics,
                from_event_id=wanted.from_event_id,
            ),
        )
        info = await made.durable_info()
        self._tell(info)
        return json_response(info, 201)

    def _tell(self, info: Mapping[str, Any]) -> None:
        """Send a new conversation to the webhooks."""
        if self.services.webhooks is not None:
            self.services.webhooks.tell(info)

    async def navigate(self, conversation_id: str) -> Response:
        """Continue the conversation from another event, and return it."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(NavigateConversationRequest, await json_body(request))
        await conversation.navigate(wanted.event_id)
        return json_response(await conversation.durable_info())

    async def ask_agent(self, conversation_id: str) -> Response:
        """The agent's answer to a side question."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(AskAgentRequest, await json_body(request))
        return json_response({"response": await conversation.ask_agent(wanted.question)})

    async def switch_acp_model(self, conversation_id: str) -> Response:
        """Choose the agent's model."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(SwitchAcpModelRequest, await json_body(request))
        if not wanted.model.strip():
            raise ApiError(400, "model must be a non-empty string")
        await conversation.changes.switch_model(wanted.model)
        return success()

    async def switch_acp_mode(self, conversation_id: str) -> Response:
        """Put the agent into a mode."""
        conversation = await find(self.services, conversation_id)
        await conversation.changes.choose_mode(read_body(SwitchAcpModeRequest, await json_body(request)).mode)
        return success()

    async def set_acp_option(self, conversation_id: str) -> Response:
        """Set a configuration option of the agent."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(SetAcpOptionRequest, await json_body(request))
        await conversation.changes.choose_option(wanted.option_id, wanted.value)
        return success()

    async def start_goal(self, conversation_id: str) -> Response:
        """Begin to pursue an objective, in the background."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(StartGoalRequest, await json_body(request))
        if not wanted.objective.strip():
            raise ApiError(400, "Goal objective must not be empty.")
        await conversation.start_goal(wanted.objective, wanted.max_iterations)
        return success()

    async def stop_goal(self, conversation_id: str) -> Response:
        """Stop the goal's loop; its current turn continues."""
        await (await find(self.services, conversation_id)).stop_goal()
        return success()

    async def resume_goal(self, conversation_id: str) -> Response:
        """Resume an interrupted goal."""
        await (await find(self.services, conversation_id)).resume_goal()
        return success()

    async def condense(self, conversation_id: str) -> Response:
        """Have the built-in agent summarize its history; external ones condense their context themselves."""
        await (await find(self.services, conversation_id)).condense()
        return success()

    async def switch_llm(self, conversation_id: str) -> Response:
        """Give the built-in agent another language model. Its secrets may be encrypted by this server."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(SwitchLlmRequest, await json_body(request))
        llm = await opened(self.services, wanted.llm, ONE_MODEL, ("body", "llm"))
        try:
            llm = decode_model(llm, ("body", "llm"))
        except SettingsError as error:
            raise InvalidRequest(*error.errors) from error
        await conversation.changes.switch_llm(await self.services.settings.linked_llm(llm))
        return success()

    async def switch_profile(self, conversation_id: str) -> Response:
        """Give the built-in agent the language model of a profile."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(SwitchProfileRequest, await json_body(request))
        try:
            llm = await self.services.settings.usable_llm(wanted.profile_name)
        except UnknownProfile as error:
            raise ApiError(404, str(error)) from error
        await conversation.changes.switch_llm(llm)
        return success()

    async def load_plugin(self, conversation_id: str) -> Response:
        """Load a plugin into the built-in agent."""
        conversation = await find(self.services, conversation_id)
        wanted = read_body(LoadPluginRequest, await json_body(request))
        await conversation.load_plugin(wanted.plugin_ref)
        return success()

    async def start_child(self, conversation_id: str) -> Response:
        """201 with where the new conversation is; its agent works on the task."""
        parent = await find(self.services, conversation_id)
        wanted = read_body(StartChildConversationRequest, await json_body(request))
        await admit(self.services, None)

        child = await self.services.supervisor.start_child(
            parent.id,
            wanted.task,
            title=wanted.title,
            worktree=self.worktrees(parent.id) if wanted.isolation == "worktree" else None,
        )
        info = await child.durable_info()
        self._tell(info)
        return json_response(child_told(info, await parent.durable_info()), 201)

    def worktrees(self, parent_id: str) -> Worktrees:
        """Those of a conversation's workspace, for its children."""
        root = self.services.config.state / WORKTREES_DIR
        places: dict[str, Admitted] = {}  # the parent may be gone when one is dropped

        async def make(child_id: str) -> Path | None:
            try:
                place = await admitted(self.services, ".", parent_id)
            except AccessRefused:
                return None  # the operator has git switched off, for this as well
            places[child_id] = place
            return await make_worktree(self.git, place, root, child_id)

        async def drop(child_id: str) -> None:
            await drop_worktree(self.git, places[child_id], root, child_id)

        return Worktrees(make, drop)

    async def runtime(self, conversation_id: str) -> Response:
        """Where the agent runs: always here."""
        await find(self.services, conversation_id)
        return json_response(RUNTIME)

    async def models(self) -> Response:
        """The models that an agent offers. What goes wrong with the agent is in the answer."""
        errors = Errors()
        body = await json_body(request)
        found = attempt_body(ACPModelDiscoveryRequest, body, errors)
        given = {} if found is None else found.secrets
        lookups = self.services.launcher.lookups
        secrets = await resolve_secrets(given, self.services.secrets, own_origins(), errors, lookups)
        agent = None
        rules = self.services.settings.rules
        try:
            if found is not None:
                agent = decode_agent_settings(
                    found.agent_settings, rules.presets, check_server=rules.check_server
                )
        except SettingsError as error:
            errors.note(error.errors)
        refuse(errors)
        assert found is not None
        assert agent is not None
        values, kept = split_secrets(secrets)
        try:
            values |= await lookups.fetch(kept)
        except LookupFailed as error:
            return json_response(failed("ACPSpawnError", str(error)))
        answer = await self.services.supervisor.models(agent, values, refresh=found.refresh)
        return json_response(answer)

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        one = "/api/conversations/<conversation_id>"
        info, done = schemas.ref("ConversationInfo"), schemas.ref("Success")
        asked = {
            **UNKNOWN,
            502: "The agent failed, or refused",
            503: AT_CAPACITY,
            504: "The agent did not answer in time",
        }
        runs = {**UNKNOWN, 409: "The conversation is running", 503: AT_CAPACITY}

        def post(name: str, handler: Any, summary: str, **more: Any) -> Route:
            plain = {"result": done, "errors": UNKNOWN, "tag": TAG, **more}
            return Route(method="POST", path=f"{one}/{name}", handler=handler, summary=summary, **plain)

        return (
            post(
                "fork",
                self.fork,
                "Make a new conversation from this one's events",
                body=ForkConversationRequest,
                body_required=False,
                result=info,
                status=201,
                errors={
                    404: "No such conversation, or event",
                    409: "The id is taken",
                    429: "Too many conversations",
                },
            ),
            post(
                "navigate",
                self.navigate,
                "Go on from another event",
                body=NavigateConversationRequest,
                result=info,
                errors={404: "No such conversation, or event", 409: "The conversation is running"},
            ),
            post(
                "ask_agent",
                self.ask_agent,
                "Ask the agent something beside the conversation",
                body=AskAgentRequest,
                result=schemas.ref("AskAgentResponse"),
                errors={
                    **UNKNOWN,
                    429: "Too many side questions at a time",
                    502: "The agent failed, or refused",
                    503: AT_CAPACITY,
                    504: "The agent did not answer in time",
                },
            ),
            post(
                "switch_acp_model",
                self.switch_acp_model,
                "Choose the agent's model",
                body=SwitchAcpModelRequest,
                errors={
                    **UNKNOWN,
                    400: "The agent has no such model, or no choice",
                    502: "The agent failed",
                    504: "The agent did not answer in time",
                },
            ),
            post(
                "switch_acp_mode",
                self.switch_acp_mode,
                "Put the agent into a mode",
                body=SwitchAcpModeRequest,
                errors={**asked, 400: "The agent has no such mode, or none"},
            ),
            post(
                "set_acp_option",
                self.set_acp_option,
                "Set a configuration option of the agent",
                body=SetAcpOptionRequest,
                errors={**asked, 400: "The agent has no such option, or value"},
            ),
            post(
                "goal",
                self.start_goal,
                "Pursue an objective until it is reached",
                body=StartGoalRequest,
                errors={**runs, 400: "The objective is empty"},
            ),
            post("goal/stop", self.stop_goal, "End the loop of the goal, not the turn under way"),
            post(
                "goal/resume",
                self.resume_goal,
                "Go on with the goal that was interrupted",
                errors={**runs, 400: "There is no goal that can be resumed"},
            ),
            post(
                "condense",
                self.condense,
                "Have the built-in agent summarize its history",
                errors={**asked, 409: "The agent is external, or has no condenser, or actions wait"},
            ),
            post(
                "switch_llm",
                self.switch_llm,
                "Give the built-in agent another language model",
                body=SwitchLlmRequest,
                errors={**asked, 400: "The agent is external, or refuses the model"},
            ),
            post(
                "switch_profile",
                self.switch_profile,
                "Give the built-in agent the language model of a profile",
                body=SwitchProfileRequest,
                errors={
                    **asked,
                    400: "The agent is external, or refuses the model",
                    404: "No such conversation, or profile",
                },
            ),
            post(
                "load_plugin",
                self.load_plugin,
                "Load a plugin into the built-in agent",
                body=LoadPluginRequest,
                errors={**asked, 400: "The agent is external, or refuses the plugin"},
            ),
            post(
                "children",
                self.start_child,
                "Start a conversation with the same agent on a task of its own",
                body=StartChildConversationRequest,
                result=schemas.ref("StartChildConversationResponse"),
                status=201,
                errors={**UNKNOWN, 429: "Too many conversations", 503: AT_CAPACITY},
            ),
            Route(
                method="GET",
                path=f"{one}/runtime",
                handler=self.runtime,
                summary="Where the agent runs",
                tag=TAG,
                result=schemas.ref("ConversationRuntimeInfo"),
                errors=UNKNOWN,
            ),
            post(
                "runtime/reprovision",
                self.runtime,
                "The same: there is nothing to provision",
                result=schemas.ref("ConversationRuntimeInfo"),
            ),
            Route(
                method="POST",
                path="/api/acp/models",
                handler=self.models,
                summary="Ask an agent which models it offers",
                tag="Agents",
                body=ACPModelDiscoveryRequest,
                result=schemas.ref("ACPModelDiscovery"),
                errors={503: AT_CAPACITY},
            ),
        )
