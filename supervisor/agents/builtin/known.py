"""Prints what the SDK knows of models and tools, as JSON: the content of `known.json` next to this file.

Run it with the Python of the agent's environment when its lock is renewed: `ENVIRONMENT/bin/python known.py`.
The server answers from the file, and needs no process that takes seconds to import the SDK.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise litellm downloads it when it is imported
os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"

CACHED = Path("chromium-*")
"""The directory of a browser that Playwright has installed, in its cache."""


def known() -> dict[str, Any]:
    """Collect the content of the file. `verified`: models by provider. `models`: each with its provider, ""
    where its name contains none. `providers`. `browsers`: how the browser tool finds one. `sub_agents`: those
    that come with the library. `tools`: whether a person can choose each, and whether it is there without
    being chosen. `registered`: the names by which agents list tools."""
    from openhands.sdk.llm.utils.unverified_models import (
        _extract_model_and_provider,
        _get_litellm_provider_names,
        get_supported_llm_models,
    )
    from openhands.sdk.llm.utils.verified_models import VERIFIED_MODELS
    from openhands.sdk.tool.registry import list_registered_tools, list_tool_catalog
    from openhands.tools import child_conversation  # noqa: F401 - its import registers a tool
    from openhands.tools.browser_use import impl as browser
    from openhands.tools.preset.default import (
        discover_builtin_agents,
        register_builtins_agents,
        register_default_tools,
    )
    from openhands.tools.preset.gemini import register_gemini_tools
    from openhands.tools.preset.planning import register_planning_tools

    register_default_tools(enable_browser=True)
    register_builtins_agents(enable_browser=True)
    register_gemini_tools(enable_browser=True)
    register_planning_tools()
    models: dict[str, list[str]] = defaultdict(list)
    for model in sorted(set(get_supported_llm_models())):
        models[_extract_model_and_provider(model)[0] or ""].append(model)
    return {
        "verified": VERIFIED_MODELS,
        "providers": sorted(_get_litellm_provider_names()),
        "models": models,
        "tools": {
            entry.name: {"user_selectable": entry.user_selectable, "in_default_set": entry.in_default_set}
            for entry in list_tool_catalog(check_usable=False)
        },
        "registered": list_registered_tools(),
        "browsers": {
            # The usual places are on any PATH.
            "programs": list(
                dict.fromkeys(
                    [
                        *browser._path_binary_candidates("linux"),
                        *(path.name for path in browser._standard_chromium_paths("linux")),
                    ]
                )
            ),
            "cached": [str(path) for path in browser._playwright_chromium_paths(CACHED, "linux")],
        },
        "sub_agents": [_shown(each) for each in discover_builtin_agents(enable_browser=True)],
    }


def _shown(definition: Any) -> dict[str, Any]:
    shown: dict[str, Any] = definition.model_dump(mode="json")
    # Its full path is meaningless on other machines.
    return {**shown, "source": "/".join(Path(shown["source"]).parts[-5:])}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(known(), indent=1) + "\n")
