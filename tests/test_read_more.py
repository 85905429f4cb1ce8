"""Subtitles, JSON lines, mail, reStructuredText and LaTeX: their text, their titles and labels, and hostile files."""

from __future__ import annotations

import json
import time
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from hipcli.document import Document
from hipcli.errors import DoesNotFit, InputError
from hipcli.readers import content, mail, read_document, source
from hipcli.readers.sniff import is_html


def read(tmp_path: Path, data: str | bytes, name: str, **options: Any) -> Document:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_document([str(path)], **options)


def text(document: Document) -> str:
    return "".join(page.text for page in document.pages)


@pytest.mark.parametrize(
    "cues",
    [
        "1\n00:00:01,000 --> 00:00:02,000\nOne\n\n2\n00:01:00,5 --> 00:01:02,000\nTwo\n",
        "\n\n1\n0:0:1 --> 0:0:2\nOne\n\n2\n00:01:00 --> 00:01:02\nTwo\n",
        "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\nOne\r\n\r\n2\r\n00:01:00,000 --> 00:01:02,000\r\nTwo\r\n",
        "WEBVTT\n\nNOTE a note\nof two lines\n\nid\n00:01.000 --> 00:02.000 align:left\n<v.x>One</v>\n\n01:00.000 --> 01:02.000\n{\\an8}<i>Two</i>\n",
    ],
    ids=["E16 srt", "E16 odd times", "E16 mark", "vtt"],
)
def test_subtitles_keep_what_is_shown(tmp_path, cues):
    for name in ("a.srt", "a"):
        document = read(tmp_path, cues, name)
        assert text(document) == "One\nTwo\n" and document.pages[0].label == "0:00:01"


def test_pages_of_subtitles_name_a_time(tmp_path):
    cues = "".join(f"{n}\n00:{n:02}:07,000 --> 00:{n:02}:09,000\n{'word ' * 100}\n\n" for n in range(9))
    document = read(tmp_path, cues, "a.srt")
    assert [page.label for page in document.pages] == ["0:00:07", "0:03:07", "0:06:07"]
    assert document.pages[1].place == ", at 0:03:07"
    voices = read(tmp_path, "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>Hi</v> 1 < 2 &amp; 3\n", "a.vtt")
    assert text(voices) == "Ann: Hi 1 < 2 & 3\n"


def test_json_lines_are_readable_and_named_by_their_lines(tmp_path):
    records = [{"q": "Größe\u2028?", "n": 1, "list": [1, {"a": None}], "none": {}}, "words", 7]
    lines = "\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n\nnot {json\n"
    document = read(tmp_path, "\ufeff" + lines, "a.jsonl")
    assert text(document) == "q: Größe\n?\nn: 1\nlist:\n  - 1\n  -\n    a: null\nnone: {}\n\nwords\n\n7\n\nnot {json"
    assert document.pages[0].title == "lines 1–5" and "1 lines are not JSON" in document.warnings[0]
    many = read(tmp_path, "\n".join(json.dumps({"text": "x" * 1000}) for _ in range(5)), "a.ndjson")
    assert [page.title for page in many.pages] == ["lines 1–2", "lines 3–4", "line 5"]


def test_deep_json_is_kept(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    assert deep in text(read(tmp_path, f"{deep}\n{'[' * 500}1{']' * 500}", "a.jsonl")).replace("\n", "")


def message(subject: str, **parts: Any) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"], mail["Date"] = "Ann <a@x.org>", "b@x.org", subject, "Mon, 30 Nov 2026 10:00:00 +0000"
    if "plain" in parts:
        mail.set_content(parts["plain"])
    if "html" in parts:
        mail.add_alternative(parts["html"], subtype="html") if "plain" in parts else mail.set_content(parts["html"], subtype="html")
    for name in parts.get("files", ()):
        mail.add_attachment(b"\0\1", maintype="application", subtype="octet-stream", filename=name)
    return mail


def test_a_message(tmp_path):
    mail = message("Größe der Lampe", plain="The lamp – lit.\n", html="<p>The lamp, lit.</p>", files=["plan.pdf", "é.bin"])
    document = read(tmp_path, mail.as_bytes(), "a.txt")
    assert document.sources[0].format == "eml" and document.pages[0].title == "Größe der Lampe"
    page = document.pages[0].text
    assert page.startswith(
        "From: Ann <a@x.org>\nTo: b@x.org\nDate: Mon, 30 Nov 2026 10:00:00 +0000\nSubject: Größe der Lampe\n\nThe lamp – lit."
    )
    assert "lamp, lit" not in page and "[attached: plan.pdf]\n[attached: é.bin]" in page
    assert "2 attachments were not read" in document.warnings[0]
    assert "The lamp, lit." in text(read(tmp_path, message("x", html="<p>The lamp, <b>lit</b>.</p>").as_bytes(), "a.eml"))


def test_a_mailbox_is_a_page_for_each_message(tmp_path):
    first = message("one", plain="Dear Bob\nFrom here on\n>From quoted\n").as_bytes()
    box = b"".join(b"From a@x.org Mon Nov 30 10:00:00 2026\n" + mail + b"\n" for mail in (first, message("two", plain="x").as_bytes()))
    document = read(tmp_path, box, "inbox")
    assert document.sources[0].format == "mbox"
    assert [page.title for page in document.pages] == ["one", "two"]
    assert "From here on\nFrom quoted" in document.pages[0].text


def test_unknown_and_wrong_character_sets_of_mail(tmp_path):
    head = b"From: a@x\nTo: b@x\nSubject: =?no-such?q?caf=E9?=\nContent-Type: text/plain; charset=%s\nContent-Transfer-Encoding: 8bit\n\n%s"
    assert "café" in text(read(tmp_path, head % (b"no-such", "café".encode()), "a.eml"))
    assert "Größe" in text(read(tmp_path, head % (b"us-ascii", "Größe".encode()), "a.eml"))
    assert "Да" in text(read(tmp_path, head % (b"koi8-r", "Да".encode("koi8-r")), "a.eml"))


RST = """=====
Title
=====

Intro.

First
-----

Text::

    a = 1
    =====

Second `x`
~~~~~~~~~~

More.

Too deep
^^^^^^^^

End
"""


def test_restructured_text_has_titles_and_keeps_its_text(tmp_path):
    document = read(tmp_path, RST, "a.rst")
    assert [page.title for page in document.pages] == ["Title", "First", "Second `x`"]
    assert text(document) == RST


LATEX = r"""% a comment
\documentclass{article} % another
\begin{document}
Ten \% of it. A line % joined
  with its end.
% gone

\section[short]{The \emph{Lamp} {\bf and}~more}
Lit. \\% the end

\begin{verbatim}
a % b
\end{verbatim}
\subsection*{Keeper}
Ran it.
\end{document}
"""


def test_latex_has_titles_and_no_comments(tmp_path):
    document = read(tmp_path, LATEX, "a")
    assert document.sources[0].format == "latex"
    assert [page.title for page in document.pages] == [None, "The Lamp and more", "Keeper"]
    words = text(document)
    assert words.startswith("\\documentclass{article} \\begin{document}\nTen \\% of it. A line with its end.\n\n\\section")
    assert "Lit. \\\\\n\n" in words and "a % b" in words and "gone" not in words


RTF = rb"""{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\*\generator x;}\uc1
A caf\'e9, \u8211?dash \u-10179?\u-8704? {\b bold}\{x\}\par Next\line line\par
{\pict 0102}\trowd one\cell two\cell\row end{\pict\bin4 }}{}}done}"""


def test_rich_text(tmp_path):
    document = read(tmp_path, RTF, "a")
    assert document.sources[0].format == "rtf"
    assert text(document) == "A café, –dash 😀 bold{x}\n\nNext\nline\n\none | two\nenddone"
    with pytest.raises(InputError, match="plain text, not an RTF"):
        read(tmp_path, "words", "a.rtf")


HOSTILE = {
    "groups.rtf": "{\\rtf" * 60_000,
    "bin.rtf": "{\\rtf" + "\\bin999999999 " * 3 + "x",
    "escapes.rtf": "{\\rtf" + "\\" * 300_000 + "\\'e" * 10_000,
    "spaces.srt": "1\n" + " " * 300_000 + "00:00:01 --> x\n",
    "tags.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "<v " * 100_000,
    "arrows.srt": "00:00:01,0 --> 00:00:02,0\n" * 20_000 + "x",
    "title.md": "x\n# " + " " * 300_000 + "x",
    "rules.md": "x\n" + "=" * 300_000 + "y",
    "links.md": "# " + "[" * 300_000,
    "fences.md": "```\n" * 100_000 + "x",
    "rules.rst": "x\n" + "=-" * 150_000,
    "titles.rst": "ab\n==\n" * 50_000,
    "braces.tex": "\\section{" * 30_000 + "x",
    "percent.tex": "\\" * 300_000 + "%x\ny",
    "nested.eml": "From: a\nTo: b\nSubject: c\n" + "Content-Type: multipart/mixed; boundary=b\n\n--b\n" * 5_000,
    "parameters.eml": 'From: a\nTo: b\nSubject: c\nContent-Type: text/plain; a="' + ';"' * 200_000 + "\n\nx",
    "encoded.eml": "From: a\nTo: b\nSubject: " + "=?utf-8?q?a?= " * 50_000 + "\n\nx",
    "addresses.eml": "From: " + "(" * 300_000 + "\nTo: b\nSubject: c\n\nx",
    "quotes.mbox": "From a Mon Nov 30 10:00:00 2026\nTo: b\n\n" + ">" * 500_000 + "x",
    "many.mbox": "From a Mon Nov 30 10:00:00 2026\nTo: b\n\nx\n" * 5_000,
    "wide.jsonl": '{"a":' * 50_000,
    "digits.jsonl": "1" * 300_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_read_in_linear_time(tmp_path, name):
    began = time.monotonic()
    try:
        read(tmp_path, HOSTILE[name], name)
    except InputError as fault:
        assert fault.message.isprintable()
    assert time.monotonic() - began < 10


PAGES = {
    "a.txt": "x" + "\f" * 3_000,
    "a.md": "# a\nb\n" * 3_000,
    "a.rst": "abc\n---\nb\n" * 3_000,
    "a.tex": "\\section{a}b\n" * 3_000,
    "a.html": "<h1>a</h1>b" * 3_000,
    "a.mbox": "From a Mon Nov 30 10:00:00 2026\nTo: b\n" * 3_000,
}


@pytest.mark.parametrize("name", PAGES)
def test_files_that_fall_into_too_many_pages_are_refused(tmp_path, read_here, monkeypatch, name):
    """A few megabytes of headings would otherwise take gigabytes of pages."""
    monkeypatch.setattr(content, "MAX_PAGES", 2_000)
    path = tmp_path / name
    path.write_text(PAGES[name])
    with pytest.raises(InputError, match="falls into more than"):
        read_here(path)


def test_what_takes_more_memory_than_there_is_is_refused_before_it_is_read(tmp_path, read_here, monkeypatch):
    monkeypatch.setattr(source, "memory_limit", lambda: 2_000)
    monkeypatch.setattr(mail, "memory_limit", lambda: 2_000)
    for name, data in [("a.html", "<p>words" * 40), ("a.jsonl", '{"a": 1}\n' * 40)]:
        path = tmp_path / name
        path.write_text(data)
        with pytest.raises(DoesNotFit, match="times that to read"):
            read_here(path)
    path = tmp_path / "a.eml"
    path.write_text("From: a\nTo: b\nSubject: c\n\n" + "words\n" * 20)
    assert "too large for the memory" in read_here(path)[1][0].reason


def test_heads_are_judged_in_linear_time():
    began = time.monotonic()
    for head in (b"<!---->" * 580, b"\n" * 4096, b"<?xml?>" * 580, b"<!--" * 1000, b" " * 4096 + b"x"):
        assert not is_html(head, weakly=True)
    assert time.monotonic() - began < 1
