"""Global secrets over REST: where each comes from, and a new master key."""

from __future__ import annotations

import pytest

from gateway.configuration.config import load_config
from gateway.configuration.parsing import ConfigError
from supervisor.credentials.secret import WrongMasterKey
from supervisor.credentials.store import SecretStore

SECRETS = "/api/settings/secrets"
SOURCES = "/api/secrets"
ROTATE = "/api/secrets/rotate"


@pytest.fixture
async def given(gateway, tmp_path):
    """The gateway with a directory of secrets and a variable; one of them is stored, too."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "FILE").write_text("from a file")
    (mounted / "BOTH").write_text("from a file")
    (mounted / "not-a-name").write_text("sk-odd")
    environ = {"OSTLER_SECRETS_DIR": str(mounted), "OSTLER_SECRET_VAR": "from a variable"}
    store = await SecretStore.open(tmp_path, environ)
    object.__setattr__(gateway.services, "secrets", store)
    await gateway.call("PUT", SECRETS, {"name": "BOTH", "value": "stored", "description": "d"})
    return mounted


async def test_sources_are_listed_without_values(gateway, given):
    status, body = await gateway.call("GET", SOURCES)
    assert status == 200
    assert body["secrets"] == [
        {
            "name": "BOTH",
            "description": "d",
            "source": "store",
            "where": None,
            "hides": [str(given / "BOTH")],
        },
        {
            "name": "FILE",
            "description": None,
            "source": "directory",
            "where": str(given / "FILE"),
            "hides": [],
        },
        {
            "name": "VAR",
            "description": None,
            "source": "variable",
            "where": "OSTLER_SECRET_VAR",
            "hides": [],
        },
    ]
    assert body["key"] == gateway.services.secrets.key_source
    (problem,) = body["problems"]
    assert str(given / "not-a-name") in problem
    assert "sk-odd" not in str(body)
    # Clients of the wire manage what is stored, and only that.
    _, body = await gateway.call("GET", SECRETS)
    assert body == {"secrets": [{"name": "BOTH", "description": "d"}]}


async def test_a_start_may_refer_to_what_is_given_from_outside(gateway, given, tmp_path):
    body = {
        "workspace": {"working_dir": str(tmp_path)},
        "secrets": {name: {"url": f"{SECRETS}/{name}"} for name in ("BOTH", "FILE", "VAR")},
    }
    status, info = await gateway.call("POST", "/api/conversations", body)
    assert status == 201
    request = gateway.supervisor.conversations[info["id"]].request
    assert request.secrets == {"BOTH": "stored", "FILE": "from a file", "VAR": "from a variable"}


@pytest.mark.parametrize(
    ("secret", "loc"), [("x\0y", []), ({"value": "x\0y"}, ["value"]), ({"value": "x" * 200_000}, ["value"])]
)
async def test_a_value_that_no_environment_holds_is_refused(gateway, tmp_path, secret, loc):
    body = {"workspace": {"working_dir": str(tmp_path)}, "secrets": {"A": secret}}
    status, answer = await gateway.call("POST", "/api/conversations", body)
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "secrets", "A", *loc])
    assert "x" * 100 not in str(answer)
    conversation = await gateway.conversation()
    path = f"/api/conversations/{conversation.id}/secrets"
    status, answer = await gateway.call("POST", path, {"secrets": {"A": secret}})
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "secrets", "A", *loc])


async def test_rotation_is_told_and_loses_nothing(gateway, tmp_path):
    await gateway.call("PUT", SECRETS, {"name": "A", "value": "a"})
    token = gateway.services.secrets.cipher.encrypt(b"shown to a client")
    key = (tmp_path / "master.key").read_text()
    path = str(tmp_path / "master.key")
    assert await gateway.call("POST", ROTATE) == (200, {"key": path, "before": path, "secrets": 1})
    assert (tmp_path / "master.key").read_text() != key
    body = {
        "workspace": {"working_dir": str(tmp_path)},
        "secrets_encrypted": True,
        "secrets": {"TOKEN": token, "A": {"url": f"{SECRETS}/A"}},
    }
    _, info = await gateway.call("POST", "/api/conversations", body)
    request = gateway.supervisor.conversations[info["id"]].request
    assert request.secrets == {"TOKEN": "shown to a client", "A": "a"}


async def test_a_rotation_that_cannot_be_says_why(gateway, tmp_path):
    other = await SecretStore.open(tmp_path / "other", {"OSTLER_MASTER_KEY": "the operator's"})
    object.__setattr__(gateway.services, "secrets", other)
    status, body = await gateway.call("POST", ROTATE)
    assert status == 409
    assert "OSTLER_PREVIOUS_MASTER_KEYS" in body["detail"]
    assert "the operator's" not in body["detail"]
    other._key = WrongMasterKey(tmp_path / "secrets.json", "OSTLER_MASTER_KEY")
    for method, path in (("POST", ROTATE), ("GET", SOURCES)):
        status, body = await gateway.call(method, path)
        assert (status, "another master key" in body["detail"]) == (409, True)


def test_the_keyring_can_be_turned_off():
    assert load_config({}).keyring
    assert load_config({"OSTLER_KEYRING": "auto"}).keyring
    assert not load_config({"OSTLER_KEYRING": "off"}).keyring
    assert not load_config({"OSTLER_KEYRING": "no"}).keyring
    with pytest.raises(ConfigError, match="OSTLER_KEYRING"):
        load_config({"OSTLER_KEYRING": "perhaps"})


async def test_who_sets_what_is_too_common_to_be_hidden_is_told(gateway):
    common = {"name": "DEPLOY_TO", "value": "production"}
    client = gateway.app.test_client()
    answer = await client.put(SECRETS, json=common)
    assert answer.headers["Ostler-Warning"] == ("not hidden in what agents say: DEPLOY_TO is a common word")
    assert await answer.get_json() == {"name": "DEPLOY_TO", "description": None}
    answer = await client.put(SECRETS, json={"name": "KEY", "value": "sk-8J2mQx71LpVw"})
    assert "Ostler-Warning" not in answer.headers
    _, body = await gateway.call("GET", SOURCES)
    assert body["not_hidden"] == {"DEPLOY_TO": "a common word"}
