"""The interface description for readers: summaries, sentences and examples of every operation."""

from __future__ import annotations

import re

import pytest
from jsonschema import Draft202012Validator

SENTENCE_ENDS = re.compile(r"[.!?](?= [A-Z`\"]|$)")
AVOIDED = re.compile(r"\b(?:whoever|nobody|somebody|anew|beside)\b", re.IGNORECASE)


@pytest.fixture
async def document(gateway):
    return (await gateway.call("GET", "/openapi.json"))[1]


def operations(document):
    return {
        f"{method.upper()} {path}": operation
        for path, found in document["paths"].items()
        for method, operation in found.items()
    }


async def test_every_operation_has_a_summary_of_its_own(document):
    by_summary = {}
    for name, operation in operations(document).items():
        summary = operation["summary"]
        assert re.fullmatch(r"[A-Z].*[^.]", summary), name
        by_summary.setdefault(summary, []).append(name)
    assert {summary: names for summary, names in by_summary.items() if len(names) > 1} == {}


async def test_every_operation_is_described_in_two_sentences_or_three(document):
    wrong = {
        name: operation["description"]
        for name, operation in operations(document).items()
        if len(SENTENCE_ENDS.findall(operation["description"])) not in (2, 3)
        or not operation["description"].endswith(".")
        or AVOIDED.search(operation["description"])
    }
    assert wrong == {}


async def test_every_body_has_an_example_that_fits_its_schema(document):
    bodies = {
        name: content
        for name, operation in operations(document).items()
        if "requestBody" in operation
        for content in operation["requestBody"]["content"].values()
    }
    assert len(bodies) > 50
    for name, content in bodies.items():
        schema = {**content["schema"], "components": document["components"]}
        assert content["example"] is not None, name
        assert list(Draft202012Validator(schema).iter_errors(content["example"])) == [], name
