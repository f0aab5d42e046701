"""What must hold after a run, as pure functions: each returns what is wrong, as lines for a person."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

MARKER = re.compile(r"\bm\d+-\d+\b")
REPORTS = ("ConversationErrorEvent", "InterruptEvent", "PauseEvent")
"""Kinds of events that tell a client why a message got no answer. An interrupt can come between the moment
at which a message counts as handed over and its prompt."""

Json = Any

EXITED = re.compile(r"agent exited +code=(\S+) pid=(\d+) signal=(\S+)")
ENDING = re.compile(r"(warden is gone|stopping +signal=).*?(?=containing agents|\Z)", re.DOTALL)
"""What a server does that ends, and its agents with it."""
ENDED = re.compile(r"^ostler: (the server (?:ended|was killed) .*)$", re.MULTILINE)
NEVER = ("Traceback (most recent call last)", "not signalling a", "foreign process")
"""What no accident may bring into the log: failures, and signals that were about to reach others."""
SHOWN = 3000  # characters of the log before and after one


def marker(text: str) -> str | None:
    """The name that the run gave to a message; it is the last word of its text."""
    found = MARKER.findall(text)
    return found[-1] if found else None


def user_text(event: Mapping[str, Json]) -> str | None:
    """The text of a user's message, None for any other event."""
    if event["kind"] != "MessageEvent" or event["source"] != "user":
        return None
    return "".join(block.get("text", "") for block in event["llm_message"]["content"])


def without_nulls(value: Json) -> Json:
    """REST shows null properties, sockets omit them."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def sequence_problems(name: str, numbers: Sequence[int]) -> list[str]:
    """A client's sequence numbers must be 0, 1, 2, ..."""
    for expected, number in enumerate(numbers):
        if number != expected:
            what = "a gap" if number > expected else "a repetition or reorder"
            return [f"{name}: {what}: number {number} came in place {expected}"]
    return []


def difference_problems(name: str, seen: Sequence[Json], told: Sequence[Json]) -> list[str]:
    """What a client saw must be what REST tells, event by event."""
    for place, (one, other) in enumerate(zip(seen, told, strict=False)):
        if without_nulls(one) != without_nulls(other):
            return [f"{name}: event {place} differs: {one['id']} on the socket, {other['id']} by REST"]
    if len(seen) != len(told):
        return [f"{name}: {len(seen)} events on the socket, {len(told)} by REST"]
    return []


def time_problems(name: str, events: Sequence[Json]) -> list[str]:
    """Each event is dated later than the one before, whatever clocks do: clients catch up by their times."""
    for place, (one, other) in enumerate(pairwise(events)):
        if one["timestamp"] >= other["timestamp"]:
            return [f"{name}: event {place} is of {one['timestamp']}, the next one of {other['timestamp']}"]
    return []


def message_problems(
    name: str, events: Sequence[Json], accepted: Collection[str], attempted: Collection[str]
) -> list[str]:
    """Every accepted message is there once; one whose sending failed at most once; no other is there."""
    counts = Counter(marker(text) for event in events if (text := user_text(event)) is not None)
    problems = [
        f"{name}: accepted message {text} appears {counts[text]} times, not once"
        for text in accepted
        if counts[text] != 1
    ]
    for text, count in counts.items():
        if text not in attempted:
            problems.append(f"{name}: nobody sent the message {text}")
        elif count > 1 and text not in accepted:
            problems.append(f"{name}: message {text} appears {count} times")
    return problems


def prompt_problems(name: str, events: Sequence[Json], prompted: Sequence[str], queued: int) -> list[str]:
    """Each message was prompted once, in order; or is queued; or an event of its own tells why not.

    `prompted` are the markers in the order in which the agents received them; `queued` is the length of the
    queue at the end. A report serves for one message, and comes after it.
    """
    problems = [
        f"{name}: {text} was prompted {count} times" for text, count in Counter(prompted).items() if count > 1
    ]
    sent = [
        (place, marker(text)) for place, event in enumerate(events) if (text := user_text(event)) is not None
    ]
    order = [text for _, text in sent]
    places = [order.index(text) for text in prompted if text in order]
    if len(places) < len(prompted):
        problems.append(f"{name}: the agent was prompted with what is no message of the log")
    if places != sorted(places):
        problems.append(f"{name}: prompts came in another order than messages: {list(prompted)}")
    reports = [place for place, event in enumerate(events) if event["kind"] in REPORTS]
    waiting = sent[len(sent) - queued :]
    for place, text in sent:
        if text in prompted or (place, text) in waiting:
            continue
        report = next((number for number in reports if number > place), None)
        if report is None:
            problems.append(f"{name}: {text} was neither prompted, nor is it queued or reported")
        else:
            reports.remove(report)
    return problems


def log_problems(text: str, signalled: Collection[int], kills: int) -> list[str]:
    """What the server's log must not tell: agents that ended although nobody had sent them a signal (those in
    `signalled` were sent one, or belonged to a server or conversation that ended), servers that ended without
    one of the `kills`, and failures."""
    problems = []
    for code, pid, number in EXITED.findall(ENDING.sub("", text)):
        if int(pid) not in signalled:
            problems.append(f"agent {pid} ended, and nobody had ended it: code {code}, signal {number}")
    ends = ENDED.findall(text)
    others = [end for end in ends if "killed by signal 9" not in end]
    if others or len(ends) > kills:
        problems.append(f"{kills} servers were killed, and the log tells of {len(ends)} ends: {others}")
    for words in NEVER:
        if words in text:
            place = text.index(words)
            problems.append(f"the log tells of a failure: {text[max(0, place - SHOWN) : place + SHOWN]}")
    return problems


def agents_problems(
    agents: Sequence[Json], others: Mapping[int, str], processes: Mapping[str, int]
) -> list[str]:
    """What the list of agents shows wrong: one process as two agents', or a tree with more processes than the
    conversation can have. `others` are pids that no agent can have, `processes` the most by conversation."""
    problems = []
    owners = dict(others)
    for agent in agents:
        conversation, pid = agent["conversation_id"], agent["pid"]
        if pid is not None and pid in owners:
            problems.append(f"process {pid} is shown as the agent of {conversation}, and is {owners[pid]}")
        if pid is not None:
            owners[pid] = f"the agent of {conversation}"
        most = processes.get(conversation)
        if most is not None and (agent["processes"] or 0) > most:
            problems.append(f"{conversation} has {agent['processes']} processes, of at most {most}")
    return problems
