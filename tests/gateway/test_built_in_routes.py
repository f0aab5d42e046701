"""What clients can offer for the built-in agent: models, providers, tools."""

from __future__ import annotations

from pathlib import Path

from gateway.api.routes import built_in
from supervisor.agents.sdk_facts import PLAYWRIGHT, Browsers, known


async def get(gateway, path):
    status, answer = await gateway.call("GET", path)
    assert status == 200
    return answer


async def test_models_by_provider(gateway):
    verified = (await get(gateway, "/api/llm/models/verified"))["models"]
    providers = (await get(gateway, "/api/llm/providers"))["providers"]
    models = (await get(gateway, "/api/llm/models"))["models"]
    assert {"anthropic", "openai", "gemini"} <= verified.keys()
    assert {"anthropic", "openai", "gemini"} <= set(providers)
    assert len(models) == len(set(models)) > 1000
    assert models == sorted(models)
    for provider in ("anthropic", "openai"):
        of_it = (await get(gateway, f"/api/llm/models?provider={provider}"))["models"]
        assert set(verified[provider]) <= set(of_it) < set(models)
    assert await get(gateway, "/api/llm/models?provider=nobody") == {"models": []}


async def test_a_verified_name_with_a_slash_is_its_own_providers(gateway):
    """`deepseek/...` is verified for another provider too, and DeepSeek's own model all the same."""
    verified = (await get(gateway, "/api/llm/models/verified"))["models"]
    every = set((await get(gateway, "/api/llm/models"))["models"])
    shared = {name for name in verified["openrouter"] if "/" in name and name in every}
    assert shared
    of_it = set((await get(gateway, "/api/llm/models?provider=openrouter"))["models"])
    for name in shared:
        owner = name.partition("/")[0]
        if name in (await get(gateway, f"/api/llm/models?provider={owner}"))["models"]:
            assert name not in of_it


async def test_tools_and_whether_they_can_be_used(gateway, monkeypatch):
    names = await get(gateway, "/api/tools/")
    assert names == await get(gateway, "/api/tools")
    assert {"terminal", "file_editor", "task_tracker", "browser_tool_set"} <= set(names)
    for has in (True, False):
        monkeypatch.setattr(Browsers, "there", lambda self, environ, has=has: has)
        tools = {each["name"]: each for each in (await get(gateway, "/api/tools/catalog"))["tools"]}
        assert tools["browser_tool_set"]["usable"] is has
        assert tools["terminal"] == {
            "name": "terminal",
            "user_selectable": True,
            "usable": True,
            "description": built_in.DESCRIPTIONS["terminal"],
            "in_default_set": True,
        }
        # A person reads what each of those that can be chosen is for.
        chosen = {name for name, each in tools.items() if each["user_selectable"]}
        assert chosen == built_in.DESCRIPTIONS.keys()


def test_a_browser_is_a_program_or_in_the_cache_of_playwright(tmp_path: Path) -> None:
    found = Browsers(["chromium"], ["chromium-*/chrome-linux/chrome"])
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    assert known().browsers.programs
    for place in ("chromium", f"{PLAYWRIGHT}/chromium-1200/chrome-linux/chrome"):
        assert not found.there(environ)
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o755)
        assert found.there(environ), place
        file.unlink()
