"""Sessions against the engine: what is reused gives the same logits bit for bit, and what is damaged is not reused."""

import os
import random
import time
from types import SimpleNamespace

import pytest
import torch

from hipcli import pipeline
from hipcli.console import Terminal
from hipcli.decoding import last_logits
from hipcli.engine import Engine
from hipcli.errors import UsageError
from hipcli.model import load_model
from hipcli.reuse import ending
from hipcli.sessions import Fingerprint, Library, SessionKeeper
from hipcli.sessions.folder import damage, total_bytes
from hipcli.sessions.manifest import MANIFEST
from hipcli.settings import AttentionSettings

CHUNK = 128
SUFFIX = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, dtype="float32")


def random_ids(count, seed=0):
    return [random.Random(seed * 1000 + at // 7).randrange(300) + at % 7 for at in range(count)]


@pytest.fixture
def reader(model, tmp_path):
    """Reads ids as a run of the command does, and tells what came of it."""

    def read(ids, *, document="a", computation="m", name=None, stop_after=None, library=None, chunk=CHUNK, dense=False, save=True):
        settings = AttentionSettings(mode="dense") if dense else AttentionSettings(dense_below=256)
        engine = Engine(model, settings, chunk_tokens=chunk)
        library = library or Library(tmp_path / "cache")
        texts = {"document": document.split("+"), "source types": [], "encoding": [], "file names": []}
        texts["readers"] = {"version": 1} | ({"pypdf": "7"} if "b" in document else {})
        said, session = [], None
        if save:
            about = {"model": "tiny", "sources": ["book"]}
            print_ = Fingerprint({"model": computation, "dense": dense}, texts)
            session = SessionKeeper(library, print_, ids, name=name, about=about, note=said.append, warn=said.append)
        with ending(session, Terminal(quiet=True)):
            if stop_after and session:
                stop_at(session, stop_after)
            try:
                pipeline._prefill(engine, ids, 64, session, Terminal(quiet=True))
            except InterruptedError:
                pass
            saved = session.saved_tokens if session else 0
            done = SimpleNamespace(saved_at_prefill_end=saved, said=said, engine=engine, library=library, key=session and session.key)
            done.reused, done.prefilled = session.reused if session else 0, engine.prefilled_tokens
            if not stop_after:
                done.logits = logits(engine)
        engine.close()
        return done

    return read


def stop_at(session, chunks):
    """End the prefill in the middle, once so many chunks were handed to the writer."""
    handed, stored = [], session.stored

    def counted(stop):
        stored(stop)
        handed.append(stop)
        if len(handed) == chunks:
            raise InterruptedError

    session.stored = counted


def logits(engine):
    held = engine.cached_len
    engine._read_suffix(SUFFIX)
    found = last_logits(engine.model, engine._hidden).clone()
    engine._cut(held)
    return found


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("count", [5 * CHUNK, 5 * CHUNK + 37], ids=str)
def test_a_restored_and_a_resumed_prefix_give_the_same_logits(reader, count, dense):
    ids = random_ids(count)
    plain = reader(ids, save=False, dense=dense)
    first = reader(ids, stop_after=3, dense=dense)
    resumed = reader(ids, dense=dense)
    assert (resumed.reused, resumed.prefilled) == (3 * CHUNK, count - 3 * CHUNK)
    restored = reader(ids, dense=dense)
    assert (restored.reused, restored.prefilled) == (count, 0)
    assert torch.equal(plain.logits, resumed.logits) and torch.equal(plain.logits, restored.logits)
    assert first.said == resumed.said == restored.said == []
    # the check can fail: one other token gives other logits
    assert not torch.equal(plain.logits, reader([*ids[:-1], 1], save=False, dense=dense).logits)


def test_a_text_that_goes_on_reuses_whole_chunks(reader):
    ids, more = random_ids(4 * CHUNK + 50), random_ids(200, seed=1)
    reader(ids)
    longer = reader(ids + more, document="a+b")
    assert longer.reused == 4 * CHUNK and longer.prefilled == 250
    assert torch.equal(longer.logits, reader(ids + more, save=False).logits)
    # of two sessions the one that has more in common wins, and shared chunks take space once
    other = reader(ids + more + ids, document="a+b+a")
    assert other.reused == (len(ids + more) // CHUNK) * CHUNK
    sessions = other.library.sessions()
    assert len(sessions) == 3 and total_bytes(sessions) < sum(session.size_bytes for session in sessions)
    assert all(damage(session) is None and session.manifest.complete for session in sessions)
    # removing one leaves the chunks that others share
    other.library.remove(other.library.get(longer.key))
    assert reader(ids + more + ids, document="a+b+a").prefilled == 0


def test_a_text_that_differs_early_reuses_what_is_before(reader):
    ids = random_ids(4 * CHUNK)
    reader(ids)
    changed = reader([*ids[: 2 * CHUNK + 5], 1, *ids[2 * CHUNK + 6 :]], document="b")
    assert changed.reused == 2 * CHUNK
    assert reader(ids[: CHUNK + 3], document="c").reused == CHUNK


def test_other_settings_are_other_sessions(reader):
    ids = random_ids(3 * CHUNK)
    first, second = reader(ids), reader(ids, computation="n")
    assert second.reused == 0 and first.key != second.key
    assert len(first.library.sessions()) == 2


def test_the_same_ids_from_another_document_share_everything(reader):
    ids = random_ids(3 * CHUNK + 9)
    reader(ids)
    twin = reader(ids, document="b")
    assert twin.prefilled == 0 and len(twin.library.sessions()) == 2
    assert total_bytes(twin.library.sessions()) < 1.1 * twin.library.sessions()[0].size_bytes


def flip(path, at):
    """Change one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    mode = path.stat().st_mode
    path.write_bytes(data)
    path.chmod(mode)


@pytest.mark.parametrize("place", ["tensor", "header", "length", "end"])
def test_a_flipped_byte_in_a_chunk_is_found_and_read_again(reader, place):
    ids = random_ids(5 * CHUNK)
    whole = reader(ids)
    folder = whole.library.root / whole.key
    path = sorted(folder.glob("*.safetensors"))[2]
    flip(path, {"tensor": path.stat().st_size // 2, "header": 30, "length": 0, "end": -1}[place])
    assert path.name in damage(whole.library.get(whole.key))
    again = reader(ids)
    assert (again.reused, again.prefilled) == (2 * CHUNK, 3 * CHUNK)
    assert len(again.said) == 1 and "damaged" in again.said[0] and path.name in again.said[0]
    assert torch.equal(again.logits, whole.logits)
    assert damage(whole.library.get(whole.key)) is None and reader(ids).prefilled == 0


@pytest.mark.parametrize("how", ["cut", "gone", "longer"])
def test_a_chunk_file_of_another_length_is_found(reader, how):
    ids = random_ids(3 * CHUNK)
    whole = reader(ids)
    path = sorted((whole.library.root / whole.key).glob("*.safetensors"))[1]
    data = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes(data[:-1] if how == "cut" else data + b"\0")
    assert damage(whole.library.get(whole.key))
    again = reader(ids)
    assert again.reused == CHUNK and "damaged" in again.said[0] and torch.equal(again.logits, whole.logits)


def test_any_flipped_byte_of_a_manifest_is_found(reader):
    ids = random_ids(2 * CHUNK)
    whole = reader(ids)
    path = whole.library.root / whole.key / MANIFEST
    data = path.read_bytes()
    for at in range(0, len(data), 13):
        flip(path, at)
        session = whole.library.get(whole.key)
        # white space between two items may change without a change of meaning
        assert session.fault or chr(data[at]).isspace(), data[max(0, at - 20) : at + 20]
        path.write_bytes(data)
    flip(path, data.index(b'"stop": 128') + 9)
    again = reader(ids)
    assert again.reused == 0 and "damaged" in again.said[0] and torch.equal(again.logits, whole.logits)
    assert reader(ids).prefilled == 0


def test_a_session_under_another_key_is_refused(reader):
    ids = random_ids(2 * CHUNK)
    whole = reader(ids)
    other = reader(ids, computation="n")
    root = whole.library.root
    whole.library.remove(other.library.get(other.key))
    os.rename(root / whole.key, root / other.key)
    assert "do not belong to its name" in whole.library.get(other.key).fault
    again = reader(ids, computation="n")
    assert again.reused == 0 and f"the session {other.key} is refused: model was m and is n" in again.said[0]


def test_a_name_stands_for_one_thing(reader):
    ids, more = random_ids(2 * CHUNK), random_ids(50, seed=2)
    first = reader(ids, name="book")
    assert first.library.find("book").key == first.key
    grown = reader(ids + more, document="a+b", name="book")
    assert grown.reused == 2 * CHUNK and grown.library.find("book").key == grown.key
    with pytest.raises(UsageError, match="'book' was made of something else: model was m and is n"):
        reader(ids + more, document="a+b", name="book", computation="n")
    with pytest.raises(UsageError, match="document was"):
        reader(ids, document="c", name="book")
    for bad in ("", "../x", "a/b", ".hidden", "0123456789abcdef", "x" * 65):
        with pytest.raises(UsageError, match="cannot be called"):
            reader(ids, name=bad)


def test_the_budget_evicts_what_was_used_least_recently(reader, tmp_path):
    ids = {name: random_ids(4 * CHUNK, seed=seed) for seed, name in enumerate("abcd", 1)}
    one = reader(ids["a"]).library.sessions()[0]
    library = Library(tmp_path / "cache", 3 * one.size_bytes + 1000)
    for at, name in enumerate("bc"):
        made = reader(ids[name], document=name, name="keep" if name == "b" else None, library=library)
        os.utime(library.root / made.key / MANIFEST, (at + 10.0, at + 10.0))
    # a was made first and used last; b, used least recently, has a name
    assert reader(ids["a"], library=library).prefilled == 0
    reader(ids["d"], document="d", library=library)
    assert total_bytes(library.sessions()) <= library.budget_bytes
    assert [reader(ids[name], document=name, library=library, computation="m").prefilled == 0 for name in "abd"] == [True] * 3
    assert reader(ids["c"], document="c", library=library).prefilled > 0


def test_a_session_beyond_the_budget_is_not_begun_and_costs_nothing_else(reader, tmp_path):
    ids = random_ids(4 * CHUNK)
    kept = reader(ids)
    small = reader(
        random_ids(40 * CHUNK, seed=5), document="b", library=Library(tmp_path / "cache", 2 * kept.library.sessions()[0].size_bytes)
    )
    assert len(small.said) == 1 and "the budget is" in small.said[0]
    assert reader(ids).prefilled == 0


def test_a_cache_that_cannot_be_written_costs_one_warning(reader, tmp_path):
    (tmp_path / "file").write_text("")
    ids = random_ids(2 * CHUNK)
    read = reader(ids, library=Library(tmp_path / "file" / "cache"))
    assert len(read.said) == 1 and "is not saved" in read.said[0]
    assert torch.equal(read.logits, reader(ids, save=False).logits)


def test_a_session_being_written_is_neither_removed_nor_evicted(reader):
    whole = reader(random_ids(2 * CHUNK))
    session = whole.library.get(whole.key)
    lock = whole.library.lock(whole.key)
    lock.acquire()
    try:
        assert whole.library.remove(session) is False and session.folder.exists()
    finally:
        lock.release()
    assert whole.library.remove(session) is True and not session.folder.exists()


def test_files_are_for_their_owner_alone(reader):
    root = reader(random_ids(2 * CHUNK), name="book").library.root
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_leftovers_of_a_killed_run_are_cleared(reader):
    ids = random_ids(4 * CHUNK)
    first = reader(ids, stop_after=2)
    folder = first.library.root / first.key
    for stray in ("00000256-00000384.safetensors.99.tmp", "00000256-00000384.safetensors"):
        (folder / stray).write_bytes(b"half")
    (first.library.root / "abc.gone").mkdir()
    assert reader(ids).reused == 2 * CHUNK
    assert not list(folder.glob("*.tmp")) and not (first.library.root / "abc.gone").exists()
    assert damage(first.library.get(first.key)) is None


def test_a_slow_disk_holds_nothing_up(reader, monkeypatch):
    """Each write waits for the disk a hundred times longer than a chunk takes: the prefill is over long before."""
    ids, fsync = random_ids(10 * CHUNK), os.fsync
    plain = reader(ids, save=False)
    monkeypatch.setattr(os, "fsync", lambda handle: (time.sleep(0.1), fsync(handle)))
    slow = reader(ids)
    assert slow.saved_at_prefill_end < len(ids) and torch.equal(slow.logits, plain.logits)
    held = slow.library.get(slow.key).manifest
    assert held.complete and len(held.chunks) == 10 and slow.said == []
