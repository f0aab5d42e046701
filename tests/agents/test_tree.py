"""Whose process is whose, over tables of processes: real ones and generated ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from supervisor.agents.containment import tree


def entry(pid, parent, session=0):
    return tree.ProcessEntry(
        id=tree.ProcessId(pid, 1), parent=parent, group=session, session=session, alive=True,
        cpu_seconds=0.0, rss_bytes=0,
    )  # fmt: skip


def test_descendants_are_found_at_any_depth():
    parents = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 99)]
    table = tree.ProcessTable({pid: entry(pid, parent) for pid, parent in parents})
    assert tree.descendants([2], table) == {3, 4}
    assert tree.descendants([2, 5], table) == {3, 4}
    assert tree.descendants([42], table) == set()


def test_signal_goes_only_to_the_process_meant():
    me = tree.identify(os.getpid())
    other = tree.ProcessId(me.pid, me.started + 1)
    assert tree.living([me, other]) == {me}
    tree.kill(other, signal.SIGKILL)  # it would be this very test


def test_a_signal_to_what_is_not_the_agents_is_logged_and_not_sent():
    """The leader of the other agent, what is below it, the spawner, the server itself and what is above
    it."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '300']); print('up', flush=True); input()"
    with (
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as other,
        subprocess.Popen(["sleep", "300"], start_new_session=True) as mine,
    ):
        try:
            assert other.stdout.readline() == b"up\n"
            (below,) = tree.descendants([other.pid], tree.process_table())
            leader = tree.identify(mine.pid)
            bounds = tree.Bounds(
                trunk=frozenset(), own=frozenset([leader]), others=frozenset([tree.identify(other.pid)])
            ).rooted()
            assert bounds.trunk >= {os.getpid(), os.getppid()}
            targets = [tree.identify(pid) for pid in (other.pid, below, os.getpid(), os.getppid())]
            with capture_logs() as logs:
                tree.kill_tree(leader, targets, signal.SIGKILL, bounds)
            assert [(line["log_level"], line["pid"]) for line in logs] == [
                ("error", target.pid) for target in targets
            ]
            assert mine.wait() == -signal.SIGKILL  # its own group
            assert other.poll() is None
            # Its group, where somebody took another's leader, or the server, for its own.
            for wrong in (tree.identify(other.pid), tree.identify(os.getpid())):
                with capture_logs() as logs:
                    tree.kill_tree(wrong, [], signal.SIGKILL, bounds)
                assert [line["log_level"] for line in logs] == ["error"]
            assert other.poll() is None
        finally:
            for process in (other, mine):
                process.kill()
            os.kill(below, signal.SIGKILL)


# -- generated tables --------------------------------------------------------------------------------------

SERVER, SPAWNER, WARDEN = 10, 11, 5


@attrs.frozen
class World:
    """A machine at one moment. 1 is init, 5 the warden, 10 the server, 11 the spawner."""

    table: tree.ProcessTable
    leaders: list[tree.ProcessId]
    owned: list[set[tree.ProcessId]]
    marked: list[set[int]]
    known: list[set[tree.ProcessId]]

    def bounds(self, agent):
        others = [each for number, each in enumerate(self.owned) if number != agent]
        return tree.Bounds(
            trunk=frozenset({1, WARDEN, SERVER, SPAWNER}),
            own=frozenset(self.owned[agent]),
            others=frozenset().union(*others),
        )

    def tree(self, agent):
        return tree.belonging(
            self.leaders[agent], self.known[agent], self.marked[agent], self.table, self.bounds(agent)
        )

    def owner(self, pid):
        """The agent of the nearest leader above, by an independent walk."""
        seen = set()
        while pid in self.table and pid not in seen and pid not in (1, WARDEN, SERVER, SPAWNER):
            seen.add(pid)
            for number, owned in enumerate(self.owned):
                if self.table[pid].id in owned:
                    return number
            pid = self.table[pid].parent
        return None


@st.composite
def worlds(draw):
    agents = draw(st.integers(1, 4))
    trunk = {1: 0, WARDEN: 1, SERVER: WARDEN, SPAWNER: SERVER}
    leaders = list(range(100, 100 + agents))
    terminals = list(range(200, 200 + draw(st.integers(0, 3))))
    rest = list(range(300, 300 + draw(st.integers(0, 12))))
    parents = dict(trunk)
    parents.update(dict.fromkeys((*leaders, *terminals), SERVER))
    for pid in rest:
        # Anybody's child: the server's own, an orphan, one of the spawner's, or a circle of numbers used
        # again.
        parents[pid] = draw(st.sampled_from([1, SERVER, SPAWNER, *leaders, *terminals, *rest]))
    everyone = list(parents)
    sessions = {pid: draw(st.sampled_from([pid, *everyone])) for pid in everyone}
    groups = {pid: draw(st.sampled_from([pid, *everyone])) for pid in everyone}
    table = {
        pid: tree.ProcessEntry(
            id=tree.ProcessId(pid, draw(st.integers(1, 2))),  # the second one to have that number
            parent=parent,
            group=groups[pid],
            session=sessions[pid],
            alive=pid in trunk or draw(st.booleans()),
            cpu_seconds=0.0,
            rss_bytes=1,
        )
        for pid, parent in parents.items()
    }
    owned = [{table[pid].id} for pid in leaders]
    for pid in terminals:
        owned[draw(st.integers(0, agents - 1))].add(table[pid].id)
    for each in owned:  # what was reaped long ago, its number another's
        each |= {tree.ProcessId(pid, 3) for pid in draw(st.sets(st.sampled_from(everyone), max_size=2))}
    ids = st.builds(tree.ProcessId, st.sampled_from(everyone), st.integers(1, 2))
    return World(
        tree.ProcessTable(table),
        [table[pid].id for pid in leaders],
        owned,
        [draw(st.sets(st.sampled_from([*everyone, 999]))) for _ in range(agents)],
        [draw(st.sets(ids)) for _ in range(agents)],
    )


@pytest.mark.guarantee(name="nothing-survives")
@settings(deadline=None)
@given(worlds())
def test_no_tree_holds_the_server_or_anything_of_another_agent(world):
    """Whatever has a process tag - the server, its warden, other leaders - and whatever was seen earlier."""
    for agent, leader in enumerate(world.leaders):
        found = world.tree(agent)
        assert not {1, WARDEN, SERVER, SPAWNER} & found.keys()
        for pid, entry in found.items():
            assert entry.alive
            assert entry is world.table[pid]
            assert world.owner(pid) in (agent, None)
        if world.table[leader.pid].alive:
            assert leader.pid in found


@settings(deadline=None)
@given(worlds())
def test_what_descends_from_a_leader_is_in_its_tree(world):
    for agent in range(len(world.leaders)):
        found = world.tree(agent)
        for pid, entry in world.table.items():
            if entry.alive and world.owner(pid) == agent:
                assert pid in found


@settings(deadline=None)
@given(worlds())
def test_what_a_look_found_carries_no_poison_to_the_next(world):
    for agent, leader in enumerate(world.leaders):
        seen = {entry.id for entry in world.tree(agent).values()}
        again = tree.belonging(leader, seen, (), world.table, world.bounds(agent))
        assert again.keys() <= world.tree(agent).keys()


@pytest.mark.guarantee(name="nothing-survives")
@settings(deadline=None)
@given(worlds())
def test_the_guard_lets_no_signal_through_to_others(world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "read_entry", world.table.get)
        for agent in range(len(world.leaders)):
            bounds = world.bounds(agent)
            for pid in world.table:
                refused = tree.trespass(pid, bounds) is not None
                owner = world.owner(pid)
                trunk = pid in (1, WARDEN, SERVER, SPAWNER)
                assert refused == (trunk or owner not in (agent, None)), (agent, pid, owner)
            # What a look finds, the guard lets through: a refusal is a bug, and only that.
            assert all(tree.trespass(pid, bounds) is None for pid in world.tree(agent))
