"""The names of the secrets by which each provider gets its credentials, read from the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.agents import Descriptor, Kind
from supervisor.settings import Channels

BASE_URL, API_KEY = "_BASE_URL", "_API_KEY"


def channels(catalog: Mapping[str, Descriptor]) -> dict[str, Channels]:
    """By provider. Of several keys it is the one that is called as the base URL is, or else the first."""
    return {
        key: Channels(
            api_key=_api_key(descriptor),
            base_url=descriptor.base_url_env,
            files=tuple(spec.name for spec in descriptor.file_secrets),
        )
        for key, descriptor in catalog.items()
    }


def _api_key(descriptor: Descriptor) -> str | None:
    keys = [
        source.env
        for source in descriptor.credentials
        if source.kind is Kind.API_KEY and source.env and source.env.endswith(API_KEY) and not source.when
    ]
    likely = (descriptor.base_url_env or "").replace(BASE_URL, API_KEY)
    return likely if likely in keys else next(iter(keys), None)
