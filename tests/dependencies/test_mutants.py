"""The table of `scripts/mutate` names what there is."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.requirements import ROOT

TABLE = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())


@pytest.mark.parametrize("module", TABLE["modules"])
def test_modules_and_their_tests_exist(module: str) -> None:
    entry = TABLE["modules"][module]
    missing = [path for path in (module, *entry["tests"]) if not (ROOT / path).exists()]
    assert not missing
    assert entry["tests"]
    assert entry.keys() <= {"tests", "seconds"}


@pytest.mark.parametrize("survivor", TABLE["survivors"], ids=lambda each: each["now"][:40])
def test_a_mutant_that_may_live_changes_a_line_that_there_is(survivor: dict[str, str]) -> None:
    text = " ".join((ROOT / survivor["module"]).read_text().split())
    assert survivor["module"] in TABLE["modules"]
    assert survivor["was"] in text
    assert survivor["now"] not in text
    assert survivor["reason"]
