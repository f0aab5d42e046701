"""The recipes of `deploy/`, and the published schemas that they are held to."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
SCHEMAS = Path(__file__).parent / "schemas"


@cache
def schemas(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return loaded


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return list(yaml.safe_load_all(text))


def faults(found: dict[str, Any]) -> list[str]:
    """What the schema of its kind says against an object."""
    published = schemas("kubernetes")
    name = f"{found['apiVersion']} {found['kind']}"
    if name not in published["kinds"]:
        return [f"no schema of {name}: add it to KINDS of tests/deploy/excerpt.py"]
    validator = Draft202012Validator({**published["kinds"][name], "$defs": published["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]
