"""Tests that share something are run by one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.walks import LONGEST, PROGRAM, group_of, rank

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(8))
def test_one(number):
    with pathlib.Path(__file__).with_suffix(".pids").open("a") as pids:
        print(os.getpid(), file=pids)
"""


def test_a_module_of_clients_is_run_by_one_process(tmp_path: Path) -> None:
    walks = [tmp_path / "clients" / f"test_{name}.py" for name in ("one", "two")]
    others = tmp_path / "others" / "test_others.py"
    for module in (*walks, others):
        module.parent.mkdir(exist_ok=True)
        module.write_text(MODULE)
    options = [
        "-p",
        "xdist",
        "-n2",
        "--dist",
        "loadgroup",
        "-p",
        "tests.support.walks",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", *options, "."],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pids = [module.with_suffix(".pids").read_text().split() for module in (*walks, others)]
    assert [len(each) for each in pids] == [8, 8, 8]
    assert [len(set(each)) for each in pids[:2]] == [1, 1]
    assert len({pid for each in pids for pid in each}) == 2


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/clients/test_canvas.py::test_a_step[one]", "tests/clients/test_canvas.py"),
        ("tests/interop/test_builtin.py::test_one", "tests/interop/test_builtin.py"),
        ("tests/interop/test_peer_sdk.py::test_one", "peer"),
        ("tests/clients/test_python_sdk.py::test_one[a]", "peer"),
        ("tests/interop/test_builtin_tools.py::test_one", PROGRAM),
        ("tests/interop/test_builtin_models.py::test_one[a-b]", PROGRAM),
        ("tests/interop/test_real_mcp.py::test_one", "tests/interop/test_real_mcp.py::test_one"),
        ("tests/interop/test_real_agents.py::test_one[codex]", "kept codex]"),
        ("tests/interop/test_conversation_operations.py::test_one[codex]", "kept codex]"),
        ("tests/interop/test_real_agents.py::test_one", "tests/interop/test_real_agents.py::test_one"),
        (
            "tests/server/test_conversation_operations.py::test_one[codex]",
            "tests/server/test_conversation_operations.py::test_one[codex]",
        ),
    ],
)
def test_what_shares_something_is_given_out_together(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group
    assert (ROOT / nodeid.partition("::")[0]).exists()


def test_the_longest_groups_are_given_out_first() -> None:
    single = "tests/interop/test_real_mcp.py::test_one"
    groups = [single, "kept codex]", "tests/clients/test_canvas.py", PROGRAM]
    assert sorted(groups, key=rank) == list(reversed(groups))
    for each in LONGEST:
        if each.endswith(".py") and "*" not in each:
            assert list((ROOT / "tests").rglob(each)), each
