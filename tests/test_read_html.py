"""HTML: what a reader of the page would see, and nothing of it lost, however broken the markup."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from hipcli.document import Document
from hipcli.errors import InputError
from hipcli.readers import read_document
from hipcli.readers.markup import tokens


def read(tmp_path: Path, html: str | bytes, name: str = "a.html", **options: object) -> Document:
    path = tmp_path / name
    path.write_bytes(html.encode() if isinstance(html, str) else html)
    return read_document([str(path)], **options)


def text(tmp_path: Path, html: str | bytes, name: str = "a.html") -> str:
    return "".join(page.text for page in read(tmp_path, html, name).pages)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>One <b>bo</b>ld  w&ouml;rd.<br>Two.</p><p>Three</p>", "One bold wörd.\nTwo.\n\nThree"),
        ("<div>a<div>b</div>c</div>", "a\n\nb\n\nc"),
        ("<p>hi</p>", "hi"),
        ("<html><body><ul><li>only</li><li>a list</li></ul></body></html>", "- only\n- a list"),
        ("<ul><li>one<li>two<ol start=4><li>in<li>on</ol></ul>after", "- one\n- two\n  4. in\n  5. on\n\nafter"),
        ("<table><tr><th>A<th>B<tr><td>1<td>2</table>x", "A | B\n1 | 2\n\nx"),
        ("<table><tr><td><p>1</p></td><td></td><td><p>3</p></td></tr><tr><td><p>4</td></tr></table>", "1 | | 3\n4"),
        ("<pre>a\n  b &lt;c&gt;</pre>", "a\n  b <c>"),
        ("<dl><dt>Term<dd>Meaning</dl>", "Term\nMeaning"),
        ("漢<ruby>字<rt>ji</rt></ruby>", "漢字(ji)"),
        ("<p>1 < 2 && 3 > 2 <3</p>", "1 < 2 && 3 > 2 <3"),
        ("<p>a<!-- <p>no</p> -->b<!-->c<?php no ?>d", "abcd"),
        ("<p>a<script>if (a < b) '</p>'</script>b<style>p{}</style>c", "abc"),
        ('<p title="a > b">x</p><img alt="a lamp" src=x>', "x\n\n[a lamp]"),
        ("<textarea>a <b></textarea> <select><option>x<option>y</select>", "a <b>\nx\ny"),
        ("<p>a<![CDATA[ <b> ]]>c", "a <b> c"),
        ("<template><p>no</p></template><p>yes", "yes"),
    ],
)
def test_readable_text(tmp_path, html, expected):
    assert text(tmp_path, html) == expected


def test_sections_have_the_titles_of_their_headings(tmp_path):
    html = "<html><title>Book</title><p>Intro</p><h1>One</h1><h2>One <i>a</i></h2><p>x</p><h4>deep</h4>y<h2>Two</h2>z"
    pages = read(tmp_path, html).pages
    assert [page.title for page in pages] == ["Book", "One a", "Two"]
    assert "".join(page.text for page in pages) == "Intro\n\nOne\n\nOne a\n\nx\n\ndeep\n\ny\n\nTwo\n\nz"
    assert pages[1].text.lstrip().startswith("One\n\nOne a")


def test_menus_go_with_a_word_and_only_when_they_end(tmp_path):
    closed = read(tmp_path, "<nav>Home <nav>x</nav> About</nav><p>Words</p>")
    assert closed.pages[0].text.strip() == "Words" and "navigation" in closed.warnings[0]
    assert text(tmp_path, "<nav>Home<p>Words of the page").split() == ["Home", "Words", "of", "the", "page"]
    assert text(tmp_path, "<nav>Only a menu</nav>") == "Only a menu"
    assert text(tmp_path, "<template>Words of the page") == "Words of the page"


def test_what_never_ends_is_said_or_survives(tmp_path):
    assert "never ends" in read(tmp_path, "<p>a</p><script>var x <p>b").warnings[0]
    assert text(tmp_path, "<title>T<p>body</p>") == "body"
    assert text(tmp_path, "a<!-- b <p>c") == "ac"
    assert text(tmp_path, 'a<p title="b>c<p>d') == "a\n\nc\n\nd"
    assert text(tmp_path, "a <b") == "a <b"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("<meta charset=iso-8859-1><p>café".encode("latin-1"), "café"),
        ("<meta charset=iso-8859-1><p>café".encode(), "café"),
        ('<meta http-equiv=x content="text/html; charset=koi8-r"><p>Привет'.encode("koi8-r"), "Привет"),
        ("<meta charset=iso-2022-jp><p>日本".encode("iso2022_jp"), "日本"),
        ("<meta charset=utf-16><p>words".encode(), "words"),
        ("<meta charset=no-such><p>words".encode(), "words"),
        ("<?xml version='1.0' encoding='windows-1251'?><html><p>Да".encode("cp1251"), "Да"),
        ("<html><p>Größe".encode("utf-16"), "Größe"),
    ],
)
def test_character_sets(tmp_path, data, expected):
    assert text(tmp_path, data) == expected


def test_which_files_are_html(tmp_path):
    page = "<!-- c --><!DOCTYPE html><p>a"
    for name, html, format in [
        ("a.txt", page, "html"),
        ("a.md", page, "markdown"),
        ("a.txt", "<p>a", "text"),
        ("a", "<p>a", "html"),
        ("a.htm", "words", "html"),
    ]:
        assert read(tmp_path, html, name).sources[0].format == format, name
    assert read(tmp_path, page, type="text").pages[0].text == page
    with pytest.raises(InputError, match="PNG"):
        read(tmp_path, b"\x89PNG\r\n\x1a\n\0")


HOSTILE = [
    "<div>" * 40_000 + "deep",
    "<!--" * 100_000 + "x>",
    "<" * 300_000 + ">",
    "<a b='" * 50_000 + ">x",
    '<a b="' * 50_000,
    "<" * 200_000,
    "<title>" * 50_000 + "x",
    "<script>" * 50_000,
    "</script" * 50_000 + "x",
    "<textarea>" * 50_000 + "x",
    "&" * 200_000 + "x",
    "&#x" + "9" * 200_000 + ";x",
    "<a " + "b=c " * 100_000 + ">x",
    "<![CDATA[" * 50_000 + "x",
    "<nav>" * 50_000 + "x" + "</nav>" * 50_000 + "y",
    "<td>" * 100_000 + "x",
    "<h1>" * 50_000 + "x",
    "<h1>a</h1>" * 20_000 + "x",
    "<?" * 100_000 + ">x",
    "<ul><li>" * 30_000 + "x",
    "<p " + "a" * 300_000 + ">x",
]


@pytest.mark.parametrize("html", HOSTILE, ids=[html[:12] for html in HOSTILE])
def test_hostile_markup_is_read_in_linear_time(tmp_path, html):
    """E13: nesting and repetition on which parsers go quadratic, 0.2 to 0.6 MB each."""
    began = time.monotonic()
    try:
        read(tmp_path, html)
    except InputError:
        pass  # nothing but a script, or only white space
    assert time.monotonic() - began < 10


def test_noise_never_raises_anything_else(tmp_path, read_here):
    rng = random.Random(4)
    parts = [
        "<",
        ">",
        "</",
        "p",
        "nav",
        "<nav>",
        "</nav>",
        "<td>",
        "<!--",
        "-->",
        '"',
        "'",
        "=",
        "&",
        "&amp",
        "#",
        ";",
        " ",
        "\n",
        "a",
        "<h1>",
        "</h1>",
    ]
    for _ in range(300):
        html = "x" + "".join(rng.choices(parts, k=rng.randint(1, 60)))
        list(tokens(html))
        path = tmp_path / "a.html"
        path.write_text(html)
        try:
            read_here(path)
        except InputError:
            pass
