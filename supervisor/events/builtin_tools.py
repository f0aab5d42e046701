"""The tools of the built-in agent, told apart by `kind`.

The interface specification names them; their fields are those of the agent-server wire, which ignores
unknown properties here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from supervisor.events.tools import ToolDefinition
from supervisor.reading import Model, wire_name

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


@attrs.frozen(kw_only=True)
class MCPToolDefinition(ToolDefinition):
    """A tool of an MCP server."""

    mcp_tool: MCPTool


@attrs.frozen(kw_only=True)
class ClientTool(ToolDefinition):
    """A tool that the client carries out."""

    CORE: ClassVar[bool] = False

    client_tool_name: str
    input_schema: dict[str, Any]


@attrs.frozen(kw_only=True)
class ClassifyAndSwitchLLMTool(ToolDefinition):
    """Choose the model by the class of the task."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class FinishTool(ToolDefinition):
    """End the task."""


@attrs.frozen(kw_only=True)
class InvokeSkillTool(ToolDefinition):
    """Read a skill."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class SwitchLLMTool(ToolDefinition):
    """Change the model."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class ThinkTool(ToolDefinition):
    """Write a thought down."""


@attrs.frozen(kw_only=True)
class VisionInspectTool(ToolDefinition):
    """Ask a model that sees."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class AskOracleTool(ToolDefinition):
    """Ask a stronger model."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class BrowserClickTool(ToolDefinition):
    """Click."""


@attrs.frozen(kw_only=True)
class BrowserCloseTabTool(ToolDefinition):
    """Close a tab."""


@attrs.frozen(kw_only=True)
class BrowserGetContentTool(ToolDefinition):
    """Read the page."""


@attrs.frozen(kw_only=True)
class BrowserGetStateTool(ToolDefinition):
    """List the elements."""


@attrs.frozen(kw_only=True)
class BrowserGetStorageTool(ToolDefinition):
    """Read cookies and storage."""


@attrs.frozen(kw_only=True)
class BrowserGoBackTool(ToolDefinition):
    """Go back."""


@attrs.frozen(kw_only=True)
class BrowserListTabsTool(ToolDefinition):
    """List the tabs."""


@attrs.frozen(kw_only=True)
class BrowserNavigateTool(ToolDefinition):
    """Open a URL."""


@attrs.frozen(kw_only=True)
class BrowserScrollTool(ToolDefinition):
    """Scroll."""


@attrs.frozen(kw_only=True)
class BrowserSetStorageTool(ToolDefinition):
    """Replace cookies and storage."""


@attrs.frozen(kw_only=True)
class BrowserStartRecordingTool(ToolDefinition):
    """Begin to record."""


@attrs.frozen(kw_only=True)
class BrowserStopRecordingTool(ToolDefinition):
    """End the recording."""


@attrs.frozen(kw_only=True)
class BrowserSwitchTabTool(ToolDefinition):
    """Go to another tab."""


@attrs.frozen(kw_only=True)
class BrowserToolSet(ToolDefinition):
    """All browser tools."""


@attrs.frozen(kw_only=True)
class BrowserTypeTool(ToolDefinition):
    """Type."""


@attrs.frozen(kw_only=True)
class StartChildConversationTool(ToolDefinition):
    """Start a conversation below this one."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class FileEditorTool(ToolDefinition):
    """View and edit files."""


@attrs.frozen(kw_only=True)
class EditTool(ToolDefinition):
    """Replace text in a file."""


@attrs.frozen(kw_only=True)
class ListDirectoryTool(ToolDefinition):
    """List a directory."""


@attrs.frozen(kw_only=True)
class ReadFileTool(ToolDefinition):
    """Read a file."""


@attrs.frozen(kw_only=True)
class WriteFileTool(ToolDefinition):
    """Write a file."""


@attrs.frozen(kw_only=True)
class GlobTool(ToolDefinition):
    """Find files by name."""


@attrs.frozen(kw_only=True)
class GrepTool(ToolDefinition):
    """Find files by content."""


@attrs.frozen(kw_only=True)
class PlanningFileEditorTool(ToolDefinition):
    """Edit the plan."""


@attrs.frozen(kw_only=True)
class TaskTool(ToolDefinition):
    """Give tasks to sub-agents."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class TaskToolSet(ToolDefinition):
    """All task tools."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class TaskTrackerTool(ToolDefinition):
    """Keep a task list."""


@attrs.frozen(kw_only=True)
class TerminalTool(ToolDefinition):
    """Run commands."""


@attrs.frozen(kw_only=True)
class WorkflowTool(ToolDefinition):
    """Run a workflow."""

    CORE: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class WorkflowToolSet(ToolDefinition):
    """All workflow tools."""

    CORE: ClassVar[bool] = False
