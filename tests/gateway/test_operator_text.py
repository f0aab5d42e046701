"""What operators read: tables, figures, tails and events as text."""

from __future__ import annotations

import pytest

from gateway.cli import text
from gateway.cli.follow.show import Screen, described
from gateway.cli.operate import processes as ps
from gateway.cli.operate import status
from gateway.cli.operate.logs import Tail, line

AGENT = {
    "conversation_id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "title": "Fix the parser",
    "provider": "demo",
    "version": "1.2.3",
    "pid": 4711,
    "state": "running",
    "uptime": 192.5,
    "restarts": 1,
    "last_exit": "killed by SIGKILL",
    "idle": None,
    "rss_bytes": 300 * 1024 * 1024,
    "cpu_seconds": 61.0,
    "processes": 3,
    "queue": 2,
    "usage": {"tokens": 12_345, "costs": {"USD": 0.421, "EUR": 1}},
}
ASLEEP = {
    **AGENT,
    "conversation_id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
    "title": None,
    "version": None,
    "pid": None,
    "state": "hibernated",
    **dict.fromkeys(("uptime", "idle", "rss_bytes", "cpu_seconds", "processes", "last_exit", "usage")),
}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400 * 12 + 3600 * 4, "12d4h"),
    ],
)
def test_durations(seconds, shown):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0B"),
        (999, "999B"),
        (1000, "1.0K"),
        (20 * 1024, "20K"),
        (1023 * 1024, "1.0M"),
        (300 * 1024**2, "300M"),
        (5 * 1024**4, "5120G"),
    ],
)
def test_sizes(count, shown):
    assert text.size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(None, "-"), (0, "0"), (4711, "4711"), (1234567, "1234567")])
def test_numbers_are_shown_to_the_last_figure(count, shown):
    assert text.number(count) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy"),
        ("a\x1b[2J\x1b[Hb\x9b1mc\x08\rd", "ab1mcd"),
        ("\x1bPq#0\x1b\\z", "z"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b", ""),
        ("unfinished \x1b]0;title", "unfinished "),
    ],
)
def test_nothing_steers_the_terminal(given, shown):
    assert text.clean(given) == shown


@pytest.mark.parametrize(
    ("given", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("日本語", 6, "日本語"),
        ("日本語文", 6, "日本…"),
        ("日本語文", 7, "日本語…"),
        ("e\u0301" * 3, 3, "e\u0301" * 3),
        ("abc", None, "abc"),
    ],
)
def test_cutting(given, width, shown):
    assert text.cut(given, width) == shown
    assert width is None or text.width_of(shown) <= width


def test_agents_as_a_table():
    lines = ps.lines([AGENT, ASLEEP], None)
    assert [" ".join(each.split()) for each in lines] == [
        "ID AGENT PID STATE UP IDLE MEM CPU PROCS QUEUE RESTARTS LAST EXIT TOKENS COST TITLE",
        "0f8fad5b demo 1.2.3 4711 running 3m12s - 300M 1m01s 3 2 1 killed by SIGKILL 12k $0.42 + 1.00 EUR "
        "Fix the parser",
        "7c9e6679 demo - hibernated - - - - - 2 1 - - -",
    ]
    for name in ("STATE", "TITLE"):
        assert lines[1][lines[0].index(name) :].startswith(AGENT[name.lower()])
    for name, value in (("PID", "4711"), ("MEM", "300M")):
        end = lines[0].index(name) + len(name)
        assert lines[1][:end].endswith(value)
        assert lines[2][:end].endswith("-")


def test_a_table_is_cut_to_the_terminal():
    for each in ps.lines([{**AGENT, "title": "日" * 100}, ASLEEP], 80):
        assert text.width_of(each) <= 80


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (130, "ID AGENT PID STATE UP IDLE MEM RESTARTS LAST EXIT TOKENS COST TITLE"),
        (100, "ID AGENT STATE UP IDLE MEM TOKENS COST TITLE"),
        (80, "ID AGENT STATE MEM TOKENS COST TITLE"),
        (50, "ID AGENT STATE TITLE"),
        (40, "ID STATE TITLE"),
    ],
)
def test_columns_go_by_importance(width, shown):
    lines = ps.lines([AGENT, ASLEEP], width)
    assert all(text.width_of(each) <= width for each in lines)
    assert " ".join(lines[0].split()) == shown
    assert lines[1].endswith("Fix the parser")


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12k"), (999_600, "1.0M")]
)
def test_amounts(count, shown):
    assert text.amount(count) == shown


def test_what_waits_for_a_person_comes_first():
    answer = {"agents": [AGENT, {**ASLEEP, "state": "waiting"}], "spares": []}
    assert [each["state"] for each in ps.rows(answer)] == ["waiting", "running"]


def test_titles_stay_on_their_line():
    lines = ps.lines([{**AGENT, "title": "two\nlines\x1b[2J"}], None)
    assert len(lines) == 2
    assert lines[1].endswith("two lines")


def test_ids_that_begin_alike_are_shown_until_they_differ():
    twin = {**ASLEEP, "conversation_id": "0f8fad5b-d900-469f-a165-70867728950e"}
    lines = ps.lines([AGENT, twin], None)
    assert [each.split()[0] for each in lines[1:]] == ["0f8fad5b-d9c", "0f8fad5b-d90"]


def test_no_agents():
    assert ps.lines([], 80) == ["no agents"]


STATUS = {
    "status": "ready",
    "pid": 17,
    "uptime": 3600.0,
    "version": "9.9",
    "python_version": "3.11.1",
    "state": "/var/lib/ostler",
    "containment": "warden",
    "secret_key": {"source": "OSTLER_MASTER_KEY", "problem": None},
    "session_key_wanted": True,
    "conversations": {"total": 40, "loaded": 7},
    "agents": {"live": 3, "starting": 1, "queued": 2, "hibernated": 4, "parked": 1, "rss_bytes": 2 * 1024**3},
    "turns": {"running": 2},
    "usage": {"tokens": 2_500_000, "costs": {"USD": 3.5}},
    "totals": {"starts": 20, "restarts": 5, "crashes": 6, "turns": {"end_turn": 30, "cancelled": 2}},
    "limits": {
        "agents": 8,
        "memory_bytes": 8 * 1024**3,
        "starts": 4,
        "idle_seconds": 1800.0,
        "when_full": "queue",
    },
    "descriptors": {
        "used": 55,
        "limit": 1024,
        "reserve": 72,
        "agents": {"used": 3, "share": 76},
        "terminals": {"used": 0, "share": 57},
        "connections": {"used": 9, "share": 342},
    },
}


def test_status():
    lines = dict(each.split(":", 1) for each in status.lines("http://h:1", STATUS, None))
    assert {name: value.strip() for name, value in lines.items()} == {
        "server": "http://h:1, ready, up 1h00m, pid 17",
        "version": "9.9 (Python 3.11.1)",
        "state": "/var/lib/ostler",
        "containment": "warden",
        "secret key": "OSTLER_MASTER_KEY",
        "session keys": "required",
        "conversations": "40, 7 of them loaded",
        "agents": "3 live, 1 starting, 2 queued, 4 hibernated, 1 parked; at most 8",
        "memory": "2.0G of 8.0G",
        "admission": "4 starts at a time; queue when full; hibernated when idle for 30m00s",
        "turns": "2 running, 30 end_turn, 2 cancelled ended",
        "usage": "2.5M tokens, cost $3.50, of the loaded conversations",
        "descriptors": "55 of 1024; agents 3/76, terminals 0/57, connections 9/342, reserve 72",
        "since start": "20 starts, 5 restarts, 6 crashes",
    }
    assert len({len(value) - len(value.lstrip()) + len(name) for name, value in lines.items()}) == 1


def test_status_of_a_server_without_limits_turns_and_keys():
    bare = {
        **STATUS,
        "limits": {**STATUS["limits"], "agents": None, "memory_bytes": None, "idle_seconds": None},
        "totals": {**STATUS["totals"], "turns": {}},
        "secret_key": {"source": None, "problem": "the key\nis missing"},
        "session_key_wanted": False,
    }
    lines = "\n".join(status.lines("http://h:1", bare, None))
    assert "1 parked\n" in lines
    assert "2.0G\n" in lines
    assert "idle agents keep running\n" in lines
    assert "none ended" in lines
    assert "none: the key is missing" in lines
    assert "none: open to everybody who reaches the address" in lines


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([["a", "b"], ["a", "b"]], [["a", "b"], []]),
        # The last line may grow, so it waits for a second look.
        ([["a"], ["a", "b"], ["a", "b"]], [["a"], [], ["b"]]),
        (
            [["a"], ["a", "b", "par"], ["a", "b", "partial"], ["a", "b", "partial"]],
            [["a"], ["b"], [], ["partial"]],
        ),
        # One that rested and grew after all is told again, whole.
        ([["a", "par"], ["a", "partial"], ["a", "partial"]], [["a", "par"], [], ["partial"]]),
        # The ring moves on.
        ([["a", "b", "c"], ["b", "c", "d"], ["b", "c", "d"]], [["a", "b", "c"], [], ["d"]]),
        ([["x", "x", "x"], ["x", "x", "x", "x"], ["x", "x", "x", "x"]], [["x", "x", "x"], [], ["x"]]),
        # An agent was started anew.
        ([["a", "b"], [], ["c"], ["c"]], [["a", "b"], [], [], ["c"]]),
        ([[], ["a"], ["a"]], [[], [], ["a"]]),
    ],
)
def test_tails(looks, told):
    tail = Tail()
    found = []
    for look in looks:
        found.append(tail.look(look))
        assert not tail.missed
    assert found == told


def test_a_tail_that_was_overrun_says_so():
    tail = Tail()
    tail.look(["a", "b"])
    assert tail.look(["y", "z"]) == ["y"]
    assert tail.missed


def test_lines_of_logs():
    assert line("\x1b[31mred\x1b[0m\r") == "red"
    frame = {"direction": ">", "timestamp": "2026-01-02T03:04:05.678900Z", "size": 20480, "text": "{\x1b[2J"}
    shown = line(frame)
    assert shown.endswith(":05.678 >   20K {")


def state(key, value):
    return {"kind": "ConversationStateUpdateEvent", "key": key, "value": value}


def message(source, words, **more):
    content = [{"type": "text", "text": words}, {"type": "image", "image_urls": []}]
    return {"kind": "MessageEvent", "source": source, "llm_message": {"content": content, **more}}


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (message("user", "hello"), [("user", "hello")]),
        (message("agent", "hi", reasoning_content="hm"), [("thinks", "hm"), ("says", "hi")]),
        (message("environment", "lost"), [("note", "lost")]),
        (message("agent", ""), []),
        (
            {"kind": "ActionEvent", "tool_name": "f", "action": {"kind": "FinishAction", "message": "done"}},
            [("says", "done")],
        ),
        (
            {"kind": "ActionEvent", "tool_name": "sh", "summary": "List", "action": {"data": {"a": 1}}},
            [("tool", 'List {"a": 1}')],
        ),
        ({"kind": "ActionEvent", "tool_name": "sh", "action": None}, [("tool", "sh")]),
        (
            {"kind": "ACPToolCallEvent", "title": "ls\n-l", "status": "completed"},
            [("tool", "ls -l: completed")],
        ),
        (state("execution_status", "running"), [("status", "running")]),
        (state("agent_phase", "starting"), [("agent", "starting")]),
        (state("stats", {"a": 1}), []),
        (
            {"kind": "ConversationErrorEvent", "code": "C", "detail": "d"},
            [("error", "d")],
        ),  # codes are for programs
        ({"kind": "ObservationEvent", "observation": {"kind": "FinishObservation", "content": []}}, []),
        (
            {"kind": "ObservationEvent", "observation": {"kind": "X", "content": [{"text": "a\n b"}]}},
            [("result", "a b")],
        ),
        ({"kind": "UserRejectObservation", "rejection_reason": "no"}, [("refused", "no")]),
        ({"kind": "AgentErrorEvent", "error": "e"}, [("failed", "e")]),
        ({"kind": "SystemPromptEvent"}, []),
        ({"kind": "PauseEvent"}, [("event", "PauseEvent")]),
        ({"kind": "NewEvent", "detail": "soon"}, [("event", "NewEvent: soon")]),
    ],
)
def test_events_in_words(event, lines):
    assert described(event) == lines


def test_payloads_are_cut():
    event = {"kind": "ActionEvent", "tool_name": "t", "action": {"data": {"text": "x" * 10_000}}}
    ((_, shown),) = described(event)
    assert len(shown) == 300


def test_what_streams_is_printed_once(capsys):
    screen = Screen()

    def delta(item, kind, content):
        screen.show({"type": "delta", "item_id": item, "kind": kind, "content": content})

    def durable(event_id, event):
        event = {**event, "id": event_id, "timestamp": "2026-01-02T03:04:05.678900Z"}
        screen.show({"type": "durable", "seq": 1, "event": event})

    delta("1", "reasoning", "let me ")
    delta("1", "reasoning", "see\x1b[2J")
    delta("1", "text", "it is ")
    delta("1", "text", "4")
    durable("1", message("agent", "it is 4", reasoning_content="let me see"))
    durable("2", message("user", "why"))
    delta("3", "text", "beca")
    durable("4", {"kind": "InterruptEvent"})
    durable("3", message("agent", "beca"))
    screen.show({"type": "transient", "event": {"kind": "ConversationStateUpdateEvent"}})
    screen.show({"type": "sync", "from_seq": 0})
    screen.show({"type": "error", "detail": "ahead"})
    lines = [each[8:].split(None, 1) for each in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["thinks", "let me see"],
        ["says", "it is 4"],
        ["user", "why"],
        ["says", "beca"],
        ["event", "InterruptEvent"],
        ["error", "ahead"],
    ]
