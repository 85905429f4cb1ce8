"""A model from the Hugging Face hub, through its own library, cache and settings (HF_HOME, tokens, mirrors).

What is in the cache is used without dialing. Knows nothing of formats beyond the names of files.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from hipcli.errors import DiskError, ModelError
from hipcli.models.directory import check_directory
from hipcli.models.progress import ProgressSink, phase
from hipcli.models.store import FULL

_WANTED = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
# subfolders hold other formats; consolidated.* repeats the weights in another layout
_UNWANTED = ["*/*", "consolidated*"]


def snapshot(repo: str, *, offline: bool, progress: ProgressSink) -> Path:
    """The directory of `repo` ("org/name") in the hub's cache, downloaded if it is not whole there.

    Raises:
        ModelError: unknown, gated, not in the cache while offline, or out of reach.
        DiskError: the cache's disk is full.
    """
    from huggingface_hub import snapshot_download

    cached = _cached(repo)
    if cached:
        return cached
    if offline:
        raise ModelError(
            f"{repo} is not in the hub's cache on this machine and hip is offline",
            f"fetch it while online with `hip models get {repo}`, or use --model DIR",
        )
    wanted = {"allow_patterns": _WANTED, "ignore_patterns": _UNWANTED}
    try:
        plan = snapshot_download(repo, dry_run=True, tqdm_class=_bars(lambda n: None), **wanted)
        total = sum(file.file_size or 0 for file in plan if file.will_download)
        with phase(progress, f"downloading {repo}", total or None) as advance:
            return Path(snapshot_download(repo, tqdm_class=_bars(advance), **wanted))
    except Exception as error:  # the hub's library raises its own, its HTTP library's and the system's kinds
        raise _fault(repo, error) from error


def _cached(repo: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(repo, local_files_only=True, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
        check_directory(path)
    except (ModelError, OSError, ValueError):  # absent, or an earlier download was cut short
        return None
    return path


def _bars(advance: Any) -> type:
    """A tqdm class that draws nothing and tells `advance` of bytes.

    The library may count the same bytes on two bars, from the network and to the disk: the fuller one counts.
    """
    from tqdm import tqdm

    lock, counts, told = threading.Lock(), {}, [0]

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if not self._counts_bytes:
                return
            with lock:
                counts[id(self)] = counts.get(id(self), 0) + int(n or 0)
                fresh = max(counts.values()) - told[0]
                if fresh > 0:
                    told[0] += fresh
                    advance(fresh)

    return Silent


def _fault(repo: str, error: BaseException) -> ModelError | DiskError:
    from huggingface_hub import errors

    chain = [error]  # the library wraps what happened in what it tried
    while (inner := chain[-1].__cause__ or chain[-1].__context__) and inner not in chain:
        chain.append(inner)
    if any(isinstance(link, errors.GatedRepoError) for link in chain):
        return ModelError(
            f"{repo} asks for its terms to be accepted first", f"accept them at https://huggingface.co/{repo}, then `hf auth login`"
        )
    if any(isinstance(link, errors.RepositoryNotFoundError) for link in chain):
        return ModelError(f"the hub has no model {repo}, or it is private", "check its name; for a private one, `hf auth login`")
    if any(isinstance(link, OSError) and link.errno in FULL for link in chain):
        return DiskError("the disk of the hub's cache is full", "make room, or point HF_HOME at another disk")
    told = [line.strip() for link in reversed(chain) for line in str(link).splitlines() if line.strip()]
    return ModelError(
        f"{repo} could not be fetched from the hub: {told[0] if told else type(error).__name__}",
        "check the connection; or fetch it elsewhere and use --model DIR",
    )
