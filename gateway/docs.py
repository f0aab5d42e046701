"""The interface description as one page of HTML that needs nothing from anywhere else."""

from __future__ import annotations

from html import escape
from typing import Any

import orjson

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}
body{color:#222;background:#fff}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:#f5f5f2;padding:.7rem;overflow:auto}
h2{margin-top:2.2rem}details{border:1px solid #ddd;border-radius:4px;margin:.4rem 0;padding:.35rem .7rem}
summary{cursor:pointer}summary b{display:inline-block;min-width:4.2rem}table{border-collapse:collapse}
td{padding:.15rem .9rem .15rem 0;vertical-align:top}a{color:#06c}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}pre{background:#262626}
details{border-color:#444}a{color:#7ab8ff}}
"""


def docs_page(description: bytes) -> str:
    """Render an OpenAPI document."""
    document = orjson.loads(description)
    info = document["info"]
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = operation["tags"][0]
            sections.setdefault(tag, []).append(_operation(method, path, operation))
    schemas = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"{_json(schema)}</details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    )
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(parts)}" for tag, parts in sections.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])}</h1><p>Interface version {escape(info['version'])} &middot; "
        f'<a href="/openapi.json">openapi.json</a></p><p>{escape(info["description"])}</p>{body}'
        f"<h2>Schemas</h2>{schemas}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{parameter['in']}</td>"
        f"<td>{_json(parameter['schema'])}</td><td>{escape(parameter.get('description', ''))}</td></tr>"
        for parameter in operation.get("parameters", ())
    )
    parts = [f"<table>{rows}</table>"] if rows else []
    if "requestBody" in operation:
        parts.append("<p>Body</p>" + _content(operation["requestBody"]))
    for status, response in operation["responses"].items():
        parts.append(f"<p>{escape(status)} {escape(response['description'])}</p>{_content(response)}")
    return (
        f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code> &nbsp; "
        f"{escape(operation['summary'])}</summary>{''.join(parts)}</details>"
    )


def _content(holder: dict[str, Any]) -> str:
    return "".join(_json(media.get("schema", {})) for media in holder.get("content", {}).values())


def _json(schema: dict[str, Any]) -> str:
    text = escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())
    return f"<pre>{text}</pre>"
