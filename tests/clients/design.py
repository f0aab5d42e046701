"""Where Ostler's answers to the TypeScript client are not the peer's, and why: better, or by design."""

from __future__ import annotations

from tests.clients.comparison import Allowed

EXTERNAL = "an external agent has models of its own: a reasoned 4xx, as nothing would come of it"
NO_MODELS = "Ostler calls no language models itself: 501 with the reason"
MESSAGES = (
    "text before a tool call is a message of its own, where it was said; the peer joins all text at the end"
)
ASKS = "the peer answers an agent's request for permission by itself, Ostler asks"

DESIGN = (
    Allowed("server *", "[ostler_version]", "says which Ostler this is"),
    Allowed("*", "*[event_vocabulary]", "an Ostler conversation can have an extended vocabulary"),
    Allowed("validate LLM profile", "*", NO_MODELS),
    Allowed("save agent profile, mixed", "detail", "names the field of the body, not the member of a union"),
    Allowed("start OAuth, nobody there", "detail", "names the field of the body, not the member of a union"),
    Allowed(
        "materialize agent profile of the built-in kind",
        "*",
        "there is no built-in agent yet, and it says so",
    ),
    Allowed("subscription start", "*", "501 with a reason instead of a failed look-up"),
    Allowed("install skill", "*", "agents bring their own skills: 501 with the reason"),
    Allowed("install plugin, none", "*", "Ostler runs no plugins: 501 with the reason"),
    Allowed("told on the socket", "*", MESSAGES),
    Allowed("events", "told*", MESSAGES),
    Allowed("final response", "response", MESSAGES),
    Allowed("states on the socket", "[agent_phase]", "what the agent is about"),
    Allowed("states on the socket", "[config_options]", "what the agent lets a person choose"),
    Allowed("conversation", "title", "a title has one line"),
    Allowed("a turn that asks", "*", ASKS),
    Allowed("*switch profile", "*", EXTERNAL),
    Allowed("*switch LLM", "*", EXTERNAL),
)

OPEN: tuple[Allowed, ...] = ()
"""What is not there yet. Must become empty."""
