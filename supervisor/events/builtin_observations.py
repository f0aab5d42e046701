"""The observations of the built-in agent alone.

The interface specification names them; their fields are those of the agent-server wire.
"""

from __future__ import annotations

from typing import Literal

import attrs

from supervisor.events.builtin_actions import (
    DelegateCommand,
    EditorCommand,
    Isolation,
    TaskItem,
    TrackerCommand,
)
from supervisor.events.families import Observation
from supervisor.reading.model import Model
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


@attrs.frozen(kw_only=True)
class ClassifyAndSwitchLLMObservation(Observation):
    """The class of the task and the model chosen for it."""

    chosen_class: str | None = None
    model: str | None = None
    active_model: str | None = None


@attrs.frozen(kw_only=True)
class InvokeSkillObservation(Observation):
    """The text of a skill."""

    skill_name: str


@attrs.frozen(kw_only=True)
class SwitchLLMObservation(Observation):
    """The model that is now used."""

    profile_name: str
    reason: str | None = None
    active_model: str | None = None


@attrs.frozen(kw_only=True)
class VisionInspectObservation(Observation):
    """What the model that sees said."""

    image_index: int
    question: str
    profile_name: str | None = None
    model: str | None = None
    base_url: str | None = None
    answer: str | None = None


@attrs.frozen(kw_only=True)
class ClientToolObservation(Observation):
    """Says that a client was asked to act."""


@attrs.frozen(kw_only=True)
class AskOracleObservation(Observation):
    """What the stronger model said."""


@attrs.frozen(kw_only=True)
class BrowserObservation(Observation):
    """The result of any browser action; `screenshot_data` is base64."""

    screenshot_data: str | None = None
    full_output_save_dir: str | None = None


@attrs.frozen(kw_only=True)
class StartChildConversationObservation(Observation):
    """The conversation that was started."""

    conversation_id: str | None = None
    parent_conversation_id: str | None = None
    status: str | None = None
    title: str | None = None
    url: str | None = None
    workspace: str | None = None
    isolation: Isolation | None = None


@attrs.frozen(kw_only=True)
class DelegateObservation(Observation):
    """What the sub-agents did."""

    command: DelegateCommand


@attrs.frozen(kw_only=True)
class FileEditorObservation(Observation):
    """What was viewed or changed."""

    command: EditorCommand
    path: str | None = None
    prev_exist: bool = True
    old_content: str | None = None
    new_content: str | None = None


@attrs.frozen(kw_only=True)
class EditObservation(Observation):
    """What was replaced."""

    file_path: str | None = None
    is_new_file: bool = False
    replacements_made: int = 0
    old_content: str | None = None
    new_content: str | None = None


@attrs.frozen(kw_only=True)
class ListDirectoryObservation(Observation):
    """A directory's entries."""

    dir_path: str | None = None
    entries: tuple[FileEntry, ...] = ()
    total_count: int = 0
    is_truncated: bool = False


@attrs.frozen(kw_only=True)
class ReadFileObservation(Observation):
    """A file's text; `lines_shown` is its first and its last line when it is cut."""

    file_path: str
    file_content: str = ""
    is_truncated: bool = False
    lines_shown: tuple[int, int] | None = None
    total_lines: int | None = None


@attrs.frozen(kw_only=True)
class WriteFileObservation(Observation):
    """What was written."""

    file_path: str | None = None
    is_new_file: bool = False
    old_content: str | None = None
    new_content: str | None = None


@attrs.frozen(kw_only=True)
class GlobObservation(Observation):
    """Files found by name."""

    files: tuple[str, ...]
    pattern: str
    search_path: str
    truncated: bool = False


@attrs.frozen(kw_only=True)
class GrepObservation(Observation):
    """Files found by content."""

    matches: tuple[str, ...]
    pattern: str
    search_path: str
    include_pattern: str | None = None
    truncated: bool = False


@attrs.frozen(kw_only=True)
class PlanningFileEditorObservation(FileEditorObservation):
    """What was viewed or changed in the plan."""


@attrs.frozen(kw_only=True)
class TaskObservation(Observation):
    """What a sub-agent did."""

    task_id: str
    subagent: str
    status: str


@attrs.frozen(kw_only=True)
class TaskTrackerObservation(Observation):
    """The task list as it is now."""

    command: TrackerCommand
    task_list: tuple[TaskItem, ...] = ()


@attrs.frozen(kw_only=True)
class TerminalObservation(Observation):
    """A command's output. `timeout` with exit code -1 says that the command still runs."""

    command: str | None
    exit_code: int | None = None
    timeout: bool = False
    metadata: CmdOutputMetadata = attrs.field(factory=CmdOutputMetadata)
    full_output_save_dir: str | None = None


@attrs.frozen(kw_only=True)
class WorkflowObservation(Observation):
    """How a workflow ended."""

    name: str
    status: WorkflowStatus
