"""Text, Markdown, standard input, and what is neither: encodings, pages, refusals."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from hipcli.document import Document
from hipcli.errors import DoesNotFit, InputError, UsageError
from hipcli.readers import read_document
from hipcli.readers import source as source_module
from hipcli.readers.normalize import normalize
from hipcli.readers.content import PAGE_CHARS


def read(tmp_path: Path, data: bytes, name: str = "a.txt", **options: object) -> Document:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return read_document([str(path)], **options)


def text_of(document: Document) -> str:
    return "".join(page.text for page in document.pages)


@pytest.mark.parametrize(
    "text, codec, found, warns",
    [
        ("déjà vu line of text\n" * 100, "utf-8", "utf-8", False),
        ("▶hello", "utf-8", "utf-8", False),
        ("第一章 开始", "gbk", "gb18030", True),
        ("a – b", "cp1252", "cp1252", True),
        ("# Title", "utf-8-sig", "utf-8", False),
        ("Größe", "utf-16", "utf-16-le", False),
        ("plain words in two bytes", "utf-16-be", "utf-16-be", True),
        ("x" * 5000 + "é", "utf-8", "utf-8", False),
        ("\ufeffwide", "utf-32-le", "utf-32-le", False),
    ],
    ids=["E1 latin", "E1 arrow", "E1 gbk", "E4", "E5", "utf-16 mark", "utf-16 bare", "E3", "utf-32"],
)
def test_encodings(tmp_path: Path, text: str, codec: str, found: str, warns: bool) -> None:
    document = read(tmp_path, text.encode(codec))
    assert text_of(document) == text.removeprefix("\ufeff")
    assert document.sources[0].encoding == found
    assert bool(document.warnings) == warns


def test_few_bad_bytes_become_replacement_characters(tmp_path: Path) -> None:
    document = read(tmp_path, "é".encode() * 2000 + b"\x96" + b" end")
    assert text_of(document) == "é" * 2000 + "\ufffd end"
    assert "4000" in document.warnings[0]


def test_encoding_can_be_forced(tmp_path: Path) -> None:
    assert text_of(read(tmp_path, "Привет".encode("koi8-r"), encoding="koi8-r")) == "Привет"
    forced = read(tmp_path, b"caf\xe9", encoding="ascii")
    assert text_of(forced) == "caf\ufffd" and "first at 3" in forced.warnings[0]


@pytest.mark.parametrize("name", ["no-such", "rot13", "base64", "undefined", "", "\0"])
def test_unknown_encoding(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, b"abc", encoding=name)


@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_cutting_loses_nothing(tmp_path: Path, read_here, name: str) -> None:
    rng = random.Random(1)
    path = tmp_path / name
    for _ in range(60):
        pieces = rng.choices(
            ["word ", "# Head\n", "\n\n", "\n", "第一。", "x" * 50, "\r\n", "exam-\nple ", "\ufb01", "```\n", "===\n"],
            k=rng.randint(1, 3000),
        )
        raw = "word" + "".join(pieces)
        path.write_bytes(raw.encode())
        pages = [page.text for page in read_here(path)[0]]
        assert "".join(pages) == normalize(raw).text
        assert all(len(page) <= 1.5 * PAGE_CHARS for page in pages)
        assert name == "a.md" or all(len(page) >= 0.5 * PAGE_CHARS for page in pages[:-1])


MARKDOWN = """Before.

# The *Lamp*

## First [light](x.html) ##

Lit in 1874.

Keeper
------

Ran it.

```
# not a heading
```

- item
---
#### Too deep

End
===
Last.
"""


def test_markdown_pages_are_sections_with_titles(tmp_path: Path) -> None:
    document = read(tmp_path, MARKDOWN.encode(), "a.md")
    assert [page.title for page in document.pages] == [None, "First light", "Keeper", "End"]
    assert document.pages[1].text.startswith("# The *Lamp*\n\n## First") and "Too deep" in document.pages[2].text
    assert text_of(document) == MARKDOWN


def test_titles_are_one_harmless_line(tmp_path: Path) -> None:
    title = read(tmp_path, "# \x1b[31mRed\x07 \u202eevil\t words\n\nx".encode(), "a.md").pages[0].title
    assert title == "[31mRed evil words"
    long = read(tmp_path, ("# " + "word " * 1000 + "\n\nx").encode(), "a.md").pages[0].title
    assert len(long) <= 100 and long.endswith("word…")


def test_a_long_section_keeps_its_title_on_every_page(tmp_path: Path) -> None:
    document = read(tmp_path, b"# Long\n\n" + b"Some sentence of text. \n" * 400, "a.md")
    assert [page.title for page in document.pages] == ["Long"] * len(document.pages) and len(document.pages) == 3


def test_unbroken_text_is_cut_too(tmp_path: Path) -> None:
    pages = read(tmp_path, b"x" * 20_000).pages
    assert [len(page.text) for page in pages[:-1]] == [PAGE_CHARS] * (len(pages) - 1)


def test_form_feeds_are_pages(tmp_path: Path) -> None:
    document = read(tmp_path, b"one\fsecond\n\f\ffour\f")
    assert [page.text for page in document.pages] == ["one", "second\n", "", "four"]
    assert [page.number for page in document.pages] == [1, 2, 3, 4]
    assert all(page.label is None for page in document.pages)


def test_source_record(tmp_path: Path) -> None:
    document = read(tmp_path, b"# T\n", "notes.MD")
    source = document.sources[0]
    assert (source.format, source.size_bytes, source.sha256) == ("markdown", 4, hashlib.sha256(b"# T\n").hexdigest())


def test_sources_keep_their_order(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / name).write_text(f"text {name}")
    document = read_document([str(tmp_path / "b"), "-", str(tmp_path / "a")], stdin=io.BytesIO(b"piped"))
    assert [(page.source, page.number, page.text) for page in document.pages] == [(0, 1, "text b"), (1, 1, "piped"), (2, 1, "text a")]
    assert document.sources[1].name == "standard input"


def test_odd_names(tmp_path: Path) -> None:
    for name in ["-x.txt", "[/bold].txt", "a\nb\x1b[31m.txt", "\udcff.txt", "ž \u202e.txt"]:
        document = read(tmp_path, b"words", name)
        assert text_of(document) == "words"
        assert document.sources[0].name.isprintable()
    with pytest.raises(InputError) as fault:
        read_document([str(tmp_path / "gone\x1b]0;\x07")])
    assert fault.value.message.isprintable() and "\\x1b" in fault.value.message


def zipped(*members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member in members:
            archive.writestr(member, "application/epub+zip" if member == "mimetype" else "x")
    return out.getvalue()


@pytest.mark.parametrize(
    "data, word",
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PNG"),
        (zipped("[Content_Types].xml", "xl/workbook.xml"), "Excel"),
        (zipped("[Content_Types].xml", "word/document.xml"), "Word"),
        (zipped("mimetype"), "EPUB"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "Word"),
        (random.Random(2).randbytes(3000), "binary"),
        (b"", "empty"),
        (b" \n\t\n", "white space"),
    ],
    ids=["png", "xlsx", "docx", "epub", "doc", "random", "empty", "blank"],
)
def test_refusals_name_the_reason(tmp_path: Path, data: bytes, word: str) -> None:
    with pytest.raises(InputError, match=word):
        read(tmp_path, data, "notes.txt")


def test_text_that_looks_like_magic_is_text(tmp_path: Path) -> None:
    assert text_of(read(tmp_path, b"MZ is a pair of letters")).startswith("MZ")


def test_a_stray_nul_is_dropped_with_a_warning(tmp_path: Path) -> None:
    document = read(tmp_path, b"some words\0" + b" and more" * 300)
    assert "\0" not in text_of(document) and "NUL" in document.warnings[0]


def test_missing_folder_and_impossible_paths(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = [
        (tmp_path / "no.txt", "no such file"),
        (tmp_path / "empty", "no file in it"),
        ("a\0b", "cannot read"),
        ("x" * 5000, "too long"),
    ]
    for spec, words in cases:
        with pytest.raises(InputError, match=words):
            read_document([str(spec)])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        read_document([str(path)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_bytes(b"through a pipe"), daemon=True).start()
    assert text_of(read_document([str(path)])) == "through a pipe"


def run_with_stdin(code: str, stdin: object, **options: object) -> str:
    prelude = "from hipcli.readers import read_document\nfrom hipcli.errors import HipError\n"
    done = subprocess.run([sys.executable, "-c", prelude + code], stdin=stdin, capture_output=True, text=True, **options)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="needs /dev/stdin")
@pytest.mark.parametrize("spec", ["-", "/dev/stdin"])
def test_standard_input_of_a_process(tmp_path: Path, spec: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a \x96 b")
    code = f"print(ascii(read_document(['{spec}']).pages[0].text))"
    with open(path, "rb") as file:
        assert run_with_stdin(code, file, env={**os.environ, "LC_ALL": "C"}) == "'a \\u2013 b'\n"


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="closed"):
        read_document(["-"])


def test_usage(tmp_path: Path) -> None:
    for sources, options in [([], {}), (["-", "-"], {}), (["a"], {"type": "nope"})]:
        with pytest.raises(UsageError):
            read_document(sources, **options)
    path = tmp_path / "a.txt"
    path.write_text("x")
    assert "2 times" in read_document([str(path)] * 2).warnings[0]


def test_text_over_the_memory_is_refused(tmp_path: Path, read_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "memory_limit", lambda: 1_000_000)
    path = tmp_path / "big.txt"
    path.write_bytes(b"x" * 1_000_001)
    with pytest.raises(DoesNotFit, match="GB"):
        read_here(path)
    with pytest.raises(DoesNotFit, match="GB"):
        read_document(["-"], stdin=io.BytesIO(path.read_bytes()))


def test_progress_is_reported(tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    read(tmp_path, b"x\n" * 5000, on_page=lambda done, total: calls.append((done, total)))
    assert calls and calls[-1][0] == calls[-1][1]
