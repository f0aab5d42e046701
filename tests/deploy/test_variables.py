"""The variables that the recipes set are those that the code reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY
from tests.docs.test_configuration import NAME, in_the_code

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_is_one_of_the_code(path: Path) -> None:
    assert set(NAME.findall(path.read_text())) - in_the_code() - TESTS - COMING == set()


TESTS = {"OSTLER_TEST_CONTAINERS"}

COMING = {
    f"OSTLER_{name}"
    for name in (
        "ADVERTISE_URL", "JOIN", "JOIN_KEY", "PROVISION", "PROVISION_ACTION", "PROVISION_CONVERSATION",
        "PROVISION_JOIN_KEY", "PROVISION_JOIN_URL", "PROVISION_LABELS", "SERVER_NAME", "VOLUMES",
    )
}  # fmt: skip
"""Variables of several servers, which the code does not read yet."""
