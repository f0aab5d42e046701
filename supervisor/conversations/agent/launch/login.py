"""How an agent logs in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from supervisor.agents.catalog import Descriptor
from supervisor.agents.homes.credential import Choice, auth_params, helpful_names

if TYPE_CHECKING:
    from supervisor.acp.schema.handshake import AuthMethod

ENV_VAR: Final = "env_var"
TERMINAL: Final = "terminal"
"""Types of login methods (AuthMethod)."""


@attrs.frozen(kw_only=True)
class Login:
    """How an agent can log in: its credentials, matched with the methods that it advertises."""

    descriptor: Descriptor
    choice: Choice
    environment: Mapping[str, str] = attrs.field(repr=False)

    def params(self, methods: Iterable[AuthMethod]) -> Iterator[dict[str, Any]]:
        """The parameters of each `authenticate` that may work unattended, the best first.

        These are the method of a credential that the agent has, then those of type `env_var` whose variables
        it was started with. A method that requires a terminal never fits.
        """
        methods = [method for method in methods if method.type != TERMINAL]
        chosen = auth_params(
            self.descriptor, self.choice, [method.id for method in methods], self.environment
        )
        if chosen is not None:
            yield chosen
        for method in methods:
            known = chosen is not None and chosen["methodId"] == method.id
            if method.type == ENV_VAR and method.variables and not known and not self._missing(method):
                yield {"methodId": method.id}

    def needed(self, methods: Iterable[AuthMethod]) -> dict[str, Any]:
        """What a person can do about missing credentials, as JSON.

        These are the methods that the agent offers, and the names of secrets that would help. `given` are
        those that it already has, which therefore do not help. For an agent known only by its command, only
        its methods are known (`missing`: their variables that are not set).
        """
        methods = list(methods)
        asked = [name for method in methods if method.type == ENV_VAR for name in method.variables]
        names = dict.fromkeys([*helpful_names(self.descriptor), *asked])
        given = [name for name in names if self._given(name)]
        return {
            "agent": self.descriptor.key,
            "methods": [
                {
                    "id": method.id,
                    "name": method.name,
                    "type": method.type,
                    **({"missing": self._missing(method)} if method.variables else {}),
                }
                for method in methods
            ],
            "secrets": [name for name in names if not self._given(name)],
            **({"given": given} if given else {}),
            "used": self.choice.credential.name or self.choice.credential.file,
        }

    def _given(self, name: str) -> bool:
        return name in self.choice.names or bool(self.environment.get(name))

    def _missing(self, method: AuthMethod) -> list[str]:
        return [name for name in method.variables if not self._given(name)]
