"""What agents and clients say is text on the page: it runs nothing, loads nothing, and breaks no policy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.harness import Api, Console

pytestmark = pytest.mark.clients

CORPUS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href='javascript:alert(1)'>press</a>",
    "[press](javascript:alert(1))",
    "[press](JaVaScRiPt:alert%281%29)",
    "[press](data:text/html,<script>alert(1)</script>)",
    "![x](http://elsewhere.invalid/picture.png)",
    "![x](javascript:alert(1))",
    "<form action=//elsewhere.invalid><input name=id><button>ok</button></form>",
    "<style>@import '//elsewhere.invalid/x.css';</style>",
    "<base href=//elsewhere.invalid>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    '<div id="app"></div><input id="main">',
    "```html\n<script>alert(1)</script>\n```",
    "\x1b]8;;javascript:alert(1)\x07press\x1b]8;;\x07",
    "{{constructor.constructor('alert(1)')()}}",
    "`${alert(1)}`",
    "\u202eevil\u202c",
)


def test_a_corpus_does_nothing_anywhere(console: Console, api: Api, tmp_path: Path) -> None:
    """In a title, a message, an answer, a thought, a tool's title, its output, a diff, and a file's name."""
    everything = "\n\n".join(CORPUS)
    work = tmp_path / "<img src=x onerror=alert(1)>"
    work.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / "<svg onload=alert(1)>.txt").write_text("<script>alert(1)</script>")
    conversation = api.scripted(work, everything)
    api.ask("PATCH", f"/api/conversations/{conversation}", {"title": CORPUS[1]})
    page = console.open()
    expect(page.get_by_role("table", name="Conversations")).to_contain_text(CORPUS[1])
    for each in CORPUS:
        line = each.replace("\n", " ")
        api.say(
            conversation,
            f"!think {line}\n!tool execute {line}\n!streamtool {line}\n!diff {line}\n!plan {line}",
        )
    console.open(f"#/c/{conversation}")
    log = page.get_by_role("log", name="Conversation")
    expect(log).to_contain_text("evil")
    seen = ""
    place = 0
    # Only what is near stands in the page: all of it is scrolled through, with everything unfolded.
    while place < log.evaluate("(log) => log.scrollHeight"):
        log.evaluate("(log, place) => { log.scrollTop = place; }", place)
        page.wait_for_timeout(30)
        log.evaluate("(log) => log.querySelectorAll('details').forEach((each) => { each.open = true; })")
        seen += log.inner_text()
        place += 600
    assert "<svg onload=alert(1)>" in seen
    assert "<iframe srcdoc=" in seen
    page.get_by_role("button", name="Changes").click()
    expect(page.get_by_role("complementary", name="Changes")).to_contain_text("<svg onload=alert(1)>.txt")
    for link in page.locator(".markdown a").all():
        address = link.get_attribute("href")
        assert address is None or address.startswith(("http:", "https:", "mailto:", "#"))
    assert page.locator("main script, main iframe, main form[action], main style, main base").count() == 0
    assert page.locator(".markdown img, .markdown svg").count() == 0
    console.healthy()


def test_text_of_a_permission_is_text(console: Console, api: Api, tmp_path: Path) -> None:
    conversation = api.scripted(
        tmp_path,
        f"!askwords echo {CORPUS[1]}",
        confirmation_policy={"kind": "AlwaysConfirm"},
    )
    page = console.open(f"#/c/{conversation}")
    expect(page.get_by_role("group", name="Permission request")).to_contain_text("onerror=alert(1)")
    page.goto(f"{console.url}/#/")
    expect(page.get_by_role("group", name="Permission request").first).to_be_visible()
    console.healthy()
