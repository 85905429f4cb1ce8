"""What a user may name and narrow down: page ranges, password files, addresses. The server is a real one on this machine."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hipcli.ask import split_arguments
from hipcli.errors import DoesNotFit, InputError, UsageError
from hipcli.page_selection import PageSelection
from hipcli.readers import read_document, url

HIP = Path(sys.executable).with_name("hip")


def hip(tmp_path: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIP_")}
    env = kept | {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | extra
    return subprocess.run([HIP, *arguments], capture_output=True, cwd=tmp_path, env=env, timeout=120, text=True)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("3", [3], [2, 4]), ("1-3,7", [1, 2, 3, 7], [4, 8]), (" 5 - 6 , 2", [2, 5, 6], [1, 3]), ("4-", [4, 900], [3])],
)
def test_selections(text, inside, outside):
    selection = PageSelection.parse(text)
    assert all(number in selection for number in inside) and not any(number in selection for number in outside)
    assert selection.indices(100) == (None if text == "4-" else [number - 1 for number in inside])


@pytest.mark.parametrize("text", ["", "0", "x", "3-1", "1,,2", "-3", "1-2-3", "1;2", "iv", "1" * 20])
def test_selections_that_make_no_sense(text):
    with pytest.raises(UsageError, match="--pages"):
        PageSelection.parse(text)


def test_chosen_pages_keep_their_numbers_and_labels(tmp_path, pdf):
    pages = [pdf.stream(pdf.lines(b"page %d" % n)) for n in range(1, 7)]
    (tmp_path / "a.pdf").write_bytes(pdf.build(pages, root=b"/PageLabels << /Nums [0 << /S /r >>] >>"))
    (tmp_path / "b.txt").write_text("\f".join(f"text {n}" for n in range(1, 6)))
    calls: list[Any] = []
    sources = [str(tmp_path / name) for name in ("a.pdf", "b.txt")]
    document = read_document(sources, pages=PageSelection.parse("2,4-5"), on_page=lambda *call: calls.append(call))
    assert [(page.source, page.number, page.text.strip()) for page in document.pages] == [
        *((0, n, f"page {n}") for n in (2, 4, 5)),
        *((1, n, f"text {n}") for n in (2, 4, 5)),
    ]
    assert [page.label for page in document.pages[:3]] == ["ii", "iv", "v"]
    assert calls[:3] == [(1, 3), (2, 3), (3, 3)], "only the wanted pages of a PDF are read"
    assert [source.total_pages for source in document.sources] == [6, 5] and document.pages_chosen == "2,4-5"
    with pytest.raises(UsageError, match="b.txt, which has 5 pages"):
        read_document(sources, pages=PageSelection.parse("6"))
    assert [page.number for page in read_document(sources[:1], pages=PageSelection.parse("5-")).pages] == [5, 6]


def test_pages_on_the_command_line(tmp_path, pdf):
    (tmp_path / "a.pdf").write_bytes(pdf.book("one", "two", "three"))
    for command in ("inspect", "extract"):
        record = json.loads(hip(tmp_path, command, "a.pdf", "--pages", "2-3", "--json").stdout)["document"]
        assert (record["pages"], record["pages_chosen"], record["sources"][0]["pages"]) == (2, "2-3", 3)
    assert hip(tmp_path, "extract", "a.pdf", "--pages", "3").stdout == "--- a.pdf, page 3 ---\nthree\n\n"
    assert "2 of 3, by --pages 1,3" in hip(tmp_path, "inspect", "a.pdf", "--pages", "1,3").stdout
    for pages, says in [("4", "which has 3 pages"), ("x", "such as 10-40,55")]:
        for command in (["extract", "a.pdf"], ["ask", "a.pdf", "Who?"], ["summarize", "a.pdf"]):
            done = hip(tmp_path, *command, "--pages", pages)
            assert (done.returncode, done.stdout) == (2, "") and says in done.stderr


def test_password_files(tmp_path, pdf):
    import pypdf

    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf.book("secret")))
    writer.encrypt(" pässwort", "owner", algorithm="AES-256")
    writer.write(tmp_path / "a.pdf")
    (tmp_path / "right").write_text(" pässwort\r\nmore\n", "utf-8")
    (tmp_path / "wrong").write_text("guess")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xff")
    assert "secret" in hip(tmp_path, "extract", "a.pdf", "--password-file", "right").stdout
    for arguments, code, says in [
        ([], 3, "--password-file FILE"),
        (["--password-file", "wrong"], 3, "the password is wrong"),
        (["--password-file", "empty"], 2, "is empty"),
        (["--password-file", "bytes"], 2, "not UTF-8"),
        (["--password-file", "none"], 2, "no such file"),
    ]:
        done = hip(tmp_path, "extract", "a.pdf", *arguments)
        assert done.returncode == code and says in done.stderr and "guess" not in done.stderr and "Traceback" not in done.stderr


class _Pages(BaseHTTPRequestHandler):
    """Answers from a table: path → (status, headers, body)."""

    table: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def do_GET(self) -> None:
        status, headers, body = self.table.get(self.path, (404, {}, b"not here"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.path == "/endless":
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                return
        if self.path == "/slow":
            try:
                for _ in range(50):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
            except OSError:
                return
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    """Address of a server, and its table."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    _Pages.table = {}
    yield f"http://127.0.0.1:{httpd.server_port}", _Pages.table
    httpd.shutdown()
    httpd.server_close()


def test_addresses_are_sources(server, pdf, zips):
    root, table = server
    table |= {
        "/page?q=1": (200, {"Content-Type": "text/html; charset=koi8-r"}, "<p>Привет".encode("koi8-r")),
        "/a.pdf": (200, {"Content-Type": "application/octet-stream"}, pdf.book("page")),
        "/old": (302, {"Location": "/dir/notes.md"}, b""),
        "/dir/notes.md": (200, {"Content-Type": "text/plain"}, b"# Title\n\nwords"),
        "/book": (200, {"Content-Type": "application/epub+zip"}, zips.epub({"a.xhtml": "<p>x</p>"})),
        "/packed.txt": (200, {"Content-Encoding": "gzip"}, gzip.compress(b"plain words")),
        "/src.zip": (200, {}, zips.zip({"a.txt": "inside"})),
    }
    paths = ["/page?q=1", "/a.pdf", "/old", "/book", "/packed.txt", "/src.zip"]
    document = read_document([root.replace("//", "//user:pass@") + path for path in paths])
    assert [source.format for source in document.sources] == ["html", "pdf", "markdown", "epub", "text", "text"]
    assert [page.text.strip() for page in document.pages] == ["Привет", "page", "# Title\n\nwords", "x", "plain words", "inside"]
    names = [source.name for source in document.sources]
    assert names == [f"{root}{path}" for path in ("/page", "/a.pdf", "/old", "/book", "/packed.txt", "/src.zip/a.txt")]


def test_addresses_that_cannot_be_used(server, monkeypatch):
    root, table = server
    table |= {
        "/loop": (302, {"Location": "/loop"}, b""),
        "/away": (302, {"Location": "file:///etc/passwd"}, b""),
        "/login.pdf": (200, {"Content-Type": "text/html"}, b"<!DOCTYPE html>login"),
        "/named": (200, {"Content-Type": "application/pdf"}, b"<!DOCTYPE html>login"),
        "/none": (200, {}, b""),
        "/gone?key=SECRET": (410, {}, b""),
        "/endless": (200, {}, b""),
        "/slow": (200, {}, b""),
    }
    for path, says in [
        ("/loop", "redirects more than 5 times"),
        ("/away", "cannot fetch"),
        ("/named", "HTML, not a PDF"),
        ("/login.pdf", "HTML, not a PDF"),
        ("/none", "empty"),
        ("/gone?key=SECRET", "/gone: the server says 410"),
        ("/missing", "404"),
    ]:
        with pytest.raises(InputError, match=says) as fault:
            read_document([root + path])
        assert "SECRET" not in fault.value.message and fault.value.message.isprintable()
    for address in ("http://127.0.0.1:1/x", "http://", "http://[::bad", "https://exa mple/", "http://x\x1b[31m/"):
        with pytest.raises(InputError, match="cannot fetch"):
            read_document([address])
    monkeypatch.setattr(url, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(url, "MAX_SECONDS", 0.5)
    with pytest.raises(DoesNotFit, match="larger than 1 MiB"):
        read_document([root + "/endless"])
    with pytest.raises(InputError, match="longer than 0.5 s"):
        read_document([root + "/slow"])


def test_offline_forbids_addresses(server, tmp_path):
    root, table = server
    table["/a.txt"] = (200, {"Content-Type": "text/plain"}, b"some words")
    assert hip(tmp_path, "extract", f"{root}/a.txt", HIP_OFFLINE="0").stdout.endswith("a.txt, page 1 ---\nsome words\n\n")
    for arguments, environment in [(["--offline"], "0"), ([], "1")]:
        done = hip(tmp_path, "extract", f"{root}/a.txt", *arguments, HIP_OFFLINE=environment)
        assert done.returncode == 3 and "offline" in done.stderr


def test_folders_and_addresses_are_told_from_questions(tmp_path):
    for last in (str(tmp_path), "https://example.org/a.pdf", "-"):
        with pytest.raises(UsageError, match="is a document"):
            split_arguments(["a.txt", last], [], None, None)
    assert split_arguments([str(tmp_path), "Who?"], [], None, None) == ([str(tmp_path)], "Who?")
