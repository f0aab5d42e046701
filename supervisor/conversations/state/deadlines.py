"""Deadlines of each step with an agent, in seconds. Every wait on an agent has a name here."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Deadlines:
    """Bounds on the waits of one conversation, in seconds.

    The defaults suit real agents on a busy two-core machine: they start in 0.3 to 4 s, load a long
    history in several, and need a moment to stop a shell they run.
    """

    install: float = 600.0
    """One `npm ci`, when an agent is started for the first time: half a gigabyte at 1 MB/s, with some room
    for unpacking."""
    spawn: float = 10.0
    """From asking for the agent's process until its program runs: milliseconds, but a file system that does
    not answer, or a lease that somebody holds on the program, may make it wait for ever."""
    initialize: float = 60.0
    """Answer to `initialize`: a cold Node start under load, many times over."""
    authenticate: float = 30.0
    """Answer to `authenticate`: a key is checked or a token refreshed; nobody is asked anything."""
    new_session: float = 60.0
    """Answer to `session/new`: agents start their MCP servers in it."""
    load_session: float = 60.0
    """Answer to `session/load` or `session/resume`: the agent reads, and may send, its whole history. What
    is left of the conversation's `acp_startup_timeout` (90 s) is enough for a new session instead."""
    retry: tuple[float, ...] = (1.0, 4.0)
    """Pauses before a prompt is sent again of which nothing happened, after a failure that passes."""
    option: float = 10.0
    """Answer to setting a mode, a model or an option: a local matter for the agent."""
    silence: float = 1800.0
    """Silence within a turn, unless the conversation sets its own (`acp_prompt_timeout`): agents run long
    commands without a word. Waiting for a person's confirmation does not count."""
    durable: float = 10.0
    """For what a client sent to be on the disk. It takes milliseconds; a disk that is full, or a database
    that another process holds, takes until somebody does something about it."""
    shown: float = 1.0
    """For a state to be on the disk before it is shown; after that the last one is shown that is."""
    interrupt_answer: float = 2.0
    """When an interrupt answers at the latest, settled or not: a person waits."""
    close: float = 3.0
    """Answer to `session/close`, and for a turn to end over it: what it frees is freed by the end of the
    process anyway."""
    stop_stdin: float = 1.0
    """From closing an agent's input to SIGTERM: agents that obey it are gone in a fifth of that; one known
    agent takes 7 s, and is not waited for."""
    stop_term: float = 0.5
    """From SIGTERM to SIGKILL, for the whole tree: all of this has to fit into two seconds."""
    stop_kill: float = 2.0
    """For SIGKILL to have ended the whole tree, looked at again and again."""
    tool_factor: float = 8.0
    """How many times longer silence may last while a tool runs, or while the process tree uses the CPU:
    builds and test runs are silent for hours."""
    silence_warning: float = 0.8
    """Part of the silence allowed after which clients are told that the agent is silent."""
    cancel_grace: float = 15.0
    """From `session/cancel` until the agent's process is ended instead: it may have a shell tree to stop,
    and one known agent takes 6 s."""
    echo: tuple[float, ...] = (0.25, 1.0)
    """When the state after a run is sent again: a client that starts a run looks for its end only once it
    has read the answer to its request, and a short run is over before that."""
    hold: float = 0.25
    """How long the first event of a tool call waits for more of its input since the last of it came; and
    how long text that comes outside any turn waits for more of itself before it is a message."""
    hold_at_most: float = 3.0
    """How long it waits in all: a person looking on wants to see that something goes on."""
