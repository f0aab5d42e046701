"""The actions of the built-in agent alone.

Those that the interface specification names without their fields have the fields of the agent-server wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from supervisor.reading.model import Model
from supervisor.reading.rows import FLAG, MAYBE_TEXT, MAYBE_TEXTS, NATURAL, Rows, limited, row

Direction = Literal["up", "down"]
EditorCommand = Literal["view", "create", "str_replace", "insert", "undo_edit"]
TrackerCommand = Literal["view", "plan"]
DelegateCommand = Literal["spawn", "delegate"]
Isolation = Literal["worktree", "shared"]
TaskStatus = Literal["todo", "in_progress", "done"]

TAB_ID: Final = limited(str, min_length=4, max_length=4)
"""The id of a browser's tab."""
MAX_WORKFLOW_CONCURRENCY = 64
"""Agents that one workflow may run at once."""


@attrs.frozen(kw_only=True)
class TaskItem(Model):
    """One entry of a task list."""

    title: str
    notes: str = ""
    status: TaskStatus = "todo"


EDITOR: Final[Mapping[str, Any]] = {
    "command": EditorCommand,
    "path": str,
    "file_text": MAYBE_TEXT,
    "old_str": MAYBE_TEXT,
    "new_str": MAYBE_TEXT,
    "insert_line": limited(int | None, None, ge=0),
    "view_range": (tuple[int, ...] | None, None),
}

KINDS: Final[Rows] = {
    "ClassifyAndSwitchLLMAction": row("Have the task classified and the model chosen by class."),
    "InvokeSkillAction": row("Read a skill.", name=str),
    "SwitchLLMAction": row("Continue with the model of another profile.", profile_name=str, reason=str),
    "VisionInspectAction": row(
        "Ask a model that sees about an image of the conversation.",
        image_index=NATURAL,
        question=limited(str, min_length=1),
        profile_name=MAYBE_TEXT,
    ),
    "AskOracleAction": row("Ask a stronger model.", question=str, context=MAYBE_TEXT),
    "BrowserAction": row("The base type of the browser's actions, which is also a kind itself."),
    "BrowserClickAction": row("Click on an element.", index=NATURAL, new_tab=FLAG),
    "BrowserCloseTabAction": row("Close a tab.", tab_id=TAB_ID),
    "BrowserGetContentAction": row(
        "Read the page as text.", extract_links=FLAG, start_from_char=limited(int, 0, ge=0)
    ),
    "BrowserGetStateAction": row("List the page's elements.", include_screenshot=FLAG),
    "BrowserGetStorageAction": row("Read cookies and storage."),
    "BrowserGoBackAction": row("Go back by one page."),
    "BrowserListTabsAction": row("List the tabs."),
    "BrowserNavigateAction": row("Open a URL.", url=str, new_tab=FLAG),
    "BrowserScrollAction": row("Scroll by one screen.", direction=(Direction, "down")),
    "BrowserSetStorageAction": row("Replace cookies and storage.", storage_state=dict[str, Any]),
    "BrowserStartRecordingAction": row("Begin to record the session."),
    "BrowserStopRecordingAction": row("End the recording."),
    "BrowserSwitchTabAction": row("Go to another tab.", tab_id=TAB_ID),
    "BrowserTypeAction": row("Type into an element.", index=NATURAL, text=str),
    "StartChildConversationAction": row(
        "Start a conversation below this one.", task=str, title=MAYBE_TEXT, isolation=(Isolation, "worktree")
    ),
    "DelegateAction": row(
        "Start sub-agents, or give them tasks.",
        command=DelegateCommand,
        ids=MAYBE_TEXTS,
        agent_types=MAYBE_TEXTS,
        tasks=(dict[str, str] | None, None),
    ),
    "FileEditorAction": row(
        "View or edit a file; which of the optional properties are needed depends on `command`.", **EDITOR
    ),
    "EditAction": row(
        "Replace text in a file.",
        file_path=str,
        old_string=str,
        new_string=str,
        expected_replacements=limited(int, 1, ge=0),
    ),
    "ListDirectoryAction": row("List a directory.", dir_path=(str, "."), recursive=FLAG),
    "ReadFileAction": row(
        "Read a file, or `limit` lines of it from line `offset` (from 0) on.",
        file_path=str,
        offset=limited(int | None, None, ge=0),
        limit=limited(int | None, None, ge=1),
    ),
    "WriteFileAction": row("Write a file.", file_path=str, content=str),
    "GlobAction": row("Find files by name.", pattern=str, path=MAYBE_TEXT),
    "GrepAction": row("Find files by content.", pattern=str, path=MAYBE_TEXT, include=MAYBE_TEXT),
    "PlanningFileEditorAction": row(
        "View any file, edit the plan; properties as in FileEditorAction.", **EDITOR
    ),
    "TaskAction": row(
        "Give a task to a sub-agent.",
        description=MAYBE_TEXT,
        prompt=str,
        subagent_type=(str, "general-purpose"),
        resume=MAYBE_TEXT,
    ),
    "TaskTrackerAction": row(
        "Read or replace the task list.",
        command=(TrackerCommand, "view"),
        task_list=(tuple[TaskItem, ...], ()),
    ),
    "TerminalAction": row(
        "Run a command in the terminal, or type into the one that runs. `timeout` is in seconds.",
        command=str,
        is_input=FLAG,
        timeout=limited(float | None, None, ge=0),
        reset=FLAG,
    ),
    "WorkflowAction": row(
        "Run a script that drives agents.",
        name=str,
        script=str,
        max_concurrency=limited(int, 8, ge=1, le=MAX_WORKFLOW_CONCURRENCY),
    ),
}
