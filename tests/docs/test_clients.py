"""docs/clients.md and docs/wire.md against a running server and the code: frames, keys, codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import trio
from trio_websocket import open_websocket_url

from gateway.api import errors
from gateway.api.sockets import websocket as connection
from tests.support.server import running_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("clients.md", "wire.md"))
WAIT_S = 30.0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the tables in a section, without their heads."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if "---" not in line]


def shape(frame: dict[str, Any]) -> tuple[Any, ...]:
    """What kind of frame this is, and which fields it has."""
    event = frame.get("event")
    inner = shape(event) if isinstance(event, dict) else ()
    return (frame.get("type"), frame.get("kind") if "timestamp" in frame else None, frozenset(frame), *inner)


def test_the_page_leads_to_the_clients_that_are_tested_and_shows_no_other() -> None:
    assert re.findall(r"\]\(examples/([^)]+)\)", PAGE) == ["client.py", "client.mjs"]
    assert blocks("python") == blocks("javascript") == []


async def test_frames_are_as_on_the_page(tmp_path: Path) -> None:
    seen: set[tuple[Any, ...]] = set()
    last = [-1]
    ended = trio.Event()

    async with running_server(tmp_path) as server, trio.open_nursery() as nursery:
        begin = {
            "workspace": {"working_dir": str(tmp_path / "workspace")},
            "initial_message": {"content": [{"type": "text", "text": "Hello!"}]},
        }
        identifier = (await server.rest.call("POST", "/api/conversations", begin))["id"]
        base = server.url.replace("http", "ws", 1)

        async def listen(path: str, say: str | None = None) -> None:
            async with open_websocket_url(f"{base}{path}") as socket:
                if say is not None:
                    await socket.send_message(say)
                while True:
                    frame = json.loads(await socket.get_message())
                    seen.add(shape(frame))
                    last[0] = frame.get("seq", last[0])
                    if frame.get("event", {}).get("value") == "finished":
                        ended.set()

        nursery.start_soon(listen, f"/sockets/session/{identifier}?after_seq=-1", "no JSON")
        nursery.start_soon(listen, f"/sockets/events/{identifier}?resend_mode=all")
        with trio.fail_after(WAIT_S):
            await ended.wait()
        nursery.start_soon(listen, f"/sockets/session/{identifier}?after_seq=2")
        async with open_websocket_url(f"{base}/sockets/session/{identifier}") as fresh:
            seen.add(shape(json.loads(await fresh.get_message())))
        async with open_websocket_url(f"{base}/sockets/session/{identifier}?after_seq=100000") as ahead:
            assert json.loads(await ahead.get_message()).keys() == {"type", "from_seq"}
            assert json.loads(await ahead.get_message())["code"] == "seq_ahead"
        examples = [json.loads(line) for block in blocks("json") for line in block.splitlines()]
        with trio.move_on_after(WAIT_S / 3):
            while missing := [each for each in examples if shape(each) not in seen]:
                await trio.sleep(0.05)
        assert missing == []
        assert len(examples) > 10
        named = {row[0].strip("`") for row in rows("The session socket")[1:]}
        # What is lost needs a fault or a full journal: `conversations/test_streamed_items.py` has its shape.
        # The demo agent runs no shell: `conversations/test_asked.py` has the shape of what one writes.
        assert named == {"item_aborted", "tool_output", *(each[0] for each in seen if each[0] is not None)}
        nursery.cancel_scope.cancel()


def test_every_state_key_of_the_code_is_on_the_page() -> None:
    code = "".join(path.read_text() for path in (ROOT / "supervisor" / "conversations").rglob("*.py"))
    found = set(re.findall(r"\b_?state\(\s*\"([a-z_]+)\"", code))
    assert len(found) > 10
    listed = {key for row in rows("State keys")[1:] for key in re.findall(r"`([a-z_]+)`", row[0])}
    assert found <= listed
    assert {key for key in listed if f'"{key}"' not in code} == set()


def test_close_codes_are_the_codes_of_the_code() -> None:
    known = {value for name, value in vars(connection).items() if isinstance(value, int) and name.isupper()
             and 1000 <= value < 5000}  # fmt: skip
    assert {int(row[0]) for row in rows("Close codes")[1:]} == known


def test_statuses_that_the_code_gives_are_on_the_page() -> None:
    listed = {int(row[0]) for row in rows("Errors")[1:]}
    assert set(errors.STATUS.values()) <= listed
    raised = {
        int(status)
        for path in (ROOT / "gateway").rglob("*.py")
        for status in re.findall(r"ApiError\((\d{3})", path.read_text())
    }
    assert raised <= listed
