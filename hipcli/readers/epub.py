"""EPUB books to pages: the files of the spine in order, sections titled by the table of contents, printed page numbers kept."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from urllib.parse import unquote, urldefrag
from xml.etree import ElementTree

from hipcli.errors import InputError
from hipcli.readers.container import BOOK_BYTES, Container, TooMuch, member_names, open_container
from hipcli.readers.content import Content, Format, RawPage, ReadOptions, check_pages
from hipcli.readers.html import HtmlReader, decode_html
from hipcli.readers.markup import tokens
from hipcli.readers.source import RawSource
from hipcli.readers.xml import tree

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"

Titles = dict[str, dict[str, str]]  # file → {id, or "" for its beginning → title}


def read_epub(source: RawSource, options: ReadOptions) -> Content:
    """A page for each section or printed page. Raises InputError for a book that is damaged, protected or a bomb."""
    with open_container(source, BOOK_BYTES) as book:
        package_path = _package_path(book, source.name)
        package = tree(book.read(package_path), f"{source.name} ({package_path})")
        manifest = _manifest(package, posixpath.dirname(package_path))
        # each file once: one that is listed a million times is a bomb
        chapters = dict.fromkeys(item.get("idref", "") for item in package.iter("itemref"))
        spine = [manifest.get(chapter, {}) for chapter in chapters]
        _refuse_protected(book, source.name, {item.get("path", "") for item in spine})
        titles = _titles(book, package, manifest)
        pages: list[RawPage] = []
        title = None
        for item in spine:
            path = item.get("path", "")
            read = _chapter(book, path, titles, title)
            pages += read
            check_pages(len(pages))
            title = next((page.title for page in reversed(read) if page.title), title)
            if options.on_page:
                options.on_page(len(pages), None)
    if not spine:
        raise InputError(f"cannot read {source.name}: its list of chapters is empty")
    if any(page.text.strip() for page in pages):
        pages = [replace(page, image_only=False) for page in pages]  # a cover, not a scan
    return Content(pages)


def _package_path(book: Container, name: str) -> str:
    found = tree(book.read(_CONTAINER), f"{name} ({_CONTAINER})").find(".//rootfile")
    path = found.get("full-path") if found is not None else None
    if not path:
        raise InputError(f"cannot read {name}: it does not say where its list of chapters is")
    return path


def _manifest(package: ElementTree.Element, folder: str) -> dict[str, dict[str, str]]:
    """The book's files by their ids, each with its path in the archive."""
    manifest = {}
    for item in package.iter("item"):
        manifest[item.get("id", "")] = {**item.attrib, "path": _join(folder, item.get("href", ""))}
    return manifest


def _join(folder: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(folder, unquote(urldefrag(href)[0])))


def _chapter(book: Container, path: str, titles: Titles, title: str | None) -> list[RawPage]:
    """The sections of one file; a file that is not there is one failed page. title: of the section that was open before it."""
    if path not in book:
        return [RawPage(error=f"the book lists a file that is not in it ({path})" if path else "the book lists a file without naming it")]
    targets = titles.get(path, {}) if titles else None
    reader = HtmlReader(keep_navigation=True, targets=targets, xhtml=True)
    try:
        reader.feed(decode_html(book.read(path)).text)
    except TooMuch:
        raise
    except InputError as fault:
        return [RawPage(error=fault.message)]
    pages = reader.writer.pages((targets or {}).get("") or title)
    return [page for page in pages if page.text.strip()] or [RawPage(title=title, image_only=reader.images > 0)]


def _refuse_protected(book: Container, name: str, chapters: set[str]) -> None:
    """Encrypted fonts are no obstacle; encrypted chapters are."""
    if _ENCRYPTION not in book:
        return
    found = tree(book.read(_ENCRYPTION), f"{name} ({_ENCRYPTION})")
    locked = {posixpath.normpath(unquote(item.get("URI", ""))) for item in found.iter("CipherReference")}
    if locked & chapters:
        raise InputError(f"cannot read {name}: it is protected (DRM)", "Only the shop's own reader opens such a book.")


def _titles(book: Container, package: ElementTree.Element, manifest: dict[str, dict[str, str]]) -> Titles:
    """Titles of the table of contents by file and place; empty where the book has none, or a broken one."""
    spine = package.find(".//spine")
    nav = next((item["path"] for item in manifest.values() if "nav" in item.get("properties", "").split()), None)
    ncx = manifest.get(spine.get("toc", "") if spine is not None else "", {}).get("path")
    for path, read in ((nav, _nav_titles), (ncx, _ncx_titles)):
        if path and path in book:
            try:
                titles = read(book.read(path), path)
            except InputError:
                continue
            if titles:
                return titles
    return {}


def _note(titles: Titles, path: str, href: str, words: str) -> None:
    if words.strip() and href:
        place = unquote(urldefrag(href)[1])
        titles.setdefault(_join(posixpath.dirname(path), href), {}).setdefault(place, " ".join(words.split()))


def _nav_titles(data: bytes, path: str) -> Titles:
    """EPUB 3: the links of the <nav> whose type is toc."""
    titles: Titles = {}
    inside, href, words = False, "", []
    for token in tokens(decode_html(data).text, xhtml=True):
        if token.kind == "start" and token.value == "nav":
            inside = token.attributes.get("epub:type", "toc") == "toc" or token.attributes.get("role") == "doc-toc"
        elif token.kind == "end" and token.value == "nav":
            inside = False
        elif inside and token.value == "a" and token.kind == "start":
            href, words = token.attributes.get("href", ""), []
        elif inside and token.value == "a" and token.kind == "end":
            _note(titles, path, href, "".join(words))
            href = ""
        elif token.kind == "text":
            words.append(token.value)
    return titles


def _ncx_titles(data: bytes, path: str) -> Titles:
    """EPUB 2: the points of the navigation file."""
    titles: Titles = {}
    for point in tree(data, path).iter("navPoint"):
        label, content = point.find("navLabel"), point.find("content")
        if label is not None and content is not None:
            _note(titles, path, content.get("src", ""), "".join(label.itertext()))
    return titles


def _matches(source: RawSource, promised: bool) -> bool:
    return _CONTAINER in member_names(source)


EPUB = Format("epub", "an EPUB book", read_epub, (".epub",), _matches, binary=True)
