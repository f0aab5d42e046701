"""Prints what happens in a conversation: its history, then everything live, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, RejectConnection, Request, TextMessage

TEXT_CHARS = 300  # of a payload on its one line
KEY_HEADER = "X-Session-API-Key"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/watch", description=__doc__)
    host, port = os.environ.get("OSTLER_HOST", "127.0.0.1"), os.environ.get("OSTLER_PORT", "8000")
    parser.add_argument("--url", default=f"http://{host}:{port}", help="of the server (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the frames as they come")
    parser.add_argument("conversation", nargs="?", help="its id; without it the one changed last")
    arguments = parser.parse_args()
    url = urllib.parse.urlsplit(arguments.url.rstrip("/"))
    key = os.environ.get("OSTLER_SESSION_API_KEY", "")
    try:
        conversation = arguments.conversation or newest(arguments.url.rstrip("/"), key)
        for frame in frames(url, conversation, key):
            if arguments.json:
                print(frame, flush=True)
            else:
                show(json.loads(frame))
    except (OSError, urllib.error.URLError) as error:
        sys.exit(f"scripts/watch: {arguments.url}: {error}")
    except KeyboardInterrupt:
        pass


def newest(url: str, key: str) -> str:
    """The id of the conversation that was changed last."""
    request = urllib.request.Request(
        f"{url}/api/conversations/search?limit=1&sort_order=UPDATED_AT_DESC", headers={KEY_HEADER: key}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        items = json.load(answer)["items"]
    if not items:
        sys.exit("scripts/watch: there is no conversation yet")
    return str(items[0]["id"])


def frames(url: urllib.parse.SplitResult, conversation: str, key: str) -> Iterator[str]:
    """The text frames of the session socket, from the first event on."""
    sock = socket.create_connection((url.hostname or "127.0.0.1", url.port or 80), timeout=10)
    ws = WSConnection(ConnectionType.CLIENT)
    target = f"/sockets/session/{conversation}?after_seq=-1"
    headers = [(KEY_HEADER.encode(), key.encode())]
    sock.sendall(ws.send(Request(host=url.netloc, target=target, extra_headers=headers)))
    text: list[str] = []
    while True:
        data = sock.recv(65536)
        ws.receive_data(data or None)
        for event in ws.events():
            match event:
                case AcceptConnection():
                    sock.settimeout(None)
                case RejectConnection():
                    sys.exit("scripts/watch: refused: no conversation id, or a wrong OSTLER_SESSION_API_KEY")
                case TextMessage():
                    text.append(event.data)
                    if event.message_finished:
                        yield "".join(text)
                        text.clear()
                case Ping():
                    sock.sendall(ws.send(event.response()))
                case CloseConnection():
                    sys.exit(f"scripts/watch: closed by the server: {event.code} {event.reason or ''}")


_streamed: dict[str, str] = {}
"""What was printed while it arrived: the id of the event that it will be, and the kind of its last piece."""


def show(frame: dict[str, Any]) -> None:
    """Print a frame for people."""
    match frame:
        case {"type": "delta", "item_id": item, "kind": kind, "content": content}:
            if _streamed.get(item) != kind:
                who = "thinks" if kind == "reasoning" else "agent"
                line(who, "", end="", begin="\n" if item in _streamed else "")
                _streamed[item] = kind
            print(content, end="", flush=True)
        case {"type": "durable", "seq": seq, "event": event}:
            if event["id"] in _streamed:
                print()
            else:
                show_event(seq, event)
        case {"type": "error", "detail": detail}:
            line("error", detail)


def show_event(seq: int, event: dict[str, Any]) -> None:
    match event:
        case {"kind": "MessageEvent", "source": source, "llm_message": message}:
            if thoughts := message.get("reasoning_content"):
                line("thinks", thoughts)
            if text := "".join(part.get("text", "") for part in message["content"]):
                line(source, text)
        case {"kind": "ActionEvent", "action": {"kind": "FinishAction", "message": message}}:
            line("agent", message)
        case {"kind": "ActionEvent", "tool_name": tool, "action": action}:
            line("tool", f"{event.get('summary') or tool} {json.dumps(action.get('data', {}))}")
        case {"kind": "ACPToolCallEvent", "title": title, "status": status}:
            line("tool", f"{title}: {status}")
        case {"kind": "ConversationStateUpdateEvent", "key": "execution_status", "value": value}:
            line("status", value)
        case {"kind": "ConversationErrorEvent", "detail": detail}:
            line("error", detail)
        case {"kind": "ObservationEvent", "observation": {"kind": "FinishObservation"}}:
            pass  # says what the agent's answer said
        case {"kind": "ObservationEvent", "observation": {"content": content}}:
            line("result", " ".join("".join(part.get("text", "") for part in content).split()))
        case {"kind": "UserRejectObservation", "rejection_reason": reason}:
            line("refused", reason)
        case {"kind": "AgentErrorEvent", "error": error}:
            line("failed", error)
        case {"kind": "ConversationStateUpdateEvent"}:
            pass
        case {"kind": kind}:
            line(f"{seq}", kind)


def line(who: str, text: str, end: str = "\n", begin: str = "") -> None:
    shown = text if len(text) <= TEXT_CHARS or who in ("agent", "user") else f"{text[:TEXT_CHARS]}..."
    print(f"{begin}{who:>8}  {shown}", end=end, flush=True)


if __name__ == "__main__":
    main()
