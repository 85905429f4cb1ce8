"""Where converted models lie, and how they get there whole.

    data_dir/models/NAME/            complete, with a manifest hip.json of every file's size and digest
    data_dir/models/.staging/NAME/   being made, by whoever holds the lock
    data_dir/models/.locks/NAME.lock

A model appears by one rename after everything in it is on the disk, so a killed run leaves nothing that looks
complete. Knows nothing of formats or networks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hipcli.errors import DiskError, HipError, ModelError
from hipcli.models.progress import ProgressSink, phase

FORMAT = 1  # raised when the same source would be converted differently, so that old results are made anew
MANIFEST = "hip.json"
FULL = (errno.ENOSPC, errno.EDQUOT)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Source:
    """What a model was made of. sha256: of the original file; path, mtime_ns: where it lay and when it last changed."""

    file: str
    size: int
    sha256: str
    path: str | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of hip.json. files: name → {"size", "sha256"}; dtype: main type of the stored weights."""

    name: str
    origin: str
    source: Source
    dtype: str
    files: Mapping[str, Mapping[str, Any]]
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        return sum(entry["size"] for entry in self.files.values())

    @property
    def digest(self) -> str:
        listed = sorted((name, entry["sha256"]) for name, entry in self.files.items())
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def models_dir(data_dir: Path) -> Path:
    return data_dir / "models"


def stored_names(data_dir: Path) -> list[str]:
    """Names of everything stored, whole or damaged, sorted."""
    try:
        entries = list(os.scandir(models_dir(data_dir)))
    except OSError:
        return []
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def read_manifest(data_dir: Path, name: str) -> Manifest | None:
    """The manifest of a stored model, None if there is no such model.

    Raises:
        ModelError: the folder is there but its manifest or a file's size is wrong.
    """
    folder = models_dir(data_dir) / name
    if not folder.is_dir():
        return None
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(**{**raw, "source": Source(**raw["source"])})
        sizes = {file: entry["size"] for file, entry in manifest.files.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise _damaged(name, f"its {MANIFEST} is missing or unreadable") from None
    if manifest.format != FORMAT:
        raise _damaged(name, f"it was stored in format {manifest.format} and this hip uses {FORMAT}", "out of date")
    for file, size in sizes.items():
        if not (folder / file).is_file():
            raise _damaged(name, f"{file} is missing")
        if (folder / file).stat().st_size != size:
            raise _damaged(name, f"{file} has {(folder / file).stat().st_size:,} bytes instead of {size:,}")
    return manifest


def verify_files(data_dir: Path, manifest: Manifest, progress: ProgressSink) -> None:
    """Reads every file of a stored model and holds it against its digest.

    Raises:
        ModelError: naming the first file that differs.
    """
    folder = models_dir(data_dir) / manifest.name
    with phase(progress, f"verifying {manifest.name}", manifest.size_bytes) as advance:
        for file, entry in manifest.files.items():
            if sha256_of(folder / file, advance) != entry["sha256"]:
                raise _damaged(manifest.name, f"{file} does not have the content it was stored with")


def sha256_of(path: Path, advance: Any = lambda n: None) -> str:
    """Hex digest of a file; advance is told of the bytes read."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


@contextmanager
def locked(data_dir: Path, name: str, progress: ProgressSink) -> Iterator[None]:
    """Holds the lock of one model's name; waits, visibly, while another process works on it.

    The lock goes with its process, however that ends.

    Raises:
        DiskError: the data directory cannot be written.
    """
    from filelock import FileLock, Timeout

    with disk_faults(data_dir):
        folder = models_dir(data_dir) / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            with phase(progress, f"waiting for another hip to finish {name}") as advance:
                while not lock.is_locked:
                    try:
                        lock.acquire(timeout=0.5)
                    except Timeout:
                        advance(0)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staging(data_dir: Path, name: str) -> Iterator[Path]:
    """An empty folder to make a model in, for the holder of its lock; gone afterwards unless it was published."""
    folder = models_dir(data_dir) / ".staging" / name
    with disk_faults(data_dir):
        if folder.exists():  # left by a killed run: the lock says that nobody works here
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def publish(data_dir: Path, made: Path, *, name: str, origin: str, source: Source, dtype: str, progress: ProgressSink) -> Manifest:
    """Writes the manifest of `made`, forces it to the disk and moves it into place under `name`."""
    files = {}
    total = sum(path.stat().st_size for path in made.iterdir())
    with phase(progress, f"storing {name}", total) as advance:
        for path in sorted(made.iterdir()):
            files[path.name] = {"size": path.stat().st_size, "sha256": sha256_of(path, advance)}
            _to_disk(path)
        manifest = Manifest(name=name, origin=origin, source=source, dtype=dtype, files=files)
        (made / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
        _to_disk(made / MANIFEST)
        _to_disk(made)
        os.rename(made, models_dir(data_dir) / name)
        _to_disk(models_dir(data_dir))
    return manifest


def discard(data_dir: Path, name: str) -> int:
    """Removes a stored model under its lock and returns the bytes freed. A kill on the way leaves no half of it in sight."""
    folder = models_dir(data_dir) / name
    freed = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    with staging(data_dir, name) as away:
        os.rename(folder, away / name)
    return freed


def require_space(path: Path, needed_bytes: int) -> None:
    """Refuses early what would fill the disk of `path`, which need not exist yet.

    Raises:
        DiskError: less than `needed_bytes` are free.
    """
    free = shutil.disk_usage(_existing(path)).free
    if free < needed_bytes:
        raise DiskError(
            f"the model needs {needed_bytes / 1e6:,.0f} MB of disk and {free / 1e6:,.0f} MB are free at {path}",
            "make room, or point HIP_DATA_DIR at another disk",
        )


@contextmanager
def disk_faults(data_dir: Path) -> Iterator[None]:
    """Turns what the operating system says about writing in `data_dir` into a DiskError."""
    try:
        yield
    except HipError:
        raise
    except OSError as error:
        what = "is full" if error.errno in FULL else f"cannot be written: {error.strerror or error}"
        raise DiskError(f"{data_dir} {what}", "make room there, or point HIP_DATA_DIR at another folder") from error


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # windows has no handle for it
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _damaged(name: str, how: str, state: str = "damaged") -> ModelError:
    return ModelError(f"the stored model {name} is {state}: {how}", f"`hip models rm {name}`, then get it again")
