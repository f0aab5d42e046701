"""The four clients, installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.editors import install
from tests.interop.editors.clients import Client
from tests.interop.harness import CACHE
from tests.interop.npm import Packages

MAKE: dict[str, Callable[[Path], Client]] = {
    "typescript": install.typescript,
    "python": install.python,
    "emacs": install.emacs,
}


@pytest.fixture(params=MAKE)
def editor(request: pytest.FixtureRequest) -> Client:
    """Each client that is a library."""
    return MAKE[request.param](CACHE)


@pytest.fixture
def acpx_packages() -> Packages:
    """acpx."""
    return install.packages(CACHE)


@pytest.fixture
def example_client() -> tuple[str, str]:
    """The Python SDK's example client: a Python, and the script."""
    return install.example_client(CACHE)


@pytest.fixture
def python_editor() -> Client:
    """The Python SDK, where it does not matter which client it is."""
    return install.python(CACHE)


@pytest.fixture
def typescript_editor() -> Client:
    """Another one."""
    return install.typescript(CACHE)
