"""The observations of the built-in agent alone.

The interface specification names them; their fields are those of the agent-server wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from supervisor.events.builtin_actions import (
    DelegateCommand,
    EditorCommand,
    Isolation,
    TaskItem,
    TrackerCommand,
)
from supervisor.reading.model import Model
from supervisor.reading.rows import FLAG, MAYBE_INT, MAYBE_TEXT, Rows, row
from supervisor.reading.rules import Limit

WorkflowStatus = Literal["completed", "error"]


@attrs.frozen(kw_only=True)
class FileEntry(Model):
    """One entry of a directory; `size` in bytes."""

    name: str
    path: str
    is_directory: bool
    size: int
    modified_time: str = attrs.field(validator=Limit(date_time=True))


@attrs.frozen(kw_only=True)
class CmdOutputMetadata(Model):
    """Where a command ran and how it ended; -1 stands for unknown."""

    exit_code: int = -1
    pid: int = -1
    username: str | None = None
    hostname: str | None = None
    working_dir: str | None = None
    py_interpreter_path: str | None = None
    prefix: str = ""
    suffix: str = ""


EDITOR: Final[Mapping[str, Any]] = {
    "command": EditorCommand,
    "path": MAYBE_TEXT,
    "prev_exist": (bool, True),
    "old_content": MAYBE_TEXT,
    "new_content": MAYBE_TEXT,
}

KINDS: Final[Rows] = {
    "ClassifyAndSwitchLLMObservation": row(
        "The class of the task and the model chosen for it.",
        chosen_class=MAYBE_TEXT,
        model=MAYBE_TEXT,
        active_model=MAYBE_TEXT,
    ),
    "InvokeSkillObservation": row("The text of a skill.", skill_name=str),
    "SwitchLLMObservation": row(
        "The model that is now used.", profile_name=str, reason=MAYBE_TEXT, active_model=MAYBE_TEXT
    ),
    "VisionInspectObservation": row(
        "What the model that sees said.",
        image_index=int,
        question=str,
        profile_name=MAYBE_TEXT,
        model=MAYBE_TEXT,
        base_url=MAYBE_TEXT,
        answer=MAYBE_TEXT,
    ),
    "ClientToolObservation": row("Says that a client was asked to act."),
    "AskOracleObservation": row("What the stronger model said."),
    "BrowserObservation": row(
        "The result of any browser action; `screenshot_data` is base64.",
        screenshot_data=MAYBE_TEXT,
        full_output_save_dir=MAYBE_TEXT,
    ),
    "StartChildConversationObservation": row(
        "The conversation that was started.",
        conversation_id=MAYBE_TEXT,
        parent_conversation_id=MAYBE_TEXT,
        status=MAYBE_TEXT,
        title=MAYBE_TEXT,
        url=MAYBE_TEXT,
        workspace=MAYBE_TEXT,
        isolation=(Isolation | None, None),
    ),
    "DelegateObservation": row("What the sub-agents did.", command=DelegateCommand),
    "FileEditorObservation": row("What was viewed or changed.", **EDITOR),
    "EditObservation": row(
        "What was replaced.",
        file_path=MAYBE_TEXT,
        is_new_file=FLAG,
        replacements_made=(int, 0),
        old_content=MAYBE_TEXT,
        new_content=MAYBE_TEXT,
    ),
    "ListDirectoryObservation": row(
        "A directory's entries.",
        dir_path=MAYBE_TEXT,
        entries=(tuple[FileEntry, ...], ()),
        total_count=(int, 0),
        is_truncated=FLAG,
    ),
    "ReadFileObservation": row(
        "A file's text; `lines_shown` is its first and its last line when it is cut.",
        file_path=str,
        file_content=(str, ""),
        is_truncated=FLAG,
        lines_shown=(tuple[int, int] | None, None),
        total_lines=MAYBE_INT,
    ),
    "WriteFileObservation": row(
        "What was written.",
        file_path=MAYBE_TEXT,
        is_new_file=FLAG,
        old_content=MAYBE_TEXT,
        new_content=MAYBE_TEXT,
    ),
    "GlobObservation": row(
        "Files found by name.", files=tuple[str, ...], pattern=str, search_path=str, truncated=FLAG
    ),
    "GrepObservation": row(
        "Files found by content.",
        matches=tuple[str, ...],
        pattern=str,
        search_path=str,
        include_pattern=MAYBE_TEXT,
        truncated=FLAG,
    ),
    "PlanningFileEditorObservation": row("What was viewed or changed in the plan.", **EDITOR),
    "TaskObservation": row("What a sub-agent did.", task_id=str, subagent=str, status=str),
    "TaskTrackerObservation": row(
        "The task list as it is now.", command=TrackerCommand, task_list=(tuple[TaskItem, ...], ())
    ),
    "TerminalObservation": row(
        "A command's output. `timeout` with exit code -1 says that the command still runs.",
        command=str | None,
        exit_code=MAYBE_INT,
        timeout=FLAG,
        metadata=(CmdOutputMetadata, attrs.field(factory=CmdOutputMetadata)),
        full_output_save_dir=MAYBE_TEXT,
    ),
    "WorkflowObservation": row("How a workflow ended.", name=str, status=WorkflowStatus),
}
