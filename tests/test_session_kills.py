"""kill -9 at random moments of reading and of writing: the next run goes on, loses at most one chunk, and gives the same logits."""

import mmap
import os
import random
import signal
import time
import warnings

import pytest
import torch

from hipcli import pipeline
from hipcli.cache.resident import ResidentStore
from hipcli.console import Terminal
from hipcli.decoding import last_logits
from hipcli.engine import Engine
from hipcli.model import load_model
from hipcli.reuse import ending
from hipcli.sessions import Fingerprint, Library, SessionKeeper
from hipcli.sessions.folder import damage
from hipcli.settings import AttentionSettings

CHUNK, CHUNKS = 128, 8
IDS = [random.Random(at // 7).randrange(300) + at % 7 for at in range(CHUNK * CHUNKS + 37)]


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model, dtype="float32")


def read(model, library: Library | None, on_chunk=lambda session, stop: None):
    """Read IDS as a run of the command does: logits of a question, and tokens that were reused."""
    engine = Engine(model, AttentionSettings(dense_below=256), chunk_tokens=CHUNK)
    session = None
    if library is not None:
        texts = {"document": ["a"], "source types": [], "encoding": [], "file names": [], "readers": {}}
        about = {"model": "tiny", "sources": ["book"]}
        session = SessionKeeper(library, Fingerprint({"model": "m"}, texts), IDS, about=about, note=print, warn=print)
        stored = session.stored
        session.stored = lambda stop: (stored(stop), on_chunk(session, stop))
    with ending(session, Terminal(quiet=True)):
        pipeline._prefill(engine, IDS, 64, session, Terminal(quiet=True))
        engine._read_suffix([5, 6, 7, 8])
        found = last_logits(engine.model, engine._hidden).clone()
    return found, session.reused if session else 0


def kill_at(owner, name: str, count: int, after: bool) -> None:
    """Let this process end as by kill -9 at a call of a function, before or after it."""
    real, calls = getattr(owner, name), []

    def counted(*given, **more):
        calls.append(None)
        if len(calls) == count and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*given, **more)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def moments():
    """Ten: in a layer of a chunk; in the middle of a chunk's file; at files that are forced to the disk and renamed."""
    draw, found = random.Random(11), []
    kinds = ["layer", "layer", "layer", "copy_out", "copy_out", "copy_out", "fsync", "fsync", "replace", "replace"]
    for number, kind in enumerate(kinds):
        # a chunk is a call of each layer, two of copy_out, and two or more of the others: for its file and the manifest
        most = CHUNKS + 1 if kind == "layer" else 2 * CHUNKS
        found.append(pytest.param(kind, draw.randint(1, most), bool(number % 2), id=f"{number}-{kind}"))
    return found


@pytest.mark.parametrize(("kind", "count", "after"), moments())
def test_a_killed_run_goes_on(model, tmp_path, kind, count, after):
    library, progress = Library(tmp_path / "cache"), mmap.mmap(-1, 8)

    def on_chunk(session, stop):
        # a chunk of a true model takes longer than its file: what is before it is on the disk when it is done
        while session.saved_tokens < stop - CHUNK:
            time.sleep(0.001)
        progress[:] = stop.to_bytes(8, "little")

    with warnings.catch_warnings():
        # the child runs one thread, so that nothing waits for those of the parent
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            owner = {"layer": model.network.model.layers[1], "copy_out": ResidentStore}.get(kind, os)
            kill_at(owner, {"layer": "forward"}.get(kind, kind), count, after)
            read(model, library, on_chunk)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "the run ended before the moment came"
    computed = int.from_bytes(progress[:], "little")
    (session,) = library.sessions() or (None,)
    saved = session.manifest.saved_tokens if session and session.manifest else 0
    assert saved >= computed - CHUNK and (not saved or damage(session) is None)
    plain, _ = read(model, None)
    resumed, reused = read(model, library)
    assert reused == saved and torch.equal(resumed, plain)
    again, reused = read(model, library)
    assert reused == len(IDS) and torch.equal(again, plain)
    (session,) = library.sessions()
    assert session.manifest.complete and damage(session) is None
    left = {path.name for path in session.folder.iterdir()}
    assert left == {chunk.name for chunk in session.manifest.chunks} | {"manifest.json"}
