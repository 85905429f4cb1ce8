"""Folders, source trees and ZIP archives: which files are read, in which order, and what is said of the others."""

from __future__ import annotations

import os
import random
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hipcli.document import Document
from hipcli.errors import InputError
from hipcli.readers import collection, container, read_document
from hipcli.readers.ignore import IgnoreRules, parse

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def plant(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def names(document: Document, root: Path) -> list[str]:
    return [source.name.removeprefix(f"{root}/") for source in document.sources]


def test_a_source_tree(tmp_path, pdf, zips):
    """E8: binary files, nested .gitignore files, random bytes with a name that promises text."""
    tree = {
        "z.py": "print(1)\n", "README.md": "# Hello\n", "lib/a.c": "int a;\n", "lib/deep/b.html": "<p>b</p>", "lib/book.pdf": pdf.book("page"),
        "lib/book.epub": zips.epub({"a.xhtml": "<p>x</p>"}), "img/a.png": PNG, "img/b.png": PNG, "m.pyc": b"\0\1\2", "empty.txt": "",
        "notes.txt": random.Random(1).randbytes(5000), ".env": "SECRET=1", ".git/config": "[core]", "late.txt": "x" * 9000 + "\0" * 500,
        ".gitignore": "*.log\nbuild/\n!keep.log\n", "a.log": "log", "keep.log": "kept", "build/out.txt": "no", "lib/.gitignore": "/only\nkeep.log\n",
        "lib/only": "no", "lib/deep/only": "yes", "lib/keep.log": "no", "old.zip": zips.zip({"a.txt": "x"}), "blank.txt": " \n", "utf16.txt": "Größe".encode("utf-16-le"),
    }  # fmt: skip
    root = plant(tmp_path / "tree", tree)
    document = read_document([str(root)])
    read = ["README.md", "keep.log", "utf16.txt", "z.py", "lib/a.c", "lib/book.epub", "lib/book.pdf", "lib/deep/b.html", "lib/deep/only"]
    assert names(document, root) == read
    assert document.failed == ()
    said = next(warning for warning in document.warnings if "skipped" in warning)
    for words in ("4 ignored by .gitignore", "3 hidden", "1 empty", "1 without text", "2 PNG image", "1 ZIP archive", "3 unknown kind"):
        assert words in said, said
    again = read_document([f"{root}/"])
    assert (again.pages, again.sources) == (document.pages, document.sources)


def test_a_damaged_file_in_a_folder_is_a_failed_page(tmp_path, pdf):
    root = plant(
        tmp_path / "tree", {"a.txt": "words", "b.pdf": pdf.book("one")[:300], "c.pdf": "words, no PDF", "d.docx": b"PK\3\4" + b"x" * 500}
    )
    document = read_document([str(root)])
    assert [page.text for page in document.pages] == ["words"]
    assert [document.sources[fault.source].name for fault in document.failed] == [f"{root}/{name}" for name in ("b.pdf", "c.pdf", "d.docx")]
    assert "plain text, not a PDF" in document.failed[1].reason


def test_links_and_pipes_are_not_followed(tmp_path):
    """E9: two loops are endless when followed."""
    root = plant(tmp_path / "tree", {"a/x.txt": "x", "b/y.txt": "y"})
    plant(tmp_path, {"secret.txt": "SECRET"})
    (root / "a/up").symlink_to("..")
    (root / "b/up").symlink_to("..")
    (root / "s.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(root / "pipe")
    document = read_document([str(root)])
    assert names(document, root) == ["a/x.txt", "b/y.txt"]
    assert "3 links" in document.warnings[0] and "1 pipes and devices" in document.warnings[0]


def test_folders_without_text_and_with_too_much_are_refused(tmp_path, monkeypatch):
    root = plant(tmp_path / "tree", {"a.png": PNG})
    with pytest.raises(InputError, match="no file in it can be read .*1 PNG image"):
        read_document([str(root)])
    plant(root, {f"{n}.txt": "x" for n in range(4)})
    monkeypatch.setattr(collection, "MAX_FILES", 3)
    with pytest.raises(InputError, match="more than 3 readable files"):
        read_document([str(root)])


def test_the_rules_of_a_repository_hold_in_its_folders(tmp_path):
    root = plant(
        tmp_path / "repo",
        {".git/HEAD": "x", ".gitignore": "*.tmp\n/sub/gone.txt\n", "sub/a.txt": "a", "sub/b.tmp": "b", "sub/gone.txt": "c"},
    )
    assert names(read_document([str(root / "sub")]), root) == ["sub/a.txt"]


def test_no_program_named_by_a_repository_is_run(tmp_path):
    root = plant(tmp_path / "repo", {"a.txt": "a"})
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    hook = plant(tmp_path, {"hook": f"#!/bin/sh\ntouch {tmp_path}/ran\n"}) / "hook"
    hook.chmod(0o755)
    subprocess.run(["git", "-C", str(root), "config", "core.fsmonitor", str(hook)], check=True)
    read_document([str(root)])
    assert not (tmp_path / "ran").exists()


PATTERNS = [
    "*.log", "!a.log", "/top", "dir/", "a/b", "**/x", "x/**", "a/**/b", "\\!bang", "\\#hash", "a?c", "[abc]", "[!a]x", "[a-c]*", "*", "!*/",
    "b*", "!b", "sp\\ ", "trail   ", "*a*b*", "**", "a**b", "/**/c", "x", "c/", "!c/x", "a/*", "!a/b", "[]a]", "[a", "x/y/", "*.[ch]", "#no", "",
]  # fmt: skip
PARTS = [
    "a",
    "b",
    "c",
    "x",
    "y",
    "top",
    "dir",
    "a.log",
    "b.log",
    "abc",
    "ax",
    "!bang",
    "#hash",
    "sp ",
    "trail",
    "aXb",
    "m.c",
    "m.h",
    "[a",
    "]",
]


def test_ignore_rules_are_those_of_git(tmp_path):
    rng = random.Random(6)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for _ in range(60):
        lines = rng.choices(PATTERNS, k=rng.randint(1, 6))
        (tmp_path / ".gitignore").write_text("\n".join(lines))
        paths = {"/".join(rng.choices(PARTS, k=rng.randint(1, 3))) for _ in range(30)}
        asked = "\0".join(paths).encode()
        done = subprocess.run(["git", "check-ignore", "--no-index", "-z", "--stdin"], cwd=tmp_path, input=asked, capture_output=True)
        rules = IgnoreRules(rules=parse("\n".join(lines)))
        ours = {path for path in paths if is_ignored(rules, path.split("/"))}
        assert ours == set(done.stdout.decode().split("\0")) - {""}, lines


def is_ignored(rules: IgnoreRules, parts: list[str]) -> bool:
    """A walk stops at a folder that is ignored."""
    return any(rules.ignores(parts[:count], count < len(parts)) for count in range(1, len(parts) + 1))


def test_hostile_patterns_take_no_time():
    rules = IgnoreRules(rules=parse("*a" * 100 + "b\n" + "**/a/" * 100 + "b\n" + "[" * 1000 + "\n"))
    assert not rules.ignores(["a" * 250] * 50, False)


def read_zip(tmp_path: Path, data: bytes, name: str = "a.zip", **options: Any) -> Document:
    (tmp_path / name).write_bytes(data)
    return read_document([str(tmp_path / name)], **options)


def test_an_archive_is_read_as_a_folder(tmp_path, pdf, zips):
    members = {
        "b/z.txt": "last", "a.md": "# One\n", "b/book.pdf": pdf.book("page"), "b/c.docx": zips.docx("<w:p><w:r><w:t>doc</w:t></w:r></w:p>"), "i.png": PNG,
        ".hidden": "x", "__MACOSX/x": "x", "e": "", "in.zip": zips.zip({"x": "x"}), "../up.txt": "x", "/etc/passwd": "x", "C:/x.txt": "x", "bad.epub": b"PK\3\4x",
    }  # fmt: skip
    document = read_zip(tmp_path, zips.zip(members))
    assert names(document, tmp_path / "a.zip") == ["a.md", "bad.epub", "b/book.pdf", "b/c.docx", "b/z.txt"]
    assert [fault.source for fault in document.failed] == [1]
    said = document.warnings[0]
    for words in ("2 hidden", "1 empty", "3 with names that lead out", "1 PNG image", "1 ZIP archive"):
        assert words in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip"]
    with open(tmp_path / "a.zip", "rb") as file:
        assert [page.text for page in read_document(["-"], stdin=file).pages] == [page.text for page in document.pages]


def test_links_repeated_names_and_locked_members(tmp_path, zips):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("same.txt", "one")
        archive.writestr("same.txt", "two")
    document = read_document([str(path)])
    assert [page.text for page in document.pages] == ["one", "two"] and "1 links" in document.warnings[0]
    locked = bytearray(zips.zip({"a.txt": "words", "b.txt": "more"}, packed=False))
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        locked[locked.index(signature) + offset] |= 1
    document = read_zip(tmp_path, bytes(locked))
    assert [page.text for page in document.pages] == ["more"] and "encrypted" in document.failed[0].reason


def test_archives_that_explode_are_refused(tmp_path, zips, read_here, monkeypatch):
    with pytest.raises(InputError, match="zip bomb"):
        read_zip(tmp_path, zips.zip({"a.txt": b"A" * (300 << 20)}))
    monkeypatch.setattr(container, "MAX_INFLATED_BYTES", 1 << 20)
    with pytest.raises(InputError, match="unpacks to more than 1 MiB"):
        read_zip(tmp_path, zips.zip({f"{n}.txt": random.Random(n).randbytes(200_000).hex() for n in range(4)}))
    monkeypatch.setattr(container, "MAX_ENTRIES", 3)
    (tmp_path / "many.zip").write_bytes(zips.zip({f"{n}.txt": "x" for n in range(4)}))
    with pytest.raises(InputError, match="more than 3 files"):
        read_here(tmp_path / "many.zip")


def test_archives_with_nothing_and_damage(tmp_path, zips):
    with pytest.raises(InputError, match="no file in it can be read"):
        read_zip(tmp_path, zips.zip({"a.png": PNG}))
    with pytest.raises(InputError, match="damaged or cut off"):
        read_zip(tmp_path, zips.zip({"a.txt": "words" * 1000})[:60])
    with pytest.raises(InputError, match="ZIP|empty"):
        read_zip(tmp_path, zips.zip({}))
    broken = bytearray(zips.zip({"a.txt": random.Random(7).randbytes(500).hex(), "b.txt": "fine"}))
    broken[300:310] = b"\xff" * 10
    document = read_zip(tmp_path, bytes(broken))
    assert [page.text for page in document.pages] == ["fine"] and "damaged" in document.failed[0].reason
