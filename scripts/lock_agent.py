"""Writes the lock of an agent of the catalogue: every package with its hash, and no registry.

npm's own lock file is taken as it is, but for optional packages that no registry has: npm would refuse the
lock for them. Of a package of PyPI the hashes of those wheels are noted that Linux and macOS can use with a
Python of the descriptor's versions; what has no wheel goes into sources.txt.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.markers import Marker

from supervisor.agents.catalog import NpmPackage, PipPackage, Versions, load_catalog
from supervisor.agents.install.install import LOCKS_DIR

PLATFORMS = re.compile(r"any|(many|musl)?linux.*_(x86_64|aarch64)|macosx_\d+_\d+_(x86_64|arm64|universal2)")
SYSTEMS = ("sys_platform == 'linux'", "sys_platform == 'darwin'")

HEAD = "# Made by scripts/lock-agent.\n"


def main(uv: str, key: str) -> None:
    """Write the lock of this agent."""
    package = load_catalog()[key].package
    directory = LOCKS_DIR / key
    directory.mkdir(exist_ok=True)
    if isinstance(package, NpmPackage):
        lock_npm(key, package, directory)
    elif isinstance(package, PipPackage):
        lock_pip(uv, package, directory)
    else:
        raise SystemExit(f"{key} has no package")


def lock_npm(key: str, package: NpmPackage, directory: Path) -> None:
    """package-lock.json from package.json, which is made if it is missing."""
    wanted, lock = directory / "package.json", directory / "package-lock.json"
    if not wanted.is_file():
        asked = {"name": f"ostler-agent-{key}", "version": "0.0.0", "private": True}
        asked["dependencies"] = {package.package: package.version}
        wanted.write_text(json.dumps(asked, indent=2) + "\n")
    lock.unlink(missing_ok=True)
    subprocess.run(
        ["npm", "install", "--package-lock-only", "--ignore-scripts", "--omit-lockfile-registry-resolved"],
        cwd=directory,
        check=True,
    )
    document = json.loads(lock.read_text())
    without_missing(document["packages"])
    lock.write_text(json.dumps(document, indent=2) + "\n")


def without_missing(packages: dict[str, Any]) -> None:
    """Take optional dependencies out that were found nowhere."""
    for place, entry in packages.items():
        optional = entry.get("optionalDependencies", {})
        for name in list(optional):
            if not any(at in packages for at in _where(place, name)):
                del optional[name]
        if not optional:
            entry.pop("optionalDependencies", None)


def _where(place: str, name: str) -> Iterable[str]:
    """Where Node.js looks for a package, from `place` upwards."""
    parts = place.split("/node_modules/") if place else []
    for count in range(len(parts), 0, -1):
        yield "/node_modules/".join([*parts[:count], name])
    yield f"node_modules/{name}"


def lock_pip(uv: str, package: PipPackage, directory: Path) -> None:
    """requirements.txt (and sources.txt) from requirements.in, which is made if it is missing."""
    wanted = directory / "requirements.in"
    if not wanted.is_file():
        wanted.write_text(f"{package.package} == {package.version}\n")
    first = ".".join(map(str, package.python.first))
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary, "pyproject.toml")
        project.write_text(f"[tool.uv]\nenvironments = {json.dumps(SYSTEMS)}\n")
        out = Path(temporary, "pylock.toml")
        subprocess.run(
            [uv, "pip", "compile", "--quiet", "--universal", "--format", "pylock.toml", "--no-header",
             "--python-version", first, "--output-file", str(out), str(wanted.resolve())],
            cwd=temporary,
            check=True,
        )  # fmt: skip
        packages = tomllib.loads(out.read_text())["packages"]
    needed = [each for each in packages if applies(each.get("marker"), package.python)]
    wheels = [(each, fitting(each.get("wheels", ()), package.python)) for each in needed]
    (directory / "requirements.txt").write_text(
        HEAD + "".join(_line(each, hashes) for each, hashes in wheels if hashes)
    )
    sources = [(each, [each["sdist"]["hashes"]["sha256"]]) for each, hashes in wheels if not hashes]
    (directory / "sources.txt").unlink(missing_ok=True)
    if sources:
        (directory / "sources.txt").write_text(HEAD + "".join(_line(each, hash_) for each, hash_ in sources))


def applies(marker: str | None, versions: Versions) -> bool:
    """Whether a package is for any system and Python of ours.

    Some are for none, as their makers misspell a system's name. Older pips break at their markers, which
    compare the kernel's release as if every Linux had a version there.
    """
    if marker is None:
        return True
    major, first = versions.first[:2]
    return any(
        Marker(marker).evaluate(
            {
                "platform_release": "99.0",
                "platform_system": system,
                "python_full_version": f"{major}.{minor}.0",
                "python_version": f"{major}.{minor}",
                "sys_platform": system.lower(),
            }
        )
        for system in ("Linux", "Darwin")
        for minor in range(first, versions.end[1])
    )


def fitting(wheels: Iterable[dict[str, Any]], versions: Versions) -> list[str]:
    """The hashes of the wheels that these Pythons can use."""
    major, first = versions.first[:2]
    minors = range(first, versions.end[1])
    ours = {f"cp{major}{minor}" for minor in minors} | {"py3", f"py{major}{first}"}
    found = []
    for wheel in wheels:
        name = wheel.get("name") or wheel["url"].rsplit("/", 1)[-1]
        python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
        usable = ours.intersection(python.split(".")) or "abi3" in abi.split(".")
        free = re.search(r"\dt$", abi)  # for Pythons without the lock
        if usable and not free and any(PLATFORMS.fullmatch(each) for each in platform.split(".")):
            found.append(wheel["hashes"]["sha256"])
    return sorted(set(found))


def _line(package: dict[str, Any], hashes: Iterable[str]) -> str:
    marker = f" ; {package['marker']}" if "marker" in package else ""
    pinned = f"{package['name']}=={package['version']}{marker}"
    return " \\\n".join([pinned, *(f"    --hash=sha256:{each}" for each in hashes)]) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
