"""What a message brings along: the files that `@PATH` names in it, and images."""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.cli.failures import BadInput

Parts = list[dict[str, Any]]
"""The content of a message, as the server takes it."""

FILES_BYTES: Final = 256 * 1024
"""Bytes of all files of one message: some 64,000 tokens, a third of what models read at once."""

IMAGES_BYTES: Final = 10 * 1024 * 1024
"""Bytes of all images of one message: in base64 they fit into a request of 16 MiB."""

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

NAMED: Final = re.compile(r"(?<!\S)@(\S+)")
AFTER: Final = ".,;:!?)'\""
"""Characters that end a sentence rather than a file's name."""


def parts(text: str, images: Sequence[str], directory: Path | None = None) -> Parts:
    """A message: the text, then the images, then the files that `@PATH` in it names.

    Without a directory, `@` means nothing. Raises BadInput for what cannot be read or is too large.
    """
    named = () if directory is None else _named(text, directory)
    found = [path for path in named if _media_type(path) not in IMAGES]
    pictures = [*map(Path, images), *(path for path in named if path not in found)]
    content: Parts = [{"type": "text", "text": text}]
    room = IMAGES_BYTES
    for path in pictures:
        media_type = _media_type(path)
        data = _read(path, room)
        if media_type not in IMAGES:
            raise BadInput(f"{path} is no image that agents read: name a PNG, JPEG, GIF or WebP file")
        room -= len(data)
        url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
        content.append({"type": "image", "image_urls": [url]})
    room = FILES_BYTES
    for path in found:
        data = _read(path, room)
        room -= len(data)
        try:
            content.append({"type": "text", "text": f"\n\nThe file {path}:\n{data.decode()}"})
        except UnicodeDecodeError:
            raise BadInput(f"{path} is not text; leave the @ out to name it alone") from None
    return content


def not_found(text: str, directory: Path) -> list[str]:
    """The words with an @ that name no file, without it: the agent gets these as words alone."""
    named = {path.name for path in _named(text, directory)}
    words = (word.rstrip(AFTER) for word in NAMED.findall(text))
    return list(dict.fromkeys(word for word in words if word and Path(word).name not in named))


def words_of(content: Iterable[dict[str, Any]]) -> str:
    """The text of the parts, as the message's event has it."""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _named(text: str, directory: Path) -> list[Path]:
    """The files that there are: another word with an @ is a word."""
    found = []
    for word in NAMED.findall(text):
        for name in dict.fromkeys((word, word.rstrip(AFTER))):
            path = directory / Path(name).expanduser()
            if path.is_file():
                found.append(path)
                break
    return list(dict.fromkeys(found))


def _media_type(path: Path) -> str | None:
    return mimetypes.guess_type(path.name)[0]


def _read(path: Path, room: int) -> bytes:
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is not a file")  # a pipe would never end
    try:
        with path.open("rb") as file:
            data = file.read(room + 1)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if len(data) > room:
        raise BadInput(f"{path} is too large for a message; name its path without @, and the agent reads it")
    return data
