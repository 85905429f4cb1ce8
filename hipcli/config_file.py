"""The file of settings: TOML in, checked values with their lines out; changes keep the user's comments and order.

tomlkit (MIT, pure Python) reads and writes it: the standard library has no writer, and no reader before Python 3.11.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.config_keys import LOADERS, SETTINGS, check_loader, loader_suffix, near_hint
from hipcli.errors import DiskError, UsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A checked value of the file, and the line where its key stands, from 1."""

    value: Any
    line: int


def load(path: Path) -> dict[str, Entry]:
    """The settings of a file, none when there is no file. Raises UsageError that names the file, and the line at fault."""
    text = _text(path)
    return _checked(path, text) if text else {}


@lru_cache(maxsize=4)
def _checked(path: Path, text: str) -> dict[str, Entry]:
    entries = {}
    for key, value in _document(path, text).unwrap().items():
        line = _line_of(text, key)
        where = f"{path}, line {line}"
        if key == LOADERS:
            entries |= _loaders(path, text, value)
            continue
        if key not in SETTINGS:
            raise UsageError(f"{where}: there is no setting {key!r}", near_hint(key))
        entries[key] = Entry(SETTINGS[key].check(value, f"{where}: {key}"), line)
    return entries


def _loaders(path: Path, text: str, table: Any) -> dict[str, Entry]:
    """The entries "loaders.SUFFIX" of the table."""
    first = _line_of(text, LOADERS)
    if not isinstance(table, dict):
        raise UsageError(
            f"{path}, line {first}: loaders must be a table of commands", 'like: [loaders] and below it odt = "odt2txt {path}"'
        )
    rows = text.splitlines()
    found = {}
    for suffix, command in table.items():
        named = re.compile(rf"(?:.*[.{{,])?\s*[\"']?{re.escape(suffix)}[\"']?\s*=")
        line = next((number for number, row in enumerate(rows[first - 1 :], first) if named.match(row)), first)
        found[f"{LOADERS}.{suffix}"] = Entry(check_loader(suffix, command, f"{path}, line {line}: loaders.{suffix}"), line)
    return found


def store(path: Path, key: str, value: Any) -> None:
    """Set `key`, "loaders.SUFFIX" in its table, in the file, which is made if need be.

    Raises UsageError for a file that is no TOML, DiskError.
    """
    document = _document(path, _text(path))
    suffix = loader_suffix(key)
    if suffix:
        import tomlkit

        if not isinstance(document.get(LOADERS), dict):
            document[LOADERS] = tomlkit.table()
        document[LOADERS][suffix] = value
    else:
        document[key] = value
    _write(path, document.as_string())


def remove(path: Path, key: str) -> bool:
    """Take `key`, known or not, out of the file; returns whether it was there. Raises as `store` does."""
    document = _document(path, _text(path))
    suffix = loader_suffix(key)
    table = document.get(LOADERS) if suffix else document
    if not isinstance(table, dict) or (suffix or key) not in table:
        return False
    table.remove(suffix or key)
    _write(path, document.as_string())
    return True


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as fault:
        raise UsageError(f"cannot read the settings in {path}: {fault.strerror}", "mend it, or name another file in HIP_CONFIG") from None
    if len(data) > _MAX_BYTES:
        raise UsageError(f"cannot read the settings in {path}: it is larger than 1 MiB", "name another file in HIP_CONFIG")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise UsageError(f"{path}, line {line}: this is not UTF-8", "save it as UTF-8") from None


def _document(path: Path, text: str) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import ParseError, TOMLKitError

    try:
        return tomlkit.parse(text)
    except ParseError as fault:
        why, line = re.sub(r" at line \d+ col \d+$", "", str(fault)), fault.line
    except TOMLKitError as fault:
        # a key given twice has no position of its own
        why, line = str(fault).rstrip("."), _first_bad_line(text)
    raise UsageError(f"{path}, line {line}: this is not TOML: {why[:1].lower() + why[1:]}", 'a line is like: model = "name"')


def _first_bad_line(text: str) -> int:
    """The line with which a text stops to be TOML."""
    rows = text.splitlines(keepends=True)
    good = max((count for count in range(len(rows)) if _parses("".join(rows[:count]))), default=0)
    return min(good + 1, len(rows))


def _parses(text: str) -> dict | None:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text).unwrap()
    except TOMLKitError:
        return None


def _line_of(text: str, key: str) -> int:
    """The line where a key of the top level stands."""
    rows = text.splitlines(keepends=True)
    named = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for index, row in enumerate(rows):
        # what looks like a key within a text of several lines is none: the lines before it are not whole
        if named.match(row) and (before := _parses("".join(rows[:index]))) is not None and key not in before:
            return index + 1
    return 1


def _write(path: Path, text: str) -> None:
    """Write whole or not at all; a link to a file stays a link."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot keep settings in {path}: it is not a file", "name another file in HIP_CONFIG")
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=target.parent, delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except OSError as fault:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise DiskError(f"cannot write {path}: {fault.strerror}", "name another file in HIP_CONFIG") from None
