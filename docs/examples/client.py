"""An Ostler client: starts a conversation, follows it over lost connections, allows what the agent asks for.

pip install trio-websocket; OSTLER_API_KEY=... python client.py http://127.0.0.1:8000 "Please write a file."
"""

import json
import os
import sys
import urllib.request
import uuid

import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, open_websocket_url

URL, PROMPT, ID = sys.argv[1].rstrip("/"), sys.argv[2], str(uuid.uuid4())
KEY = [("X-Session-API-Key", os.environ.get("OSTLER_API_KEY", ""))]
LARGEST = 64 * 1024 * 1024  # bytes of a frame; the library takes no more than 1 MiB by itself


def call(
    path, body=None
):  # GET or POST; raises urllib.error.HTTPError, whose body says why, or another OSError
    headers, data = {"Content-Type": "application/json", **dict(KEY)}, body and json.dumps(body).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(URL + path, data, headers)))


async def follow(socket, seen):
    status, through = None, -1  # what the server has beyond `through`, it sends as it happens
    while True:
        frame = json.loads(await socket.get_message())
        event = frame.get("event", {})
        if frame["type"] == "sync":
            through = frame.get("through_seq", -1)
        elif frame["type"] == "durable":
            seen[0] = frame["seq"]
            about = event.get("summary") or event.get("detail") or ""
            print(frame["seq"], event["kind"], about, file=sys.stderr)
        if event.get("key") == "full_state":
            status = event["value"]["execution_status"]
        elif event.get("key") == "execution_status":
            status = event["value"]
        if seen[0] < through:
            continue  # still history: what it asks for may have been answered
        if status == "waiting_for_confirmation":
            status, answer = None, {"accept": True}  # {"accept": False, "reason": "..."} refuses
            path = f"/api/conversations/{ID}/events/respond_to_confirmation"
            await trio.to_thread.run_sync(call, path, answer)
        elif status in ("finished", "error", "stuck"):
            return status


async def main():
    start = {
        "conversation_id": ID,  # sent again, the same request makes no second conversation
        "workspace": {"working_dir": os.getcwd()},
        "confirmation_policy": {"kind": "AlwaysConfirm"},
        "initial_message": {"content": [{"type": "text", "text": PROMPT}]},
    }
    call("/api/conversations", start)
    seen, pause = [-1], 0.25  # the last sequence number, -1 asks for everything; seconds
    while True:
        try:
            url = f"{URL.replace('http', 'ws', 1)}/sockets/session/{ID}?after_seq={seen[0]}"
            async with open_websocket_url(url, extra_headers=KEY, max_message_size=LARGEST) as socket:
                pause = 0.25
                return await follow(socket, seen)
        except (ConnectionClosed, HandshakeError, OSError) as error:
            if isinstance(error, ConnectionRejected) and error.status_code == 403:
                sys.exit("refused: check the key")
            if isinstance(error, ConnectionClosed) and error.reason and error.reason.code == 4004:
                sys.exit(error.reason.reason)
            print(f"lost after {seen[0]}, trying again", file=sys.stderr)
            await trio.sleep(pause)
            pause = min(pause * 2, 30)


status = trio.run(main)
print(call(f"/api/conversations/{ID}/agent_final_response")["response"])
sys.exit(status != "finished")
