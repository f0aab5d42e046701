"""Run by the peer's Python: parses recorded events with the peer's own SDK.

    validate.py FILE...

Files hold JSON lines `{"form", "where", "event"}`. For every event that the SDK cannot read, or reads and
writes back as something else, one JSON line is printed; a last line tells how many were read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

# Actions, observations and tools can be decoded only when their modules were imported.
import openhands.sdk
import openhands.sdk.tool.builtins
from openhands.sdk.event import Event

with suppress(ImportError):  # not everywhere: the environment of the built-in agent has them
    from openhands.tools import (  # noqa: F401
        browser_use,
        file_editor,
        gemini,
        glob,
        grep,
        planning_file_editor,
        task,
        task_tracker,
        terminal,
    )


def pruned(value: Any) -> Any:
    """Without nulls, since the two forms differ in them."""
    if isinstance(value, dict):
        return {
            # A set, which has no order.
            key: sorted(item) if key == "forgotten_event_ids" else pruned(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [pruned(item) for item in value]
    return value


def complaint(record: dict[str, Any]) -> str | None:
    event = record["event"]
    try:
        read = Event.model_validate(event)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if type(read).__name__ != event["kind"]:
        return f"read as {type(read).__name__}"
    given, kept = pruned(event), pruned(read.model_dump(mode="json"))
    lost = {key: value for key, value in given.items() if kept.get(key) != value and key != "timestamp"}
    return f"read back differently: {json.dumps(lost)[:500]}" if lost else None


def main() -> None:
    counts: Counter[str] = Counter()
    lines = (line for path in sys.argv[1:] for line in Path(path).read_text().splitlines())
    for line in lines:
        record = json.loads(line)
        counts[record["event"]["kind"]] += 1
        why = complaint(record)
        if why:
            print(json.dumps({**record, "complaint": why}))
    print(json.dumps({"sdk": openhands.sdk.__version__, "read": counts}))


if __name__ == "__main__":
    main()
