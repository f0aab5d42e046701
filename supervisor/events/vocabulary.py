"""Which clients an event is written for, and what of the types they know."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from supervisor.reading.model import Model, Variant
from supervisor.reading.shapes import Property
from supervisor.reading.shapes import member_of as any_member_of
from supervisor.reading.shapes import members_of as all_members_of


class Vocabulary(enum.StrEnum):
    """Which clients an event is written for.

    CORE has the kinds and the properties of the interface specification and no others; EXTENDED has what
    the clients of the OpenHands agent server know as well.
    """

    CORE = "core"
    EXTENDED = "extended"


_EXTENDED_KINDS: Final = {
    "types": (
        "ACPToolCallEvent ErrorClassification HookExecutionEvent InterruptEvent SecurityAnalysisEvent "
        "ServerErrorEvent StreamingDeltaEvent"
    ),
    "actions": (
        "AskOracleAction ClassifyAndSwitchLLMAction DelegateAction InvokeSkillAction "
        "StartChildConversationAction SwitchLLMAction TaskAction VisionInspectAction WorkflowAction"
    ),
    "observations": (
        "AskOracleObservation ClassifyAndSwitchLLMObservation ClientToolObservation "
        "DelegateObservation InvokeSkillObservation StartChildConversationObservation "
        "SwitchLLMObservation TaskObservation VisionInspectObservation WorkflowObservation"
    ),
    "tools": (
        "AskOracleTool ClassifyAndSwitchLLMTool ClientTool InvokeSkillTool StartChildConversationTool "
        "SwitchLLMTool TaskTool TaskToolSet VisionInspectTool WorkflowTool WorkflowToolSet"
    ),
}
EXTENDED_KINDS: Final = frozenset(" ".join(_EXTENDED_KINDS.values()).split())
"""The types that the core vocabulary does not have."""

EXTENDED: Final[Mapping[str, Any]] = {"extended": True}
"""Metadata of a property that the core vocabulary does not have."""


def is_within(model: type[Model], vocabulary: Vocabulary) -> bool:
    """Whether the vocabulary has this type."""
    return vocabulary is Vocabulary.EXTENDED or model.__name__ not in EXTENDED_KINDS


def has_property(each: Property, vocabulary: Vocabulary) -> bool:
    """Whether the vocabulary has this property."""
    return vocabulary is Vocabulary.EXTENDED or not each.metadata.get("extended", False)


def member_of(base: type[Variant], kind: Any, vocabulary: Vocabulary) -> type[Variant] | None:
    """The member of a family that is called so, if the vocabulary has it."""
    member = any_member_of(base, kind)
    return member if member is not None and is_within(member, vocabulary) else None


def members_of(base: type[Variant], vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, type[Variant]]:
    """The kinds of a family within a vocabulary, by name."""
    return {name: kind for name, kind in all_members_of(base).items() if is_within(kind, vocabulary)}
