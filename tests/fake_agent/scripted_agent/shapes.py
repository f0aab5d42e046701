"""The JSON an agent sends: results and updates, well formed or deliberately not."""

from __future__ import annotations

import json

from scripted_agent.modes import Modes
from scripted_agent.sessions import Session

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

MODE_IDS = ("default", "yolo", "plan")
MODEL_IDS = ("small", "large")


def mode_ids(modes: Modes) -> list[str]:
    return modes.listed("mode-names", ",".join(MODE_IDS))


OPTION_KINDS = "allow_always,allow_once,reject_once,reject_always"


def initialize_result(modes: Modes) -> dict[str, Any]:
    version = int(modes.number("protocol", 1))
    info = {"name": modes.text("name", "scripted-agent"), "version": modes.text("version", "1.0")}
    if "described" in modes:
        info = {key: key[0] * int(modes.text("described")) for key in ("name", "title", "version")}
    if version >= 2:
        session = {"prompt": {"image": {}}, "resume": {}, "close": {}}
        return {
            "protocolVersion": version,
            "info": info,
            "capabilities": {"session": session},
            "authMethods": [],
        }
    if "bad-types" in modes:
        return {
            "protocolVersion": 1,
            "agentInfo": "scripted",
            "agentCapabilities": {
                "loadSession": "yes",
                "promptCapabilities": [],
                "sessionCapabilities": True,
            },
            "authMethods": {"id": 7},
        }
    missing = modes.listed("without")
    capabilities: dict[str, Any] = {
        "loadSession": "load" not in missing,
        "promptCapabilities": {"image": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": False},
        "sessionCapabilities": {
            name: {} for name in ("resume", "close", "list", "fork", "delete") if name not in missing
        },
    }
    capabilities.update(json.loads(modes.text("capability", "{}")))
    return {
        "protocolVersion": version,
        "agentInfo": info,
        "agentCapabilities": capabilities,
        "authMethods": [
            *({"id": name, "name": name, "description": None} for name in modes.listed("auth")),
            *(
                {
                    "type": "env_var",
                    "id": name,
                    "name": f"Use {' and '.join(names)}",
                    "vars": [{"name": each} for each in names],
                }
                for name, names in env_methods(modes).items()
            ),
        ],
    }


def env_methods(modes: Modes) -> dict[str, list[str]]:
    """The variables of each method of type env_var."""
    pairs = (each.partition(":") for each in modes.listed("env-auth"))
    return {name: variables.split("+") for name, _, variables in pairs}


def config_options(session: Session, modes: Modes) -> list[dict[str, Any]]:
    names = [*MODEL_IDS, *(f"more-{number}" for number in range(int(modes.number("models"))))]
    names += modes.listed("named-models")
    models: list[dict[str, Any]] = [{"value": name, "name": name.title()} for name in names]
    if "grouped-models" in modes:
        models = [{"group": m["value"], "name": f"{m['name']} ones", "options": [m]} for m in models]
    return [
        *json.loads(modes.text("options-before", "[]")),
        {
            "id": "mode",
            "name": "Mode",
            "category": "mode",
            "type": "select",
            "currentValue": session.options["mode"],
            "options": [{"value": name, "name": name.title()} for name in mode_ids(modes)],
        },
        {
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": session.options["model"],
            "options": models,
        },
        {"id": "brave", "name": "Brave", "type": "boolean", "currentValue": session.options["brave"]},
    ]


def session_state(session: Session, modes: Modes) -> dict[str, Any]:
    """What session/new, load, resume and fork answer besides the id."""
    if "bad-types" in modes:
        return {"modes": "default", "configOptions": {"mode": "default"}, "models": 3}
    missing = modes.listed("without")
    state: dict[str, Any] = {}
    if "modes" not in missing:
        available = [{"id": name, "name": name.title(), "description": None} for name in mode_ids(modes)]
        state["modes"] = {"currentModeId": session.options["mode"], "availableModes": available}
    if "legacy-models" in modes:
        models = [{"modelId": name, "name": name.title()} for name in MODEL_IDS]
        state["models"] = {"currentModelId": session.options["model"], "availableModels": models}
    elif "config" not in missing:
        state["configOptions"] = config_options(session, modes)
    return state


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def chunk(variant: str, text: str, message_id: str | None = None) -> dict[str, Any]:
    update: dict[str, Any] = {"sessionUpdate": variant, "content": text_block(text)}
    if message_id:
        update["messageId"] = message_id
    return update


def usage(used: int, size: int, cost: float | None) -> dict[str, Any]:
    update: dict[str, Any] = {"sessionUpdate": "usage_update", "used": used, "size": size}
    if cost is not None:
        update["cost"] = {"amount": cost, "currency": "USD"}
    return update


def commands() -> dict[str, Any]:
    available = [
        {"name": "review", "description": "Review the changes", "input": {"hint": "[branch]"}},
        {"name": "init", "description": "Write AGENTS.md", "input": None},
    ]
    return {"sessionUpdate": "available_commands_update", "availableCommands": available}


def plan(*statuses: str) -> dict[str, Any]:
    entries = [
        {"content": f"step {number + 1}", "priority": "medium", "status": status}
        for number, status in enumerate(statuses)
    ]
    return {"sessionUpdate": "plan", "entries": entries}


def title(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "session_info_update", "title": text, "updatedAt": "2026-01-02T03:04:05Z"}


def chatter() -> list[dict[str, Any]]:
    return [commands(), usage(10, 200_000, None), title("A scripted session")]


def unknown_updates() -> list[dict[str, Any]]:
    return [
        {"sessionUpdate": "hologram_update", "hologram": {"depth": 3}},
        {"sessionUpdate": "_vendor_update", "note": "x"},
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "odd-1",
            "title": "odd",
            "kind": "juggle",
            "status": "paused",
        },
        {"sessionUpdate": "tool_call_update", "toolCallId": "odd-1", "status": "completed", "extra": [1]},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "smell", "data": "roses"}},
    ]


def badly_typed_updates() -> list[Any]:
    return [
        {"sessionUpdate": "agent_message_chunk", "content": "bare text"},
        {"sessionUpdate": "agent_message_chunk"},
        {
            "sessionUpdate": "tool_call",
            "toolCallId": 7,
            "title": None,
            "status": {},
            "content": "x",
            "locations": {},
        },
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": 7,
            "status": "completed",
            "content": [text_block("bare")],
        },
        {"sessionUpdate": "plan", "entries": {"content": "x"}},
        {"sessionUpdate": "plan", "entries": [{"content": 3}, "x", None]},
        {"sessionUpdate": "usage_update", "used": "many", "size": None, "cost": []},
        {"sessionUpdate": "available_commands_update", "availableCommands": None},
        {"sessionUpdate": 5},
        {},
        "not an object",
        None,
    ]


def permission_options(kinds: list[str]) -> list[dict[str, Any]]:
    return [
        {"optionId": f"opt-{kind}", "name": kind.replace("_", " ").title(), "kind": kind} for kind in kinds
    ]
