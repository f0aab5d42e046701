"""What MkDocs does with the pages, which are written to be read in a clone (mkdocs.yml)."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

ROOT: Final = Path(__file__).resolve().parents[2]

OUTSIDE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/GUARANTEES.md": "guarantees-tests.md",
}
"""Pages outside of docs/, and what they are called on the site."""

DOCUMENTED: Final = (
    "supervisor.composition.open",
    "supervisor.composition.Ostler",
    "supervisor.composition.Supervision",
    "supervisor.conversations.conversation.Conversation",
    "supervisor.conversations.supervisor.Supervisor",
    "supervisor.journal.log.Log",
    "supervisor.journal.cursor.Cursor",
)

HEAD: Final = "# The Python interface\n\nFrom the docstrings. [Programs](programs.md) has an example.\n\n"
API: Final = HEAD + "".join(f"::: {name}\n\n" for name in DOCUMENTED)

LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
PICTURES: Final = {".svg", ".png"}


def on_config(config: Any) -> Any:
    """Pages that the navigation does not name come last, the decisions together."""
    named = {page for section in config["nav"] for pages in section.values() for page in pages}
    docs = Path(config["docs_dir"])
    rest = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    rest = [name for name in rest if name not in named]
    decisions = [name for name in rest if name.startswith("decisions/")]
    decisions.sort(key=lambda name: not name.endswith("README.md"))
    others = [name for name in rest if name not in decisions]
    config["nav"][-1]["Internals"] += [*others, {"Decisions": decisions}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not below docs/."""
    for source, name in OUTSIDE.items():
        text = _moved((ROOT / source).read_text(), posixpath.dirname(source), "docs")
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "api.md", content=API))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links that leave docs/ lead to pages of the site."""
    if page.file.generated_by:
        return markdown
    place = posixpath.dirname(f"docs/{page.file.src_uri}")
    return _moved(markdown, place, place)


def _moved(text: str, base: str, place: str) -> str:
    """`text` of a page in the directory `base` of the clone, with links for a page of the site at `place`."""

    def link(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        name, mark, anchor = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(base, name))
        path = "docs/" + OUTSIDE[path] if path in OUTSIDE else path
        if not path.startswith("docs/"):
            return words if f"`{path}`" in words or path in words else f"{words} (`{path}`)"
        return f"{picture}[{words}]({posixpath.relpath(path, place)}{mark}{anchor})"

    # What stands in a fence is no link.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)
