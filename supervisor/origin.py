"""Of a URL what may be shown: its host. User, path and query may hold keys. Knows nobody."""

from __future__ import annotations

from urllib.parse import urlsplit


def shown_origin(url: str) -> str:
    """Scheme, host and port of an absolute URL. Raises ValueError for what is not a URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
