"""What `ostler acp` keeps of both sides: bounds and rare orders, as tables."""

from __future__ import annotations

import json

import pytest

from gateway.cli.acp import exchange as module
from gateway.cli.acp.exchange import Exchange


def line(**members):
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def frame(**members):
    return line(**members).decode()


def sent(exchange):
    found = []
    while (each := exchange.next_frame()) is not None:
        found.append(json.loads(each))
    return found


def asked(exchange, identity, method="session/prompt", **params):
    assert exchange.from_editor(line(id=identity, method=method, params=params)) == []
    return sent(exchange)


@pytest.fixture
def exchange():
    """One after `initialize`."""
    found = Exchange()
    found.opened()
    asked(found, 0, "initialize", protocolVersion=1)
    assert found.from_server(frame(id=0, result={})) != []
    return found


def reconnected(exchange, *answers):
    """A new connection, whose own requests are answered; what was sent, and what the editor got."""
    exchange.lost()
    exchange.opened()
    frames, got = sent(exchange), []
    for each in frames:
        if each["method"] in ("initialize", "_ostler/attach"):
            got += exchange.from_server(frame(id=each["id"], result={}))
            more = sent(exchange)
            frames += more
    return frames, [json.loads(each) for each in got]


def test_requests_of_many_bytes_are_refused(exchange, monkeypatch):
    monkeypatch.setattr(module, "HELD_BYTES", 1000)
    asked(exchange, 1, text="x" * 2000)
    (refused,) = exchange.from_editor(line(id=2, method="session/list"))
    assert "too many requests" in json.loads(refused)["error"]["message"]
    exchange.from_server(frame(id=1, result={}))
    asked(exchange, 2, "session/list")


def test_what_opened_a_session_counts_until_it_is_closed(exchange, monkeypatch):
    monkeypatch.setattr(module, "HELD_BYTES", 1000)
    asked(exchange, 1, "session/new", cwd="/", mcpServers=[{"name": "x" * 2000}])
    exchange.from_server(frame(id=1, result={"sessionId": "s"}))
    assert exchange.from_editor(line(id=2, method="session/list")) != []
    monkeypatch.setattr(module, "HELD_BYTES", 3000)
    asked(exchange, 2, "session/close", sessionId="s")
    exchange.from_server(frame(id=2, result={}))
    assert exchange._held_bytes == 0


def test_sessions_are_counted(exchange, monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_MOST", 1)
    asked(exchange, 1, "session/new", cwd="/", mcpServers=[])
    exchange.from_server(frame(id=1, result={"sessionId": "s"}))
    (refused,) = exchange.from_editor(line(id=2, method="session/new"))
    assert "too many sessions are open" in json.loads(refused)["error"]["message"]


def test_the_editor_is_not_read_while_much_waits(exchange, monkeypatch):
    monkeypatch.setattr(module, "OUTBOX_BYTES", 1000)
    exchange.lost()
    exchange.from_editor(line(method="session/cancel", params={"x": "y" * 2000}))
    assert exchange.full
    reconnected(exchange)
    assert not exchange.full


def test_requests_of_the_server_are_bounded(exchange, monkeypatch):
    monkeypatch.setattr(module, "UNANSWERED_MOST", 2)
    for number in range(2):
        assert exchange.from_server(frame(id=f"fs-{number}", method="x")) != []
    assert exchange.from_server(frame(id="fs-2", method="x")) == []
    assert [each["error"]["message"] for each in sent(exchange)] == ["the editor does not answer"]
    # Those that are over make room.
    exchange.from_server(frame(method="$/cancel_request", params={"requestId": "fs-0"}))
    assert exchange.from_server(frame(id="fs-3", method="x")) != []


def test_few_answers_to_permission_requests_are_kept(exchange, monkeypatch):
    monkeypatch.setattr(module, "ANSWERS_MOST", 2)
    for number in range(3):
        exchange.from_server(frame(id=f"permission-{number}", method="x"))
        exchange.from_editor(line(id=f"permission-{number}", result={}))
    assert list(exchange._answers) == [b'"permission-1"', b'"permission-2"']
    monkeypatch.setattr(module, "ANSWERS_BYTES", 100)
    exchange.from_server(frame(id="permission-3", method="x"))
    exchange.from_editor(line(id="permission-3", result={"x": "y" * 200}))
    assert exchange._answers == {}
    assert exchange._answers_bytes == 0


def test_an_answer_without_a_request_is_left_out(exchange):
    exchange.from_editor(line(id="fs-1", result={}))
    assert sent(exchange) == []


def test_an_answer_for_a_server_that_is_gone_is_left_out(exchange):
    exchange.from_server(frame(id="fs-1", method="x"))
    exchange.lost()
    exchange.from_editor(line(id="fs-1", result={}))
    exchange.opened()
    assert [each["method"] for each in sent(exchange)] == ["initialize"]


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        ({"error": {"code": -32800, "message": "x"}}, False),
        ({"result": {"outcome": {"outcome": "cancelled"}}}, False),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "a"}}}, True),
    ],
)
def test_a_request_that_was_ended_may_come_again(exchange, answer, counts):
    """Then the editor answers twice: that it was cancelled, and what its user says."""
    exchange.from_server(frame(id="permission-1", method="x"))
    _, got = reconnected(exchange)
    assert [each["method"] for each in got] == ["$/cancel_request"]
    assert exchange.from_server(frame(id="permission-1", method="x")) != []
    exchange.from_editor(line(id="permission-1", **answer))
    assert (sent(exchange) != []) is counts


def test_own_ids_are_not_those_of_the_editor(exchange):
    asked(exchange, "ostler-0")
    frames, _ = reconnected(exchange)
    assert [each["id"] for each in frames] == ["ostler-1", "ostler-0"]


def test_a_session_that_cannot_be_attached_is_forgotten(exchange):
    asked(exchange, 1, "session/new", cwd="/", mcpServers=[])
    exchange.from_server(frame(id=1, result={"sessionId": "s"}))
    exchange.lost()
    exchange.opened()
    (initialize,) = sent(exchange)
    exchange.from_server(frame(id=initialize["id"], result={}))
    (attach,) = sent(exchange)
    exchange.from_server(frame(id=attach["id"], error={"code": 1, "message": "gone"}))
    frames, _ = reconnected(exchange)
    assert [each["method"] for each in frames] == ["initialize"]


@pytest.mark.parametrize(
    ("method", "position"), [("session/new", ""), ("session/load", ""), ("session/resume", None)]
)
def test_a_session_of_which_nothing_was_shown(exchange, method, position):
    asked(exchange, 1, method, cwd="/", mcpServers=[], sessionId="s")
    exchange.from_server(frame(id=1, result={"sessionId": "s"}))
    frames, _ = reconnected(exchange)
    assert frames[1]["params"]["position"] == position


def test_a_failed_request_opens_nothing(exchange):
    asked(exchange, 1, "session/load", cwd="/", sessionId="s")
    exchange.from_server(frame(id=1, error={"code": 1, "message": "x"}))
    frames, _ = reconnected(exchange)
    assert len(frames) == 1


def test_cancels_end_with_the_prompt(exchange):
    asked(exchange, 1, sessionId="s")
    exchange.from_editor(line(method="session/cancel", params={"sessionId": "s"}))
    exchange.from_editor(line(method="session/cancel", params={"sessionId": "other"}))
    assert len(sent(exchange)) == 2
    exchange.from_server(frame(id=1, result={}))
    frames, _ = reconnected(exchange)
    assert len(frames) == 1
    assert exchange.settled


def test_a_frame_is_one_line_for_the_editor(exchange):
    (got,) = exchange.from_server('{"jsonrpc":"2.0",\n"method":"x"}')
    assert b"\n" not in got
    assert exchange.from_server("nonsense") == []
    assert exchange.from_server("[]") == []


def test_an_answer_that_comes_twice_is_passed_on_once(exchange):
    asked(exchange, 1)
    assert exchange.from_server(frame(id=1, result={})) != []
    assert exchange.from_server(frame(id=1, result={})) == []
