"""The documents of a server: given ones that everyone may ask, and uploads that one token alone can see.

    ROOT/OWNER/ID/meta.json        what is listed of an upload
    ROOT/OWNER/ID/document.json    its pages
    ROOT/OWNER/ID/session          the key of the session that holds its keys and values, once it was read

A folder appears whole or not at all, so that what a killed server leaves can be used by the next. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hipcli.cache.files import write_whole
from hipcli.document import Document
from hipcli.errors import DiskError
from hipcli.readers.source import show
from hipcli.serving.extracting import document_of, document_record
from hipcli.serving.problems import Problem
from hipcli.sessions.folder import listed, private_folder, stat_of

ID = re.compile(r"file-[0-9a-f]{24}")
_MOST_NAME = 120
_KEPT_TEXTS = 4
_STALE_S = 3600


@dataclass(frozen=True)
class Entry:
    """What is listed of a document. owner: whose upload it is, None for a given one. created: seconds since 1970.

    digest: of name and bytes.
    """

    id: str
    owner: str | None
    name: str
    digest: str
    size_bytes: int
    created: int
    pages: int
    chars: int
    warnings: tuple[str, ...] = field(default=())

    @property
    def is_given(self) -> bool:
        return self.owner is None


def file_name(name: str | None) -> str:
    """A client's name for a file, as it may be shown: without folders and without what could drive a terminal."""
    last = re.split(r"[/\\]", name or "")[-1].strip()
    shown = show(last)[-_MOST_NAME:]
    return shown if shown.strip(". ") else "document"


def suffix_of(name: str) -> str:
    """The suffix that says of what format a file may be."""
    found = re.search(r"\.[A-Za-z0-9]{1,8}$", name)
    return found.group().lower() if found else ""


class Documents:
    """All of them. root: folder of the uploads; most: uploads of one owner. Raises DiskError when there can be no such folder."""

    def __init__(self, root: Path, most: int) -> None:
        self.root, self._most = root, most
        self._given: dict[str, Document] = {}
        self._texts: OrderedDict[str, Document] = OrderedDict()
        self._texts_lock = threading.Lock()
        self._sessions: dict[str, str] = {}
        self._entries: dict[str, Entry] = {}
        try:
            private_folder(root)
        except OSError as fault:
            raise DiskError(f"cannot keep uploads in {root}: {fault.strerror}", "HIP_CACHE_DIR names another folder") from None
        for owner in listed(root):
            for folder in listed(owner):
                self._find(folder)

    def _find(self, folder: Path) -> None:
        """List what an earlier server kept; what it left half done goes."""
        if not ID.fullmatch(folder.name):
            stat = stat_of(folder)
            # another server's upload may be on its way at this moment
            if stat and time.time() - stat.st_mtime > _STALE_S:
                shutil.rmtree(folder, ignore_errors=True)
            return
        try:
            record = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            entry = Entry(**{**record, "warnings": tuple(record["warnings"])})
        except (OSError, ValueError, TypeError, KeyError):
            return
        if (entry.id, entry.owner) == (folder.name, folder.parent.name):
            self._entries[entry.id] = entry
            try:
                self._sessions[entry.id] = (folder / "session").read_text(encoding="ascii")
            except (OSError, ValueError):
                # not read yet
                pass

    def give(self, document: Document, name: str) -> Entry:
        """Let everyone ask a document; its id is the same whenever it is given."""
        about = json.dumps([[source.name, source.sha256] for source in document.sources]).encode("utf-8", "backslashreplace")
        digest, size = hashlib.sha256(about).hexdigest(), sum(source.size_bytes for source in document.sources)
        key, pages = f"file-{digest[:24]}", len(document.pages)
        entry = Entry(key, None, name, digest, size, int(time.time()), pages, document.chars, document.warnings)
        self._entries[key], self._given[key] = entry, document
        return entry

    @property
    def count(self) -> int:
        """All there are, of all owners."""
        return len(self._entries)

    def visible(self, owner: str) -> list[Entry]:
        """What an owner may see: given documents first, then own ones, the latest first."""
        mine = [entry for entry in self._entries.values() if entry.is_given or entry.owner == owner]
        return sorted(mine, key=lambda entry: (not entry.is_given, -entry.created, entry.id))

    def find(self, owner: str, wanted: str) -> Entry | None:
        """The document that an id or, where it is the only one so called, a name stands for."""
        seen = self.visible(owner)
        named = [entry for entry in seen if entry.name == wanted]
        return next((entry for entry in seen if entry.id == wanted), named[0] if len(named) == 1 else None)

    def require(self, owner: str, wanted: str, param: str | None = None) -> Entry:
        """As `find`; raises Problem when there is none, which says no more of others' documents than of none."""
        entry = self.find(owner, wanted)
        if entry is None:
            raise Problem(404, "there is no such document", code="document_not_found", param=param)
        return entry

    def check_room(self, owner: str) -> None:
        """Raise Problem when an owner has as many uploads as one may have."""
        if sum(entry.owner == owner for entry in self._entries.values()) >= self._most:
            raise Problem(409, f"{self._most} documents are kept, the most there may be: delete one first", code="too_many_documents")

    def incoming(self, owner: str) -> Path:
        """A new folder for a file that is on its way."""
        folder = private_folder(self.root / owner) / f"incoming-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        return folder

    def same(self, owner: str, digest: str) -> Entry | None:
        """The owner's upload of the same bytes under the same name."""
        return next((entry for entry in self._entries.values() if (entry.owner, entry.digest) == (owner, digest)), None)

    def keep(self, owner: str, document: Document, name: str, digest: str, size_bytes: int) -> Entry:
        """Keep an upload's pages. Raises Problem, OSError."""
        self.check_room(owner)
        key, pages = f"file-{secrets.token_hex(12)}", len(document.pages)
        entry = Entry(key, owner, name, digest, size_bytes, int(time.time()), pages, document.chars, document.warnings)
        folder = self.incoming(owner)
        try:
            _write(folder / "document.json", document_record(document))
            _write(folder / "meta.json", asdict(entry))
            os.replace(folder, self.root / owner / key)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        # another one in its place: whoever goes through the old one meanwhile is not disturbed
        self._entries = {**self._entries, key: entry}
        return entry

    def text(self, entry: Entry) -> Document:
        """The pages; from any thread. Raises Problem when they are gone or damaged."""
        with self._texts_lock:
            return self._given[entry.id] if entry.is_given else self._text(entry)

    def _text(self, entry: Entry) -> Document:
        if entry.id in self._texts:
            self._texts.move_to_end(entry.id)
            return self._texts[entry.id]
        try:
            path = self.root / str(entry.owner) / entry.id / "document.json"
            document = document_of(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            raise Problem(500, "the document's pages cannot be read any more: upload it again", code="document_damaged") from None
        self._texts[entry.id] = document
        while len(self._texts) > _KEPT_TEXTS:
            self._texts.popitem(last=False)
        return document

    def remove(self, entry: Entry) -> None:
        """Forget an upload and its pages. Raises Problem for a given document."""
        if entry.is_given:
            raise Problem(403, "this document was given to the server when it was started", code="document_given")
        self._entries = {key: other for key, other in self._entries.items() if key != entry.id}
        with self._texts_lock:
            self._texts.pop(entry.id, None)
        folder = self.root / str(entry.owner) / entry.id
        gone = folder.with_name(f"gone-{entry.id}")
        try:
            os.replace(folder, gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    def session_of(self, entry: Entry) -> str | None:
        """The key of the session that holds a document's keys and values, None when it was never read."""
        return self._sessions.get(entry.id)

    def forget_session(self, entry: Entry) -> None:
        """There is none any more."""
        self._sessions.pop(entry.id, None)

    def note_session(self, entry: Entry, key: str) -> None:
        """Remember it; from any thread."""
        if self._sessions.get(entry.id) == key:
            return
        self._sessions[entry.id] = key
        folder = self.root / str(entry.owner) / entry.id
        if not entry.is_given and folder.is_dir():
            try:
                write_whole(folder / "session", lambda out: out.write(key.encode()))
            except OSError:
                # then the next server finds out by reading
                pass


def _write(path: Path, record: Any) -> None:
    write_whole(path, lambda out: out.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace")))
