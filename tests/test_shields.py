"""Every shield, and every wait without a deadline, with what bounds it.

A shield keeps the end of the server from what is in it. So it has a deadline of its own (`move_on_after`,
`fail_after`, `in_time`), or stands in a table with the reason why what it waits for ends. The same goes for
work in a thread that cannot be given up. What waits outside of a shield ends with its task; the table says
who ends it before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent

APART: Final = (
    "supervisor/agents/builtin/",
    "supervisor/agents/demo/",
    "supervisor/agents/remote/",
    "gateway/cli/",
)
"""Programs of their own: the signal that ends them ends what they wait for, too."""

BOUNDED: Final = ("move_on_after", "move_on_at", "fail_after", "fail_at", "in_time", "_in_thread")
"""Calls with a deadline."""

WAITS: Final = frozenset(
    {
        "acquire",
        "idle",
        "more_comes",
        "moved",
        "park",
        "receive",
        "receive_some",
        "send_all",
        "serve_listeners",
        "sleep_forever",
        "wait",
        "wait_readable",
        "wait_writable",
    }
)
"""Methods that wait for as long as it takes. So do `async for`, and `start` of a nursery."""

LOCKING: Final = ("_lock", "of")
"""Calls that return a lock or a limiter, in `async with`. What is no call there is one, too."""

SHIELDS: Final[dict[str, tuple[str, ...]]] = {
    "all conversations of a server that leaves: its drain, and the deadlines of closing": (
        "supervisor/conversations/registry.py::Registry.hand_over",
    ),
    "the membership of a server: cancelled when it claims no more": ("supervisor/composition.py::_Claims",),
    "connections that are dropped": ("gateway/serving/server.py::open_services",),
    "work on paths, each by `in_time`: PATH_SECONDS or the seconds that it names": (
        "gateway/api/routes/workspace/files.py::upload",
        "gateway/api/files/streaming.py::MadeBody.__aexit__",
        "supervisor/agents/install/install.py::_install",
        "supervisor/agents/walls/door/door.py::Door.behind",
        "supervisor/agents/walls/door/door.py::_serve_until",
        "supervisor/agents/walls/door/door.py::open_door",
        "supervisor/conversations/agent/incarnation.py::reporting_end",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._begin",
        "supervisor/conversations/agent/side/model_discovery.py::ModelDiscovery._guest",
        "supervisor/conversations/agent/warm/pool.py::WarmPool._forget",
        "supervisor/conversations/agent/warm/pool.py::WarmPool._run_parent",
        "supervisor/conversations/registry.py::Registry.delete",
        "supervisor/conversations/built_in/kind.py::BuiltIn._copy_memory",
        "supervisor/workspace/git/command.py::removed",
    ),
    "the end of an MCP server's command: three times END_SECONDS": (
        "supervisor/mcp/answers.py::Command.transport",
    ),
    "the ladder of an agent's end: StopPolicy, and looks at /proc": (
        "supervisor/agents/process.py::AgentProcess.stop",
        "supervisor/agents/process.py::AgentProcess.terminate",
        "supervisor/agents/process.py::_owned",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._own",
        "supervisor/conversations/agent/warm/process.py::WarmProcess._ended_with_it",
    ),
    "terminals give up by themselves: DRAIN_SECONDS, REAP_SECONDS, KILLED_SECONDS": (
        "supervisor/acp/services.py::Services.close",
        "supervisor/acp/terminal.py::Terminal.run",
        "supervisor/acp/terminal.py::_end_unwatched",
        "supervisor/conversations/agent/incarnation.py::run_agent",
        "supervisor/conversations/agent/warm/process.py::WarmProcess.take_over",
    ),
    "a database that is away: CONNECT_SECONDS, STATEMENT_SECONDS, and END_SECONDS of two threads": (
        "gateway/api/provisioning/provisioner.py::Provisioner._bring",
        "supervisor/machines/machines.py::open_machines",
    ),
    "the orphan reaper: REAP_SECONDS": ("supervisor/agents/containment/containment.py::open_containment",),
    "requests with a deadline for each: Deadlines.close": (
        "supervisor/conversations/agent/side/side_session.py::end_session",
    ),
    "commands: STOP_SECONDS; the file of webhooks: the journal's disk": (
        "gateway/api/routes/conversations/conversations.py::remove",
    ),
    "the thread of the journal: BUSY_SECONDS for each attempt; the warden ends what a hung disk holds": (
        "gateway/api/webhooks/cursors.py::Cursors.close",
        "supervisor/conversations/forking.py::fork",
        "supervisor/journal/storage/copying.py::copy",
        "supervisor/journal/journal.py::opened",
        "supervisor/journal/storage/writer.py::Writer.call",
    ),
    "a few small files of the state directory": (
        "supervisor/conversations/mcp/logins.py::McpLogins._alone",
        "supervisor/conversations/mcp/logins.py::McpLogins.keep",
        "supervisor/credentials/store.py::SecretStore.rotate",
        "supervisor/documents/changing.py::Changing.__aexit__",
        "supervisor/settings/profiles/llm_profiles.py::LlmProfileStore.delete",
        "supervisor/settings/profiles/llm_profiles.py::LlmProfileStore.rename",
        "supervisor/settings/profiles/llm_profiles.py::MetaProfileStore.delete",
        "supervisor/settings/profiles/profiles.py::AgentProfileStore.delete",
    ),
    "the requests of a renewal have their own deadline": (
        "supervisor/conversations/mcp/logins.py::McpLogins._renewed",
    ),
    "the watch of connections ends one that stalls: stall_seconds, grace_seconds": (
        "gateway/http/client_connection.py::Connection._read_from",
        "gateway/http/client_connection.py::Connection._send_rest",
        "gateway/http/client_connection.py::Connection._write",
    ),
    "the end of the server, which ends every connection: ConnectionLimits.end": (
        "gateway/http/client_connection.py::Connection.__init__",
    ),
    "drain_seconds, SHUTDOWN_SECONDS and Deadlines.end": (
        "supervisor/conversations/shutdown.py::Shutdown.close",
    ),
}
"""Shields without a deadline of their own, by what bounds them."""

THREADS: Final[dict[str, tuple[str, ...]]] = {
    "a statement of the database: CONNECT_SECONDS": ("gateway/serving/several.py",),
    "looks at /proc, or kills: REAP_SECONDS and the number of processes": (
        "supervisor/conversations/agent/warm/pool.py",
        "supervisor/conversations/agent/warm/process.py",
        "gateway/api/routes/agents.py",
        "supervisor/agents/containment/containment.py",
        "supervisor/agents/containment/marker.py",
        "supervisor/agents/process.py",
        "supervisor/workspace/commands/bash.py",
    ),
    "the package's own files, imports, keys, masks, texts": (
        "supervisor/credentials/lookup.py",
        "supervisor/conversations/agent/launch/launcher.py",
        "gateway/api/routes/workspace/sub_agents.py",
        "gateway/api/routes/settings/mcp.py",
        "gateway/api/webhooks/sender.py",
        "gateway/api/forwarding/owners.py",
        "gateway/pages/shipped.py",
        "gateway/pages/console.py",
        "gateway/serving/late_application.py",
        "gateway/serving/memory.py",
        "gateway/api/routes/built_in.py",
        "gateway/api/webhooks/delivery.py",
        "supervisor/conversations/agent/lifecycle/lifecycle.py",
        "supervisor/conversations/forking.py",
        "supervisor/conversations/hooks/hooks.py",
        "supervisor/conversations/history/memory.py",
        "supervisor/conversations/state/secret_box.py",
        "supervisor/conversations/registry.py",
        "supervisor/mcp/proxy.py",
        "supervisor/agents/walls/door/proxies.py",
    ),
    "files of the state directory; a disk that hangs ends with the warden's kill": (
        "supervisor/workspace/pins.py",
        "gateway/api/requests/secret_exposure.py",
        "gateway/api/routes/settings/llm_profiles.py",
        "gateway/api/routes/settings/settings.py",
        "gateway/serving/server.py",
        "gateway/api/webhooks/cursors.py",
        "supervisor/composition.py",
        "supervisor/conversations/deletion.py",
        "supervisor/documents/changing.py",
        "supervisor/offline/agents.py",
        "supervisor/conversations/mcp/logins.py",
        "supervisor/conversations/mcp/mounting.py",
        "supervisor/credentials/master.py",
        "supervisor/credentials/store.py",
        "supervisor/journal/journal.py",
        "supervisor/settings/storage/files.py",
        "supervisor/settings/storage/store.py",
    ),
    "a program with a deadline of its own": ("supervisor/credentials/os_keyring.py",),
    "a database that is away: CONNECT_SECONDS, STATEMENT_SECONDS, and END_SECONDS of two threads": (
        "supervisor/machines/machines.py",
        "supervisor/machines/session.py",
    ),
}
"""Modules with work in threads that cannot be given up, by what bounds it."""

UNBOUNDED: Final[dict[str, tuple[str, ...]]] = {
    "a server that is started: OSTLER_PROVISION_SECONDS; its command, within those or STOP_SECONDS": (
        "gateway/api/provisioning/command.py::_read",
        "gateway/api/provisioning/provisioner.py::Provisioner.place_for",
    ),
    "the database, by deadlines of its statements; a drain, by OSTLER_DRAIN_SECONDS; the start of a server": (
        "supervisor/conversations/registry.py::Registry._get",
        "supervisor/conversations/registry.py::Registry._ours",
        "gateway/serving/server.py::_drain_and_close",
        "supervisor/composition.py::_Claims.__call__",
    ),
    "a check of a probe: `Probe._check` gives it up after its seconds": (
        "supervisor/offline/probe.py::Probe._begin_and_kill",
    ),
    "a client: it goes away, or the watch of connections ends it": (
        "gateway/http/client_connection.py::Connection._read_from",
        "gateway/http/client_connection.py::Connection.run",
        "gateway/http/application.py::Body.next",
        "gateway/http/client_connection.py::Calls.spawn_app.receive",
        "gateway/http/client_connection.py::Connection._write",
        "gateway/api/forwarding/editors.py::SessionsElsewhere.request",
        "gateway/api/forwarding/requests.py::_break_off",
        "gateway/api/acp/methods.py::AcpMethods._open",
        "gateway/api/acp/peer.py::Peer.ask",
        "gateway/api/acp/session.py::Session._catch_up",
        "gateway/api/sockets/websocket.py::_first",
        "gateway/api/sockets/websocket.py::_first.receive",
        "gateway/api/sockets/exchange.py::Exchange._receive",
        "gateway/api/sockets/exchange.py::_leave",
        "gateway/api/files/streaming.py::breaking_off",
        "supervisor/journal/cursor.py::Cursor._read_file",
        "supervisor/journal/cursor.py::Cursor.next",
        "supervisor/journal/log.py::Log._flushed",
        "supervisor/workspace/commands/bash.py::Bash.result",
        "supervisor/workspace/commands/log.py::Watcher.next",
    ),
    "a task that lives as long as the server": (
        "gateway/serving/server.py::_obey_signals",
        "gateway/serving/server.py::_empty",
        "gateway/serving/waiting.py::await_database.serve",
        "gateway/serving/late_application.py::LateApplication.prepare",
        "gateway/http/listener.py::serve_connections",
        "gateway/serving/server.py::_take_leave",
        "gateway/api/webhooks/sender.py::Sender._post_infos",
        "gateway/api/webhooks/sender.py::Sender.emptied",
        "supervisor/conversations/agent/warm/pool.py::WarmPool._keep",
        "supervisor/conversations/shutdown.py::Shutdown._kill_when_hurried",
        "supervisor/journal/storage/writer.py::Writer.changed",
    ),
    "a task that lives as long as a conversation's: Runner.stop cancels it": (
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._own",
        "supervisor/conversations/state/queue.py::TurnQueue.more_comes",
        "supervisor/conversations/turns/debouncer.py::Debouncer.run",
        "supervisor/conversations/turns/runner.py::Runner._until_idle",
        "supervisor/conversations/turns/mid_turn.py::MidTurnMessages._next",
    ),
    "a stage of the conversation's task: closing is one, too": (
        "supervisor/conversations/state/stage.py::Stages.moved",
        "supervisor/conversations/turns/runner.py::Runner._task_begun",
    ),
    "the end of a run: a turn has its limits of silence, and closing ends it": (
        "gateway/api/acp/methods.py::AcpMethods._prompt",
        "supervisor/conversations/conversation.py::Conversation.ask",
        "supervisor/conversations/conversation.py::Conversation.prompt_for_goal",
        "supervisor/conversations/state/queue.py::TurnQueue.ended",
        "supervisor/conversations/state/queue.py::TurnQueue.idle",
        "supervisor/conversations/turns/goal.py::GoalLoop.stop",
    ),
    "a person, for as long as they like; the end of the turn withdraws it": (
        "supervisor/conversations/turns/permissions.py::Permissions._decision",
    ),
    "the end of a process that is being ended by the ladder (StopPolicy), after which it counts as ended": (
        "supervisor/agents/process.py::AgentProcess.wait",
        "supervisor/agents/process.py::_owned",
        "supervisor/agents/process.py::_wait_exit",
        "supervisor/conversations/agent/warm/fork_parent.py::ForkParent.hibernate",
        "supervisor/conversations/agent/warm/fork_parent.py::ForkParent.run",
        "supervisor/conversations/agent/incarnation.py::explain_end",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._ensure",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._make_ready",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._make_ready_untried",
        "supervisor/conversations/agent/lifecycle/restarts.py::Restarts.call_off",
        "supervisor/conversations/agent/lifecycle/restarts.py::Restarts.over",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle.stop",
        "supervisor/conversations/agent/warm/process.py::WarmProcess._ended_with_it",
        "supervisor/conversations/agent/warm/process.py::WarmProcess.hibernate",
        "supervisor/conversations/agent/warm/process.py::WarmProcess.wait",
        "supervisor/conversations/agent/warm/pool.py::WarmPool._parent",
    ),
    "a program within the caller's deadline": (
        "supervisor/conversations/hooks/execution.py::_feed",
        "supervisor/conversations/hooks/execution.py::_read",
        "supervisor/conversations/mcp/helper.py::Helper.event",
        "supervisor/conversations/mcp/helper.py::Helper.send",
        "supervisor/mcp/answers.py::Command._keep_stderr",
        "supervisor/mcp/answers.py::Command._read",
        "supervisor/mcp/answers.py::Command._write",
        "supervisor/workspace/commands/bash.py::_read",
        "supervisor/agents/install/packages.py::Tool.run",
        "supervisor/conversations/hooks/hooks.py::Hooks.calls_settled",
        "supervisor/workspace/commands/bash.py::Bash._attend",
        "supervisor/workspace/commands/bash.py::Bash._attend.read_all",
        "supervisor/workspace/git/command.py::Session._run_now",
        "supervisor/workspace/git/delta.py::_to_disk",
        "supervisor/workspace/git/worktree.py::_require_room",
    ),
    "a terminal's command, for as long as the agent waits": (
        "supervisor/acp/services.py::Services._drop",
        "supervisor/acp/services.py::Services._kill",
        "supervisor/acp/services.py::Services._wait",
        "supervisor/acp/services.py::Services.close",
        "supervisor/acp/terminal.py::Terminal.run",
    ),
    "a pipe to a process: its end closes the pipe": (
        "supervisor/acp/reader.py::Reader.run",
        "supervisor/acp/terminal.py::Terminal._read_output",
        "supervisor/agents/process.py::AgentProcess._remember_stderr",
        "supervisor/acp/serving.py::Serving._frame",
        "supervisor/acp/writer.py::Writer.run",
        "supervisor/agents/pipes.py::AgentPipe._receive",
        "supervisor/agents/spawning/link.py::send_request",
        "supervisor/agents/spawning/link.py::receive",
    ),
    "the thread of the journal, or another task of the loop": (
        "gateway/api/acp/earlier.py::outcome_of",
        "supervisor/conversations/history/inbox.py::waiting",
        "supervisor/conversations/history/recovery.py::ended_one",
        "supervisor/conversations/history/recovery.py::report_cut_off",
        "supervisor/conversations/overview.py::Overview.changed",
        "supervisor/conversations/overview.py::Overview.following",
        "supervisor/conversations/registry.py::Registry.recover",
        "supervisor/fairness.py::Gate.admit",
        "supervisor/journal/storage/writer.py::Writer.call",
        "supervisor/journal/storage/writer.py::Writer.room",
    ),
    "another server: Owners.alive ends the wait when it has died": (
        "gateway/api/forwarding/editors.py::SessionsElsewhere.run",
        "gateway/api/forwarding/editors.py::SessionsElsewhere.take",
        "gateway/api/forwarding/requests.py::Asked._passed_on",
    ),
    "a change of a document by another task, within LOCK_SECONDS and some threads": (
        "supervisor/documents/changing.py::Changing.__aenter__",
    ),
    "a person who logs in, within the caller's deadline": ("supervisor/mcp/callback.py::Callback.answer",),
    "the body of a request of an agent: BODY_SECONDS for each piece, and the end of the answer cancels it": (
        "supervisor/agent_connection.py::AgentConnection._left",
    ),
    "what ends the work of a helper, cancelled with it": ("supervisor/mcp/helper.py::main.guard",),
    "the input of a helper, which the server closes": ("supervisor/mcp/helper.py::Talk.line",),
    "a task of the same nursery that says at once that it has begun": (
        "gateway/serving/server.py::serve",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::AgentLifecycle._begin",
        "supervisor/conversations/mcp/mounting.py::served",
    ),
    "an answer over HTTP, within the caller's deadline: POST_SECONDS, LOOKUP_SECONDS, that of the helper": (
        "gateway/api/webhooks/delivery.py::Receiver._exchange",
        "supervisor/credentials/lookup.py::_get",
        "supervisor/mcp/answers.py::Answers.bound.Counted.__aiter__",
    ),
    "a request of a browser, within the caller's HEAD_SECONDS": (
        "supervisor/mcp/callback.py::Callback._one",
    ),
    "requests of an agent: HEAD_SECONDS, BODY_SECONDS and STALL_SECONDS; an MCP server may stream "
    "for as long as the agent is there": (
        "supervisor/mcp/proxy.py::Proxy.serve",
        "supervisor/agent_connection.py::AgentConnection._receive",
        "supervisor/agent_connection.py::AgentConnection.send",
    ),
    "an agent behind its network door: HEAD_SECONDS, BODY_SECONDS, STALL_SECONDS, TUNNEL_SECONDS; an API may "
    "stream for as long as the agent is there; the end of a terminal, or of the door": (
        "supervisor/agents/walls/door/door.py::_accept",
        "supervisor/agents/walls/door/door.py::_serve_until",
        "supervisor/agents/walls/door/exchange.py::Exchange.without_content",
        "supervisor/agents/walls/door/proxies.py::_tunnel.pump",
    ),
    "a proxy of the network, within the caller's CONNECT_SECONDS": (
        "supervisor/agents/walls/door/proxies.py::_asked_for",
    ),
}
"""Functions that wait without a deadline of their own, by what they wait for and who ends that."""


LOCKS: Final[dict[str, tuple[str, ...]]] = {
    "requests to one agent, each with a deadline of `Deadlines`; a start: those, `acp_startup_timeout`, and "
    "the pauses between restarts; an end: StopPolicy": (
        "supervisor/conversations/agent/lifecycle/lifecycle.py::self.lock",
        "supervisor/conversations/agent/lifecycle/reconfiguration.py::self._lifecycle.lock",
        "supervisor/conversations/agent/lifecycle/repair.py::self._lifecycle.lock",
    ),
    "a place for an agent, until another one ends or is idle; an interrupt or a deletion leaves the queue": (
        "supervisor/conversations/agent/admission.py::self._line",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::place",
    ),
    "a start that is under way: its deadlines": (
        "supervisor/conversations/agent/admission.py::self._starts",
        "supervisor/conversations/agent/lifecycle/lifecycle.py::begun",
        "supervisor/agents/spawning/link.py::self._starting",
    ),
    "the ladder of a process's end: StopPolicy": ("supervisor/agents/process.py::self._stopping",),
    "one read of /proc": ("supervisor/agents/containment/marker.py::scans.lock",),
    "making, loading, deleting a conversation: the journal's thread, `Deadlines.end`, PATH_SECONDS": (
        "supervisor/conversations/creation.py::self._lock(conversation_id)",
        "supervisor/conversations/registry.py::self._lock(conversation_id)",
        "supervisor/journal/journal.py::self._lock(conversation_id)",
    ),
    "a long search: half a second, or ten to count": ("supervisor/journal/readers.py::self._scans",),
    "a few small files of the state directory, and the keyring with its deadline": (
        "supervisor/conversations/deletion.py::self._lock",
        "supervisor/conversations/deletion.py::self._lock.here",
        "supervisor/credentials/store.py::self._lock",
        "supervisor/credentials/store.py::self._lock.here",
        "supervisor/settings/connections.py::self._settings.llm_profiles.lock",
        "supervisor/settings/connections.py::self._stored.lock",
        "supervisor/settings/profiles/llm_profiles.py::meta.lock",
        "supervisor/settings/profiles/llm_profiles.py::self._agents.lock",
        "supervisor/settings/profiles/llm_profiles.py::self._stored.lock",
        "supervisor/settings/profiles/profiles.py::self.lock",
        "supervisor/settings/profiles/profiles.py::self.lock.here",
        "supervisor/settings/profiles/profiles.py::stored.lock",
        "supervisor/settings/storage/files.py::self.lock",
        "supervisor/settings/storage/store.py::self._lock",
        "supervisor/settings/storage/store.py::self._lock.here",
        "supervisor/workspace/pins.py::self._lock",
        "supervisor/workspace/saved.py::self._lock",
    ),
    "files of one login, each by `in_time`, and what its keeper stores": (
        "supervisor/agents/homes/shared_logins.py::self._lock(lease.name)",
        "supervisor/agents/homes/shared_logins.py::self._lock(name)",
    ),
    "the renewal of a login, whose requests have a deadline": (
        "supervisor/conversations/mcp/logins.py::lock",
    ),
    "the journal's thread: `Deadlines.durable`": ("supervisor/conversations/conversation.py::self._by_id",),
    "servers that are started: OSTLER_PROVISION_SECONDS, for those that wait, too": (
        "gateway/api/provisioning/provisioner.py::self._room",
    ),
    "answers of other servers within ASK_SECONDS each": ("gateway/api/forwarding/fan_out.py::limit",),
    "lookups within LOOKUP_SECONDS each": ("supervisor/credentials/lookup.py::slots",),
    "hooks with a timeout each": ("supervisor/conversations/hooks/hooks.py::slots",),
    "git within the time of its request: `Git.limited` is around it": (
        "supervisor/workspace/git/command.py::everyone",
        "supervisor/workspace/git/command.py::own.of(f'in {session.repository.common}')",
        "supervisor/workspace/git/command.py::own.of(str(_where(place)))",
    ),
    "a request to a webhook: POST_SECONDS": (
        "gateway/api/webhooks/delivery.py::self._opening",
        "gateway/api/webhooks/delivery.py::self._slots",
    ),
    "another writer of the connection: the watch of connections ends one that stalls": (
        "gateway/http/client_connection.py::self.send_lock",
    ),
    "a large frame that is parsed: some ten milliseconds": ("supervisor/acp/reader.py::large.turns",),
    "imports of the package's own files": (
        "gateway/api/forwarding/owners.py::self._opening",
        "supervisor/agents/walls/door/proxies.py::self._opening",
        "gateway/serving/late_application.py::self._loading",
        "supervisor/conversations/registry.py::self._loading_machinery",
    ),
    "other requests of the same agent, which have no answer yet; it gives them up, or its door is closed": (
        "supervisor/agents/walls/door/proxies.py::self._asked",
    ),
    "no lock: the end of a channel in memory": ("supervisor/mcp/answers.py::to_client",),
}
"""Locks and limiters that are waited for without a deadline, by what those do that have them."""


def walked(source: str) -> Iterator[tuple[str, ast.AST, bool]]:
    """Every node with the name of its function, and whether a block with a deadline is around it."""

    def below(node: ast.AST, names: tuple[str, ...], bounded: bool) -> Iterator[tuple[str, ast.AST, bool]]:
        for child in ast.iter_child_nodes(node):
            inner, within = names, bounded
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner, within = (*names, child.name), False  # it may be called from anywhere
            elif isinstance(child, ast.With | ast.AsyncWith):
                within = bounded or any(_has_deadline(item.context_expr) for item in child.items)
            yield ".".join(inner), child, within
            yield from below(child, inner, within)

    return below(ast.parse(source), (), False)


def _has_deadline(node: ast.AST) -> bool:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(
        ast.unparse(call.func).rpartition(".")[2] in BOUNDED
        or any(keyword.arg == "deadline" for keyword in call.keywords)
        for call in calls
    )


def shields(source: str) -> set[str]:
    """The functions with a shield that has no deadline."""
    found = set()
    for name, node, bounded in walked(source):
        if isinstance(node, ast.Call) and not (bounded or _has_deadline(node)):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            shield = given.get("shield")
            if isinstance(shield, ast.Constant) and shield.value is True:
                found.add(name)
        elif isinstance(node, ast.Assign):
            # `scope.shield = True` would be one, too.
            found |= {
                name for each in node.targets if isinstance(each, ast.Attribute) and each.attr == "shield"
            }
    return found


def threads(source: str) -> bool:
    """Whether work is in threads that a cancellation waits for."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("to_thread.run_sync")
        and all(keyword.arg != "abandon_on_cancel" for keyword in node.keywords)
        for _, node, _ in walked(source)
    )


def waits(source: str) -> set[str]:
    """The functions that wait without a deadline. What `ended_by` waits for is not among them: that ends with
    its block."""
    nurseries = set(re.findall(r"open_nursery\(\) as (\w+)", source)) | {"nursery", "_nursery"}

    def found(node: ast.AST) -> bool:
        if isinstance(node, ast.AsyncFor) or (isinstance(node, ast.comprehension) and node.is_async):
            return True
        if not isinstance(node, ast.Await) or not isinstance(node.value, ast.Call):
            return False
        called = node.value.func
        if not isinstance(called, ast.Attribute):
            return False
        of = ast.unparse(called.value).rpartition(".")[2]
        return called.attr in WAITS or (called.attr == "start" and of in nurseries)

    return {name for name, node, bounded in walked(source) if not bounded and found(node)}


def locks(source: str) -> set[str]:
    """The locks and limiters that are waited for without a deadline, as they are written."""
    return {
        ast.unparse(item.context_expr)
        for _, node, bounded in walked(source)
        if isinstance(node, ast.AsyncWith) and not bounded
        for item in node.items
        if not isinstance(item.context_expr, ast.Call)
        or ast.unparse(item.context_expr.func).rpartition(".")[2] in LOCKING
    }


def sources() -> Iterator[tuple[str, str]]:
    for package in ("supervisor", "gateway"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(APART):
                yield name, path.read_text()


def listed(table: dict[str, tuple[str, ...]]) -> list[str]:
    return sorted(each for places in table.values() for each in places)


@pytest.mark.guarantee(name="nothing-survives")
def test_every_shield_has_a_bound() -> None:
    found = sorted(f"{path}::{name}" for path, text in sources() for name in shields(text))
    assert found == listed(SHIELDS)


def test_every_thread_that_cannot_be_given_up_has_a_bound() -> None:
    assert sorted(path for path, text in sources() if threads(text)) == listed(THREADS)


def test_every_wait_without_a_deadline_is_ended_by_somebody() -> None:
    found = sorted(f"{path}::{name}" for path, text in sources() for name in waits(text))
    assert found == listed(UNBOUNDED)


def test_every_lock_is_given_back_in_time() -> None:
    found = sorted(f"{path}::{name}" for path, text in sources() for name in locks(text))
    assert found == listed(LOCKS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("with trio.CancelScope(shield=True):\n  await done.wait()", ({""}, {""})),
        ("with trio.move_on_after(1, shield=True):\n  await done.wait()", (set(), set())),
        ("with trio.CancelScope(shield=True), trio.move_on_after(1):\n  await done.wait()", (set(), set())),
        ("with trio.CancelScope(shield=True, deadline=end):\n  pass", (set(), set())),
        ("with trio.move_on_after(1):\n  async def f():\n    await done.wait()", (set(), {"f"})),
        ("class A:\n  def f(self):\n    self.scope.shield = True", ({"A.f"}, set())),
        ("async def f():\n  async for each in stream:\n    pass", (set(), {"f"})),
        ("async def f():\n  return [each async for each in stream]", (set(), {"f"})),
        ("async def f():\n  await self._stream.receive_some()", (set(), {"f"})),
        ("async with trio.open_nursery() as own:\n  await own.start(f)", (set(), {""})),
        ("async def f():\n  await jobs.start(f)", (set(), set())),
    ],
)
def test_what_is_found(text: str, found: tuple[set[str], set[str]]) -> None:
    assert (shields(text), waits(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async with self.lock:\n  pass", {"self.lock"}),
        ("async with self._lock(name), slots.of(key):\n  pass", {"self._lock(name)", "slots.of(key)"}),
        ("with trio.move_on_after(1):\n  async with self.lock:\n    pass", set()),
        ("async with trio.open_nursery():\n  pass", set()),
    ],
)
def test_which_locks_are_found(text: str, found: set[str]) -> None:
    assert locks(text) == found
