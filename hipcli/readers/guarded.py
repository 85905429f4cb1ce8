"""One source through its reader, so that whatever hostile bytes do to the reader is a fault of the source. Knows no processes."""

from __future__ import annotations

from hipcli.errors import DoesNotFit, HipError, InputError
from hipcli.readers.content import MAX_PAGES, Content, Format, ReadOptions, TooManyPages
from hipcli.readers.source import RawSource


def read_content(raw: RawSource, format: Format, options: ReadOptions, memory_bytes: int | None = None) -> Content:
    """What the reader of `format` makes of a source. memory_bytes: the cap it runs under, None for the machine's memory.

    Raises InputError, and DoesNotFit when the machine's memory ends.
    """
    try:
        return format.read(raw, options)
    except HipError:
        raise
    except TooManyPages:
        hint = None if format.binary else "Read it as running text with --type text."
        raise InputError(f"cannot read {raw.name}: it falls into more than {MAX_PAGES:,} pages", hint) from None
    except MemoryError:
        if memory_bytes:
            raise over_memory(raw.name, memory_bytes) from None
        raise DoesNotFit(f"{raw.name} needs more memory than there is", "Close other programs, or split the document.") from None
    except Exception as fault:  # a reader's slip on a broken file must not look like a fault of the program
        raise InputError(
            f"cannot read {raw.name}: it is damaged, or not {format.noun} ({type(fault).__name__}: {str(fault)[:200]})"
        ) from fault


def over_memory(name: str, memory_bytes: int) -> InputError:
    """The sentence for a source that takes more memory than its size explains."""
    return InputError(f"cannot read {name}: reading it takes more than {memory_bytes / 2**30:.1f} GiB of memory")
