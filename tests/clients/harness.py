"""The clients' environments: made once, below `.cache`, from their lock files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.browser import find_chromium
from tests.clients.canvas_package import CanvasPackage
from tests.interop.harness import CACHE
from tests.interop.npm import Packages, install
from tests.support.once import one_at_a_time

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def typescript_packages() -> Packages:
    """The TypeScript client."""
    with one_at_a_time(CACHE / "typescript-client"):
        return install(HERE / "typescript", CACHE / "typescript-client")


@pytest.fixture(scope="session")
def canvas() -> CanvasPackage:
    """The web UI, its server, and what drives a browser."""
    with one_at_a_time(CACHE / "canvas"):
        return CanvasPackage.prepare(CACHE / "canvas")


@pytest.fixture(scope="session")
def chromium() -> str:
    """A Chromium that starts without a screen."""
    return find_chromium()
