from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from supervisor.acp.connection import EXPLAIN_SECONDS, Connection, open_connection
from supervisor.acp.errors import ConnectionLost, FrameTooLarge, RequestTimeout, RpcError, classify_error
from supervisor.acp.framing import Oversize
from supervisor.acp.handler import Result
from supervisor.acp.reader import FLUSH_MESSAGES, NON_PROTOCOL_BYTES, NON_PROTOCOL_LINES
from supervisor.acp.repeats import REPORTED_MAX, Repeats
from supervisor.acp.serving import LONG_ANSWERS, LONG_ANSWERS_AT_ONCE, MAX_AGENT_REQUESTS
from supervisor.credentials.masking import Masker
from supervisor.fairness import SLICE_MESSAGES
from supervisor.reading.weight import LARGE_BYTES, MAX_NODES


class Recorder:
    """A handler that writes everything down, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.sums: list[Repeats] = []
        self.serve: Callable[[str, Any], Awaitable[Any]] | None = None
        self.gate: trio.Event | None = None
        self.flushed = 0
        """How much of what was seen had come when it was flushed last."""

    def notification(self, method: str, params: Any) -> None:
        self.seen.append((method, params))

    def flush(self) -> None:
        self.flushed = len(self.seen)

    async def request(self, method: str, params: Any) -> Any:
        if self.serve is None:
            raise RpcError.method_not_found(method)
        return await self.serve(method, params)

    def prepare(self, method: str, params: Any) -> list[Any]:
        return [params]

    def non_protocol_output(self, line: bytes) -> None:
        self.seen.append(line)

    def repeated(self, counted: Repeats) -> None:
        self.sums.append(counted)

    def oversize(self, frame: Oversize) -> None:
        self.seen.append(frame)

    async def backpressure(self) -> None:
        if self.gate is not None:
            await self.gate.wait()


class Peer:
    """The agent's end, by hand."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = b""

    async def write(self, *messages: Any) -> None:
        await self.stream.send_all(
            b"".join(m if isinstance(m, bytes) else orjson.dumps(m) + b"\n" for m in messages)
        )

    async def read(self) -> Any:
        while b"\n" not in self._buffer:
            data = await self.stream.receive_some()
            assert data, "the connection closed the agent's input"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return orjson.loads(line)


@asynccontextmanager
async def connected(**kwargs: Any) -> AsyncIterator[tuple[Connection, Peer, Recorder]]:
    ours, theirs = trio.testing.memory_stream_pair()
    handler = Recorder()
    async with open_connection(ours, ours, handler, **kwargs) as connection:
        yield connection, Peer(theirs), handler


def update(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"n": number}}


async def test_ten_thousand_updates_and_an_answer_keep_their_order() -> None:
    async with connected() as (connection, peer, handler), trio.open_nursery() as nursery:

        async def agent() -> None:
            asked = await peer.read()
            before = [update(n) for n in range(10_000)]
            after = [update(n) for n in range(10_000, 10_100)]
            data = b"".join(
                orjson.dumps(m) + b"\n"
                for m in [*before, {"id": asked["id"], "result": {"stopReason": "end_turn"}}, *after]
            )
            for start in range(0, len(data), 3333):
                await peer.stream.send_all(data[start : start + 3333])

        nursery.start_soon(agent)
        answers: list[Result] = []

        def answered(result: Result) -> None:
            answers.append(result)
            handler.seen.append("answer")

        value = await connection.request("session/prompt", {}, timeout=60, on_response=answered)
        assert value == {"stopReason": "end_turn"}
        assert answers == [Result({"stopReason": "end_turn"})]
        while len(handler.seen) < 10_101:
            await trio.testing.wait_all_tasks_blocked()
        expected: list[Any] = [("session/update", {"n": n}) for n in range(10_100)]
        expected.insert(10_000, "answer")
        assert handler.seen == expected


async def test_what_came_is_flushed_before_an_answer_a_request_and_a_wait() -> None:
    """Updates are passed on in groups; nothing else that the agent says overtakes them."""
    async with connected() as (connection, peer, handler), trio.open_nursery() as nursery:
        flushed: list[tuple[str, int, int]] = []

        def note(what: str) -> None:
            flushed.append((what, handler.flushed, len(handler.seen)))

        def serve(method: str, params: Any) -> Any:
            note("request")
            return recorded(method, params)

        recorded, handler.request = handler.request, serve  # type: ignore[assignment]

        async def agent() -> None:
            asked = await peer.read()
            answer = {"id": asked["id"], "result": 1}
            await peer.write(update(0), update(1), {"id": 7, "method": "ask"}, update(2), answer, update(3))

        nursery.start_soon(agent)
        await connection.request("x", {}, timeout=60, on_response=lambda _: note("answer"))
        await trio.testing.wait_all_tasks_blocked()
        assert flushed == [("request", 2, 2), ("answer", 3, 3)]
        assert handler.flushed == len(handler.seen) == 4


async def test_a_piece_of_many_updates_is_flushed_in_between() -> None:
    async with connected() as (_connection, peer, handler):
        most = 0

        def notification(method: str, params: Any) -> None:
            nonlocal most
            handler.seen.append((method, params))
            most = max(most, len(handler.seen) - handler.flushed)

        handler.notification = notification  # type: ignore[method-assign]
        await peer.write(*(update(n) for n in range(1000)))
        await trio.testing.wait_all_tasks_blocked()
        assert most == FLUSH_MESSAGES
        assert handler.flushed == 1000


async def test_a_pending_request_of_the_agent_holds_up_nothing() -> None:
    async with connected() as (_, peer, handler):
        decide = trio.Event()

        async def permission(_method: str, _params: Any) -> Any:
            await decide.wait()
            return {"outcome": "yes"}

        handler.serve = permission
        await peer.write({"id": "perm", "method": "session/request_permission", "params": {}}, update(1))
        await trio.testing.wait_all_tasks_blocked()
        assert handler.seen == [("session/update", {"n": 1})]
        decide.set()
        assert await peer.read() == {"jsonrpc": "2.0", "id": "perm", "result": {"outcome": "yes"}}


async def test_requests_are_announced_in_order_of_arrival() -> None:
    async with connected() as (_, peer, handler):

        async def answer() -> Any:
            return None

        def request(method: str, params: Any) -> Awaitable[Any]:
            handler.seen.append((method, params))
            return answer()

        handler.request = request  # type: ignore[method-assign]
        await peer.write(update(1), {"id": 1, "method": "ask", "params": 2}, update(3))
        await peer.read()
        assert handler.seen == [("session/update", {"n": 1}), ("ask", 2), ("session/update", {"n": 3})]


async def test_a_request_can_be_refused_on_the_spot() -> None:
    async with connected() as (_, peer, handler):

        def request(method: str, _params: Any) -> Awaitable[Any]:
            raise RpcError.method_not_found(method)

        handler.request = request  # type: ignore[method-assign]
        await peer.write({"id": 1, "method": "nope"})
        assert (await peer.read())["error"]["code"] == -32601


async def test_answers_to_the_agent() -> None:
    async with connected() as (_, peer, handler):

        async def serve(method: str, params: Any) -> Any:
            match method:
                case "null":
                    return None
                case "refused":
                    raise RpcError(-32002, "gone", {"path": "/x"})
                case "bug":
                    raise KeyError("secret detail")
                case "unwritable":
                    return object()
            raise RpcError.method_not_found(method)

        handler.serve = serve
        expected = {
            "null": {"result": None},
            "refused": {"error": {"code": -32002, "message": "gone", "data": {"path": "/x"}}},
            "bug": {"error": {"code": -32603, "message": "Internal error"}},
            "unwritable": {"error": {"code": -32603, "message": "Internal error"}},
            "nope/nope": {"error": {"code": -32601, "message": "Method not found: nope/nope"}},
        }
        for method, answer in expected.items():
            await peer.write({"id": method, "method": method})
            assert await peer.read() == {"jsonrpc": "2.0", "id": method, **answer}
        await peer.write([{"id": 1, "method": "null"}, {"id": 2, "method": "null"}])
        batch = await peer.read()
        assert (batch["id"], batch["error"]["code"]) == (None, -32600)
        await peer.write({"method": "unknown/notification"}, {"id": 9, "method": "null"})
        assert (await peer.read())["id"] == 9


async def test_the_agent_takes_a_request_back() -> None:
    async with connected() as (_, peer, handler):
        stopped = trio.Event()

        async def serve(_method: str, _params: Any) -> Any:
            try:
                await trio.sleep_forever()
            finally:
                stopped.set()

        handler.serve = serve
        await peer.write(
            {"id": 5, "method": "terminal/wait_for_exit"},
            {"id": 5, "method": "again"},
            {"method": "$/cancel_request", "params": {"requestId": 77}},
            {"method": "$/cancel_request", "params": "odd"},
            {"method": "$/cancel_request", "params": {"requestId": 5}},
        )
        refused, cancelled = await peer.read(), await peer.read()
        assert refused["error"]["code"] == -32600
        assert (cancelled["id"], cancelled["error"]["code"]) == (5, -32800)
        assert stopped.is_set()
        assert handler.seen == []


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_a_storm_of_requests_is_bounded() -> None:
    async with connected() as (_, peer, handler):
        started = 0

        async def serve(_method: str, _params: Any) -> Any:
            nonlocal started
            started += 1
            await trio.sleep_forever()

        handler.serve = serve
        await peer.write(*({"id": n, "method": "ask"} for n in range(MAX_AGENT_REQUESTS + 3)))
        refused = [await peer.read() for _ in range(3)]
        assert {answer["error"]["code"] for answer in refused} == {-32603}
        await trio.testing.wait_all_tasks_blocked()
        assert started == MAX_AGENT_REQUESTS


@pytest.mark.guarantee(name="no-agent-starves-the-others")
@pytest.mark.parametrize("method", sorted(LONG_ANSWERS))
async def test_a_storm_of_requests_with_long_answers_gathers_few_of_them(method: str) -> None:
    async with connected() as (_, peer, handler):
        making = most = 0

        async def serve(_method: str, _params: Any) -> Any:
            nonlocal making, most
            making += 1
            most = max(most, making)
            await trio.sleep(0)
            making -= 1
            return {"output": "x" * (LARGE_BYTES + 1)}

        handler.serve = serve
        asked = [{"id": n, "method": method} for n in range(50)]
        taken_back = {"method": "$/cancel_request", "params": {"requestId": 49}}
        await peer.write(*asked, taken_back)
        answers = [await peer.read() for _ in asked]
        assert {answer["id"] for answer in answers} == set(range(50))
        assert [answer["id"] for answer in answers if "error" in answer] == [49]
        assert most == LONG_ANSWERS_AT_ONCE


async def test_errors_and_null_results_of_the_agent() -> None:
    async with connected() as (connection, peer, _), trio.open_nursery() as nursery:

        async def agent() -> None:
            asked = await peer.read()
            assert asked == {
                "jsonrpc": "2.0",
                "id": asked["id"],
                "method": "session/load",
                "params": {"a": "\n"},
            }
            assert type(asked["id"]) is int
            await peer.write({"id": asked["id"], "result": None})
            asked = await peer.read()
            await peer.write({"id": asked["id"], "error": {"code": -32000, "message": "log in"}})

        nursery.start_soon(agent)
        assert await connection.request("session/load", {"a": "\n"}, timeout=60) is None
        heard: list[Result] = []
        with pytest.raises(RpcError) as caught:
            await connection.request("session/new", {}, timeout=60, on_response=heard.append)
        assert classify_error(caught.value) == "auth"
        assert heard[0].error is caught.value


@pytest.mark.guarantee(name="nothing-hangs")
async def test_an_answer_belongs_to_one_request() -> None:
    async with connected() as (connection, peer, _), trio.open_nursery() as nursery:
        got: dict[str, Any] = {}

        async def ask(method: str) -> None:
            got[method] = await connection.request(method, None, timeout=5)

        nursery.start_soon(ask, "one")
        nursery.start_soon(ask, "two")
        asked = {each["method"]: each["id"] for each in [await peer.read(), await peer.read()]}
        assert asked["one"] != asked["two"]
        second = {"id": asked["two"], "result": "b"}
        strangers = ({"id": each, "result": "?"} for each in ("nobody", None, float(asked["one"]), 99))
        await peer.write(
            second, {**second, "result": "again"}, *strangers, {"id": asked["one"], "result": "a"}
        )
        await trio.testing.wait_all_tasks_blocked()
        assert got == {"one": "a", "two": "b"}
        nursery.start_soon(ask, "three")
        assert (await peer.read())["id"] not in asked.values()
        nursery.cancel_scope.cancel()


async def test_a_request_times_out(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as (connection, peer, _):
        heard: list[Result] = []
        began = trio.current_time()
        with pytest.raises(RequestTimeout) as caught:
            await connection.request("session/new", {}, timeout=30, on_response=heard.append)
        assert trio.current_time() - began == 30
        assert (caught.value.method, caught.value.timeout) == ("session/new", 30)
        asked, cancelled = await peer.read(), await peer.read()
        assert cancelled == {
            "jsonrpc": "2.0",
            "method": "$/cancel_request",
            "params": {"requestId": asked["id"]},
        }
        # The late answer belongs to nobody, not even to the next request.
        async with trio.open_nursery() as nursery:

            async def agent() -> None:
                following = await peer.read()
                assert following["id"] != asked["id"]
                await peer.write({"id": asked["id"], "result": "late"})
                await peer.write({"id": asked["id"], "result": "twice"})
                await peer.write({"id": following["id"], "result": "right"})

            nursery.start_soon(agent)
            assert await connection.request("session/new", {}, timeout=30) == "right"
        assert heard == []


async def test_cancelling_a_request_tells_the_agent() -> None:
    async with connected() as (connection, peer, _):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    await connection.request("session/prompt", {}, timeout=60)

                nursery.start_soon(ask)
                asked = await peer.read()
                scope.cancel()
        cancelled = await peer.read()
        assert (cancelled["method"], cancelled["params"]) == ("$/cancel_request", {"requestId": asked["id"]})


async def test_what_json_cannot_say_is_refused_at_the_call() -> None:
    async with connected() as (connection, peer, _):
        with pytest.raises(TypeError):
            await connection.request("m", {"x": object()}, timeout=1)
        connection.notify("fine", {})
        assert (await peer.read())["method"] == "fine"


@pytest.mark.guarantee(name="nothing-hangs")
async def test_the_end_of_the_output_fails_everything_at_once() -> None:
    async with connected() as (connection, peer, handler):
        stopped = trio.Event()

        async def serve(_method: str, _params: Any) -> Any:
            try:
                await trio.sleep_forever()
            finally:
                stopped.set()

        handler.serve = serve
        lost: list[ConnectionLost] = []

        async def ask() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await connection.request("session/prompt", {}, timeout=600)
            lost.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            await peer.write({"id": 1, "method": "ask"}, b'{"method":"last","params":null}')
            await trio.testing.wait_all_tasks_blocked()
            await peer.stream.aclose()
        assert [error.reason for error in lost] == ["the agent closed its output"] * 5
        assert connection.closed.is_set()
        assert connection.reason == "the agent closed its output"
        assert handler.seen == [("last", None)]
        await stopped.wait()
        with pytest.raises(ConnectionLost):
            await connection.request("session/prompt", {}, timeout=600)
        connection.notify("session/cancel", {})


async def test_the_owner_gives_the_reason() -> None:
    async with connected() as (connection, peer, handler):
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ConnectionLost, match="exit status 3"):
                    await connection.request("session/prompt", {}, timeout=600)

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            connection.fail("exit status 3: out of memory")
            connection.fail("a second reason")
        assert connection.reason == "exit status 3: out of memory"
        await peer.write(update(1))
        await trio.testing.wait_all_tasks_blocked()
        assert handler.seen == []


@pytest.mark.parametrize(
    ("seconds", "reason"), [(0.1, "exit status 1"), (9.0, "the agent closed its output")]
)
async def test_the_owner_is_asked_for_the_reason(
    seconds: float, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def explain() -> str:
        await trio.sleep(seconds)
        return "exit status 1"

    async with connected(explain=explain) as (connection, peer, _):
        await peer.stream.aclose()
        with pytest.raises(ConnectionLost, match=reason):
            await connection.request("session/prompt", {}, timeout=600)
        assert trio.current_time() == pytest.approx(min(seconds, EXPLAIN_SECONDS))


async def test_an_answer_is_read_although_the_agents_input_broke() -> None:
    # A dying agent: its input is closed already, its last answer is still in the pipe.
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    os.close(in_read)
    handler = Recorder()
    receive, send = trio.lowlevel.FdStream(out_read), trio.lowlevel.FdStream(in_write)
    async with receive, send, open_connection(receive, send, handler) as connection:

        async def last_words() -> None:
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert connection.reason is None
            os.write(out_write, orjson.dumps(update(1)) + b'\n{"id":1,"result":"done"}\n')
            os.close(out_write)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(last_words)
            assert await connection.request("session/prompt", {}, timeout=60) == "done"
        assert handler.seen == [("session/update", {"n": 1})]
        await connection.closed.wait()


async def test_a_broken_input_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_connection(ours, ours, Recorder()) as connection:
        await theirs.receive_stream.aclose()
        with pytest.raises(ConnectionLost, match="closed its input"):
            await connection.request("session/prompt", {}, timeout=600)
        assert trio.current_time() < 1


async def test_an_agent_that_does_not_read_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.acp.writer.MAX_QUEUED_BYTES", 1000)
    ours, _theirs = trio.testing.lockstep_stream_pair()
    async with open_connection(ours, ours, Recorder()) as connection:
        connection.notify("big", {"x": "y" * 5000})
        assert connection.reason is None
        await trio.testing.wait_all_tasks_blocked()
        assert connection._writer._queued
        with pytest.raises(ConnectionLost, match="does not read its input"):
            await connection.request("small", {}, timeout=60)


async def test_what_is_queued_goes_out_in_order_and_whole() -> None:
    async with connected() as (connection, peer, _):
        for number in range(1000):
            connection.notify("n", {"n": number, "text": "line\nbreak " * 50})
        assert [(await peer.read())["params"]["n"] for _ in range(1000)] == list(range(1000))


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_oversize_messages_fail_only_what_they_concern() -> None:
    async with connected(max_frame=1000) as (connection, peer, handler), trio.open_nursery() as nursery:
        big = "x" * 5000

        async def agent() -> None:
            asked = await peer.read()
            await peer.write(
                {"jsonrpc": "2.0", "method": "session/update", "params": {"text": big}},
                {
                    "jsonrpc": "2.0",
                    "id": "theirs",
                    "method": "fs/write_text_file",
                    "params": {"content": big},
                },
                {"jsonrpc": "2.0", "id": asked["id"], "result": big},
                update(1),
            )

        nursery.start_soon(agent)
        heard: list[Result] = []
        with pytest.raises(FrameTooLarge) as caught:
            await connection.request("session/prompt", {}, timeout=60, on_response=heard.append)
        assert (caught.value.limit, caught.value.size > 5000) == (1000, True)
        assert heard[0].error is caught.value
        answer = await peer.read()
        assert (answer["id"], answer["error"]["code"]) == ("theirs", -32600)
        assert answer["error"]["data"]["maxFrameBytes"] == 1000
        await trio.testing.wait_all_tasks_blocked()
        methods = [seen.method if isinstance(seen, Oversize) else seen for seen in handler.seen]
        assert methods == ["session/update", "fs/write_text_file", ("session/update", {"n": 1})]
        assert connection.reason is None


async def test_noise_is_kept_and_told() -> None:
    async with connected() as (connection, peer, handler):
        await peer.write(b"\xef\xbb\xbfWelcome!\r\n", b"{\n", b"z" * 10_000 + b"\n", update(1))
        await trio.testing.wait_all_tasks_blocked()
        lines = [b"Welcome!", b"{", b"z" * NON_PROTOCOL_BYTES]
        assert handler.seen == [*lines, ("session/update", {"n": 1})]
        assert [line for _, line in connection.non_protocol_lines] == lines


class NoTulips:
    """A mask that knows one word."""

    known: object = "tulips"

    def suspects(self, document: bytes) -> bool:
        return b"tulip" in document

    def text(self, text: str) -> str:
        return text.replace("tulip", "***")

    def beginning(self, text: str) -> str:
        return self.text(text).removesuffix("tul")

    def value(self, value: Any) -> Any:
        return orjson.loads(self.text(orjson.dumps(value).decode()))


def said(handler: Recorder) -> list[Any]:
    return [params for _, params in handler.seen]


@pytest.mark.parametrize("size", [1, 7, 40, 50, 65536])
async def test_a_secret_is_masked_wherever_the_pieces_of_the_output_end(size: int) -> None:
    mask = Masker(["tulip-0123456789"])
    messages = [update(0), {"method": "session/update", "params": {"x": "a tulip-0123456789"}}, update(1)]
    data = b"".join(orjson.dumps(each) + b"\n" for each in messages) * 3
    async with connected(mask=mask) as (_connection, peer, handler):
        for start in range(0, len(data), size):
            await peer.stream.send_all(data[start : start + size])
            await trio.testing.wait_all_tasks_blocked()
        assert said(handler) == [{"n": 0}, {"x": "a <secret-hidden>"}, {"n": 1}] * 3


async def test_a_secret_that_is_learned_in_the_middle_of_a_piece_is_masked_from_there_on() -> None:
    mask = Masker(["another-0123456789"])
    told = {"method": "session/update", "params": {"x": "tulip-0123456789"}}
    async with connected(mask=mask) as (_connection, peer, handler):

        def notification(method: str, params: Any) -> None:
            handler.seen.append((method, params))
            mask.add(["tulip-0123456789"])

        handler.notification = notification  # type: ignore[method-assign]
        await peer.write(told, told, told)
        await trio.testing.wait_all_tasks_blocked()
        assert said(handler) == [{"x": "tulip-0123456789"}, *[{"x": "<secret-hidden>"}] * 2]


async def test_what_the_agent_tells_is_masked_and_what_it_asks_for_is_not() -> None:
    async with connected(mask=NoTulips()) as (connection, peer, handler), trio.open_nursery() as nursery:
        asked: list[Any] = []

        async def serve(method: str, params: Any) -> Any:
            asked.append(params)
            return {}

        handler.serve = serve

        async def agent() -> None:
            await peer.write(
                {"method": "session/update", "params": {"tulip": ["a tulip"]}},
                b"a tulip, a tul\n",
                {"id": 7, "method": "fs/write_text_file", "params": {"content": "tulip"}},
            )
            assert (await peer.read())["method"] == "session/new"
            await peer.write({"id": 1, "result": {"title": "tulip"}})
            await peer.read()
            assert (await peer.read())["method"] == "session/prompt"
            await peer.write({"id": 2, "error": {"code": -1, "message": "no tulip", "data": ["tulip"]}})

        nursery.start_soon(agent)
        assert await connection.request("session/new", {}, timeout=60) == {"title": "***"}
        with pytest.raises(RpcError) as refused:
            await connection.request("session/prompt", {}, timeout=60)
        assert (refused.value.message, refused.value.data) == ("no ***", ["***"])
        assert handler.seen == [("session/update", {"***": ["a ***"]}), b"a ***, a "]
        assert asked == [{"content": "tulip"}]


async def test_a_fault_over_a_request_is_answered_and_ends_nothing() -> None:
    class Faulty(Recorder):
        def request(self, method: str, params: Any) -> Any:
            if method == "at once":
                raise ZeroDivisionError("ours")
            return self._later()

        async def _later(self) -> Any:
            raise ZeroDivisionError("ours")

    ours, theirs = trio.testing.memory_stream_pair()
    peer = Peer(theirs)
    async with open_connection(ours, ours, Faulty()) as connection:
        for number, method in enumerate(("at once", "later", "at once")):
            await peer.write({"id": number, "method": method})
            answer = await peer.read()
            assert (answer["id"], answer["error"]["code"]) == (number, -32603)
        assert connection.reason is None


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_a_reader_gives_way_within_one_piece() -> None:
    async with connected() as (connection, peer, handler):
        passes = 0

        async def others() -> None:
            nonlocal passes
            while True:
                passes += 1
                await trio.lowlevel.checkpoint()

        # One read of 60,000 bytes.
        await peer.stream.send_all(b"y\n" * 29_999 + b"z\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            while connection._reader._non_protocol_output._count + REPORTED_MAX < 30_000:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert passes > 30_000 / SLICE_MESSAGES
        assert handler.seen == [b"y"] * REPORTED_MAX
        # What it said last is known, although it is not told.
        assert [line for _, line in connection.non_protocol_lines] == [
            *[b"y"] * (NON_PROTOCOL_LINES - 1),
            b"z",
        ]
    assert [(told.what, told.count, told.size) for told in handler.sums] == [
        ("noise", 30_000 - REPORTED_MAX, 30_000 - REPORTED_MAX)
    ]


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_large_messages_keep_their_place() -> None:
    async with connected(mask=NoTulips()) as (_, peer, handler):
        handler.prepare = lambda _method, params: [params["text"][:5], params["text"][-5:]]  # type: ignore[assignment,method-assign]
        large = {"method": "m", "params": {"text": "tulip" + "x" * LARGE_BYTES + "tulip"}}
        await peer.write(update(1), large, update(2), large, update(3))
        with trio.fail_after(20):
            while len(handler.seen) < 7:
                await trio.sleep(0.001)
        pieces = [("m", "***xx"), ("m", "xx***")]
        numbers = [("session/update", {"n": n}) for n in (1, 2, 3)]
        assert handler.seen == [numbers[0], *pieces, numbers[1], *pieces, numbers[2]]


async def test_what_is_too_heavy_is_refused_like_what_is_too_large() -> None:
    async with connected() as (connection, peer, handler), trio.open_nursery() as nursery:
        heavy = b"[" + b"[]," * MAX_NODES + b"1]"

        async def agent() -> None:
            asked = await peer.read()
            await peer.write(
                b'{"method":"session/update","params":' + heavy + b"}\n",
                b'{"id":"theirs","method":"fs/write_text_file","params":' + heavy + b"}\n",
                b'{"id":%d,"result":' % asked["id"] + heavy + b"}\n",
                update(1),
            )

        nursery.start_soon(agent)
        with pytest.raises(FrameTooLarge, match=f"more than {MAX_NODES} values"):
            await connection.request("session/prompt", {}, timeout=60)
        answer = await peer.read()
        assert (answer["id"], answer["error"]["code"]) == ("theirs", -32600)
        while len(handler.seen) < 3:
            await trio.sleep(0.001)
        methods = [seen.method if isinstance(seen, Oversize) else seen for seen in handler.seen]
        assert methods == ["session/update", "fs/write_text_file", ("session/update", {"n": 1})]


async def test_what_is_too_large_is_told_a_few_times() -> None:
    async with connected(max_frame=100) as (_, peer, handler):
        await peer.write(*[{"method": "m", "params": "x" * 200}] * 50, update(1))
        await trio.testing.wait_all_tasks_blocked()
        assert len(handler.seen) == REPORTED_MAX + 1
    assert [(told.what, told.count) for told in handler.sums] == [("oversize", 50 - REPORTED_MAX)]


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_an_agent_that_does_not_read_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 300_000
    monkeypatch.setattr("supervisor.acp.writer.MAX_QUEUED_BYTES", most)
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with open_connection(ours, ours, Recorder()) as connection:
        with trio.fail_after(20), contextlib.suppress(trio.BrokenResourceError):
            while connection.reason is None:
                with trio.move_on_after(1):
                    await theirs.send_all(b'{"id":"x","method":"nope"}\n' * 1000)
                assert sum(map(len, connection._writer._outbox)) <= most
        assert str(connection.reason).startswith("the agent does not read its input")


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_requests_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.acp.serving.MAX_AGENT_REQUEST_BYTES", 2500)
    async with connected() as (connection, peer, handler):
        go_on = trio.Event()

        async def serve(_method: str, _params: Any) -> Any:
            await go_on.wait()
            return {}

        handler.serve = serve
        await peer.write(*({"id": n, "method": "ask", "params": "x" * 1000} for n in range(3)))
        refused = await peer.read()
        assert (refused["id"], refused["error"]["code"]) == (2, -32603)
        go_on.set()
        assert {(await peer.read())["id"] for _ in range(2)} == {0, 1}
        # One is always taken, however large.
        await peer.write({"id": 9, "method": "ask", "params": "x" * 5000})
        assert (await peer.read())["result"] == {}
        assert connection._reader.serving._bytes == 0


async def test_frames_keep_their_order_when_a_pipe_is_full() -> None:
    """What the pipe takes is written at once; all else waits, from the first byte that it does not take."""
    out_read, out_write = os.pipe()
    in_read, in_write = os.pipe()
    frames = 60
    async with (
        trio.lowlevel.FdStream(out_read) as receive,
        trio.lowlevel.FdStream(in_write) as send,
        trio.lowlevel.FdStream(in_read) as agent,
        open_connection(receive, send, Recorder()) as connection,
    ):
        connection.notify("first", None)
        assert os.read(in_read, 100)  # without a pass through the loop
        for number in range(frames):
            connection.notify("m", {"number": number, "x": "x" * (number * 331 % 9000)})
        assert connection._writer._outbox
        got = b""
        with trio.fail_after(5):
            while got.count(b"\n") < frames:
                got += await agent.receive_some(1000)
            await trio.testing.wait_all_tasks_blocked()
        assert not connection._writer._queued
        assert [orjson.loads(line)["params"]["number"] for line in got.splitlines()] == list(range(frames))
        os.close(out_write)


async def test_an_agent_that_closed_its_input_is_met_by_a_frame_that_is_written_at_once() -> None:
    out_read, out_write = os.pipe()
    in_read, in_write = os.pipe()
    os.close(in_read)
    receive, send = trio.lowlevel.FdStream(out_read), trio.lowlevel.FdStream(in_write)
    async with receive, send, open_connection(receive, send, Recorder()) as connection:
        with trio.fail_after(5), pytest.raises(ConnectionLost, match="closed its input"):
            await connection.request("m", None, timeout=4)
    os.close(out_write)


async def test_backpressure_stops_the_reading() -> None:
    out_read, out_write = os.pipe()
    in_read, in_write = os.pipe()
    receive, send = trio.lowlevel.FdStream(out_read), trio.lowlevel.FdStream(in_write)
    agent = trio.lowlevel.FdStream(out_write)
    handler = Recorder()
    handler.gate = trio.Event()
    frame = orjson.dumps({"method": "m", "params": "x" * 1000}) + b"\n"
    total = 2000
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for _ in range(total):
            await agent.send_all(frame)
            sent += 1
        await agent.aclose()

    async with receive, send, agent, trio.open_nursery() as nursery:
        async with open_connection(receive, send, handler) as connection:
            nursery.start_soon(flood)
            await trio.testing.wait_all_tasks_blocked(0.05)
            # One read and what the pipe holds, not the whole flood.
            assert len(handler.seen) < 100
            assert sent < 300
            handler.gate.set()
            await connection.closed.wait()
        assert len(handler.seen) == total
    os.close(in_read)


async def test_a_fault_in_the_handler_comes_out_as_it_is() -> None:
    async def faulty() -> None:
        async with connected() as (_, peer, handler):
            handler.notification = lambda _method, _params: 1 // 0  # type: ignore[method-assign,assignment]
            await peer.write(update(1))
            await trio.sleep_forever()

    with pytest.raises(ZeroDivisionError):
        await faulty()


@pytest.mark.parametrize("failure", [LookupError("x"), ExceptionGroup("ours", [LookupError()])])
async def test_exceptions_of_the_block_come_out_as_they_are(failure: Exception) -> None:
    with pytest.raises(type(failure)) as caught:
        async with connected():
            raise failure
    assert caught.value.args == failure.args


async def test_leaving_the_block_fails_what_is_pending_and_leaves_the_streams() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    lost = trio.Event()
    async with trio.open_nursery() as nursery:
        async with open_connection(ours, ours, Recorder()) as connection:

            async def ask() -> None:
                with pytest.raises(ConnectionLost, match="the connection was closed"):
                    await connection.request("session/prompt", {}, timeout=600)
                lost.set()

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
        await lost.wait()
    await ours.send_all(b"still open")
    received = b""
    while not received.endswith(b"still open"):
        received += await theirs.receive_some()


async def test_giving_up_in_the_middle_of_a_piece_stops_there() -> None:
    async with connected() as (connection, peer, handler):

        def notification(_method: str, params: Any) -> None:
            handler.seen.append(params["n"])
            connection.fail("enough")

        handler.notification = notification  # type: ignore[method-assign]
        await peer.write(update(1), update(2), {"id": 1, "method": "ask"})
        await connection.closed.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert handler.seen == [1]


async def test_the_trace_has_both_directions() -> None:
    async with connected() as (connection, peer, _):
        connection.notify("hello", {"sessionId": "0123456789abcdef"})
        await peer.read()
        await peer.write(update(1))
        await trio.testing.wait_all_tasks_blocked()
        sent, received = connection.trace.render()
        assert (sent.direction, "…89abcdef" in sent.text) == (">", True)
        assert (received.direction, received.text) == ("<", orjson.dumps(update(1)).decode())
