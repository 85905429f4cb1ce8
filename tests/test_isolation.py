"""Sources that hang, swallow memory or crash their reader end in one sentence, and the next source is read. The processes are the real ones."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from hipcli.errors import InputError
from hipcli.readers import read_document
from hipcli.readers.content import ReadOptions
from hipcli.readers.formats import choose_format
from hipcli.readers.isolation import IsolatedReader, SourceLimits
from hipcli.readers.source import RawSource, from_bytes, open_source
from hipcli.readers.worker_pipe import WorkerPipe


def text_of(reader: IsolatedReader, raw: RawSource, **options: object) -> str:
    return "\f".join(page.text for page in reader.read(raw, choose_format(raw), ReadOptions(**options)).pages)


def big_html(megabytes: int) -> bytes:
    return b"<!DOCTYPE html>" + b"<p>some words <b>of</b> text</p>\n" * (megabytes * 31_000)


def test_a_source_that_takes_too_long_is_stopped_and_the_next_is_read():
    with closing(IsolatedReader(SourceLimits(seconds=2.0, seconds_per_megabyte=0))) as reader:
        began = time.monotonic()
        with pytest.raises(InputError, match="a.html: it took longer than 2 s and was stopped"):
            text_of(reader, from_bytes("a.html", big_html(16)))
        assert time.monotonic() - began < 6
        assert text_of(reader, from_bytes("b.html", b"<p>fine")) == "fine"


@pytest.mark.parametrize("kind", ["html", "docx", "epub"])
def test_a_source_that_takes_too_much_memory_is_stopped(zips, kind):
    large = random.Random(1).randbytes(400_000).hex(" ") * 15
    make = {
        "html": lambda: f"<html>{large}".encode(),
        "docx": lambda: zips.docx(f"<w:p><w:r><w:t>{large}</w:t></w:r></w:p>"),
        "epub": lambda: zips.epub({"a.xhtml": large}),
    }
    with closing(IsolatedReader(SourceLimits(memory_bytes=130 << 20, memory_per_byte=0))) as reader:
        with pytest.raises(InputError, match=f"cannot read a.{kind}: reading it takes more than 0.1 GiB of memory"):
            text_of(reader, from_bytes(f"a.{kind}", make[kind]()))
        assert text_of(reader, from_bytes("b.txt", b"fine")) == "fine"


def test_a_reader_that_dies_costs_one_source():
    with closing(IsolatedReader()) as reader:
        box = b"From a Mon Nov 30 10:00:00 2026\nTo: b\n\nwords\n\n" * 20_000

        def kill(done: int, total: int | None) -> None:
            os.kill(reader._worker.pid, signal.SIGKILL)

        with pytest.raises(InputError, match=r"a.mbox: it crashed its reader \(signal 9\)"):
            text_of(reader, from_bytes("a.mbox", box), on_page=kill)
        assert text_of(reader, from_bytes("b.txt", b"fine")) == "fine"


def test_a_path_and_its_bytes_give_the_same(tmp_path: Path, zips):
    path = tmp_path / "a\n[b].epub"
    path.write_bytes(zips.epub({"a.xhtml": "<h1>One</h1>words"}))
    with closing(IsolatedReader()) as reader:
        by_path, by_bytes = (text_of(reader, raw) for raw in (open_source(str(path)), from_bytes("a.epub", path.read_bytes())))
    assert by_path == by_bytes and "One" in by_path


def test_faults_keep_their_class_and_hint(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"%PDF-1.7 words")
    with pytest.raises(InputError) as fault:
        read_document([str(path)], type="text")
    assert fault.value.hint == "Leave out --type."


def test_no_worker_outlives_its_document(tmp_path: Path):
    import psutil

    (tmp_path / "a.txt").write_text("words")
    read_document([str(tmp_path)])
    assert not psutil.Process().children()


def test_a_worker_whose_parent_died_ends():
    import psutil

    worker = WorkerPipe("source_worker")
    process = psutil.Process(worker.pid)
    worker._process.stdin.close()
    gone, _ = psutil.wait_procs([process], timeout=30)
    worker.close()
    assert gone
