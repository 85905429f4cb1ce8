"""The most that a server takes from a client, and gives, checked once. Knows numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from hipcli.errors import UsageError


@dataclass(frozen=True)
class Limits:
    """What one client may cost; raises UsageError.

    upload_bytes, upload_pages: of one document. upload_seconds: for it to arrive, and again for it to be read.
    documents: kept for one token. backlog: questions that wait, of all clients together. loaded: documents whose keys and
    values are in memory at once. question_tokens: of question and earlier turns. answer_tokens: of one answer.
    body_bytes: of a request beside a document within it. stalled_seconds: that a client may leave unread what it was sent.
    connections: open at once.
    """

    upload_bytes: int = 100_000_000
    upload_pages: int = 10_000
    upload_seconds: float = 120.0
    documents: int = 100
    backlog: int = 64
    loaded: int = 4
    question_tokens: int = 8192
    answer_tokens: int = 4096
    body_bytes: int = 1_000_000
    stalled_seconds: float = 30.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name in ("upload_bytes", "upload_pages", "upload_seconds", "documents", "backlog", "loaded"):
            if getattr(self, name) <= 0:
                raise UsageError(f"--{name.replace('_', '-').replace('-bytes', '-size')} must be above 0, got {getattr(self, name)}")

    @property
    def header_seconds(self) -> float:
        """For a request's head to arrive, and between requests."""
        return min(10.0, self.upload_seconds)

    @property
    def inline_bytes(self) -> int:
        """Of a request that may bring a document within, in base64."""
        return self.body_bytes + self.upload_bytes * 4 // 3
