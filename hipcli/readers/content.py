"""What a format's reader takes and gives: options in, raw pages and remarks out. Knows no format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hipcli.page_selection import PageSelection
from hipcli.readers.source import RawSource

OnPage = Callable[[int, "int | None"], None]

PAGE_CHARS = 3000
FLOW_CHARS = PAGE_CHARS * 3 // 2  # running text longer than this is cut into pages
OWN_PAGE_CHARS = PAGE_CHARS * 10  # a page between form feeds is cut only when it is longer than this
MAX_PAGES = 200_000  # of one source: no book has more, and a file of headings alone must not fill the memory


class TooManyPages(Exception):
    """A source falls into more pages than MAX_PAGES."""


def check_pages(count: int) -> None:
    """Raise TooManyPages before more than MAX_PAGES are made."""
    if count > MAX_PAGES:
        raise TooManyPages


@dataclass(frozen=True)
class ReadOptions:
    """encoding: of texts, None finds out. password: for encrypted documents. on_page(done, total or None): as pages are read.

    pages: those that are wanted, None for all; a reader may read more. hidden: also look for text that nobody sees.
    """

    encoding: str | None = None
    password: str | None = None
    on_page: OnPage | None = None
    pages: PageSelection | None = None
    hidden: bool = False


@dataclass(frozen=True)
class RawPage:
    """A page before it is cleaned.

    text: as the reader found it. label: printed page number, or time of day as h:mm:ss. title: of the section the page belongs to.
    longest: characters above which it is cut into several pages, None for never. error: why the page could not be read.
    number: the page's, None where it follows from the pages before it. hidden: parts of the text that nobody sees, with what hides each.
    """

    text: str = ""
    label: str | None = None
    title: str | None = None
    image_only: bool = False
    error: str | None = None
    longest: int | None = FLOW_CHARS
    number: int | None = None
    hidden: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Content:
    """All pages of a source, failed ones among them, in order; remarks are sentences without the source's name.

    total_pages: in the source, where not all of them were read.
    """

    pages: list[RawPage]
    remarks: list[str] = field(default_factory=list)
    encoding: str | None = None
    total_pages: int | None = None


@dataclass(frozen=True)
class Format:
    """One way to read a source.

    read: raises InputError for a source that is not readable this way. noun: with its article, for sentences.
    suffixes: of file names, lower case with the dot. matches(source, promised): whether the content is of this format; promised
    when the name or the user says so. binary: the content alone can prove the format, a name cannot.
    own_workers: the reader starts processes of its own to be safe from the document; others are run in one.
    """

    name: str
    noun: str
    read: Callable[[RawSource, ReadOptions], Content]
    suffixes: tuple[str, ...] = ()
    matches: Callable[[RawSource, bool], bool] | None = None
    binary: bool = False
    own_workers: bool = False
