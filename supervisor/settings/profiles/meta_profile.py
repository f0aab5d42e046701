"""A meta-profile: which LLM profile is for which kind of task. Kept for clients; nothing here routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import attrs

from supervisor.reading.model import Flaw, Location, described, said
from supervisor.reading.shapes import as_json
from supervisor.settings.errors import problem, read
from supervisor.settings.names import Setting

INSTANCE_TEXT: Final = re.compile(r"\{\{\s*instance_text\s*\}\}")
"""The placeholder for the task, which a template must contain."""


@attrs.frozen(kw_only=True)
class MetaProfileClass(Setting):
    """A kind of task and the LLM profile for it."""

    description: str
    model: str = attrs.field(metadata=described("Name of an LLM profile"))


@attrs.frozen(kw_only=True)
class MetaProfile(Setting):
    """How tasks are routed: by classes, or by a template that the classifier answers with a model."""

    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "description": "Either classes or a prompt_template that has {{ instance_text }}",
        "anyOf": [
            {"properties": {"prompt_template": {"type": "null"}}},
            {
                "properties": {
                    "prompt_template": {"type": "string", "pattern": INSTANCE_TEXT.pattern},
                    "classes": {"maxItems": 0},
                }
            },
        ],
    }

    classifier_model: str = attrs.field(metadata=described("Name of an LLM profile"))
    classes: tuple[MetaProfileClass, ...] = ()
    prompt_template: str | None = None
    model_table: str | None = said(None, "Stands for {{ model_table }} in the template")

    def judge(self) -> Iterable[Flaw]:
        """Classes or a template."""
        if self.prompt_template is None:
            return ()
        if not INSTANCE_TEXT.search(self.prompt_template):
            text = "Value error, a template must have {{ instance_text }}"
            return [(("prompt_template",), "value_error", text)]
        if self.classes:
            return [(("classes",), "value_error", "Value error, a template and classes exclude each other")]
        return ()


def decode_meta_profile(obj: object, loc: Location) -> dict[str, Any]:
    """A meta-profile's JSON, every property present. Raises SettingsError, also where it routes nothing."""
    found = read(MetaProfile, obj, loc)
    if not found.classes and found.prompt_template is None:
        raise problem(
            loc, "Value error, a meta-profile needs either classes or a prompt_template", "value_error"
        )
    return as_json(found)


def with_renamed_model(meta_profile: Mapping[str, Any], name: str, new_name: str) -> dict[str, Any]:
    """The meta-profile after an LLM profile was renamed. The text of a template stays as it is."""

    def now(model: Any) -> Any:
        return new_name if model == name else model

    return {
        **meta_profile,
        "classifier_model": now(meta_profile["classifier_model"]),
        "classes": [{**each, "model": now(each["model"])} for each in meta_profile["classes"]],
    }


def models_named(meta_profile: Mapping[str, Any]) -> list[str]:
    """The LLM profiles that a meta-profile names, each once."""
    names = (meta_profile["classifier_model"], *(each["model"] for each in meta_profile["classes"]))
    return list(dict.fromkeys(names))
