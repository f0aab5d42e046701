"""Models and tools that the built-in agent's library knows (`builtin/known.json`, by `builtin/known.py`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

BROWSER_TOOL: Final = "browser_tool_set"

KNOWN: Final = Path(__file__).parent / "builtin" / "known.json"

PLAYWRIGHT: Final = ".cache/ms-playwright"
"""Where Playwright keeps browsers, below a user's home; a conversation's home links the same cache."""


@attrs.frozen
class KnownTool:
    """A tool of the built-in agent."""

    user_selectable: bool
    in_default_set: bool


@attrs.frozen
class Browsers:
    """How the browser tool finds a browser; the program reads the same data (`builtin/setup.py`)."""

    programs: list[str]
    cached: list[str]
    """Patterns below Playwright's cache."""

    def there(self, environ: Mapping[str, str]) -> bool:
        """Whether an agent with this environment has a browser. Reads the disk."""
        cache = Path(environ.get("HOME") or "/") / PLAYWRIGHT
        return any(shutil.which(name, path=environ.get("PATH")) for name in self.programs) or any(
            any(cache.glob(pattern)) for pattern in self.cached
        )


@attrs.frozen
class Known:
    """Models, their providers, and tools."""

    verified: dict[str, list[str]]
    """Models that the library's makers have tried, by provider."""
    providers: list[str]
    by_provider: dict[str, list[str]]
    """All models by provider; `""` has those whose name does not contain one."""
    tools: dict[str, KnownTool]
    registered: list[str]
    """The names by which agents list tools."""
    browsers: Browsers
    sub_agents: list[dict[str, Any]]
    """Sub-agents that come with the library, as its server lists them."""

    def usable(self, environ: Mapping[str, str]) -> list[str]:
        """Return the names of the tools that an agent with this environment can use: all, but the browser
        tool only with a browser. Reads the disk."""
        browser = self.browsers.there(environ)
        return [name for name in self.registered if browser or name != BROWSER_TOOL]

    def models(self, provider: str | None = None) -> list[str]:
        """Return the names of all models, or of one provider's: those named after it, and its verified ones
        unless their name says another provider."""
        if provider is None:
            return sorted({name for names in self.by_provider.values() for name in names})
        verified = set(self.verified.get(provider, ()))
        found = set(self.by_provider.get(provider, ()))
        for other, names in self.by_provider.items():
            found.update(name for name in verified.intersection(names) if not (other and "/" in name))
        return sorted(found)


@cache
def known() -> Known:
    """Read the file, once; takes some milliseconds, so call it in a thread. Raises OSError."""
    given = orjson.loads(KNOWN.read_bytes())
    return Known(
        verified=given["verified"],
        providers=given["providers"],
        by_provider=given["models"],
        tools={name: KnownTool(**each) for name, each in given["tools"].items()},
        registered=given["registered"],
        browsers=Browsers(**given["browsers"]),
        sub_agents=given["sub_agents"],
    )
