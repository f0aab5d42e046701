"""MCP servers that tests of several rooms log in to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mcp_servers import RealServer, real_server


@pytest.fixture(scope="module")
def oauth_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server of the MCP SDK with its authorization server, one for the tests of a module."""
    with real_server("oauth", tmp_path_factory.mktemp("oauth")) as server:
        yield server


@pytest.fixture
def oauth(oauth_server: RealServer) -> RealServer:
    """A server that requires a login; its log begins with the test."""
    oauth_server.log.write_text("")
    return oauth_server
