"""docs/troubleshooting.md against the program: every message that the page explains is one that it gives, with that exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HIP = Path(sys.executable).with_name("hip")
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
PROVOKED = {
    "no such file": ["extract", "missing.pdf"],
    "is empty": ["extract", "empty.pdf"],
    "this is HTML, not a PDF": ["extract", "login.pdf"],
    "needs a password": ["extract", "locked.pdf"],
    "the password is wrong": ["extract", "locked.pdf", "--password-file", "wrong.txt"],
    "there is no text on any of its": ["extract", "blank.pdf"],
    "no file in it can be read": ["extract", "folder"],
    "its loader": ["extract", "a.odt"],
    "hip is offline": ["ask", "book.txt", "Who?"],
    "the question is missing": ["ask", "book.txt"],
    "the last argument, … is a document": ["ask", "book.txt", "book.txt"],
    "No such option": ["ask", "--nope"],
    "there is no setting": ["config", "set", "modle", "x"],
    "this is not TOML": ["config", "show"],
    "cannot write": ["config", "set", "kv", "gpu"],
}
# told by other tests; here only that the words are in the program
ELSEWHERE = (
    "and was stopped",
    "reading it takes more than",
    "standard input is closed",
    "GiB are free",
    "not enough memory",
    "is not supported",
    "is set too and wins over the file",
    "no Ray cluster answers",
    "another run is adding rows",
)


def explained() -> dict[str, int]:
    """Messages of the page, with the exit codes of their sections."""
    found = {}
    for part in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        if code := re.search(r"\(exit code (\d)\)", part.splitlines()[0]):
            found |= {message: int(code[1]) for message in re.findall(r"^\| `([^`]+)` \|", part, re.M)}
    return found


def test_every_message_of_the_page_is_provoked_or_in_the_program():
    assert set(explained()) == {*PROVOKED, *ELSEWHERE}
    program = "".join(path.read_text() for path in (ROOT / "hipcli").rglob("*.py"))
    assert all(words in program for words in ELSEWHERE)


@pytest.mark.parametrize("message", PROVOKED)
def test_messages_are_given_with_their_codes(message, tmp_path):
    from pypdf import PdfWriter

    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.write(tmp_path / "blank.pdf")
    writer.encrypt("pässword", algorithm="AES-256")
    writer.write(tmp_path / "locked.pdf")
    for name, text in {
        "empty.pdf": "",
        "login.pdf": "<!DOCTYPE html>login",
        "blank.txt": " \n",
        "wrong.txt": "x\n",
        "book.txt": "A book.",
        "a.odt": "x",
        "loader.toml": 'loaders.odt = "nowhere {path}"',
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    config = {"this is not TOML": "broken.toml", "cannot write": "/proc/none/x.toml", "its loader": "loader.toml"}.get(message, "none.toml")
    (tmp_path / "broken.toml").write_text("model = \n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    env |= {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_OFFLINE": "1", "HIP_CONFIG": config, "HIP_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([HIP, *PROVOKED[message]], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
    assert re.search(re.escape(message).replace("…", ".*"), done.stderr), done.stderr
    assert (done.returncode, done.stdout) == (explained()[message], "")
