from __future__ import annotations

import pytest

from supervisor.database.address import parse


@pytest.mark.parametrize(
    ("text", "shown", "secrets"),
    [
        ("postgresql://me:s3cret@db.example:5433/ostler", "db.example:5433/ostler", ("s3cret",)),
        ("postgres://me:p%40ss@db/ostler", "db/ostler", ("p@ss", "p%40ss")),
        ("postgresql://me@/ostler?host=/run/pg&password=hidden", "/run/pg/ostler", ("hidden",)),
        ("postgresql:///ostler", "the local socket/ostler", ()),
        ("postgresql://a:1@h1:5432,h2:5433/x", "h1,h2:5432,5433/x", ("1",)),
    ],
)
def test_an_address_is_shown_without_user_and_password(
    text: str, shown: str, secrets: tuple[str, ...]
) -> None:
    found = parse(text)
    assert (found.shown, found.secrets, found.conninfo) == (shown, secrets, text)
    assert not any(secret in repr(found) for secret in secrets)


@pytest.mark.parametrize(
    "text", ["mysql://me:s3cret@db/x", "s3cret", "", "postgresql://me:s3cret@db/x?nonsense=1"]
)
def test_an_unusable_address_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|PostgreSQL") as refused:
        parse(text)
    assert "s3cret" not in str(refused.value)
