"""Which calls a question is about, what is known to have run, and what was rejected: tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState
from supervisor.conversations.recording.tool_calls.consent import (
    about,
    added,
    judged,
    may_be_meant,
    ran,
    shows_work,
    tells_of_refusal,
)
from supervisor.conversations.recording.tool_calls.rejections import (
    CALL_COST,
    TURN_CHARS,
    Rejections,
    command_ways,
    given_of,
    named_files,
)

COMMAND = {"command": "touch a"}


def call(agent_id: str, **fields: Any) -> ToolCallState:
    """A call that the agent has announced."""
    state = ToolCallState(agent_id, agent_id, workspace="/w")
    state.merge({"title": agent_id, "kind": "execute", **fields})
    return state


def words(text: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


def diff(path: str) -> list[dict[str, Any]]:
    return [{"type": "diff", "path": path, "newText": "x"}]


RUNS = call("call_runs", rawInput=COMMAND)
OTHER = call("call_other", rawInput={"command": "touch b"})
EDITS = call("call_edits", kind="edit", locations=[{"path": "/w/a"}])
READS = call("call_reads", kind="read", locations=[{"path": "/w/a"}])
BARE = call("0:call_bare", title="Bash")


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("asked", "calls", "expected"),
    [
        pytest.param({"rawInput": COMMAND}, [OTHER, RUNS], ["call_runs"], id="equal input"),
        pytest.param(
            {"rawInput": COMMAND}, [RUNS, call("again", rawInput=COMMAND)], ["call_runs"], id="twice"
        ),
        pytest.param({"rawInput": {"command": "x"}}, [RUNS], [], id="another input"),
        pytest.param({"rawInput": {"command": "x"}, "kind": "execute"}, [RUNS], [], id="another of its kind"),
        pytest.param({"content": diff("/w/a"), "kind": "edit"}, [READS, EDITS], ["call_edits"], id="a path"),
        pytest.param({"content": diff("/w/b"), "kind": "edit"}, [EDITS], [], id="another path"),
        pytest.param({"locations": [{"path": "/w/a"}]}, [EDITS], ["call_edits"], id="a place"),
        pytest.param(
            {"toolCallId": "permission/call_runs", "content": words("x")},
            [OTHER, RUNS],
            ["call_runs"],
            id="the end of the id",
        ),
        pytest.param({"toolCallId": "a/1", "content": words("x")}, [call("b/1")], [], id="too short an end"),
        pytest.param(
            {"rawInput": COMMAND, "kind": "execute"},
            [EDITS, BARE],
            ["0:call_bare"],
            id="the only one of its kind",
        ),
        pytest.param({"rawInput": COMMAND, "kind": "execute"}, [BARE, call("c")], [], id="two of its kind"),
        pytest.param({"content": words("x"), "kind": "other"}, [EDITS], [], id="no kind, but words"),
        pytest.param(
            {"title": "All?", "kind": "other"}, [RUNS, EDITS], ["call_runs", "call_edits"], id="nothing"
        ),
        pytest.param({"title": "All?"}, [], [], id="nothing, and no call"),
    ],
)
def test_the_calls_of_a_question(
    asked: dict[str, Any], calls: list[ToolCallState], expected: list[str]
) -> None:
    assert [each.agent_call_id for each in about(asked, calls)[0]] == expected


def test_only_open_calls_that_were_announced_and_not_asked_for_may_be_meant() -> None:
    asked, ended, only = call("asked"), call("ended", status="completed"), ToolCallState("only", "only")
    asked.merge({}, asking=True)
    only.merge({}, asking=True)
    assert [may_be_meant(each) for each in (call("open"), asked, ended, only)] == [True, False, False, False]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("asked", "calls", "risk"),
    [
        ({"rawInput": COMMAND}, [RUNS], None),
        ({"locations": [{"path": "/w/a"}]}, [EDITS], None),
        ({"locations": [{"path": "/w/a"}], "kind": "edit"}, [EDITS], "MEDIUM"),
        ({"title": "All?", "kind": "other"}, [EDITS], "HIGH"),
        ({"title": "All?", "kind": "other"}, [READS], "UNKNOWN"),
        ({"title": "All?", "kind": "other"}, [READS, RUNS], "HIGH"),
    ],
)
def test_a_question_never_makes_its_calls_harmless(
    asked: dict[str, Any], calls: list[ToolCallState], risk: str | None
) -> None:
    meant, guess = about(asked, calls)
    assert judged(asked, meant, guess=guess) == risk


def test_a_question_adds_what_its_call_does_not_say() -> None:
    asked = {"toolCallId": "x", "title": "May I?", "kind": "other", "status": "pending", "rawInput": COMMAND}
    assert added(asked, RUNS) == {}
    assert added({**asked, "content": words("x")}, BARE) == {"rawInput": COMMAND, "content": words("x")}
    unknown = ToolCallState("u", "u")
    unknown.merge({})
    assert added({**asked, "kind": "edit"}, unknown) == {
        "title": "May I?",
        "kind": "edit",
        "rawInput": COMMAND,
    }


@pytest.mark.parametrize(
    "said",
    [
        "User rejected the tool call for `execute` with id call_1. The tool was not executed.",
        "terminal failed: BLOCKED: User denied this command.",
        '{"error": "Edit approval denied by ACP client; file was not modified."}',
        "The user explicitly denied this tool operation.",
        'Tool "Bash" was not run because the user rejected the approval request.',
        "Error: Tool execution cancelled by user",
        'Tool "run_shell_command" was canceled by the user.',
        "Tool: terminal\n\nRejection Reason:\nUser rejected the action.",
    ],
)
def test_what_agents_say_of_what_they_did_not_run(said: str) -> None:
    assert tells_of_refusal(said)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "done",
        "bash: ./x: Permission denied",
        "Successfully wrote 1 lines to /w/a",
        "1 test failed, 3 rejected",
    ],
)
def test_what_they_say_of_what_they_ran(said: str) -> None:
    assert not tells_of_refusal(said)


@pytest.mark.parametrize(
    ("fields", "ending", "expected"),
    [
        ({}, Ending.COMPLETED, True),
        ({"content": words("User rejected the tool call")}, Ending.COMPLETED, False),
        ({"rawOutput": "Tool execution cancelled by user"}, Ending.COMPLETED, False),
        ({"content": words("exit code 1")}, Ending.FAILED, False),
        ({"content": [{"type": "terminal", "terminalId": "t"}]}, Ending.FAILED, True),
        ({"_meta": {"terminal_output": {"data": "x"}}}, Ending.FAILED, True),
        ({}, Ending.INTERRUPTED, False),
        ({}, Ending.REJECTED, False),
    ],
)
def test_what_has_demonstrably_run(fields: dict[str, Any], ending: Ending, expected: bool) -> None:
    assert ran(call("c", **fields), ending) is expected


NOT_RUN = (
    "The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file).",
    "Not executed: permission denied.",
    "Skipped.",
    "Der Aufruf wurde abgelehnt.",
    "",
)
"""What agents may say of what they did not run; no pattern knows all of it."""


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("said", NOT_RUN)
@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.FAILED])
def test_after_a_no_words_alone_do_not_show_that_a_call_ran(said: str, ending: Ending) -> None:
    status = {"status": ending.value}
    for update in (
        {"content": words(said)},
        {"rawOutput": said},
        {"rawOutput": {"error": said}},
        {"content": words(said), "rawOutput": {"exit_code": 1}},
        {"content": [{"type": "terminal", "terminalId": "none of Ostler's"}]},
    ):
        assert not shows_work({**status, **update}, whole=ending is Ending.COMPLETED)
        assert not ran(call("c", **status, **update), ending, after_no=True)
    # Claude Code sends the text of a refusal as the output of a shell that failed.
    output = {"_meta": {"terminal_output": {"data": said}}}
    assert not ran(call("c", **status, **output), Ending.FAILED, after_no=True)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({"rawOutput": {"exit_code": 0}}, True),
        ({"rawOutput": {"exitCode": 0, "output": "made"}}, True),
        ({"rawOutput": {"exit_code": 0, "output": "User rejected the tool call."}}, False),
        ({"rawOutput": {"exit_code": False}}, False),
        ({"rawOutput": {"exit_code": 2}}, False),
        ({"_meta": {"terminal_exit": {"exit_code": 0}}}, True),
        ({"_meta": {"terminal_exit": {"exit_code": 1}}}, False),
        ({"_meta": {"terminal_output_delta": {"data": "compiling"}}}, True),
        ({"_meta": {"terminal_output_delta": {"data": "x"}, "terminal_exit": {"exit_code": 2}}}, True),
        ({"_meta": {"terminal_output_delta": {"data": "User denied this command."}}}, False),
        ({"_meta": {"terminal_output_delta": {"data": " \n"}}}, False),
        ({"_meta": {"terminal_output_delta": {"data": 7}}}, False),
        ({"_meta": {"terminal_output": {"data": "whole"}}}, False),
        ({"_meta": "x", "rawOutput": "x"}, False),
        ({"content": diff("/w/a"), "status": "completed"}, True),
        ({"content": diff("/w/a"), "status": "in_progress"}, False),  # what it is about to do
        ({"content": diff("/w/a"), "status": "failed"}, False),
    ],
)
def test_what_shows_that_a_call_ran(update: dict[str, Any], expected: bool) -> None:
    assert shows_work(update) is expected


def test_output_that_comes_as_a_whole_shows_work_where_the_call_did_not_fail() -> None:
    output = {"_meta": {"terminal_output": {"data": "made"}}}
    assert shows_work(output, whole=True)
    assert not shows_work({"_meta": {**output["_meta"], "terminal_exit": {"exit_code": 1}}}, whole=True)
    assert ran(call("c", **output), Ending.COMPLETED, after_no=True)
    assert not ran(call("c", **output), Ending.FAILED, after_no=True)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    "rejected",
    [
        {"rawInput": {"command": "touch a"}},
        {"rawInput": {"command": ["bash", "-lc", "touch a"]}},
        {"title": "touch a"},
        {"title": "terminal: touch a"},
        {"title": "`touch a` (low)"},
        {"content": words("Requesting approval to Running: touch a")},
        {"content": words("recursive delete\n$ touch a")},
        {"content": words('Approve tool call: Bash\nInput: {"command": "touch a"}\nSuggested rule: touch:*')},
    ],
)
def test_a_rejected_command_is_known_again(rejected: dict[str, Any]) -> None:
    rejections = Rejections()
    rejections.reject(call("c", **rejected))

    def refused(command: str, *args: str) -> bool:
        return rejections.of("terminal/create", {"command": command, "args": list(args)}, "/w") is not None

    assert refused("touch a")
    assert refused("touch", "a")
    assert refused("/bin/bash", "-c", "cd '/w' && touch a")
    assert not refused("touch ab")
    assert not refused("echo touch a")
    assert not refused("ls")
    rejections.allow(call("d", **rejected))
    assert not refused("touch a")


@pytest.mark.parametrize(
    "rejected",
    [
        {"content": diff("/w/a.txt")},
        {"locations": [{"path": "/w/a.txt"}]},
        {"rawInput": {"file_path": "a.txt", "content": "b.txt"}},
        {"content": words('Approve tool call: Write\nInput: {"content": "x", "path": "/w/a.txt"}')},
    ],
)
def test_a_rejected_file_is_known_again(rejected: dict[str, Any]) -> None:
    rejections = Rejections()
    rejections.reject(call("c", kind="edit", **rejected))

    def refused(path: str) -> bool:
        return rejections.of("fs/write_text_file", {"path": path, "content": "x"}, "/w") is not None

    assert refused("/w/a.txt")
    assert refused("/w/b/../a.txt")
    assert not refused("/w/b.txt")
    rejections.clear()
    assert not refused("/w/a.txt")


@pytest.mark.parametrize(
    ("said", "files"),
    [
        ({"content": diff("/w/a")}, {"/w/a"}),
        ({"locations": [{"path": "/w/a"}]}, {"/w/a"}),
        ({"rawInput": {"tool": "write", "arguments": {"file_path": "a", "content": "/etc/hosts"}}}, {"a"}),
        ({"content": words('Approve: Write\nInput: {"content": "x/y", "path": "a"}')}, {"a"}),
        ({"title": "Write /w/a", "content": words("/var/log/syslog")}, set()),
    ],
)
def test_the_files_that_a_call_names_as_such(said: dict[str, Any], files: set[str]) -> None:
    assert named_files(call("c", kind="edit", **said)) == files
    assert named_files(call("c", kind="execute", **said)) == (files if "diff" in str(said) else set())


def test_the_ways_to_write_a_command() -> None:
    assert command_ways("bash", ["-lc", "make x"]) == ["bash -lc make x", "bash -lc 'make x'", "make x"]
    assert command_ways(None, []) == []


HOSTILE = {
    "backticks": lambda count: {"content": [words("`" * 16_000)[0] for _ in range(count)]},
    "quotes that do not end": lambda count: {"content": [words("`a" * 8_000)[0] for _ in range(count)]},
    "objects": lambda count: {"content": [words("{" * 16_000)[0] for _ in range(count)]},
    "lines": lambda count: {"content": [words("$ : {\n" * 2_500)[0] for _ in range(count)]},
    "an input of many words": lambda count: {"rawInput": {"command": ["a'b" * 100] * (count * 1_000)}},
}


@pytest.mark.parametrize("made", HOSTILE.values(), ids=list(HOSTILE))
def test_what_a_call_says_is_looked_at_within_bounds(made: Callable[[int], dict[str, Any]]) -> None:
    """Ten times as much takes no ten times as long, since it is looked at to the same length."""

    def seconds(count: int) -> float:
        said = call("c", **made(count))
        times = []
        for _ in range(3):
            began = time.process_time()
            Rejections().reject(said)
            times.append(time.process_time() - began)
        return min(times)

    seconds(1)
    assert seconds(80) < 4 * seconds(8) + 0.02


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_run_of_backticks_is_read_once() -> None:
    def seconds(length: int) -> float:
        said = call("c", content=words("`" * length))
        began = time.process_time()
        for _ in range(5):
            Rejections().reject(said)
        return time.process_time() - began

    assert seconds(16_000) < 12 * seconds(4_000) + 0.02


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_the_newest_rejections_are_kept_within_bounds() -> None:
    rejections = Rejections()

    def refused(command: str) -> bool:
        return rejections.of("terminal/create", {"command": command}, "/w") is not None

    for number in range(1_000):
        rejections.reject(call(f"c{number}", rawInput={"command": f"touch {number}"}), by_person=False)
    assert all(refused(f"touch {number}") for number in range(1_000))
    for number in range(100):
        said = "\n".join(f"$ {number}-{line} {'x' * 60}" for line in range(400))
        rejections.reject(call(f"large {number}", title=f"rm {number}", content=words(said)), by_person=False)
    assert sum(len(each) for one in rejections._calls for each in one.words) <= TURN_CHARS
    assert not refused("touch 999")
    assert refused("rm 99")
    for number in range(10_000):
        rejections.reject(call(f"empty {number}"), by_person=False)
    assert len(rejections._calls) <= TURN_CHARS / CALL_COST


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_nothing_pushes_out_what_a_person_rejected() -> None:
    rejections = Rejections()

    def refused(command: str) -> bool:
        return rejections.of("terminal/create", {"command": command}, "/w") is not None

    def reject(name: str, command: str, *, by_person: bool) -> None:
        rejections.reject(call(name, rawInput={"command": command}), by_person=by_person)

    reject("c", "touch a", by_person=True)
    reject("c", "touch b", by_person=True)  # an agent may ask twice under one id
    for number in range(200):
        reject(f"c{number}", f"touch {number} {'x' * 10_000}", by_person=False)
    reject("c", "touch c", by_person=False)
    assert refused("touch a")
    assert refused("touch b")
    assert refused("touch c")
    assert not refused(f"touch 0 {'x' * 10_000}")
    for number in range(200):  # but for other answers of theirs
        reject(f"p{number}", f"rm {number} {'x' * 10_000}", by_person=True)
    assert not refused("touch a")
    assert refused(f"rm 199 {'x' * 10_000}")


def test_a_request_that_cannot_run_is_not_looked_at() -> None:
    assert given_of({"command": "x", "args": ["y" * 100] * 1_000, "env": []}) is not None
    assert given_of({"command": "x", "args": ["y" * 100] * 100_000}) is None
    assert command_ways("x", ["y" * 100] * 10_000) == []
    assert command_ways("bash", ["-c", "touch a", "y" * 100_000]) == ["touch a"]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_guess_leaves_out_what_runs() -> None:
    """Where one call is in progress and another is not, the question is about the other."""
    title = {"toolCallId": "q", "title": "Run rm x?"}
    runs, waits = call("runs", status="in_progress"), call("waits", status="pending")
    wrote = call("wrote", _meta={"terminal_output": {"data": "x"}})
    assert [each.call_id for each in about(title, [runs, waits, wrote])[0]] == ["waits"]
    assert [each.call_id for each in about(title, [runs, wrote])[0]] == ["runs"]
    assert not about(title, [wrote])[0]
