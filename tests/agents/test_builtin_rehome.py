"""The library's constants follow the home of the conversation."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from supervisor.agents.builtin.library import rehome


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("old", ["/home/server", "/"])
def test_constants_follow_the_home_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    home = Path(old)
    monkeypatch.setattr(rehome, "_home", home)
    monkeypatch.setattr(sys, "prefix", str(home / ".local/ostler"))
    module, other = ModuleType("openhands.of_the_test"), ModuleType("openhandsome")
    skills = [home / ".openhands/skills", home / ".agents/skills", "text"]
    code, work = home / ".local/ostler/lib/prompts", home / "workspace"
    vars(module).update(STORE=home / ".openhands/x", SKILLS=skills, BOTH=(home / ".a", code), CODE=code)
    vars(module).update(WORK=work, TEXT=f"{home}/.openhands", HOME=home)
    other.STORE = home / ".openhands/x"  # type: ignore[attr-defined]
    kept = dict(vars(module))
    for each in (module, other):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    for where in (tmp_path / "one", tmp_path / "two"):
        monkeypatch.setenv("HOME", str(where))
        rehome.follow()
        assert where / ".openhands/x" == module.STORE
        assert skills == [where / ".openhands/skills", where / ".agents/skills", "text"]
        assert (where / ".a", code) == module.BOTH
        assert all(vars(module)[name] == kept[name] for name in ("CODE", "WORK", "TEXT", "HOME"))
        assert vars(other)["STORE"] == home / ".openhands/x"
