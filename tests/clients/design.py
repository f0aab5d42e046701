"""Where Ostler's answers to the TypeScript client are not the peer's, and why: better, or by design.

Each row tells what Ostler gives there. Anything else is a difference that nobody has decided on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs

from tests.clients.comparison import SAID, Allowed
from tests.clients.served import SERVERS

EXTERNAL = (
    "an external agent calls models of its own, so a switch to another one would do nothing: Ostler says so "
    "and names switch_acp_model; the peer accepts it, and nothing comes of it"
)
NO_LIBRARY = "only the built-in agent's library can try a model, and here it is not installed"
MESSAGES = (
    "text before a tool call is a message of its own, told when it is said; the peer keeps it back and joins "
    "all text in one message at the end"
)
BODY = "the place in the body that the client sent; the peer names a member of its own union"
PATCH = (
    "diff --git a/kept.txt b/kept.txt\n"
    "index 90be1f3..294186e 100644\n"
    "--- a/kept.txt\n"
    "+++ b/kept.txt\n"
    "@@ -1 +1 @@\n"
    "-before\n"
    "+after\n"
    "diff --git a/new.txt b/new.txt\n"
    "new file mode 100644\n"
    "index 0000000..3e75765\n"
    "--- /dev/null\n"
    "+++ b/new.txt\n"
    "@@ -0,0 +1 @@\n"
    "+new\n"
)
BASE = "without a remote, a patch is against the last commit; the peer's then has every file"
HOLDS = "only what holds here is announced"
VOCABULARY = "the vocabulary of events that the conversation was created with, which is only Ostler's"


def refused(status: int) -> dict[str, Any]:
    """An error with a reason in words."""
    return {"status": status, "error": {"detail": SAID}}


DESIGN = (
    Allowed("server root", "capabilities[*]", False, HOLDS),
    Allowed("server info", "capabilities[*]", False, HOLDS),
    Allowed("GET */file/archive*repository", "value", PATCH, BASE),
    Allowed("subscription models", "[*]", False, "a model subscription is the agent's own: none is offered"),
    Allowed("POST /api/conversations/<id>/children", "value.status", "running", "its first message is sent"),
    Allowed("POST /api/acp/models", "value.supports_runtime_model_switch", True, "the agent was asked"),
    Allowed("*", "keys[event_vocabulary]", True, VOCABULARY),
    Allowed("search conversations", "each#0[event_vocabulary]", True, VOCABULARY),
    Allowed("validate LLM profile", "", refused(503), NO_LIBRARY),
    Allowed(
        "save agent profile, mixed",
        "detail",
        {"detail": [{"loc": ["body", "llm_profile_ref"], "msg": SAID, "type": "extra_forbidden"}]},
        BODY,
    ),
    Allowed(
        "start OAuth, nobody there",
        "detail",
        {"detail": [{"loc": ["body", "server", "auth"], "msg": SAID, "type": "dict_type"}]},
        BODY,
    ),
    Allowed(
        "subscription start",
        "",
        refused(501),
        "a login to a model subscription is the agent's own; the peer asks the provider at once",
    ),
    Allowed("GET /api/skills/catalog", "value.skills", [], "the peer ships skills of its own, Ostler none"),
    Allowed("install skill", "", refused(501), "agents bring their own skills: the reason says so"),
    Allowed("install plugin, none", "", refused(501), "Ostler runs no plugins: the reason names MCP servers"),
    Allowed(
        "told on the socket",
        "+MessageEvent",
        {
            "keys": [
                "activated_skills",
                "extended_content",
                "id",
                "kind",
                "llm_message",
                "llm_response_id",
                "parent_id",
                "source",
                "timestamp",
            ],
            "kind": "MessageEvent",
        },
        MESSAGES,
    ),
    Allowed(
        "events",
        "told+MessageEvent",
        {
            "activated_skills": [],
            "extended_content": [],
            "kind": "MessageEvent",
            "llm_message": {
                "content": [{"cache_prompt": False, "text": "echo: hello there ", "type": "text"}],
                "role": "assistant",
                "thinking_blocks": [],
            },
            "llm_response_id": "<id>",
            "source": "agent",
            "timestamp": "<time>",
        },
        MESSAGES,
    ),
    Allowed(
        "events",
        "told#2.status",
        "in_progress",
        "the first event of a call tells that it runs; the peer's tells that it was announced",
    ),
    Allowed("events", "told#4.tool_call.arguments", '{"message":"done"}', MESSAGES),
    Allowed("events", "told#5.observation.content#0.text", "done", MESSAGES),
    Allowed("final response", "response", "done", MESSAGES),
    Allowed("states on the socket", "[agent_phase]", True, "what the agent is about: a start can take long"),
    Allowed("states on the socket", "[turn]", True, "which message is worked on, and how that ended"),
    Allowed("states on the socket", "[tool_call_details]", True, "what the event of a call has no place for"),
    Allowed("states on the socket", "[config_options]", True, "what the agent lets a person choose"),
    Allowed("conversation", "title", "hello there !tool !text done", "a title has one line"),
    Allowed(
        "a turn that asks",
        "",
        "waiting_for_confirmation",
        "with AlwaysConfirm a person decides on the agent's request; the peer grants it by itself",
    ),
    Allowed("*switch LLM", "", refused(400), EXTERNAL),
)

OPEN: tuple[Allowed, ...] = ()
"""What is not there yet. Must become empty."""


@attrs.frozen
class Instead:
    """What a step of the walk through the web UI gives before Ostler, where that is not what it gives before
    the peer's server; and the toasts and refused requests that belong to it."""

    value: Any
    reason: str
    toasts: Collection[str] = ()
    refused: Collection[str] = ()


ASKED = (
    "with confirmation mode a person decides on what is risky; the peer grants an agent's requests by itself"
)
KILLED = "the page that was open shows what comes after the restart; before the peer only when it is reloaded"
ONCE = 1

WALK = {
    "the profile that is there": Instead(
        [{"name": "default", "kind": "acp"}], "the profile is of an external agent: Ostler has no other"
    ),
    "reject": Instead({"asked": True, "after": "finished", "rejections": 1, "said": "rejected"}, ASKED),
    "accept": Instead({"asked": True, "after": "finished", "rejections": 1, "said": "allowed"}, ASKED),
    # Of several servers one ends at once when its warden is killed: the turn is an error, as before the
    # peer.
    **(
        {}
        if SERVERS
        else {
            "the server is back": Instead(
                "paused", "the turn that was cut off can go on; before the peer it is an error"
            )
        }
    ),
    "the page goes on": Instead("finished", KILLED),
    "nothing is there twice": Instead(
        {
            "twice": 0,
            "users": ["!text one before", "!slow 400 50", "!text two after"],
            "live": [
                ["!text one before", ONCE],
                ["one before", ONCE],
                ["!slow 400 50", ONCE],
                ["!text two after", ONCE],
                ["two after", ONCE],
            ],
            "reloaded": [
                ["!text one before", ONCE],
                ["one before", ONCE],
                ["!slow 400 50", ONCE],
                ["!text two after", ONCE],
                ["two after", ONCE],
            ],
        },
        KILLED,
    ),
}
