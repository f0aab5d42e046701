"""Which values are too common to be masked. Pure.

A stored secret's value is masked everywhere in an agent's output. Masking `production`, a path or a
provider's name would hide parts of commands that a user has to confirm, and protect nothing: such values are
easy to guess.
"""

from __future__ import annotations

import re
from typing import Final

PLAIN_NAMES: Final = ("_BASE_URL", "_MODE", "_MODEL", "MODEL_PROVIDER")
"""Suffixes of names of agents' settings that are not secrets."""

SHORTEST: Final = 8
"""Shorter values are not masked: they would match within ordinary words."""

LONGEST: Final = 512
"""Longer values are not names of anything."""

WORD_CHARS: Final = 24
"""Longer runs of letters are not natural-language words."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WORDS: Final = _words(
    """
    administrator always anonymous automatic background beta canary certificate cluster company
    confirm container continue customer database debug default demo deploy deployment dev devel
    develop developer development disable disabled docker down east edge enable enabled environment
    error example experimental false file folder full global group high home host info inspect
    integration interactive internal kubernetes latest legacy local localhost low machine main
    maintenance manual master medium memory minimal namespace never none normal north null off on
    optional organisation organization other package personal pipeline placeholder postgres
    postgresql preprod preview private prod production profile project public qa readonly readwrite
    region release remote repository required root sandbox secret server service shared sqlite
    stable stage staging standard standalone stream system team test testing trace true ubuntu
    undefined unknown unlimited up user username verbose warning warn west work workspace yes no

    ai21 aliyun alibaba amazon anthropic aws azure baseten bedrock bitbucket cerebras claude
    cloudflare codex cohere copilot dashscope databricks deepinfra deepseek digitalocean docker
    fireworks foundry gateway gcp gemini gitea github gitlab google groq grok heroku huggingface
    hugging face kimi litellm lmstudio meta microsoft minimax mistral mistralai moonshot nebius
    netlify nvidia ollama openai opencode openhands openrouter openstack oracle perplexity qwen
    replicate sambanova sap snowflake together tencent vercel vertex vertexai volcengine xai zai
    zhipu

    api app code cli cloud compatible data eu us ap central south southeast northeast v1 v2 v3 http
    https
    """
)
"""Words that stand for an environment, a switch, a level, a role, a place or a provider."""

PLACES: Final = _words(
    """
    applications app bin boot builds code data dev etc home lib lib64 media mnt nix opt private proc
    project projects repo root run sbin snap src srv sys tmp users usr var volumes work workdir workspace
    workspaces
    """
)
"""Where a path begins."""

_PATH: Final = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?P<first>[^/\\\s]*)(?P<rest>(?:[/\\][^/\\\n]*)*)")
_PIECE: Final = re.compile(r"[\w.@+,~ -]{0,64}")
_RANDOM: Final = re.compile(
    r"(?=[^/\\]*\d)(?=[^/\\]*[A-Z])(?=[^/\\]*[a-z])[A-Za-z0-9+=_-]{20,}|[0-9a-f]{32,}"
)
"""A piece of a path that is not a name of a file: a token in an address, a digest."""

_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>https?|wss?|ftp|ssh)://)?(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)*)(?P<port>:\d{1,5})?"
    r"(?P<path>/[a-z0-9._/-]*)?",
    re.IGNORECASE,
)
_LOCALE: Final = re.compile(r"[a-z]{2,3}_[A-Z]{2}(?:\.[A-Za-z0-9-]{3,10})?")
_ZONE: Final = re.compile(
    r"(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Etc|Europe|Indian|Pacific)/[\w/+-]+"
)
_REGION: Final = re.compile(
    r"(?:us|eu|ap|sa|ca|me|af|cn|il|mx|asia|europe|australia|northamerica|southamerica|africa)"
    r"(?:-gov|-iso[a-z]?)?-(?:north|south|east|west|central|(?:north|south)(?:east|west))-?\d{0,2}[a-f]?"
)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?Z?)?")
_VERSION: Final = re.compile(r"v?\d{1,4}(?:\.\d{1,6}){1,3}")
_SAME: Final = re.compile(r"(.)\1*")
_SEPARATORS: Final = re.compile(r"[-_./:, ]+")


def too_common(value: str) -> str | None:
    """Why a value is not masked, as a phrase that follows "it is"; None for one that is masked."""
    if len(value) > LONGEST or "\n" in value:
        return None
    if len(value) < SHORTEST:
        return f"shorter than {SHORTEST} characters"
    text = value.strip()
    if _SAME.fullmatch(text):
        return "one character again and again"
    if _is_path(text):
        return "a path"
    words = [word.lower() for word in _SEPARATORS.split(text) if word]
    if words and all(word in WORDS or (word.isdecimal() and len(word) <= 4) for word in words):
        return "a common word"
    if _LOCALE.fullmatch(text) or _ZONE.fullmatch(text) or _REGION.fullmatch(text):
        return "a language, a region or a time zone"
    if _DATE.fullmatch(text) or _VERSION.fullmatch(text):
        return "a date or a version"
    if _is_address(text):
        return "an address without a password"
    return None


def _is_path(text: str) -> bool:
    """Whether it is a path: it begins with a known directory, the home or the current directory, and has no
    random part."""
    found = _PATH.fullmatch(text)
    if found is None:
        return False
    if text[0] in "/\\" and found["first"].lower() not in PLACES:
        return False
    pieces = re.split(r"[/\\]", text)
    return len(pieces) > 1 and not any(
        _RANDOM.fullmatch(piece) or not _PIECE.fullmatch(piece.rstrip(":")) for piece in pieces
    )


def _is_address(text: str) -> bool:
    """Whether it is a host name or a URL, with no part that could be a token: some addresses are secrets."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not (found["scheme"] or found["port"] or found["path"] is None):
        return False
    labels = found["host"].split(".")
    if len(labels) == 1 and found["scheme"] is None and found["port"] is None:
        return False
    if len(labels) > 1 and not (labels[-1].isalpha() or all(label.isdecimal() for label in labels)):
        return False
    pieces = [*labels, *(found["path"] or "").split("/")]
    return all(len(piece) <= WORD_CHARS and _is_wordy(piece) for piece in pieces)


def _is_wordy(piece: str) -> bool:
    """Whether a piece of an address is made of words: no mixture of letters and digits, but `v1` and the
    like."""
    return all(
        part.isdecimal() or part.isalpha() or re.fullmatch(r"[a-z]{1,8}\d{1,3}|\d{1,3}[a-z]{1,4}", part)
        for part in re.split(r"[._-]+", piece.lower())
        if part
    )
