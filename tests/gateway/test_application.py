"""The way of a request from its scope to its handler and back."""

from __future__ import annotations

import json

import pytest

from gateway.api import errors
from gateway.http.application import Application, ClientGone
from gateway.serving import logs
from tests.gateway.test_late_application import ask


def failing(error):
    """An application whose one handler raises this."""

    async def handler():
        raise error

    app = Application("failing", lambda _: None, lambda *_: None)
    errors.install(app)
    app.add_url_rule("/", endpoint="failing", view_func=handler)
    return app


@pytest.mark.parametrize(
    "error",
    [
        ClientGone(),
        ExceptionGroup("", [ClientGone()]),
        ExceptionGroup("", [ClientGone(), ExceptionGroup("", [ClientGone()])]),
    ],
)
async def test_a_client_that_has_left_is_no_fault_whoever_learns_of_it(error, capsys):
    logs.configure()
    assert (await ask(failing(error), "/")).status == 0
    assert capsys.readouterr().err == ""


async def test_what_else_failed_is_told(capsys):
    logs.configure()
    answer = await ask(failing(ExceptionGroup("", [ClientGone(), ValueError()])), "/")
    assert (answer.status, json.loads(answer.body)["exception"]) == (500, "ValueError")
    assert "ClientGone" not in capsys.readouterr().err
