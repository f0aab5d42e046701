"""Finds an agent's own shell and file tools, and fills in their arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.interop.model_api.request import Tool

SHELL = (
    "bash",
    "shell",
    "run_shell_command",
    "exec_command",
    "shell_command",
    "local_shell",
    "execute",
    "execute_command",
    "run_commands",
    "terminal",
)
WRITE = ("write", "write_file", "writefile", "create_file", "apply_patch")
COMMAND_KEYS = ("command", "cmd", "script", "input", "commands")
PATH_KEYS = ("file_path", "filePath", "path", "absolute_path")
TEXT_KEYS = ("content", "contents", "file_text")


def find(tools: Iterable[Tool], names: Iterable[str]) -> Tool | None:
    """The first of `names` that is offered, in the order of `names`; else the one that runs code."""
    offered = list(tools)
    by_name = {tool.name.lower(): tool for tool in offered}
    named = next((by_name[name] for name in names if name in by_name), None)
    return named or next((tool for tool in offered if tool.kind == "code"), None)


def find_like(tools: Iterable[Tool], part: str) -> Tool | None:
    """The first tool with `part` in its name; else the one that runs code."""
    offered = list(tools)
    named = next((tool for tool in offered if part in tool.name), None)
    return named or next((tool for tool in offered if tool.kind == "code"), None)


def mcp_arguments(tool: Tool, part: str, arguments: str) -> Any:
    """Arguments of a call of an MCP server's tool; of one that runs code, such a call."""
    if tool.kind == "search":
        return {"query": part}
    given = json.loads(arguments or "{}")
    if tool.kind == "code":
        return (
            f"const name = Object.keys(tools).find((each) => each.includes({json.dumps(part)}));"
            f"text(JSON.stringify(await tools[name]({json.dumps(given)})));"
        )
    return given


def shell_arguments(tool: Tool, command: str, *, escalate: bool) -> Any:
    """Arguments that run `command`; `escalate` asks to leave the sandbox where the tool knows how."""
    if tool.kind == "local_shell":
        return {"type": "exec", "command": ["bash", "-lc", command], "env": {}}
    if tool.kind == "code":
        asking = {"sandbox_permissions": "require_escalated", "justification": "the test asks for it"}
        given = json.dumps({"cmd": command} | (asking if escalate else {}))
        return f"const done = await tools.exec_command({given}); text(done.output);"
    properties = tool.properties
    key = next((key for key in COMMAND_KEYS if key in properties), "command")
    as_list = str(properties.get(key, {}).get("type")).lower() == "array"
    words = [command] if key == "commands" else ["bash", "-lc", command]
    arguments: dict[str, Any] = {key: words if as_list else command}
    if escalate and "sandbox_permissions" in properties:
        arguments |= {"sandbox_permissions": "require_escalated", "justification": "the test asks for it"}
    elif escalate and "with_escalated_permissions" in properties:
        arguments |= {"with_escalated_permissions": True, "justification": "the test asks for it"}
    return _complete(tool, arguments)


def write_arguments(tool: Tool, path: str, text: str) -> Any:
    """Arguments that write a file; a string for tools that take free text."""
    patch = f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"
    if tool.kind == "custom":
        return patch
    if tool.kind == "code":
        return f"text(await tools.apply_patch({json.dumps(patch)}));"
    if tool.name == "apply_patch":
        return {"input" if "input" in tool.properties else "patch": patch}
    arguments = {}
    for keys, value in ((PATH_KEYS, path), (TEXT_KEYS, text)):
        key = next((key for key in keys if key in tool.properties), keys[0])
        arguments[key] = value
    return _complete(tool, arguments)


def _complete(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in tool.required if name not in arguments]
    return arguments | {name: from_schema(tool.properties.get(name), name) for name in missing}


def from_schema(schema: Any, name: str = "", depth: int = 0) -> Any:
    """A plain value that fits a JSON schema."""
    if not isinstance(schema, dict) or depth > 6:
        return "x"
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return from_schema(schema[key][0], name, depth + 1)
    kind = schema.get("type") or ("object" if schema.get("properties") else "string")
    if isinstance(kind, list):
        kind = next((item for item in kind if item != "null"), "string")
    properties = schema.get("properties") or {}
    match str(kind).lower():
        case "object":
            wanted = schema.get("required") or properties
            return {key: from_schema(properties[key], key, depth + 1) for key in wanted if key in properties}
        case "array":
            return [from_schema(schema.get("items"), name, depth + 1)] * int(schema.get("minItems") or 0)
        case "integer" | "number":
            return int(schema.get("minimum") or 1)
        case "boolean":
            return False
        case _:
            return f"test {name or 'text'}"
