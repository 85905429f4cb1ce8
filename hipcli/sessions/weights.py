"""A digest of all weights of a model, worked out once and remembered by the files' sizes and times.

Samples would miss an edit of one tensor, and a session must never be used with weights that did not make it. The
digest is of the content: a copy or a touched file has the same one. Knows nothing of networks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import xxhash

from hipcli.cache.files import file_checksum, write_whole
from hipcli.models.directory import weight_files

_MEMORY = "weights.json"


def weights_digest(model_dir: Path, cache_dir: Path) -> str:
    """Hex digest of config.json and every weight file. Raises ModelError when there are none, OSError when one cannot be read."""
    total, known, found = xxhash.xxh3_128(), _remembered(cache_dir), {}
    for path in (model_dir / "config.json", *weight_files(model_dir)):
        stat = path.stat()
        name = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|{stat.st_ino}"
        found[name] = known.get(name) or file_checksum(path)
        total.update(f"{path.name}\0{found[name]}\0".encode())
    if not found.keys() <= known.keys():
        _remember(cache_dir, known, found)
    return total.hexdigest()


def _remembered(cache_dir: Path) -> dict[str, str]:
    try:
        known = json.loads((cache_dir / _MEMORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(cache_dir: Path, known: dict[str, str], found: dict[str, str]) -> None:
    """Keep the digests of files that still are what they were; a cache that cannot be written costs another reading."""
    kept = {name: digest for name, digest in known.items() if os.path.exists(name.split("|")[0])}
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(cache_dir / _MEMORY, lambda out: out.write(json.dumps(kept | found, indent=1).encode()))
    except OSError:
        pass
