"""supervisor/hooks: what a configuration says, which hooks an event concerns, what their ends mean."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.hooks.config import (
    HookConfig,
    HookDefinition,
    HookEvent,
    HookMatcher,
    read_hook_config,
    stored_hook_config,
)
from supervisor.hooks.pattern import NAME_CHARACTERS, UnfitPattern, pattern_of
from supervisor.hooks.project import FILE_BYTES, read_project_hooks
from supervisor.hooks.verdict import REASON_CHARACTERS, Ended, hook_input, judge, reason_of
from supervisor.reading.model import Invalid
from supervisor.reading.shapes import as_json
from tests.support.thorough import everyday

RUN = {"hooks": [{"command": "run"}]}


@pytest.mark.parametrize(
    "text",
    [
        {"pre_tool_use": [RUN]},
        {"PreToolUse": [RUN]},
        {"hooks": {"PreToolUse": [RUN]}},
        {"hooks": {"pre_tool_use": [{"matcher": "*", **RUN}]}},
        {"pre_tool_use": [{"hooks": [{"command": "run", "async_": False, "unknown": 1}], "unknown": 1}]},
    ],
)
def test_all_spellings_are_one(text: Any) -> None:
    found = read_hook_config(text)
    assert found == HookConfig(pre_tool_use=(HookMatcher(hooks=(HookDefinition(command="run"),)),))
    assert read_hook_config(as_json(found)) == found


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ([], ()),
        ({"hooks": 1}, ()),
        ({"unknown": []}, ("unknown",)),
        ({"Stop": [RUN], "stop": [RUN]}, ("stop",)),
        ({"stop": {}}, ("stop",)),
        ({"stop": [RUN] * 101}, ("stop",)),
        ({"stop": [{"hooks": [{"command": "x", "timeout": 0}]}]}, ("stop", 0, "hooks", 0, "timeout")),
        ({"stop": [{"hooks": [{"command": "x", "timeout": True}]}]}, ("stop", 0, "hooks", 0, "timeout")),
        ({"stop": [{"hooks": [{"command": "a\0b"}]}]}, ("stop", 0, "hooks", 0, "command")),
        ({"stop": [{"hooks": [{"type": "shell", "command": "x"}]}]}, ("stop", 0, "hooks", 0, "type")),
        ({"stop": [{"hooks": [{"type": "prompt", "command": "x"}]}]}, ("stop", 0, "hooks", 0)),
        ({"stop": [{"hooks": [{"type": "agent", "async": True}]}]}, ("stop", 0, "hooks", 0)),
        ({"stop": [{"matcher": "(a+)+b", **RUN}]}, ("stop", 0, "matcher")),
    ],
)
def test_what_is_wrong_is_located(text: Any, place: tuple[Any, ...]) -> None:
    with pytest.raises(Invalid) as caught:
        read_hook_config(text)
    assert caught.value.errors[0].loc == place
    assert stored_hook_config(text) is None  # what an earlier release took unread


@pytest.mark.parametrize(
    ("matcher", "name", "matches"),
    [
        ("*", "anything", True),
        ("", "anything", True),
        ("execute", "execute", True),
        ("execute", "execute_more", False),
        ("execute|edit", "edit", True),
        ("execute|edit", "editor", False),
        ("mcp__.*__read", "mcp__files__read", True),
        ("/^ed.t$/", "edit", True),
        ("/edit/", "edit", True),
        ("/", "/", True),
        ("[unclosed", "[unclosed", True),
        ("read.", "read", False),
        (".*", "x" * 10_000, True),
    ],
)
def test_matchers(matcher: str, name: str, matches: bool) -> None:
    assert HookMatcher(matcher=matcher).matches(name) is matches


def test_an_event_without_a_tool_is_for_those_that_match_all() -> None:
    found = read_hook_config({"stop": [RUN, {"matcher": "execute", **RUN}, {"matcher": "", **RUN}]})
    assert len(found.hooks(HookEvent.STOP)) == 2
    assert len(found.hooks(HookEvent.STOP, "execute")) == 3
    assert not found.hooks(HookEvent.PRE_TOOL_USE, "execute")


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*", "(a|a)*b", "(x+x+)+y", ".*.*.*.*a", r"(.)\1", "(?=a)a", "a*a*a*a*a*b", "(a?){30}",
     "(a|b|ab)" * 20, "x" * 300 + "*", "a?" * 60 + "a" * 60],
)  # fmt: skip
def test_patterns_that_could_take_long_are_refused(pattern: str) -> None:
    with pytest.raises(UnfitPattern):
        pattern_of(pattern)


def test_all_patterns_of_an_event_together_are_bounded() -> None:
    """They are matched one after another, at every tool call, by who relays everything."""
    costly = {"matcher": ".*.*.*x", **RUN}
    many = {"pre_tool_use": [costly] * 7, "post_tool_use": [costly] * 7, "stop": [RUN] * 100}
    found = read_hook_config(many)
    begin = time.process_time()
    assert not found.hooks(HookEvent.PRE_TOOL_USE, "a" * NAME_CHARACTERS)
    assert time.process_time() - begin < 5  # a hundred of them would take longer
    with pytest.raises(Invalid) as refused:
        read_hook_config({"post_tool_use": [costly] * 8})
    assert refused.value.errors[0].loc == ("post_tool_use",)
    assert stored_hook_config({"pre_tool_use": [{"matcher": "mcp__.*", **RUN}] * 100}) is not None


@pytest.mark.guarantee(name="nothing-hangs")
@settings(max_examples=everyday(100, 3000), deadline=None)
@given(st.text(alphabet="ab|.*+?()[]{}1,\\^$/", max_size=40), st.text(alphabet="ab", max_size=200))
def test_whatever_is_accepted_is_quick(pattern: str, name: str) -> None:
    try:
        found = pattern_of(pattern)
    except UnfitPattern:
        return
    begin = time.process_time()
    for each in (name, "a" * NAME_CHARACTERS, "ab" * NAME_CHARACTERS):
        found.matches(each)
    assert time.process_time() - begin < 5  # a bad one takes for ever


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(code=0), {"success": True, "blocked": False, "exit_code": 0}),
        (Ended(code=1, stderr="no"), {"success": False, "blocked": False, "exit_code": 1}),
        (Ended(code=2, stderr="no"), {"success": False, "blocked": True, "stderr": "no"}),
        (Ended(code=0, stdout='{"decision": "DENY", "reason": "r"}'), {"blocked": True, "reason": "r"}),
        (Ended(code=0, stdout='{"decision": "allow"}'), {"blocked": False}),
        (Ended(code=2, stdout='{"decision": "allow"}'), {"blocked": True}),
        (Ended(code=0, stdout='{"continue": false}'), {"blocked": True}),
        (Ended(code=0, stdout='{"continue": true}'), {"blocked": False}),
        (Ended(code=0, stdout=' {"additionalContext": "c"}\n'), {"additional_context": "c"}),
        (Ended(code=0, stdout="not JSON"), {"success": True, "stdout": "not JSON"}),
        (Ended(code=0, stdout='{"a": NaN}'), {"success": True, "blocked": False}),
        (Ended(code=None, error="timed out"), {"success": False, "exit_code": -1, "error": "timed out"}),
        (Ended(code=None, stdout='{"decision": "deny"}', error="flood"), {"blocked": False}),
        (Ended(code=-9), {"success": False, "exit_code": -9, "blocked": False}),
    ],
)
def test_what_an_end_means(ended: Ended, expected: dict[str, Any]) -> None:
    verdict = judge(ended)
    assert {name: getattr(verdict, name) for name in expected} == expected


def test_texts_are_cut_and_a_block_always_has_a_reason() -> None:
    verdict = judge(Ended(code=2, stdout="x" * 100_000, stderr="y" * 100_000))
    assert len(verdict.stdout) == len(verdict.stderr) == REASON_CHARACTERS
    assert verdict.stdout.endswith("<TRUNCATED>")
    assert reason_of(judge(Ended(code=2))) == "Blocked by hook"
    assert reason_of(judge(Ended(code=2, stderr=" why \n"))) == "why"
    long = orjson.dumps({"decision": "deny", "reason": "r" * 100_000}).decode()
    assert len(reason_of(judge(Ended(code=0, stdout=long)))) == REASON_CHARACTERS


def test_a_reason_that_is_nested_too_deeply_to_be_written_is_named_so() -> None:
    deep = "[" * 300 + "]" * 300
    verdict = judge(Ended(code=0, stdout=f'{{"decision": "deny", "reason": {deep}}}'))
    assert verdict.blocked
    assert reason_of(verdict) == "(nested too deeply)"


def test_what_a_hook_is_told_has_every_part() -> None:
    assert set(hook_input(HookEvent.STOP, session_id="s", working_dir="/w")) == {
        "event_type", "tool_name", "tool_input", "tool_response", "message", "session_id", "working_dir",
        "metadata",
    }  # fmt: skip


async def test_the_hooks_of_a_project(tmp_path: Path) -> None:
    file = tmp_path / ".openhands" / "hooks.json"
    assert await read_project_hooks(tmp_path) is None
    file.parent.mkdir()
    file.write_bytes(orjson.dumps({"PreToolUse": [RUN]}))
    found = await read_project_hooks(str(tmp_path))
    assert found is not None
    assert found.has(HookEvent.PRE_TOOL_USE)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"x": []}', b"\xff", b" " * (FILE_BYTES + 1)])
async def test_a_project_whose_file_is_of_no_use_has_no_hooks(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ".openhands" / "hooks.json"
    file.parent.mkdir()
    file.write_bytes(content)
    assert await read_project_hooks(tmp_path) is None


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop", "file above", "NUL"])
async def test_a_path_that_is_no_file_has_no_hooks(tmp_path: Path, kind: str) -> None:
    place = tmp_path / ".openhands"
    file = place / "hooks.json"
    if kind == "file above":
        place.write_text("")
    else:
        place.mkdir()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file)
    assert await read_project_hooks("a\0b" if kind == "NUL" else tmp_path) is None
