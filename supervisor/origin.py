"""The part of a URL that may be shown: its origin. User, path and query may hold keys. Imports nothing of
Ostler."""

from __future__ import annotations

from urllib.parse import urlsplit


def shown_origin(url: str) -> str:
    """Return scheme, host and port of an absolute URL. Raises ValueError for what is not a URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
