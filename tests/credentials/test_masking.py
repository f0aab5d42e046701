"""Masking: every form of a secret, split anywhere, and nothing else."""

from __future__ import annotations

import base64
import json
import re
import shlex
import urllib.parse

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.credentials.common import too_common
from supervisor.credentials.masking import HIDDEN, PIECE, Masker

KEY = 'sk-Ab9/+x "q"\\\té-0123456789'
OTHER = "sk-Ab9-another-one"
TOKEN = "eyJ-a-token-that-stands-alone"

FORMS = {
    "as it is": KEY,
    "in JSON": json.dumps(KEY)[1:-1],
    "in JSON with letters kept": json.dumps(KEY, ensure_ascii=False)[1:-1],
    "in a URL": urllib.parse.quote(KEY, safe=""),
    "in a path": urllib.parse.quote(KEY),
    "in a form": urllib.parse.quote_plus(KEY),
    "in a URL, lower case": re.sub("%..", lambda m: m[0].lower(), urllib.parse.quote(KEY, safe="")),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_form_is_replaced_wherever_it_stands(form):
    mask = Masker([OTHER, KEY])
    assert mask.text(f"a{form}b{form}") == f"a{HIDDEN}b{HIDDEN}"
    assert mask.value({f"k{form}": [form, {"x": f"-{form}"}]}) == {
        f"k{HIDDEN}": [HIDDEN, {"x": f"-{HIDDEN}"}]
    }
    body = json.dumps({"x": form}).encode()
    assert mask.suspects(body)
    assert json.loads(mask.document(body)) == {"x": HIDDEN}


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "x", "xy", "xyz", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz"])
def test_base64_of_what_holds_it(encode, before, after):
    encoded = encode(f"{before}{KEY}{after}".encode()).decode()
    shown = Masker([KEY]).text(encoded)
    assert HIDDEN in shown
    rest = shown.replace(HIDDEN, "")
    # What is left of it stands for two bytes of the key at either end, at the most.
    assert len(rest) <= len(encode(f"{before}{after}".encode())) + 12


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_documents_in_documents(levels, ascii_only):
    mask = Masker([KEY])
    text = KEY
    for _ in range(levels):
        text = json.dumps({"x": text}, ensure_ascii=ascii_only)
    assert mask.suspects(text.encode())
    shown = mask.document(text.encode()).decode()
    assert "0123456789" not in shown
    if levels <= 3:
        assert "0123456789" not in mask.text(text)


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("back\\slash-'quoted", repr("back\\slash-'quoted")[1:-1]),
        ("it's-a-secret", "echo 'it'\\''s-a-secret'"),
        ("it's-a-secret", shlex.join(["echo", "it's-a-secret"])),
        ('<a-"secret"&more>', "&lt;a-&quot;secret&quot;&amp;more&gt;"),
        ("Bearer tok-0123456789", "the token is tok-0123456789."),
        ("Basic " + base64.b64encode(b"me:pass-0123456789").decode(), "log in with pass-0123456789"),
    ],
)
def test_other_ways_to_write_it(secret, text):
    shown = Masker([secret]).text(text)
    assert HIDDEN in shown
    assert "secret" not in shown.replace(HIDDEN, "")
    assert "0123456789" not in shown


def test_escapes_that_need_not_be():
    mask = Masker(["plain-secret/value"])
    escaped = b'{"x": "\\u0070lain-secret\\/value"}'
    assert mask.suspects(escaped)
    assert json.loads(mask.document(escaped)) == {"x": HIDDEN}
    assert not mask.suspects(b'{"x": "plain"}')


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        ([], "sk-abc", "sk-abc"),
        (["short"], "short", "short"),
        (["longsecret"], "a longsecret b longsecret", f"a {HIDDEN} b {HIDDEN}"),
        (['with"quote'], 'x with\\"quote y', f"x {HIDDEN} y"),
        (["longsecret", "longsecretlonger"], "longsecretlonger", HIDDEN),
        (["sk-12345678", "sk-12345678-more"], "a sk-12345678-more b", f"a {HIDDEN} b"),
        (["sk-12345678", "sk-12345678-more"], "a sk-12345678-mor b", f"a {HIDDEN}-mor b"),
        (["12345678"], "n 1234567 12345678", f"n 1234567 {HIDDEN}"),
        (["a.c*e[g]h"], "abcdefgh a.c*e[g]h", f"abcdefgh {HIDDEN}"),
    ],
)
def test_which_is_found(secrets, text, masked):
    assert Masker(secrets).text(text) == masked


def test_numbers():
    assert Masker(["12345678"]).value([12345678, 912345678, 1234567, 1.5, None, True]) == [
        HIDDEN,
        HIDDEN,
        1234567,
        1.5,
        None,
        True,
    ]


def test_parts_of_documents_and_lines():
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    document = json.dumps(
        {
            "type": "service_account",
            "uri": "https://accounts.example/o/oauth2/auth",
            "tokens": {"access": TOKEN},
            "private_key": f"-----BEGIN PRIVATE KEY-----\n{line}\nxyz\n",
        }
    )
    mask = Masker([document])
    assert mask.text(f"it is {TOKEN}.") == f"it is {HIDDEN}."
    assert mask.text(f"  12  {line}") == f"  12  {HIDDEN}"
    assert mask.text("a service_account at https://accounts.example/o/oauth2/auth") == (
        "a service_account at https://accounts.example/o/oauth2/auth"
    )


def test_parts_of_lists_in_documents():
    deep = "eyJ-a-token-deep-in-a-document"
    mask = Masker([json.dumps([TOKEN, {"refresh": [deep, 7, None]}])])
    assert mask.text(f"{TOKEN} and {deep}") == f"{HIDDEN} and {HIDDEN}"


def test_as_python_writes_a_string():
    # JSON keeps the apostrophe as it is, Python the line separator as its number.
    for secret in ('it\'s a "secret" of both', 'it\'s a \u2028 "secret" \x7f'):
        assert Masker([secret]).text(f"a {secret!r} b") == f"a '{HIDDEN}' b"


def test_the_end_of_a_text_that_is_cut_off():
    mask = Masker([KEY])
    assert mask.beginning(f"x {KEY[:10]}") == "x "
    assert mask.beginning(f"x {KEY} y") == f"x {HIDDEN} y"


def test_bytes_that_are_no_text():
    assert Masker(["plain-secret"]).content(b"\xff\xfeplain-secret\xff") == b"\xff\xfe<secret-hidden>\xff"


SECRETS = st.lists(
    # `aaaaaaaa` hides nothing, so it is not hidden.
    st.text("ab", min_size=8, max_size=12).filter(lambda secret: not too_common(secret)),
    min_size=1,
    max_size=4,
)


@pytest.mark.guarantee(name="secrets-stay-in")
@given(SECRETS, st.text("abc", max_size=60), st.data())
def test_however_it_is_cut_nothing_comes_through(secrets, text, data):
    mask = Masker(secrets)
    stream = mask.stream()
    shown, rest = "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        shown += stream.feed(rest[:size])
        rest = rest[size:]
    shown += stream.flush()
    assert not any(secret in shown for secret in secrets)
    # Nothing else is lost: what is left are pieces of the text, in their order.
    at = 0
    for piece in shown.split(HIDDEN):
        at = text.index(piece, at) + len(piece)


@given(st.text(max_size=80), st.lists(st.integers(1, 10), max_size=40))
def test_a_stream_without_secrets_is_what_it_was(text, sizes):
    stream = Masker([KEY, OTHER]).stream()
    whole, shown = text, ""
    for size in [*sizes, 100]:
        shown += stream.feed(text[:size])
        text = text[size:]
    assert shown + stream.flush() == whole
    assert stream.flush() == ""


def test_only_what_may_be_a_secret_waits():
    stream = Masker([KEY]).stream()
    assert stream.feed("Hello, s") == "Hello, "
    assert stream.feed("k") == ""
    assert stream.feed("ying, ") == "skying, "
    assert stream.feed(f"{KEY[:9]}") == ""
    assert stream.feed(f"{KEY[9:]}!") == f"{HIDDEN}!"


@pytest.mark.parametrize("end", ["s", KEY[:2], KEY[:9], KEY[:-1], KEY[:5] * 3])
def test_what_waited_is_shown_at_the_end(end: str) -> None:
    stream = Masker([KEY]).stream()
    shown = stream.feed(f"It begins with {end}")
    assert shown != f"It begins with {end}"
    assert shown + stream.flush() == f"It begins with {end}"
    assert stream.feed("Hello.") + stream.flush() == "Hello."  # and once


def test_the_end_of_what_waited_is_masked() -> None:
    longer = f"{KEY}-and-more"
    stream = Masker([KEY, longer]).stream()
    assert stream.feed(f"a {KEY}") == "a "
    assert stream.flush() == HIDDEN


def test_what_is_long_ends_as_it_does() -> None:
    text = "x" * (2 * PIECE) + KEY[:9]
    assert Masker([KEY]).text(text) == text


@pytest.mark.parametrize("before", [0, PIECE - 20, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE - 7])
def test_what_is_long_is_searched_in_pieces_and_nothing_is_missed(before: int) -> None:
    secret = "sk-long-0123456789-abcdefgh"
    masker = Masker([secret])
    text = "é" * (before // 2) + "x" * (before % 2) + secret + "y" * (2 * PIECE)
    hidden = text.replace(secret, HIDDEN)
    assert masker.text(text) == hidden
    assert masker.content(text.encode()) == hidden.encode()
    assert masker.content(b"\xff" + text.encode()) == b"\xff" + hidden.encode()
    assert masker.suspects(text.encode())
    assert not masker.suspects(hidden.encode())
    escaped = orjson.dumps({"text": "x" * before}).replace(b"{", b'{"n":"' + b"z" * PIECE + b'\\u0041",')
    assert masker.suspects(escaped)
    assert masker.suspects(b'{"n":"\\u0041' + b"z" * (before + 2 * PIECE) + b'"}')


def test_a_document_with_backslashes_is_not_suspected_for_a_secret_that_needs_none():
    assert not Masker(["plain-secret"]).suspects(rb'{"x": "a \\\\ b"}')
    assert Masker(['quoted-"secret"']).suspects(rb'{"x": "a \\\\ b"}')


def test_secrets_that_come_later():
    mask = Masker([])
    stream = mask.stream()
    assert (bool(mask), stream.feed("the first-secret-0123 "), mask.suspects(b"x")) == (
        False,
        "the first-secret-0123 ",
        False,
    )
    for secret in ("first-secret-0123", "second-secret-4567", "first-secret-0123"):
        mask.add([secret])
        assert mask.text(f"the {secret}.") == f"the {HIDDEN}."
        assert mask.document(f'{{"a":"{secret}"}}'.encode()) == f'{{"a":"{HIDDEN}"}}'.encode()
    assert mask.text("first-secret-0123") == HIDDEN
    assert stream.feed("second-sec") + stream.feed("ret-4567") + stream.flush() == HIDDEN
