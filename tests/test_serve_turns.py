"""Whose turn it is, what ends an answer, who may ask, and what an upload may be called: the parts of `hip serve` that need no server."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from hipcli.console import Terminal
from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import InputError, UsageError
from hipcli.serving.access import Access, is_loopback, open_access
from hipcli.serving.asking import Fields, common, talk
from hipcli.serving.documents import Documents, file_name, suffix_of
from hipcli.serving.extracting import document_of, document_record, extract, renamed
from hipcli.serving.fair_queue import FairQueue, Full
from hipcli.serving.jobs import Cancelled, Job, JobTerminal
from hipcli.serving.limits import Limits
from hipcli.serving.problems import Problem
from hipcli.serving.stopping import StopText


@dataclass(eq=False)
class Waiting:
    owner: str
    client: str = ""
    number: int = 0


def drained(queue: FairQueue, count: int) -> list[str]:
    return [f"{job.owner}{job.client}{job.number}" for job in (queue.take() for _ in range(count))]


def test_owners_take_turns_and_so_do_their_clients():
    queue = FairQueue(100)
    for number in range(3):
        queue.put(Waiting("a", "x", number))
    for job in (Waiting("b", "y", 0), Waiting("a", "z", 0), Waiting("b", "y", 1), Waiting("c", "w", 0)):
        queue.put(job)
    assert len(queue) == 7
    assert drained(queue, 7) == ["ax0", "by0", "cw0", "az0", "by1", "ax1", "ax2"]


def test_a_full_backlog_and_one_owners_share_of_it():
    alone = FairQueue(2)
    alone.put(Waiting("a")), alone.put(Waiting("a"))
    with pytest.raises(Full):
        alone.put(Waiting("a"))
    shared = FairQueue(4, owners=2)
    shared.put(Waiting("a")), shared.put(Waiting("a"))
    with pytest.raises(Full):
        shared.put(Waiting("a"))
    shared.put(Waiting("b")), shared.put(Waiting("b"))
    with pytest.raises(Full):
        shared.put(Waiting("c"))


def test_who_leaves_makes_room_and_what_comes_first_is_first():
    queue, gone = FairQueue(2), Waiting("a", "x", 1)
    queue.put(gone), queue.put(Waiting("a", "x", 2))
    assert queue.discard(gone) and not queue.discard(gone) and len(queue) == 1
    queue.put(Waiting("b", "y", 3))
    queue.put_first(Waiting("z", "z", 9))
    assert drained(queue, 3) == ["zz9", "ax2", "by3"]


def test_closing_wakes_who_waits_and_hands_the_rest_back():
    queue, taken = FairQueue(5), []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    time.sleep(0.05)
    assert queue.close() == []
    thread.join(5)
    assert taken == [None]
    with pytest.raises(Full):
        queue.put(Waiting("a"))
    other, job = FairQueue(5), Waiting("a")
    other.put(job)
    assert other.close() == [job] and other.take() is None


@pytest.mark.parametrize("pieces", [["one STOP two"], ["one ST", "OP two"], list("one STOP two"), ["one S", "TO", "P", " two"]])
def test_a_stop_is_found_across_pieces(pieces):
    stop = StopText(["STOP", "never"])
    assert "".join(map(stop.push, pieces)) + stop.finish() == "one " and stop.hit


def test_the_beginning_of_a_stop_that_does_not_come_is_text():
    stop = StopText(["STOP", "STALL"])
    assert stop.push("a ST") == "a " and stop.push("EP S") == "STEP " and stop.finish() == "S" and not stop.hit
    # the first one counts, whichever it is
    both = StopText(["later", "late"])
    assert both.push("be late") + both.push("r on") + both.finish() == "be "


def test_a_job_that_is_called_off_ends_at_its_next_phase():
    async def main() -> None:
        job = Job(lambda job: None, "a")
        terminal = JobTerminal(Terminal(quiet=True), "x")
        terminal.job = job
        with terminal.phase("prefill", 10, "tokens") as phase:
            phase.to(5)
            job.cancel()
            with pytest.raises(Cancelled):
                phase.to(6)
        with pytest.raises(Cancelled):
            terminal.check()
        said = [await job.event() for _ in range(3)]
        assert [event.value for event in said] == ["prefill 0 of 10 tokens", "prefill 5 of 10 tokens", "prefill 6 of 10 tokens"]
        assert (await job.event(0.01)).kind == "silence"

    asyncio.run(main())


def test_tokens():
    access = Access(["a" * 20, "b" * 20], ["localhost"])
    owners = {access.owner(f"Bearer {letter * 20}") for letter in "ab"}
    assert len(owners) == 2 == access.owners and not any("aa" in owner for owner in owners)
    for wrong in (None, "", "Bearer", "Bearer " + "a" * 19, "Basic " + "a" * 20, "a" * 20):
        with pytest.raises(Problem):
            access.owner(wrong)
    assert Access().owner(None) == Access().owner("Bearer anything")
    for bad in ("short", "with space in it all", "é" * 20):
        with pytest.raises(UsageError):
            Access([bad])
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost") and not is_loopback("0.0.0.0")


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("localhost:80", 1),
        ("127.0.0.1", 1),
        ("[::1]:8642", 1),
        ("LOCALHOST:1", 1),
        ("evil.example", 0),
        ("", 0),
        ("localhost.evil.example:80", 0),
    ],
)
def test_names_of_a_local_server(host, fine):
    access = open_access("127.0.0.1", (), None, None, print)
    if fine:
        access.check_origin({"host": host}, is_page=False)
    else:
        with pytest.raises(Problem):
            access.check_origin({"host": host}, is_page=False)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("book.pdf", "book.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\x\\y.txt", "y.txt"),
        ("..", "document"),
        ("", "document"),
        (None, "document"),
        ("a/", "document"),
        ("a\nb\x1b[2J.txt", "a\\nb\\x1b[2J.txt"),
    ],
)
def test_what_an_upload_is_called(name, shown):
    assert file_name(name) == shown
    assert suffix_of(file_name(name)) in ("", ".pdf", ".txt")


DOCUMENT = Document(
    (Source("a.txt", "text", 5, "ab", "utf-8", 1),),
    (Page(1, "Text \ud800.", "iv", 0, False, "T", (("white", "x"),)),),
    (PageFault(2, "why"),),
    ("w",),
    "1-2",
)


def test_documents_are_kept_whole_and_half_kept_ones_are_not_listed(tmp_path):
    documents = Documents(tmp_path / "u", 2)
    entry = documents.keep("ada", DOCUMENT, "a.txt", "digest", 5)
    documents.note_session(entry, "f" * 16)
    assert document_of(document_record(DOCUMENT)) == DOCUMENT
    broken = documents.keep("ada", DOCUMENT, "b.txt", "other", 5)
    (tmp_path / "u" / "ada" / broken.id / "meta.json").unlink()
    again = Documents(tmp_path / "u", 2)
    assert again.visible("ada") == [entry] and again.visible("bob") == [] and again.count == 1
    assert again.text(entry) == DOCUMENT and again.session_of(entry) == "f" * 16
    with pytest.raises(Problem):
        again.require("bob", entry.id)
    # a folder that was moved to another owner is not theirs
    (tmp_path / "u" / "bob").mkdir()
    (tmp_path / "u" / "ada" / entry.id).rename(tmp_path / "u" / "bob" / entry.id)
    assert Documents(tmp_path / "u", 2).visible("bob") == []


def test_reading_an_upload_takes_no_longer_than_it_may(tmp_path):
    path = tmp_path / "upload.txt"
    path.write_text("A page of a book.")
    assert asyncio.run(extract(path, "a.txt", 60, 5)).sources[0].name == "a.txt"
    with pytest.raises(InputError, match="took longer than 0.01 s"):
        asyncio.run(extract(path, "a.txt", 0.01, 5))
    path.write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(InputError) as broken:
        asyncio.run(extract(path, "a.zip", 60, 5))
    assert str(tmp_path) not in broken.value.message


@pytest.mark.parametrize(
    ("path", "name", "shown"), [("/tmp/x/upload.txt", "a.txt", "a.txt: odd"), (".", "here", "here/b.txt: odd"), ("b", "b", "b/c.txt: odd")]
)
def test_a_document_is_shown_by_its_name_and_not_by_its_path(path, name, shown):
    member = {"/tmp/x/upload.txt": "", ".": "/b.txt", "b": "/c.txt"}[path]
    source = Source(path + member, "text", 5, "ab")
    document = renamed(Document((source,), (Page(1, "b."),), warnings=(f"{path}{member}: odd",)), path, name)
    assert document.warnings == (shown,) and document.sources[0].name == shown.removesuffix(": odd")


def test_turns_of_a_talk():
    said = [
        {"role": role, "content": text} for role, text in (("system", "S"), ("user", "1"), ("user", "2"), ("assistant", "3"), ("user", "4"))
    ]
    assert talk(said, "messages") == {"system": "S", "earlier": (("1\n\n2", "3"),), "question": "4"}
    chosen = common(
        Fields({"max_tokens": 7, "temperature": 1, "top_p": 0, "hip": {"document": "d", "map": True}}), Limits(), ("max_tokens",)
    )
    assert (chosen["max_tokens"], chosen["document"], chosen["map"]) == (7, "d", True) and 0 < chosen["top_p"] < 0.001
