"""What settings are made of: names and ids of profiles, texts for processes, described fields."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final

from supervisor.reading.model import Model
from supervisor.reading.rules import NO_NUL, Limit

#: Of LLM, agent and meta profiles alike.
PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: The dashed form.
UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

#: The types of the fields that hold them.
ProfileName = Annotated[str, Limit(pattern=PROFILE_NAME)]
ProfileId = Annotated[str, Limit(pattern=UUID)]

#: Text that may become an argument, a path or a variable of a process.
Text = Annotated[str, NO_NUL]


class Setting(Model):
    """What can be set. Unknown properties are ignored, unless a description says otherwise."""

    __slots__ = ()
    CHOICE_ERROR: ClassVar[str] = "enum"
