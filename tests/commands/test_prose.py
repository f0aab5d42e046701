"""What agents say, on a terminal: Markdown by blocks, lines folded at words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.cli.talk.prose import BLOCK_CHARS, Blocks, Folding
from tests.support.terminal import Terminal

BLOCKS = (
    "# Title\n\n",
    "one\ntwo\n\n",
    "* a\n\n  more of a\n\n",
    "* b\n\n",
    "```sh\nls\n\n# not a title\n```\n\n",
    "~~~\n```\n\n~~~\n",
)

RENDER = """
import sys
from gateway.cli.talk.markdown import Answer
from gateway.cli.terminal import console
answer = Answer(console(sys.stdout))
text = open(sys.argv[1]).read()
for start in range(0, len(text), 5):
    answer.feed(text[start:start + 5])
    answer.draw()
answer.close()
"""


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_blocks_are_the_same_however_the_text_comes(step):
    text, blocks, found = "".join(BLOCKS), Blocks(), []
    for start in range(0, len(text), step):
        found += blocks.feed(text[start : start + step])
    assert [*found, blocks.open] == list(BLOCKS)


@pytest.mark.parametrize(
    "text", ["x" * 20_000, "word " * 4_000, "```\n" + "line\n" * 4_000, "```\n" + "y" * 20_000]
)
def test_a_block_is_bounded(text):
    blocks = Blocks()
    found = blocks.feed(text)
    assert len(blocks.open) <= BLOCK_CHARS
    assert max(map(len, found)) <= 2 * BLOCK_CHARS + 1
    assert all(block.startswith("```") for block in found) is text.startswith("`")
    assert sum(block.count("line") for block in [*found, blocks.open]) == text.count("line")


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_lines_are_folded_at_words(step):
    text = "one two three\n\n  four five\nsixseveneight nine 字字字 a"
    folding = Folding(9)
    pieces = [folding.feed(text[start : start + step]) for start in range(0, len(text), step)]
    folded = "".join(pieces) + folding.end()
    assert folded.split("\n") == [
        "one two", "three", "", "  four", "five", "sixseveneight nine", "字字字 a",
    ]  # fmt: skip


@pytest.fixture
def rendered(tmp_path):
    def render(text):
        (tmp_path / "text").write_text(text)
        command = [sys.executable, "-c", RENDER, str(tmp_path / "text")]
        with Terminal(command, {}, Path.cwd(), columns=40, rows=12) as terminal:
            assert terminal.end() == 0, terminal.text
            return terminal.text

    return render


def test_what_an_agent_says_is_rendered(rendered):
    text = rendered(
        "# A title\n\nSome *words* that are longer than the line is wide.\nAnd `code`.\n\n* one\n* two"
    )
    assert text.splitlines() == [
        "A title", "",
        "Some words that are longer than the line", "is wide.", "And code.", "", " • one", " • two",
    ]  # fmt: skip


def test_nothing_that_was_said_is_left_out(rendered):
    text = rendered(
        "A List<int>, <b>bold</b> [words](http://elsewhere.test) ![a picture](http://else.test)\n\n"
        "<div>\nof HTML\n</div>\n\n[name]: http://definition.test\n\n" + "row\n" * 30
    )
    for part in ("List<int>", "<b>bold</b>", "http://elsewhere.test", "![a picture](http://else.test)"):
        assert part in text.replace("\n", " ")
    assert "<div>" in text
    assert "http://definition.test" in text
    assert text.count("row") == 30  # also those that scrolled away while they were drawn again
