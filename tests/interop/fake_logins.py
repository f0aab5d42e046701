"""Files in the shape of those that the providers' own tools leave behind a login. Nobody has these logins."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LASTS_S = 300 * 86_400  # far enough away that no agent tries to renew it
# Under a login Codex compresses what it asks, in a way that the model API cannot undo.
PLAIN_REQUESTS = "[features]\nenable_request_compression = false\n"


@dataclass(frozen=True)
class Login:
    """`files` by their place below HOME, the first being the one that counts; `token` opens the model API."""

    token: str
    files: dict[str, str]

    def put_into(self, home: Path) -> None:
        for place, content in self.files.items():
            path = home / place
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(content)

    def is_untouched_in(self, home: Path) -> bool:
        return all((home / place).read_text() == content for place, content in self.files.items())

    def file_in(self, home: Path) -> str:
        return str(home / next(iter(self.files)))


def _claude_code() -> Login:
    token = "sk-ant-oat01-access-of-nobody-Qx4Vb7"
    login = {
        "accessToken": token,
        "refreshToken": "sk-ant-ort01-refresh-of-nobody-Lm8Tz2",
        "expiresAt": int(time.time() + LASTS_S) * 1000,
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    }
    return Login(token, {".claude/.credentials.json": json.dumps({"claudeAiOauth": login})})


def _codex() -> Login:
    account = {"chatgpt_plan_type": "pro", "chatgpt_account_id": "nobody", "chatgpt_user_id": "nobody"}
    claims = {"email": "nobody@example.invalid", "https://api.openai.com/auth": account}
    token = _json_web_token({**claims, "aud": "api"})
    document = {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": {
            "id_token": _json_web_token(claims),
            "access_token": token,
            "refresh_token": "rt_refresh-of-nobody-Pk3Wd9",
            "account_id": "nobody",
        },
        "last_refresh": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return Login(token, {".codex/auth.json": json.dumps(document), ".codex/config.toml": PLAIN_REQUESTS})


def _gemini_cli() -> Login:
    token = "ya29.access-of-nobody-Hn6Ry1"
    login = {
        "access_token": token,
        "refresh_token": "1//refresh-of-nobody-Cs5Jf0",
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "token_type": "Bearer",
        "id_token": _json_web_token({"email": "nobody@example.invalid"}),
        "expiry_date": int(time.time() + LASTS_S) * 1000,
    }
    settings = {"security": {"auth": {"selectedType": "oauth-personal"}}}
    return Login(
        token,
        {".gemini/oauth_creds.json": json.dumps(login), ".gemini/settings.json": json.dumps(settings)},
    )


def _json_web_token(claims: dict[str, Any]) -> str:
    now = int(time.time())
    parts = ({"alg": "RS256", "typ": "JWT"}, {"iat": now, "exp": now + LASTS_S, "sub": "nobody", **claims})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
    encoded.append(base64.urlsafe_b64encode(b"a signature of nobody"))
    return ".".join(part.decode().rstrip("=") for part in encoded)


FAKE_LOGINS: dict[str, Callable[[], Login]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "gemini-cli": _gemini_cli,
}
