"""An ACP client of the Python SDK that does the steps it is given; tests.interop.editors.clients says which.

Run by the Python of the SDK's environment: `drive.py JSON`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import acp
from acp import schema
from acp.connection import StreamDirection, StreamEvent

STREAM_BYTES = 50_000_000
"""The longest message, as the SDK has it for its own streams."""


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Editor(acp.Client):
    """Answers as the running step says."""

    def __init__(self) -> None:
        self.answer = "allow"
        self.words = {"answer": asyncio.Event(), "end": asyncio.Event()}
        self.ended: dict[str, asyncio.Event] = {}
        self.asked: list[Any] = []
        self.cancel_at: tuple[str, asyncio.Event] | None = None
        self.said = ""

    def seen(self, event: StreamEvent) -> None:
        """Every message as it came."""
        message = event.message
        if event.direction is not StreamDirection.INCOMING or "method" not in message:
            return
        params = message.get("params") or {}
        if message["method"] == "session/update":
            tell("update", session=params["sessionId"], update=params["update"])
            self._look(params["update"])
        elif message["method"] == "session/request_permission":
            tell("permission", id=message["id"], params=params)
            self.asked.append(message["id"])
            self.ended[json.dumps(message["id"])] = asyncio.Event()
        elif message["method"] == "$/cancel_request":
            tell("cancel_request", id=params["requestId"])
            self.ended[json.dumps(params["requestId"])].set()
        else:
            tell("other", message=message)

    def _look(self, update: dict[str, Any]) -> None:
        content = update.get("content")
        if update["sessionUpdate"] == "agent_message_chunk" and isinstance(content, dict):
            self.said += content.get("text") or ""
        if self.cancel_at is not None and self.cancel_at[0] in self.said:
            self.cancel_at[1].set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        ended = self.ended[json.dumps(self.asked.pop(0))]
        if self.answer == "word":
            waits = [asyncio.ensure_future(each.wait()) for each in (ended, self.words["answer"])]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if ended.is_set():
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        kind = "reject_once" if self.answer == "reject" else "allow_once"
        chosen = next(option.option_id for option in options if option.kind == kind)
        outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen)
        return schema.RequestPermissionResponse(outcome=outcome)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        pass  # `seen` has it

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> schema.ReadTextFileResponse:
        return schema.ReadTextFileResponse(content=Path(path).read_text())

    async def write_text_file(
        self, session_id: str, path: str, content: str, **_: Any
    ) -> schema.WriteTextFileResponse:
        Path(path).write_text(content)
        return schema.WriteTextFileResponse()


class Driver:
    def __init__(self, editor: Editor, connection: Any, given: dict[str, Any]) -> None:
        self.editor, self.connection, self.given = editor, connection, given
        self.session = ""

    async def initialize(self, step: dict[str, Any]) -> Any:
        return await self.connection.initialize(
            protocol_version=acp.PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(
                fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
            ),
            client_info=schema.Implementation(name="ostler-tests", version="1"),
        )

    async def new(self, step: dict[str, Any]) -> Any:
        answer = await self.connection.new_session(cwd=self.given["cwd"], mcp_servers=[])
        self.session = answer.session_id
        return answer

    async def load(self, step: dict[str, Any]) -> Any:
        self.session = step["session"]
        return await self.connection.load_session(
            cwd=self.given["cwd"], session_id=self.session, mcp_servers=[]
        )

    async def list(self, step: dict[str, Any]) -> Any:
        return await self.connection.list_sessions(cwd=self.given["cwd"])

    async def mode(self, step: dict[str, Any]) -> Any:
        return await self.connection.set_session_mode(session_id=self.session, mode_id=step["mode"])

    async def prompt(self, step: dict[str, Any]) -> Any:
        self.editor.said = ""
        reached = asyncio.Event()
        if "cancel_at" in step:
            self.editor.cancel_at = (step["cancel_at"], reached)
        turn = asyncio.ensure_future(
            self.connection.prompt(session_id=self.session, prompt=[acp.text_block(step["text"])])
        )
        if "cancel_at" in step:
            waits = [turn, asyncio.ensure_future(reached.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await self.connection.cancel(session_id=self.session)
        return await turn

    async def watch(self, step: dict[str, Any]) -> Any:
        await self.editor.words["end"].wait()
        return {}


async def main(given: dict[str, Any]) -> None:
    command = given["command"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **given["env"]},
        cwd=given["cwd"],
        limit=STREAM_BYTES,
    )
    editor = Editor()
    connection = acp.connect_to_agent(editor, process.stdin, process.stdout, observers=[editor.seen])
    driver = Driver(editor, connection, given)
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(editor.words[line.strip()].set)

    threading.Thread(target=listen, daemon=True).start()
    for number, step in enumerate([{"do": "initialize"}, *given["steps"]]):
        editor.answer = step.get("answer", "allow")
        try:
            answer = await getattr(driver, step["do"])(step)
        except acp.RequestError as error:
            tell("answer", step=number, do=step["do"], error=error.to_error_obj())
            continue
        if hasattr(answer, "model_dump"):
            answer = answer.model_dump(mode="json", by_alias=True, exclude_unset=True)
        tell("answer", step=number, do=step["do"], result=answer)
    process.stdin.close()
    tell("end", status=await process.wait())
    os._exit(0)  # the SDK's own tasks are of no further use


asyncio.run(main(json.loads(sys.argv[1])))
