"""What stands next to a conversation while its agent works."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("console")]


def test_standard_error_and_the_trace_are_followed_without_asking_again(console, api, tmp_path):
    conversation = api.scripted(tmp_path, "!stderr 1")
    page = console.open(f"#/c/{conversation}?pane=stderr")
    pane = page.get_by_role("complementary", name="Standard error")
    expect(pane).to_contain_text("scripted agent: line 1")
    api.say(conversation, "!stderr 2")
    expect(pane).to_contain_text("scripted agent: line 2")
    assert not [url for url in console.asked if "/api/agents/" in url]
    page.goto(f"{console.url}/#/c/{conversation}?pane=trace")
    pane = page.get_by_role("complementary", name="Protocol")
    expect(pane).to_contain_text("session/prompt")
    before = pane.locator("details").count()
    api.say(conversation, "!text more")
    expect(pane.locator("details").nth(before)).to_be_visible()
