"""The registration of Ostler's OAuth client: its authentication method and its scopes.

The SDK knows both only once it has found the authorization server, and sets the scopes itself just before it
registers the client. This module decides the rest. Only the helper imports it: it imports the SDK.
"""

from __future__ import annotations

from typing import Any, Final

from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientMetadata
from pydantic import PrivateAttr

METHODS: Final = ("none", "client_secret_basic", "client_secret_post")
"""Methods of RFC 7591, the preferred one first: a secret that any client can get proves nothing."""

OFFLINE: Final = "offline_access"
"""The scope by which OpenID Connect gives refresh tokens. The SDK adds it where the server knows it."""


class Registration(OAuthClientMetadata):
    """The client's metadata, adapted to the server once that is known (`follow`)."""

    _context: OAuthContext | None = PrivateAttr(default=None)
    _method: str | None = PrivateAttr(default=None)
    _scopes: tuple[str, ...] = PrivateAttr(default=())
    _asked: bool = PrivateAttr(default=False)

    def follow(self, context: OAuthContext, method: str | None, scopes: tuple[str, ...]) -> None:
        """Use the server's metadata in `context` once it is there. `method` and `scopes` are configured
        values."""
        self._context, self._method, self._scopes = context, method, scopes

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "scope" and self._context is not None:
            super().__setattr__("token_endpoint_auth_method", self._method or self._accepted())
            value = self._wanted(value)
        super().__setattr__(name, value)

    def _accepted(self) -> str:
        metadata = None if self._context is None else self._context.oauth_metadata
        offered = None if metadata is None else metadata.token_endpoint_auth_methods_supported
        # Servers that list no methods usually accept public clients; others assign a method.
        return next((method for method in METHODS if not offered or method in offered), METHODS[0])

    def _wanted(self, selected: str | None) -> str | None:
        if not self._scopes:
            return selected
        found = (selected or "").split()
        # First, the configured scopes replace the offered ones. Scopes that the server requires later are
        # added.
        more = found if self._asked else [scope for scope in found if scope == OFFLINE]
        self._asked = True
        return " ".join(dict.fromkeys((*self._scopes, *more)))
