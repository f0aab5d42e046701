"""What agent profiles of both kinds have."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, ClassVar, Final

import attrs

from supervisor.reading import Limit, as_json
from supervisor.settings.names import ProfileId, ProfileName, Setting, Text

PROFILE_SCHEMA_VERSION: Final = 4


@attrs.frozen(kw_only=True)
class CommonProfile(Setting):
    """A named choice of agent.

    `mcp_server_refs` and `secret_refs` name what of the settings' servers and of the stored secrets the agent
    may use; None is all of them. `id` and `revision` are the server's.
    """

    FORBID: ClassVar[bool] = True
    agent_kind: ClassVar[str]

    name: ProfileName
    id: ProfileId = attrs.field(factory=lambda: str(uuid.uuid4()))
    revision: Annotated[int, Limit(ge=0)] = 0
    mcp_server_refs: tuple[Text, ...] | None = None
    secret_refs: tuple[Text, ...] | None = None
    schema_version: Annotated[int, Limit(ge=1)] = PROFILE_SCHEMA_VERSION

    def dump(self) -> dict[str, Any]:
        """Its JSON, every field present."""
        return as_json(self)

    def summary(self) -> dict[str, Any]:
        """Its entry in a list of profiles."""
        return {
            "id": self.id,
            "name": self.name,
            "agent_kind": self.agent_kind,
            "revision": self.revision,
            "llm_profile_ref": getattr(self, "llm_profile_ref", None),
            "mcp_server_refs": None if self.mcp_server_refs is None else list(self.mcp_server_refs),
        }
