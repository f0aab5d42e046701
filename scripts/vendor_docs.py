"""Fetches Swagger UI from npm, checks it against its lock, and keeps what /docs serves of it, compressed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "swagger-ui-dist"
PLACE = Path(__file__).resolve().parents[1] / "gateway" / "pages" / "docs_assets" / "swagger-ui"
LOCK = PLACE / "lock.json"

SERVED = ("swagger-ui-bundle.js", "swagger-ui.css")
"""Kept as gzip, which is how they are sent."""

LICENCES = ("LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt")


def main() -> None:
    """Write PLACE anew. Fails, and changes nothing, where the package is another than the lock names."""
    locked = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    version = sys.argv[1] if len(sys.argv) > 1 else locked["version"]
    with tempfile.TemporaryDirectory() as place:
        archive = fetch(PACKAGE, version, place)
        integrity = integrity_of(archive)
        if version == locked.get("version") and integrity != locked["integrity"]:
            sys.exit(f"{PACKAGE} {version} is not what {LOCK} names: {integrity}. Nothing was changed.")
        with tarfile.open(archive) as package:
            found = {name: read(package, PACKAGE, name) for name in (*SERVED, *LICENCES)}
    PLACE.mkdir(parents=True, exist_ok=True)
    for name in SERVED:
        (PLACE / f"{name}.gz").write_bytes(gzip.compress(found[name], compresslevel=9, mtime=0))
    for name in LICENCES:
        (PLACE / name).write_bytes(found[name])
    lock = {
        "package": PACKAGE,
        "version": version,
        "integrity": integrity,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in found.items()},
    }
    LOCK.write_text(json.dumps(lock, indent=2) + "\n")
    total = sum(path.stat().st_size for path in PLACE.iterdir())
    print(f"{PACKAGE} {version}: {total} bytes in {PLACE}")


def integrity_of(archive: Path) -> str:
    """The hash of a package's archive, as lock files of npm write it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()


def fetch(name: str, version: str, place: str) -> Path:
    """The package's archive, in that directory. npm compares it with the hash that its registry names."""
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", place]
    done = subprocess.run([*command, f"{name}@{version}"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"npm could not fetch {name} {version}; see above. Nothing was changed.")
    return Path(place) / done.stdout.split()[-1]


def read(package: tarfile.TarFile, of: str, name: str) -> bytes:
    """One file of the archive of that package."""
    try:
        member = package.extractfile(f"package/{name}")
    except KeyError:
        member = None
    if member is None:
        sys.exit(f"{of} has no file {name} any more. Nothing was changed.")
    return member.read()


if __name__ == "__main__":
    main()
