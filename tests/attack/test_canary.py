"""No secret is to be found where it does not belong, whatever an agent says and whatever clients read."""

from __future__ import annotations

import pytest
import trio

from tests.attack.canary_run import SECRETS, run
from tests.attack.canary_search import Search, forms_of

HISTORY = ("journal", "events socket", "session socket", "REST")
OPERATORS = ("stderr and trace", "command line client")
PLACES = (*HISTORY, *OPERATORS, "files", "metrics", "server log", "process list")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """One run for all tests here."""
    return trio.run(run, tmp_path_factory.mktemp("canary"))


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(("secret", "place"), [(secret, place) for secret in SECRETS for place in PLACES])
def test_a_secret_is_nowhere(searched: Search, secret: str, place: str) -> None:
    assert not (found := searched.report(place, [secret])), f"found in {place}:\n{found}"


@pytest.mark.parametrize("place", PLACES)
def test_every_place_was_looked_through(searched: Search, place: str) -> None:
    assert searched.looked_at[place] > 0
    if place in (*HISTORY, *OPERATORS):
        assert searched.hidden[place] > 50


@pytest.mark.parametrize("name", SECRETS)
def test_the_search_finds_every_form(name: str) -> None:
    forms = forms_of(SECRETS[name])
    assert len(forms) >= 4
    for form in forms.values():
        search = Search(SECRETS)
        search.document("here", "there", f"before {form} after".encode())
        assert {leak.secret for leak in search.leaks} == {name}
