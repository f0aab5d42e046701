"""What the server's process does before nearly all of its imports, so that it starts quickly and is small."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

WAKEFUL: Final = gc.get_threshold()
"""When the collector looks through young, middle-aged and all objects."""

SLEEPY: Final = (20_000, 1_000, 1_000)
"""The same while modules are imported: nearly all that they make stays. Looking through it takes a tenth of
the start, most of that for what was looked through before. The young are looked through all the same, since
each class by attrs leaves another one behind, three megabytes in all."""


def import_structlog() -> None:
    """Import structlog without rich, which is optional to it: it would draw tracebacks, and a server draws
    none. Rich takes a tenth of the start and 5 MB.

    And without asyncio, which takes half as much: it is imported when structlog logs under it, or by Quart.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # "is not there", by the rules of imports
    try:
        with _standing_in(Later("asyncio")):
            import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def import_hypercorn() -> None:
    """Import Hypercorn without HTTP/2, which is not supported here (`connection.py`), and without
    multiprocessing, of which it names one type."""
    http2 = ModuleType("hypercorn.protocol.h2")
    http2.__dict__["H2Protocol"] = None  # what `hypercorn.protocol` makes of connections with TLS
    synchronize = ModuleType("multiprocessing.synchronize")
    synchronize.__dict__["Event"] = object
    multiprocessing = ModuleType("multiprocessing")
    events = Later("h2.events")
    h2 = ModuleType("h2")
    h2.__dict__["events"] = events
    with _standing_in(http2, multiprocessing, synchronize, h2, events):
        import hypercorn.trio  # noqa: F401


def collect_rarely() -> None:
    """Until `collect_as_usual` the collector hardly runs."""
    gc.set_threshold(*SLEEPY)


def collect_as_usual() -> None:
    """Restore the normal rate of garbage collection, and exclude the present objects, which are permanent."""
    gc.freeze()
    gc.set_threshold(*WAKEFUL)


class Later(ModuleType):
    """A lazy module: it is imported at the first access to one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


@contextmanager
def _standing_in(*modules: ModuleType) -> Iterator[None]:
    """Let these be found by the imports of the block, instead of those of the same name that are not imported
    yet."""
    absent = [module for module in modules if module.__name__ not in sys.modules]
    sys.modules.update({module.__name__: module for module in absent})
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module.__name__]
