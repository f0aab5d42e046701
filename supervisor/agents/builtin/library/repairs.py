"""Workarounds for faults of libraries that affect a conversation, until the libraries fix them."""

from __future__ import annotations

from typing import Any

from litellm.litellm_core_utils.streaming_chunk_builder_utils import ChunkProcessor

from .. import child_conversations, children
from ..wire import streams
from . import strangers


def mend() -> None:
    """Apply the workarounds that are not applied yet."""
    combine = ChunkProcessor.get_combined_thinking_content
    if getattr(combine, "mended", False):
        return

    def combined(self: Any, chunks: Any) -> Any:
        say_thoughts_once(chunks)
        return combine(self, chunks)

    combined.mended = True  # type: ignore[attr-defined]
    ChunkProcessor.get_combined_thinking_content = combined
    streams.install()
    children.install()
    child_conversations.install()
    strangers.install()


def say_thoughts_once(chunks: Any) -> None:
    """Remove the thoughts from chunks that repeat them.

    litellm 1.105 sends the whole of a thought with its signature, after its pieces, and then joins all of
    them: the thought is there twice, and goes back to the provider like that, with a signature that does not
    match.
    """
    said = ""
    for block in (block for chunk in chunks for block in _thoughts(chunk)):
        if not block.get("signature"):
            said += block.get("thinking") or ""
            continue
        if said and block.get("thinking") == said:
            block["thinking"] = ""
        said = ""


def _thoughts(chunk: Any) -> list[Any]:
    deltas = [choice.get("delta") or {} for choice in chunk["choices"]]
    return [block for delta in deltas for block in delta.get("thinking_blocks") or []]
