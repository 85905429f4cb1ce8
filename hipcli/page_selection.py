"""What `--pages` means: numbers and ranges of physical pages, counted from 1 in each source. Knows no documents."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hipcli.errors import UsageError

_PART = re.compile(r"(\d{1,9})(?:(-)(\d{1,9})?)?")


@dataclass(frozen=True)
class PageSelection:
    """text: as the user wrote it. ranges: first and last page of each part, a last page of None goes to the end."""

    text: str
    ranges: tuple[tuple[int, int | None], ...]

    @classmethod
    def parse(cls, text: str) -> PageSelection:
        """ "10-40,55,90-": raises UsageError."""
        ranges: list[tuple[int, int | None]] = []
        for part in text.replace(" ", "").split(","):
            match = _PART.fullmatch(part)
            if not match:
                raise UsageError(f"--pages must be numbers and ranges such as 10-40,55, got {text!r}")
            first = int(match[1])
            last = int(match[3]) if match[3] else None if match[2] else first
            if first < 1 or (last is not None and last < first):
                raise UsageError(f"--pages must count upwards from 1, got {part!r}")
            ranges.append((first, last))
        return cls(text, tuple(ranges))

    def __contains__(self, number: int) -> bool:
        return any(first <= number and (last is None or number <= last) for first, last in self.ranges)

    def check(self, pages: int, name: str) -> None:
        """Raise UsageError if a page is asked for that a source of `pages` pages does not have."""
        furthest = max(max(first, last or 0) for first, last in self.ranges)
        if furthest > pages:
            has = "1 page" if pages == 1 else f"{pages:,} pages"
            raise UsageError(f"--pages {self.text} goes beyond {name}, which has {has}")

    def indices(self, most: int) -> list[int] | None:
        """The pages counted from 0, ascending; None if that is open-ended or more than `most`."""
        if any(last is None for _, last in self.ranges) or sum(last - first for first, last in self.ranges) > most:
            return None
        return sorted({number - 1 for first, last in self.ranges for number in range(first, last + 1)})
