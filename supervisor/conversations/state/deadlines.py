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
    """From the request for the agent's process until its program runs. That takes milliseconds, unless a file
    system hangs or another process holds a lease on the program."""
    initialize: float = 60.0
    """Answer to `initialize`: a cold Node start under load, many times over."""
    authenticate: float = 30.0
    """Answer to `authenticate`: the agent checks a key or refreshes a token; no person is asked."""
    new_session: float = 60.0
    """Answer to `session/new`: agents start their MCP servers in it."""
    load_session: float = 60.0
    """Answer to `session/load` or `session/resume`: the agent reads, and may send, its whole history. The
    rest of the conversation's `acp_startup_timeout` (90 s) is enough for a new session."""
    retry: tuple[float, ...] = (1.0, 4.0)
    """Pauses before a prompt without effect is sent again after a transient failure."""
    option: float = 10.0
    """Answer to setting a mode, a model or an option: the agent does that locally."""
    silence: float = 1800.0
    """Silence within a turn, unless the conversation sets `acp_prompt_timeout`: agents run long commands
    without output. Waiting for a person does not count."""
    side_question: float = 300.0
    """A whole side question, from opening its session to the answer. A person waits, or a goal's next
    turn."""
    durable: float = 10.0
    """Until a client's message is on disk. That takes milliseconds, unless the disk is full or another
    process holds the database."""
    shown: float = 1.0
    """Until a state is on disk before it is shown; after that the last durable one is shown."""
    interrupt_answer: float = 2.0
    """Until an interrupt returns, whether the turn has ended or not: a person waits."""
    close: float = 3.0
    """Answer to `session/close`, and until the turn ends with it. The end of the process frees everything
    anyway."""
    end: float = 5.0
    """Until a conversation's agent has ended in order when the conversation is closed; then its task is
    cancelled, and has as long again. The agent's process is being ended by then (`close`), and what ends it
    has bounds of its own. A server that ends waits for that: the warden grants it 20 s."""
    stop_stdin: float = 1.0
    """From closing an agent's input to SIGTERM. Agents that obey exit in a fifth of that; one known agent
    takes 7 s, and is terminated."""
    stop_term: float = 0.5
    """From SIGTERM to SIGKILL, for the whole tree: all steps have to fit into two seconds."""
    stop_kill: float = 2.0
    """Until SIGKILL has ended the whole tree, checked repeatedly."""
    tool_factor: float = 8.0
    """Factor on the silence limit while a tool runs, or the process tree uses the CPU: builds and test runs
    are silent for hours."""
    silence_told: float = 60.0
    """Silence within a turn, outside of a tool call, after which clients get a state that says what is known,
    and another each time that it has lasted twice as long. Models begin to answer within that; agents that
    retry a failed call forever do not report it."""
    silence_warning: float = 0.8
    """Part of the silence limit after which clients are warned."""
    cancel_grace: float = 2.0
    """From `session/cancel` until an agent that has not ended its turn is taken for deaf. Agents that obey
    answer within that, most of them at once."""
    cancel_close: float = 1.0
    """For a deaf agent to close its session, and the turn with it; else its process is ended. With
    `cancel_grace` and the steps of ending a process that makes less than five seconds: a person waits."""
    hook: float = 600.0
    """Upper limit of a hook's `timeout`: enough for a test suite."""
    session_end: float = 3.0
    """All SessionEnd hooks of a conversation together: its deletion, or the end of the server, waits for
    them."""
    echo: tuple[float, ...] = (0.25, 1.0)
    """Until the state is sent again after a run has ended, or waits for a person. A client that starts a run
    looks for its end only after it has read the answer to its request; a short run is over before that."""
    hold: float = 0.25
    """How long the first event of a tool call waits for more input after the last piece; and how long text
    outside a turn waits for more text before it is a message."""
    hold_at_most: float = 3.0
    """How long it waits in all, since a watching person expects progress."""
