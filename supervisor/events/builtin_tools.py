"""The tools of the built-in agent, distinguished by `kind`.

The interface specification names them; their fields are those of the agent-server wire, which ignores
unknown properties here.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import attrs

from supervisor.reading.model import Model, wire_name
from supervisor.reading.rows import Rows, row

TaskSupport = Literal["forbidden", "optional", "required"]


@attrs.frozen(kw_only=True)
class MCPToolAnnotations(Model):
    """What an MCP server says of a tool's effects, where it says anything."""

    title: str | None = None
    read_only_hint: bool | None = attrs.field(default=None, metadata=wire_name("readOnlyHint"))
    destructive_hint: bool | None = attrs.field(default=None, metadata=wire_name("destructiveHint"))
    idempotent_hint: bool | None = attrs.field(default=None, metadata=wire_name("idempotentHint"))
    open_world_hint: bool | None = attrs.field(default=None, metadata=wire_name("openWorldHint"))


@attrs.frozen(kw_only=True)
class MCPIcon(Model):
    """A picture of a tool."""

    src: str
    mime_type: str | None = attrs.field(default=None, metadata=wire_name("mimeType"))
    sizes: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class MCPToolExecution(Model):
    """How a tool may be run."""

    task_support: TaskSupport | None = attrs.field(default=None, metadata=wire_name("taskSupport"))


@attrs.frozen(kw_only=True)
class MCPTool(Model):
    """A tool as its MCP server describes it."""

    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] = attrs.field(metadata=wire_name("inputSchema"))
    output_schema: dict[str, Any] | None = attrs.field(default=None, metadata=wire_name("outputSchema"))
    icons: tuple[MCPIcon, ...] | None = None
    annotations: MCPToolAnnotations | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, metadata=wire_name("_meta"))
    execution: MCPToolExecution | None = None


TOOLS: Final = {
    "FinishTool": "End the task.",
    "ThinkTool": "Write a thought down.",
    "BrowserClickTool": "Click.",
    "BrowserCloseTabTool": "Close a tab.",
    "BrowserGetContentTool": "Read the page.",
    "BrowserGetStateTool": "List the elements.",
    "BrowserGetStorageTool": "Read cookies and storage.",
    "BrowserGoBackTool": "Go back.",
    "BrowserListTabsTool": "List the tabs.",
    "BrowserNavigateTool": "Open a URL.",
    "BrowserScrollTool": "Scroll.",
    "BrowserSetStorageTool": "Replace cookies and storage.",
    "BrowserStartRecordingTool": "Begin to record.",
    "BrowserStopRecordingTool": "End the recording.",
    "BrowserSwitchTabTool": "Go to another tab.",
    "BrowserToolSet": "All browser tools.",
    "BrowserTypeTool": "Type.",
    "FileEditorTool": "View and edit files.",
    "EditTool": "Replace text in a file.",
    "ListDirectoryTool": "List a directory.",
    "ReadFileTool": "Read a file.",
    "WriteFileTool": "Write a file.",
    "GlobTool": "Find files by name.",
    "GrepTool": "Find files by content.",
    "PlanningFileEditorTool": "Edit the plan.",
    "TaskTrackerTool": "Keep a task list.",
    "TerminalTool": "Run commands.",
    "ClassifyAndSwitchLLMTool": "Choose the model by the class of the task.",
    "InvokeSkillTool": "Read a skill.",
    "SwitchLLMTool": "Change the model.",
    "VisionInspectTool": "Ask a model that sees.",
    "AskOracleTool": "Ask a stronger model.",
    "StartChildConversationTool": "Start a conversation below this one.",
    "TaskTool": "Give tasks to sub-agents.",
    "TaskToolSet": "All task tools.",
    "WorkflowTool": "Run a workflow.",
    "WorkflowToolSet": "All workflow tools.",
}
"""Tools without fields of their own, and what each does."""

KINDS: Final[Rows] = {
    "MCPToolDefinition": row("A tool of an MCP server.", mcp_tool=MCPTool),
    "ClientTool": row(
        "A tool that the client carries out.", client_tool_name=str, input_schema=dict[str, Any]
    ),
    **{name: row(does) for name, does in TOOLS.items()},
}
