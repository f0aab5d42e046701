"""The actions of the built-in agent alone.

Those that the interface specification names without their fields have the fields of the agent-server wire.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from supervisor.events.families import Action
from supervisor.reading.model import Model
from supervisor.reading.rules import Limit

Direction = Literal["up", "down"]
EditorCommand = Literal["view", "create", "str_replace", "insert", "undo_edit"]
TrackerCommand = Literal["view", "plan"]
DelegateCommand = Literal["spawn", "delegate"]
Isolation = Literal["worktree", "shared"]
TaskStatus = Literal["todo", "in_progress", "done"]

TAB_ID_LENGTH = 4
"""Characters of a browser tab's id."""
MAX_WORKFLOW_CONCURRENCY = 64
"""Agents that one workflow may run at once."""


@attrs.frozen(kw_only=True)
class TaskItem(Model):
    """One entry of a task list."""

    title: str
    notes: str = ""
    status: TaskStatus = "todo"


@attrs.frozen(kw_only=True)
class ClassifyAndSwitchLLMAction(Action):
    """Have the task classified and the model chosen by class."""


@attrs.frozen(kw_only=True)
class InvokeSkillAction(Action):
    """Read a skill."""

    name: str


@attrs.frozen(kw_only=True)
class SwitchLLMAction(Action):
    """Continue with the model of another profile."""

    profile_name: str
    reason: str


@attrs.frozen(kw_only=True)
class VisionInspectAction(Action):
    """Ask a model that sees about an image of the conversation."""

    image_index: int = attrs.field(validator=Limit(ge=0))
    question: str = attrs.field(validator=Limit(min_length=1))
    profile_name: str | None = None


@attrs.frozen(kw_only=True)
class AskOracleAction(Action):
    """Ask a stronger model."""

    question: str
    context: str | None = None


@attrs.frozen(kw_only=True)
class BrowserAction(Action):
    """The base type of the browser's actions, which is also a kind itself."""


@attrs.frozen(kw_only=True)
class BrowserClickAction(Action):
    """Click on an element."""

    index: int = attrs.field(validator=Limit(ge=0))
    new_tab: bool = False


@attrs.frozen(kw_only=True)
class BrowserCloseTabAction(Action):
    """Close a tab."""

    tab_id: str = attrs.field(validator=Limit(min_length=TAB_ID_LENGTH, max_length=TAB_ID_LENGTH))


@attrs.frozen(kw_only=True)
class BrowserGetContentAction(Action):
    """Read the page as text."""

    extract_links: bool = False
    start_from_char: int = attrs.field(default=0, validator=Limit(ge=0))


@attrs.frozen(kw_only=True)
class BrowserGetStateAction(Action):
    """List the page's elements."""

    include_screenshot: bool = False


@attrs.frozen(kw_only=True)
class BrowserGetStorageAction(Action):
    """Read cookies and storage."""


@attrs.frozen(kw_only=True)
class BrowserGoBackAction(Action):
    """Go back by one page."""


@attrs.frozen(kw_only=True)
class BrowserListTabsAction(Action):
    """List the tabs."""


@attrs.frozen(kw_only=True)
class BrowserNavigateAction(Action):
    """Open a URL."""

    url: str
    new_tab: bool = False


@attrs.frozen(kw_only=True)
class BrowserScrollAction(Action):
    """Scroll by one screen."""

    direction: Direction = "down"


@attrs.frozen(kw_only=True)
class BrowserSetStorageAction(Action):
    """Replace cookies and storage."""

    storage_state: dict[str, Any]


@attrs.frozen(kw_only=True)
class BrowserStartRecordingAction(Action):
    """Begin to record the session."""


@attrs.frozen(kw_only=True)
class BrowserStopRecordingAction(Action):
    """End the recording."""


@attrs.frozen(kw_only=True)
class BrowserSwitchTabAction(Action):
    """Go to another tab."""

    tab_id: str = attrs.field(validator=Limit(min_length=TAB_ID_LENGTH, max_length=TAB_ID_LENGTH))


@attrs.frozen(kw_only=True)
class BrowserTypeAction(Action):
    """Type into an element."""

    index: int = attrs.field(validator=Limit(ge=0))
    text: str


@attrs.frozen(kw_only=True)
class StartChildConversationAction(Action):
    """Start a conversation below this one."""

    task: str
    title: str | None = None
    isolation: Isolation = "worktree"


@attrs.frozen(kw_only=True)
class DelegateAction(Action):
    """Start sub-agents, or give them tasks."""

    command: DelegateCommand
    ids: tuple[str, ...] | None = None
    agent_types: tuple[str, ...] | None = None
    tasks: dict[str, str] | None = None


@attrs.frozen(kw_only=True)
class FileEditorAction(Action):
    """View or edit a file; which of the optional properties are needed depends on `command`."""

    command: EditorCommand
    path: str
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = attrs.field(default=None, validator=Limit(ge=0))
    view_range: tuple[int, ...] | None = None


@attrs.frozen(kw_only=True)
class EditAction(Action):
    """Replace text in a file."""

    file_path: str
    old_string: str
    new_string: str
    expected_replacements: int = attrs.field(default=1, validator=Limit(ge=0))


@attrs.frozen(kw_only=True)
class ListDirectoryAction(Action):
    """List a directory."""

    dir_path: str = "."
    recursive: bool = False


@attrs.frozen(kw_only=True)
class ReadFileAction(Action):
    """Read a file, or `limit` lines of it from line `offset` (from 0) on."""

    file_path: str
    offset: int | None = attrs.field(default=None, validator=Limit(ge=0))
    limit: int | None = attrs.field(default=None, validator=Limit(ge=1))


@attrs.frozen(kw_only=True)
class WriteFileAction(Action):
    """Write a file."""

    file_path: str
    content: str


@attrs.frozen(kw_only=True)
class GlobAction(Action):
    """Find files by name."""

    pattern: str
    path: str | None = None


@attrs.frozen(kw_only=True)
class GrepAction(Action):
    """Find files by content."""

    pattern: str
    path: str | None = None
    include: str | None = None


@attrs.frozen(kw_only=True)
class PlanningFileEditorAction(FileEditorAction):
    """View any file, edit the plan; properties as in FileEditorAction."""


@attrs.frozen(kw_only=True)
class TaskAction(Action):
    """Give a task to a sub-agent."""

    description: str | None = None
    prompt: str
    subagent_type: str = "general-purpose"
    resume: str | None = None


@attrs.frozen(kw_only=True)
class TaskTrackerAction(Action):
    """Read or replace the task list."""

    command: TrackerCommand = "view"
    task_list: tuple[TaskItem, ...] = ()


@attrs.frozen(kw_only=True)
class TerminalAction(Action):
    """Run a command in the terminal, or type into the one that runs. `timeout` is in seconds."""

    command: str
    is_input: bool = False
    timeout: float | None = attrs.field(default=None, validator=Limit(ge=0))
    reset: bool = False


@attrs.frozen(kw_only=True)
class WorkflowAction(Action):
    """Run a script that drives agents."""

    name: str
    script: str
    max_concurrency: int = attrs.field(default=8, validator=Limit(ge=1, le=MAX_WORKFLOW_CONCURRENCY))
