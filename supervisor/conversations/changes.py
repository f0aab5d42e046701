"""What clients change about a conversation besides its messages: settings, choices of its agent, secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from supervisor.conversations.core import Core
from supervisor.conversations.state.confirmation import CONFIRMATION
from supervisor.conversations.state.errors import NotPossible
from supervisor.conversations.state.record import ANALYZER
from supervisor.conversations.state.secret_box import split_secrets
from supervisor.credentials.source import LookupSecret
from supervisor.events import Event
from supervisor.settings.built_in import secrets_within

MAX_SECRETS_BYTES: Final = 16 * 1024 * 1024
"""Of all secrets of a conversation, as they are stored: about what its start request can bring. The record
that they are in is written with each change."""


class Changes:
    """The changes of one conversation. Each is durable when the method returns. Cancellation may leave the
    agent changed, but not the record.

    Every method raises ConversationClosing and JournalUnavailable.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._recorder = core.recorder
        self._record = core.record

    async def switch_model(self, model: str) -> None:
        """Choose the agent's model: at once if it runs, else at its next start.

        Raises NotAccepted, AgentTimeout, AgentFailure, JournalUnavailable.
        """
        self._core.kind.check_choice()
        self._core.accept()
        await self._core.runner.reconfiguration.switch_model(model)
        self._recorder.write(self._agent_states())
        await self._core.durable()

    async def choose_mode(self, mode: str) -> None:
        """Put the agent into a mode, in this session and in later ones. Starts the agent if necessary.

        Raises NotAccepted, AgentTimeout, AgentFailure, AtCapacity, JournalUnavailable.
        """
        await self._choose(None, mode)

    async def choose_option(self, option_id: str, value: str | bool) -> None:
        """Set a configuration option of the agent, in this session and in later ones; the rest as
        `choose_mode`."""
        await self._choose(option_id, value)

    async def _choose(self, option_id: str | None, value: str | bool) -> None:
        self._core.kind.check_choice()
        self._core.accept()
        self._core.runner.check_room()
        await self._core.runner.choose(option_id, value)
        changed = self._agent_states()
        confirmation = self._record.reported.agent_state.get(CONFIRMATION)
        if confirmation is not None:
            changed.append(self._recorder.state(CONFIRMATION, confirmation))
        self._recorder.write(changed)
        await self._core.durable()

    def _agent_states(self) -> list[Event]:
        return [
            self._recorder.state("agent", self._core.kind.shown()),
            self._recorder.state("agent_state", dict(self._record.reported.agent_state)),
        ]

    async def switch_llm(self, llm: Mapping[str, Any]) -> None:
        """Give the agent another language model, with its key: at once if it runs, else at its next start.

        Raises NotAccepted if the agent manages its models itself, or refuses this one; AgentFailure,
        JournalUnavailable.
        """
        self._core.refuse_closing()
        note = await self._core.kind.with_model(self._core.context.secret_box, llm)
        await self._core.agent.conceal(secrets_within(llm))
        self._core.accept()
        await self._core.runner.reconfiguration.configure({"llm": dict(llm)}, note)
        self._recorder.write([self._recorder.state("agent", self._core.kind.shown())])
        await self._core.durable()

    async def set_title(self, title: str) -> None:
        """Set the title. No automatic title replaces it."""
        self._core.accept()
        self._record.title = title
        self._record.autotitle = False
        self._recorder.save()
        await self._core.durable()

    async def set_tags(self, tags: dict[str, str]) -> None:
        """Replace the tags."""
        self._core.accept()
        self._record.tags = tags
        self._recorder.write([self._recorder.state("tags", tags)])
        await self._core.durable()

    async def set_confirmation_policy(self, policy: dict[str, Any]) -> None:
        """Replace the confirmation policy; it applies from the next permission request on."""
        self._core.accept()

        def note() -> None:
            self._record.confirmation_policy = policy

        await self._core.runner.reconfiguration.configure({"confirmation_policy": policy}, note)
        self._core.runner.policy_changed()
        self._recorder.write([self._recorder.state("confirmation_policy", policy)])
        await self._core.durable()

    async def set_security_analyzer(self, analyzer: dict[str, Any] | None) -> None:
        """Replace the analyzer. The built-in agent runs it; for external ones it is kept for clients to read
        (see `recording/tool_calls/asked.py`). Raises NotAccepted, AgentFailure, JournalUnavailable."""
        analyzer, sealed = await self._core.context.secret_box.seal_part(analyzer)
        await self._core.agent.conceal(secrets_within(analyzer))
        self._core.accept()

        def note() -> None:
            self._record.keep_part(ANALYZER, analyzer, sealed)

        await self._core.runner.reconfiguration.configure({"security_analyzer": analyzer}, note)
        self._recorder.write([self._recorder.state(ANALYZER, self._record.shown_part(ANALYZER))])
        await self._core.durable()

    async def set_secrets(self, secrets: Mapping[str, str | LookupSecret]) -> None:
        """Add secrets by name. They apply from the agent's next start, since a live agent's environment is
        fixed. Secrets that the conversation's profile does not allow are dropped. Raises NotPossible beyond
        MAX_SECRETS_BYTES; then nothing changed."""
        self._core.accept()
        values, lookups = split_secrets(self._record.allowed(secrets))
        sealed = await self._core.context.secret_box.seal(values)
        sealed_lookups = await self._core.context.secret_box.seal_lookups(lookups)
        kept = {**self._record.secrets, **self._record.lookups, **sealed, **sealed_lookups}
        if len(orjson.dumps(kept)) > MAX_SECRETS_BYTES:
            raise NotPossible(
                f"All secrets of the conversation together would take more than {MAX_SECRETS_BYTES} bytes."
            )
        # Without a checkpoint, so that each name has only its latest value or lookup.
        for name in (*sealed, *sealed_lookups):
            self._record.secrets.pop(name, None)
            self._record.lookups.pop(name, None)
        self._record.secrets.update(sealed)
        self._record.lookups.update(sealed_lookups)
        self._recorder.save()
        await self._core.durable()
