"""The state of a login for the MCP SDK, and the later steps: refresh and revoke.

Runs in the process of `helper.py` alone, and imports the SDK only when it is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from supervisor.mcp.answers import PLAIN, Answers
from supervisor.mcp.diagnosis import origin_of

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS: Final = 10.0
"""For a connection to an authorization server, and for its answer."""


class Login:
    """A login's state, as the SDK's token storage. It also restores what the SDK does not store: when the
    tokens expire, and where they are renewed."""

    def __init__(self, state: Mapping[str, Any] | None) -> None:
        self.state: dict[str, Any] = dict(state or {})
        self.context: Any = None
        self.renewed = False

    async def get_tokens(self) -> Any:
        """The tokens; sets what the SDK does not store in its context."""
        from mcp.shared.auth import OAuthMetadata, OAuthToken, ProtectedResourceMetadata

        await trio.lowlevel.checkpoint()
        tokens = self.state.get("tokens")
        if not tokens:
            return None
        self.context.token_expiry_time = self.state.get("token_expires_at")
        if self.state.get("metadata"):
            self.context.oauth_metadata = OAuthMetadata.model_validate(self.state["metadata"])
        if self.state.get("resource"):
            found = ProtectedResourceMetadata.model_validate(self.state["resource"])
            self.context.protected_resource_metadata = found
            self.context.auth_server_url = str(found.authorization_servers[0])
        return OAuthToken.model_validate(tokens)

    async def set_tokens(self, tokens: Any) -> None:
        """Note new tokens, and when they expire."""
        await trio.lowlevel.checkpoint()
        self.renewed = True
        self.state["tokens"] = tokens.model_dump(mode="json", exclude_none=True)
        self.state["token_expires_at"] = (
            None if tokens.expires_in is None else time.time() + float(tokens.expires_in)
        )

    async def get_client_info(self) -> Any:
        """The registration of the client."""
        from mcp.shared.auth import OAuthClientInformationFull

        await trio.lowlevel.checkpoint()
        found = self.state.get("client_info")
        return OAuthClientInformationFull.model_validate(found) if found else None

    async def set_client_info(self, client_info: Any) -> None:
        """Note a registration."""
        await trio.lowlevel.checkpoint()
        self.state["client_info"] = client_info.model_dump(mode="json", exclude_none=True)

    def remember(self) -> dict[str, Any]:
        """The state, with what the flow learned of the authorization server."""
        for key, found in (
            ("metadata", self.context.oauth_metadata),
            ("resource", self.context.protected_resource_metadata),
        ):
            if found is not None:
                self.state[key] = found.model_dump(mode="json", exclude_none=True)
        return self.state


def client(server: Mapping[str, Any], login: Login, redirect_uri: str, **handlers: Any) -> Any:
    """The SDK's OAuth client for a server; `handlers` send a person to an address and take the answer."""
    from mcp.client.auth import OAuthClientProvider

    from supervisor.mcp.registration import Registration

    auth = server.get("auth") or {}
    wanted = auth.get("authentication") or {}
    given = wanted.get("scopes")
    scopes = tuple(given if isinstance(given, list) else (given or "").split())
    metadata: dict[str, Any] = {
        "client_name": wanted.get("client_name") or "Ostler",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted.get("client_auth_method") or "none",
        "scope": " ".join(scopes) or None,
    }
    registration = Registration.model_validate(metadata)
    provider = OAuthClientProvider(
        server_url=server["url"],
        client_metadata=registration,
        storage=login,
        client_metadata_url=wanted.get("client_metadata_url"),
        **handlers,
    )
    login.context = provider.context
    registration.follow(provider.context, wanted.get("client_auth_method"), scopes)
    return provider


async def refresh(request: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """Only the SDK's first step: what it would send before a request whose token has expired.

    An answer that is not `ok` has `refused`, the error of RFC 6749, where the authorization server said that
    the login does not count any more; else it may be asked again.
    """
    import httpx2

    server = request["server"]
    login = Login({**request["state"], "token_expires_at": 1.0})
    registered = (login.state.get("client_info") or {}).get("redirect_uris") or ["http://127.0.0.1/"]
    provider = client(server, login, registered[0])
    if not (login.state.get("tokens") or {}).get("refresh_token"):
        return _failed("there is no refresh token")
    asked = httpx2.Request("GET", server["url"])
    flow = provider.async_auth_flow(asked)
    status, said = None, b""
    sent = asked
    try:
        async with _http(answers) as http:
            sent = await flow.__anext__()
            while sent is not asked:
                response = await http.send(sent)
                status, said = response.status_code, response.content
                sent = await flow.asend(response)
    except httpx2.HTTPError as error:
        return _away(sent, error)
    finally:
        await flow.aclose()
    if not login.renewed:
        where = origin_of(str((login.state.get("metadata") or {}).get("issuer") or server["url"]))
        failed = _failed(f"the authorization server {where} refused a new token (status {status})")
        return {**failed, "refused": _refusal(status, said)}
    return {"ok": True, "state": login.remember()}


def _refusal(status: int | None, said: bytes) -> str | None:
    """The error of a token endpoint by which a login has ended; None where it is a matter of the moment."""
    if status not in (400, 401, 403):
        return None
    try:
        error = json.loads(said)["error"]
    except (ValueError, LookupError, TypeError):
        return None
    lasting = ("invalid_grant", "invalid_client", "unauthorized_client", "unsupported_grant_type")
    return error if error in lasting else None


def _away(sent: Any, error: Exception) -> dict[str, Any]:
    reason = str(error) or type(error).__name__
    where = origin_of(str(sent.url))
    return _failed(f"the authorization server {where} cannot be reached ({reason})", "connection")


def _failed(error: str, kind: str = "unknown") -> dict[str, Any]:
    return {"ok": False, "error": error, "error_kind": kind}


def _http(answers: Answers) -> httpx2.AsyncClient:
    import httpx2

    timeout, hooks = httpx2.Timeout(CONNECT_SECONDS), {"response": [answers.bound]}
    return httpx2.AsyncClient(timeout=timeout, headers=PLAIN, event_hooks=hooks)


async def revoke(request: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """Revoke the login (RFC 7009). Revoking the refresh token invalidates all tokens issued for it."""
    import httpx2

    login = Login(request["state"])
    provider = client(request["server"], login, "http://127.0.0.1/")
    tokens = await login.get_tokens()
    context = provider.context
    context.client_info = await login.get_client_info()
    known = context.oauth_metadata
    if tokens is None or context.client_info is None or known is None or known.revocation_endpoint is None:
        return _failed("the authorization server has no revocation endpoint")
    data = {"client_id": context.client_info.client_id, "token": tokens.refresh_token or tokens.access_token}
    data["token_type_hint"] = "refresh_token" if tokens.refresh_token else "access_token"
    data, headers = context.prepare_token_auth(data, {})
    sent = httpx2.Request("POST", str(known.revocation_endpoint), data=data, headers=headers)
    try:
        async with _http(answers) as http:
            status = (await http.send(sent)).status_code
    except httpx2.HTTPError as error:
        return _away(sent, error)
    if status != 200:
        where = origin_of(str(sent.url))
        return _failed(f"the authorization server {where} answered with status {status}")
    return {"ok": True}
