"""The variables that the recipes set are those that the code reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY
from tests.docs.test_configuration import NAME, in_the_code

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_is_one_of_the_code(path: Path) -> None:
    assert set(NAME.findall(path.read_text())) - in_the_code() - TESTS == set()


TESTS = {"OSTLER_TEST_CONTAINERS"}
