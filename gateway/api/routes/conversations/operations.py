"""What else can be done with a conversation: fork it, move in it, ask its agent, switch its model, pursue
goals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import MAX_TITLE_CHARACTERS, Secrets, Tags
from gateway.api.requests.paths import admitted
from gateway.api.requests.reading import (
    AnyUuid,
    Request,
    Whole,
    attempt_body,
    refuse,
)
from gateway.api.requests.secret_sources import resolve_secrets
from gateway.api.requests.start_request import ACP_SETTINGS
from gateway.api.routes.conversations.conversations import (
    AT_CAPACITY,
    INFO,
    ONE,
    TAG,
    UNKNOWN,
    admit,
    own_origins,
)
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.conversations.agent.side.model_discovery import failed
from supervisor.conversations.children import Worktrees, describe_child
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.secret_box import split_secrets
from supervisor.credentials.lookup import LookupFailed
from supervisor.reading.model import Errors, Named, said
from supervisor.reading.rules import Form, Limit
from supervisor.settings.agent import decode_agent_settings
from supervisor.settings.errors import SettingsError
from supervisor.workspace.access import AccessRefused, Admitted
from supervisor.workspace.git.worktree import WORKTREES_DIR, drop_worktree, make_worktree

if TYPE_CHECKING:
    from gateway.api.contract import Conversation, View

ASKED: Final = {
    502: "The agent failed, or refused",
    503: AT_CAPACITY,
    504: "The agent did not answer in time",
}
RUNS: Final = {409: "The conversation is running", 503: AT_CAPACITY}

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
class StartChildConversationRequest(Request):
    """A task for a child conversation with the same agent."""

    task: Annotated[str, Limit(min_length=1)]
    title: Annotated[str, Limit(min_length=1, max_length=MAX_TITLE_CHARACTERS)] | None = None
    isolation: Literal["worktree", "shared"] = said(
        "worktree", "worktree: a git worktree of its own, where the workspace is a git repository"
    )


@attrs.frozen(kw_only=True)
class ACPModelDiscoveryRequest(Request):
    """An agent that is asked which models it offers. `refresh`: a kept answer does not count."""

    agent_settings: Annotated[Any, Named(ACP_SETTINGS)] = attrs.field(repr=False)
    secrets: Secrets = attrs.field(factory=dict, repr=False)
    refresh: bool = False


_one: Final = Group(TAG, ONE, UNKNOWN)
_agents: Final = Group("Agents", "/api/acp")


@_one(
    "POST /fork",
    body=ForkConversationRequest,
    example={"title": "A fork"},
    body_required=False,
    result=INFO,
    status=201,
    errors={
        404: "No such conversation, or event",
        409: "The id is taken",
        429: "Too many conversations",
    },
)
async def fork(services: Services, conversation: Conversation, body: ForkConversationRequest | None) -> Any:
    """Make a new conversation from this one's events.

    The copy has the events up to `from_event_id`, or the whole active branch. It is idle, has an agent of its
    own, and its open calls are closed as interrupted.
    """
    wanted = body or ForkConversationRequest()
    await admit(services, None)
    made = await services.supervisor.fork(
        conversation.id,
        ForkRequest(
            conversation_id=wanted.id,
            title=(wanted.title or "").strip() or None,
            tags=wanted.tags,
            reset_metrics=wanted.reset_metrics,
            from_event_id=wanted.from_event_id,
        ),
    )
    info = await made.durable_info()
    services.tell(info)
    return info


@_one(
    "POST /navigate",
    body=NavigateConversationRequest,
    example={"event_id": None},
    result=INFO,
    errors={404: "No such conversation, or event", 409: "The conversation is running"},
)
async def navigate(conversation: Conversation, body: NavigateConversationRequest) -> Any:
    """Continue from another event.

    Later events remain readable, and no longer belong to the active branch; null is the beginning. The
    agent's memory is lost, so its next prompt begins with a transcript.
    """
    await conversation.navigate(body.event_id)
    return await conversation.durable_info()


@_one(
    "POST /ask_agent",
    body=AskAgentRequest,
    example={"question": "What have you done so far?"},
    result=schemas.ref("AskAgentResponse"),
    errors={**ASKED, 429: "Too many side questions at a time"},
)
async def ask_agent(conversation: Conversation, body: AskAgentRequest) -> Any:
    """Ask the agent something outside of the conversation.

    The agent answers in a side session, also while a turn is under way. The conversation gets no event, and
    the agent may do nothing that needs a permission.
    """
    return {"response": await conversation.ask_agent(body.question)}


@_one(
    "POST /switch_acp_model",
    body=SwitchAcpModelRequest,
    example={"model": "demo-terse"},
    errors={
        400: "The agent has no such model, or no choice",
        502: "The agent failed",
        504: "The agent did not answer in time",
    },
)
async def switch_acp_model(conversation: Conversation, body: SwitchAcpModelRequest) -> None:
    """Choose the agent's model.

    It counts at once where the agent lives, else at its next start. `agent_state.acp_available_models` has
    the choices.
    """
    if not body.model.strip():
        raise ApiError(400, "model must be a non-empty string")
    await conversation.changes.switch_model(body.model)


@_one(
    "POST /switch_acp_mode",
    body=SwitchAcpModeRequest,
    example={"mode": "ask"},
    errors={**ASKED, 400: "The agent has no such mode, or none"},
)
async def switch_acp_mode(conversation: Conversation, body: SwitchAcpModeRequest) -> None:
    """Put the agent into a mode.

    It counts for this session and later ones. The state `modes` has the choices.
    """
    await conversation.changes.choose_mode(body.mode)


@_one(
    "POST /set_acp_option",
    body=SetAcpOptionRequest,
    example={"option_id": "model", "value": "demo-polite"},
    errors={**ASKED, 400: "The agent has no such option, or value"},
)
async def set_acp_option(conversation: Conversation, body: SetAcpOptionRequest) -> None:
    """Set a configuration option of the agent.

    It counts for this session and later ones, and is kept in `agent_state.acp_options`. The state
    `config_options` has the options and their values.
    """
    await conversation.changes.choose_option(body.option_id, body.value)


@_one(
    "POST /goal",
    body=StartGoalRequest,
    example={"objective": "Write a poem into a file", "max_iterations": 2},
    errors={**RUNS, 400: "The objective is empty"},
)
async def start_goal(conversation: Conversation, body: StartGoalRequest) -> None:
    """Pursue an objective until it is reached.

    The agent is prompted, and judges in a side question whether the objective is reached; if not, it is
    prompted again, up to `max_iterations` times. The state `goal` reports each round.
    """
    if not body.objective.strip():
        raise ApiError(400, "Goal objective must not be empty.")
    await conversation.start_goal(body.objective, body.max_iterations)


@_one("POST /goal/stop")
async def stop_goal(conversation: Conversation) -> None:
    """End the loop of the goal, not the turn under way.

    The turn comes to its end, and the agent is not prompted for the goal again. `interrupt` ends the turn,
    too.
    """
    await conversation.stop_goal()


@_one("POST /goal/resume", errors={**RUNS, 400: "There is no goal that can be resumed"})
async def resume_goal(conversation: Conversation) -> None:
    """Resume the goal that was interrupted.

    A goal is interrupted by an interrupt, a pause, or the end of the server. It resumes with the rounds that
    are left.
    """
    await conversation.resume_goal()


@_one(
    "POST /children",
    body=StartChildConversationRequest,
    example={"task": "Say hello.", "title": "A child"},
    result=schemas.ref("StartChildConversationResponse"),
    status=201,
    errors={429: "Too many conversations", 503: AT_CAPACITY},
)
async def start_child(
    services: Services, conversation: Conversation, body: StartChildConversationRequest
) -> Any:
    """Start a conversation with the same agent on a task of its own.

    It works in a git worktree of its own where the workspace is in a repository, else in the same directory.
    The answer says which.
    """
    await admit(services, None)
    child = await services.supervisor.start_child(
        conversation.id,
        body.task,
        title=body.title,
        worktree=worktrees(services, conversation.id) if body.isolation == "worktree" else None,
    )
    info = await child.durable_info()
    services.tell(info)
    return describe_child(info, await conversation.durable_info())


def worktrees(services: Services, parent_id: str) -> Worktrees:
    """Those of a conversation's workspace, for its children."""
    root = services.config.state / WORKTREES_DIR
    workspaces: dict[str, Admitted] = {}  # the parent may be gone when one is dropped

    async def make(child_id: str) -> Path | None:
        try:
            place = await admitted(services, ".", parent_id)
        except AccessRefused:
            return None  # the operator has git switched off, for this as well
        workspaces[child_id] = place
        return await make_worktree(services.git, place, root, child_id)

    async def drop(child_id: str) -> None:
        await drop_worktree(services.git, workspaces[child_id], root, child_id)

    return Worktrees(make, drop)


@_one("GET /runtime", result=schemas.ref("ConversationRuntimeInfo"), anywhere=True)
async def runtime(conversation: View) -> Any:
    """Get the state of the runtime, where the agent runs.

    Clients ask for this because elsewhere an agent may run in a container that is gone. Here it is always
    available.
    """
    return RUNTIME


@_one("POST /runtime/reprovision", result=schemas.ref("ConversationRuntimeInfo"))
async def reprovision(conversation: Conversation) -> Any:
    """Provision the runtime again.

    Clients send this where a container is gone. Here there is nothing to provision, and the answer is that of
    `GET .../runtime`.
    """
    return RUNTIME


@_agents(
    "POST /models",
    body=ACPModelDiscoveryRequest,
    example={"agent_settings": {"agent_kind": "acp", "acp_server": "demo"}},
    result=schemas.ref("ACPModelDiscovery"),
    errors={503: AT_CAPACITY},
)
async def models(services: Services, json: Any) -> Any:
    """Ask an agent which models it offers.

    Starts the agent, which may mean an installation, and ends it. An answer counts for ten minutes unless
    `refresh` is set, and a failure of the agent is in its `error`.
    """
    errors = Errors()
    found = attempt_body(ACPModelDiscoveryRequest, json, errors)
    given = {} if found is None else found.secrets
    lookups = services.launcher.lookups
    secrets = await resolve_secrets(given, services.secrets, own_origins(), errors, lookups)
    agent = None
    rules = services.settings.rules
    try:
        if found is not None:
            agent = decode_agent_settings(
                found.agent_settings,
                rules.presets,
                check_server=rules.check_server,
                bounds=rules.bounds,
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
        return failed("ACPSpawnError", str(error))
    return await services.supervisor.models(agent, values, refresh=found.refresh)


GROUPS: Final = (_one, _agents)
