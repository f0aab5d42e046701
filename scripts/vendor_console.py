"""Fetches the libraries of the console from npm, checks them against their lock, and keeps the files that the
page loads, with their licences.

The page loads modules as they are, without a bundler. So two kinds of files are adapted: modules that import
a package by its name import its file, and scripts that define a global become modules that export it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from vendor_docs import fetch, integrity_of, read

PLACE = Path(__file__).resolve().parents[1] / "gateway" / "pages" / "console_assets" / "vendor"
LOCK = PLACE / "lock.json"

Adapt = Callable[[str], str]


class Kept(NamedTuple):
    """A file of a package, what it is called here, and how it is adapted."""

    source: str
    name: str
    adapt: Adapt = str


def imports(**files: str) -> Adapt:
    """Import these files in place of packages."""

    def adapt(text: str) -> str:
        for package, file in files.items():
            text = text.replace(f'from"{package}"', f'from"./{file}"')
        return text

    return adapt


def exports(name: str) -> Adapt:
    """Export what the script defines with `var` in its outermost scope."""
    return lambda text: f"{text}\nexport default {name};\n"


def exports_global(name: str) -> Adapt:
    """Export what the script puts into the global scope."""
    return lambda text: f"{text}\nexport default globalThis.{name};\n"


def virtual(text: str) -> str:
    """Import the renamed file, and leave out what is for bundlers of development builds."""
    return text.replace('"./index.js"', '"./virtual.js"').replace("process.env.NODE_ENV", '"production"')


LANGUAGES = ("bash", "css", "go", "javascript", "json", "python", "rust", "typescript", "xml", "yaml")
ICONS = (
    "bell", "check", "chevron-right", "download", "file", "folder", "git-branch", "key", "link", "moon",
    "paperclip", "pause", "play", "plus", "rotate-cw", "search", "send", "server", "settings", "square",
    "sun", "terminal", "trash-2", "triangle-alert", "undo-2", "x",
)  # fmt: skip

PACKAGES: Mapping[str, tuple[Kept, ...]] = {
    "preact": (
        Kept("dist/preact.mjs", "preact.js"),
        Kept("hooks/dist/hooks.mjs", "hooks.js", imports(preact="preact.js")),
    ),
    "htm": (Kept("dist/htm.mjs", "htm.js"),),
    "marked": (Kept("lib/marked.esm.js", "marked.js"),),
    "dompurify": (Kept("dist/purify.min.js", "purify.js", exports_global("DOMPurify")),),
    "@highlightjs/cdn-assets": (
        Kept("es/core.min.js", "highlight.js"),
        *(Kept(f"es/languages/{name}.min.js", f"highlight-{name}.js") for name in LANGUAGES),
    ),
    "diff": (Kept("dist/diff.min.js", "diff.js", exports_global("Diff")),),
    "uplot": (
        Kept("dist/uPlot.iife.min.js", "uplot.js", exports("uPlot")),
        Kept("dist/uPlot.min.css", "uplot.css"),
    ),
    "@tanstack/virtual-core": tuple(
        Kept(f"dist/esm/{name}.js", f"{new}.js", virtual)
        for name, new in (
            ("index", "virtual"),
            ("ios-gesture", "ios-gesture"),
            ("lazy-measurements", "lazy-measurements"),
            ("scroll-classifier", "scroll-classifier"),
            ("utils", "utils"),
        )
    ),
    "ansi_up": (Kept("ansi_up.js", "ansi_up.js"),),
    "lucide-static": tuple(Kept(f"icons/{name}.svg", f"icon-{name}") for name in ICONS),
}

SPRITE = "icons.svg"


def main() -> None:
    """Write PLACE. Fails, and changes nothing, where a package is another than the lock names."""
    locked = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    wanted = dict(each.rsplit("@", 1) for each in sys.argv[1:])
    found: dict[str, bytes] = {}
    lock = {}
    for package, files in PACKAGES.items():
        known = locked.get(package, {})
        version = wanted.get(package) or known["version"]
        with tempfile.TemporaryDirectory() as place:
            archive = fetch(package, version, place)
            integrity = integrity_of(archive)
            if version == known.get("version") and integrity != known["integrity"]:
                sys.exit(f"{package} {version} is not what {LOCK} names: {integrity}. Nothing was changed.")
            with tarfile.open(archive) as opened:
                own = {each.name: each.adapt(read(opened, package, each.source).decode()) for each in files}
                licence = read(opened, package, "LICENSE")
        own = sprite(own) if package == "lucide-static" else own
        kept = {name: without_map(text).encode() for name, text in own.items()}
        kept[f"LICENSE-{package.strip('@').replace('/', '-')}"] = licence
        found |= kept
        lock[package] = {
            "version": version,
            "integrity": integrity,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in kept.items()},
        }
    PLACE.mkdir(parents=True, exist_ok=True)
    for old in PLACE.iterdir():
        old.unlink()
    for name, data in found.items():
        (PLACE / name).write_bytes(data)
    LOCK.write_text(json.dumps(lock, indent=2) + "\n")
    print(f"{len(found)} files, {sum(map(len, found.values()))} bytes in {PLACE}")


def without_map(text: str) -> str:
    """Without the line that names a source map, which is not shipped."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("//# sourceMappingURL="))


def sprite(icons: Mapping[str, str]) -> dict[str, str]:
    """One file with all icons as symbols, which a page refers to by their names."""
    symbols = []
    for name, text in icons.items():
        inside = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
        drawn = " ".join(inside.split())
        symbols.append(f'<symbol id="{name.removeprefix("icon-")}" viewBox="0 0 24 24">{drawn}</symbol>')
    return {SPRITE: '<svg xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(symbols) + "\n</svg>\n"}


if __name__ == "__main__":
    main()
