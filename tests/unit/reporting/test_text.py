"""Untrusted text in Markdown: readable, and rendered as the text that it is."""

from __future__ import annotations

import pytest
from rich.markdown import Markdown

from autoqec.reporting.text import markdown

HOSTILE = (
    "> quote", ">> quote", "  > quote", "- > quote", "1. > quote", "12) + >quote", "-> x", ">", "a --> <!-- b -->",
    "<b>x</b>", "<https://e.example>", "&gt; &#62;", "\\> x", "</p><script>x</script>", "![a](b) -> c", "x\n> quote",
)  # fmt: skip


def tokens(text: str) -> list[tuple[str, str]]:
    """Return types and contents of the elements of a CommonMark text, blocks before what they hold."""
    parsed = ((block, *(block.children or ())) for block in Markdown(text).parsed)
    return [(token.type, "" if token.children else token.content) for tokens in parsed for token in tokens]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_renders_as_the_text(text: str) -> None:
    """With tags and autolinks of CommonMark, which are on here."""
    before, after = tokens("**Hypothesis.** text."), tokens(f"**Hypothesis.** {markdown(text)}.")
    shown = " " + text.replace("\n", "\\n") + "."
    assert after == [(kind, shown if content == " text." else content) for kind, content in before]


@pytest.mark.parametrize("place", ["{}", "- {}", "1. {}"])
@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_opens_no_block_quote_and_no_tag_at_the_start_of_a_line(text: str, place: str) -> None:
    kinds = {kind.removesuffix("_open").removesuffix("_close") for kind, _ in tokens(place.format(markdown(text)))}
    assert kinds <= {"paragraph", "inline", "text", "list_item", "bullet_list", "ordered_list"}


@pytest.mark.parametrize("text", ["p 0.01 -> 0.02", "lr->wd", "2 > 1", "x => y", "a >= b > c"])
def test_markdown_keeps_arrows_and_comparisons_readable(text: str) -> None:
    assert markdown(text) == text
