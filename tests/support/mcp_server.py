"""A real MCP server, from the MCP SDK: `mcp_server.py stdio|http|sse|oauth|resource [options]`.

All but `stdio` listen on a free loopback port and print it as their first line.
`oauth` wants a token of the SDK's own authorization server, which lets everybody in at once. `--lifetime` is
that of its tokens in seconds (0: they last); a refresh token counts once.
`resource` wants a token of another authorization server, `--issuer URL`: one that was issued for it, looked
at with the keys of that server, or asked about there with `--introspect SECRET`. `--log FILE` gets a line for
what happens.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
import time
from typing import Any

import anyio
import httpx2
import jwt
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class Desk:
    """What the SDK's authorization server keeps: it refuses what it has not given out."""

    def __init__(self, lifetime: int, log: Any) -> None:
        self.lifetime, self.log = lifetime, log
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.renewals: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info
        self.log("registered")

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(20),
            client_id=client.client_id,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            expires_at=time.time() + 300,
            scopes=params.scopes or ["tools"],
            code_challenge=params.code_challenge,
            resource=params.resource,
        )
        self.codes[code.code] = code
        self.log("authorized")
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: Any) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return self.renewals.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: list[str]) -> OAuthToken:
        if self.renewals.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant", "used before")
        self.log("refreshed")
        return self._issue(client.client_id, refresh_token.scopes, refresh_token.resource)

    def _issue(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, renewal = f"access-{secrets.token_urlsafe(20)}", f"refresh-{secrets.token_urlsafe(20)}"
        lifetime = self.lifetime or 86400
        self.tokens[access] = AccessToken(
            token=access,
            client_id=client_id,
            scopes=scopes,
            expires_at=int(time.time()) + lifetime,
            resource=resource,
        )
        self.renewals[renewal] = RefreshToken(
            token=renewal, client_id=client_id, scopes=scopes, resource=resource
        )
        self.log(f"issued {access}")
        return OAuthToken(
            access_token=access,
            expires_in=self.lifetime or None,
            scope=" ".join(scopes),
            refresh_token=renewal,
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.tokens.get(token)
        if found is None or (found.expires_at or 0) < time.time():
            self.log("refused a token")
            return None
        self.log(f"took {token}")
        return found

    async def revoke_token(self, token: Any) -> None:
        self.tokens.pop(token.token, None)


class Verifier:
    """Looks at tokens of another authorization server."""

    def __init__(self, issuer: str, resource: str, secret: str | None, log: Any) -> None:
        self.issuer, self.resource, self.secret, self.log = issuer, resource, secret, log

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx2.AsyncClient() as client:
            found = (await client.get(f"{self.issuer}/.well-known/openid-configuration")).json()
            if self.secret is None:
                keys = (await client.get(found["jwks_uri"])).json()
                claims = self._claims(token, keys)
            else:
                asked = {"token": token}
                who = ("resource-server", self.secret)
                claims = (await client.post(found["introspection_endpoint"], data=asked, auth=who)).json()
        if claims is None or not claims.get("active", True) or claims.get("aud") != self.resource:
            self.log("refused a token")
            return None
        self.log(f"took {token}")
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims.get("scope", "").split(),
            expires_at=claims["exp"],
            resource=claims["aud"],
            subject=claims["sub"],
        )

    def _claims(self, token: str, keys: Any) -> Any:
        try:
            key = jwt.PyJWKSet.from_dict(keys)["one"]
            return jwt.decode(token, key, ["RS256"], audience=self.resource, issuer=self.issuer)
        except jwt.PyJWTError:
            return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["stdio", "http", "sse", "oauth", "resource"])
    parser.add_argument("--lifetime", type=int, default=3600)
    parser.add_argument("--log")
    parser.add_argument("--key", help="wanted in the header X-Key")
    parser.add_argument("--issuer")
    parser.add_argument("--introspect", metavar="SECRET")
    parser.add_argument("--scopes", default="tools")
    arguments = parser.parse_args()

    def log(line: str) -> None:
        if arguments.log:
            with open(arguments.log, "a") as file:
                file.write(line + "\n")

    bound = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{bound.getsockname()[1]}"
    auth: dict[str, Any] = {}
    if arguments.kind == "oauth":
        auth = {
            "auth_server_provider": Desk(arguments.lifetime, log),
            "auth": AuthSettings.model_validate(
                {
                    "issuer_url": origin,
                    "resource_server_url": f"{origin}/mcp",
                    "client_registration_options": ClientRegistrationOptions(
                        enabled=True, valid_scopes=["tools"], default_scopes=["tools"]
                    ),
                    "required_scopes": ["tools"],
                    "validate_token_resource": True,
                }
            ),
        }
    elif arguments.kind == "resource":
        resource = f"{origin}/mcp"
        auth = {
            "token_verifier": Verifier(arguments.issuer, resource, arguments.introspect, log),
            "auth": AuthSettings.model_validate(
                {
                    "issuer_url": arguments.issuer,
                    "resource_server_url": resource,
                    "required_scopes": arguments.scopes.split(),
                    "validate_token_resource": True,
                }
            ),
        }
    server = MCPServer("calculator", **auth)

    @server.tool()
    def secret_sum(a: int, b: int) -> str:
        """Add two numbers in a way that only this server knows."""
        log(f"called {a} {b}")
        return f"the secret sum is {a + b + 1000}"

    @server.tool()
    def environment() -> str:
        """The names of this process's variables."""
        return " ".join(sorted(os.environ))

    if arguments.kind == "stdio":
        print("calculator starts", file=sys.stderr, flush=True)
        server.run("stdio")
        return
    app = server.sse_app() if arguments.kind == "sse" else server.streamable_http_app()
    if arguments.key:
        app = _wants(app, arguments.key)
    print(bound.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="critical")
    anyio.run(lambda: uvicorn.Server(config).serve(sockets=[bound]))


def _wants(app: Any, key: str) -> Any:
    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"x-key") != key.encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": f"not {key}".encode()})
            return
        await app(scope, receive, send)

    return guarded


if __name__ == "__main__":
    main()
