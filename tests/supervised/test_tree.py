"""Whose process is whose, over tables of processes: real ones and generated ones."""

from __future__ import annotations

import os
import signal

from supervisor.agents import tree


def entry(pid, parent, session=0):
    return tree.ProcessEntry(
        id=tree.ProcessId(pid, 1), parent=parent, group=session, session=session, alive=True,
        cpu_seconds=0.0, rss_bytes=0,
    )  # fmt: skip


def test_descendants_are_found_at_any_depth():
    table = {pid: entry(pid, parent) for pid, parent in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 99)]}
    assert tree.descendants([2], table) == {3, 4}
    assert tree.descendants([2, 5], table) == {3, 4}
    assert tree.descendants([42], table) == set()


def test_signal_goes_only_to_the_process_meant():
    me = tree.identify(os.getpid())
    other = tree.ProcessId(me.pid, me.started + 1)
    assert tree.living([me, other]) == {me}
    tree.kill(other, signal.SIGKILL)  # it would be this very test
