"""Makes the parts of a live conversation, and connects them."""

from __future__ import annotations

import attrs

from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.kind import AgentKind
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.lifecycle.reconfiguration import Reconfiguration
from supervisor.conversations.agent.lifecycle.repair import SessionRepair
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.hooks.hooks import Hooks
from supervisor.conversations.recording.bounds.attachments import Originals
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.streamed import LiveOutput
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.resource.status_publisher import StatusPublisher
from supervisor.conversations.state.confirmation import may_ask
from supervisor.conversations.state.queue import TurnQueue
from supervisor.conversations.turns.agent_handler import AgentHandler
from supervisor.conversations.turns.cancelling import CancelLadder
from supervisor.conversations.turns.debouncer import Debouncer
from supervisor.conversations.turns.mid_turn import MidTurnMessages
from supervisor.conversations.turns.permissions import Permissions
from supervisor.conversations.turns.prompting import Prompting
from supervisor.conversations.turns.silence import SilenceWatch
from supervisor.conversations.turns.terminal_outputs import TerminalOutputs
from supervisor.conversations.turns.turns import Turns
from supervisor.hooks.config import HookEvent


@attrs.frozen
class Parts:
    """The parts of a live conversation; each knows those above it that it needs."""

    shared: Shared
    hooks: Hooks
    agent: AgentLifecycle
    repair: SessionRepair
    reconfiguration: Reconfiguration
    permissions: Permissions
    turns: Turns
    prompting: Prompting
    ladder: CancelLadder
    held: Debouncer
    handler: AgentHandler


def wire(context: Context, recorder: Recorder, queue: TurnQueue, kind: AgentKind) -> Parts:
    """Make the parts. Nothing runs yet, and nothing is written."""
    deadlines, record = context.deadlines, recorder.record
    hooks = Hooks(context, recorder, queue)
    translator = Translator(
        core=not recorder.extended,
        confirming=may_ask(record.confirmation_policy) or hooks.has(HookEvent.PRE_TOOL_USE),
        session=max(0, record.now.sessions - 1),
        originals=Originals(context.allowance, kept=record.blob_bytes),
        workspace=record.start.working_dir,
        on_end=hooks.call_ended if hooks.has(HookEvent.POST_TOOL_USE) else None,
    )
    recorder.live = live = LiveOutput(recorder.log, record, context.nursery, lambda: recorder.mask)
    recorder.held.nursery = context.nursery
    translator.on_progress = live.progress
    publisher = StatusPublisher(
        recorder, kind, queue, context.nursery, deadlines.echo, context.launcher.data, hooks=context.hooks
    )
    shared = Shared(
        context=context,
        recorder=recorder,
        queue=queue,
        kind=kind,
        voice=kind.voice(),
        translator=translator,
        publisher=publisher,
    )
    agent = AgentLifecycle(shared)
    repair = SessionRepair(shared, agent)
    permissions = Permissions(shared, hooks)
    permissions.gone = lambda: agent.ready is None or not agent.ready.usable
    permissions.unasked.offered = lambda: (
        None if agent.ready is None or agent.ready.session is None else agent.ready.session.result
    )
    turns = Turns(shared, agent, permissions, hooks)
    TerminalOutputs(shared, agent)
    silence = SilenceWatch(shared, agent, permissions)
    held = Debouncer(deadlines.hold, deadlines.hold_at_most, turns.release)
    return Parts(
        shared=shared,
        hooks=hooks,
        agent=agent,
        repair=repair,
        reconfiguration=Reconfiguration(shared, agent),
        permissions=permissions,
        turns=turns,
        prompting=Prompting(
            shared, turns, agent, repair, silence, MidTurnMessages(shared), permissions.unasked
        ),
        ladder=CancelLadder(shared, repair, permissions),
        held=held,
        handler=AgentHandler(
            shared,
            turns,
            agent,
            permissions,
            silence,
            held,
            context.children if kind.starts_children else None,
        ),
    )
