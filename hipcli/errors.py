"""Every fault a user can meet, each with its exit code.

    HipError              1  unexpected
    ├── UsageError        2  the command line or configuration is wrong
    ├── InputError        3  a document cannot be used
    ├── DoesNotFit        4  more memory or context than there is
    ├── ModelError        5  model or tokenizer missing, damaged, unsupported or offline
    ├── IncompleteError   6  finished, but pages were missing and --strict was given, or files of a batch failed
    └── DiskError         7  a write failed where it mattered

Library code raises these; `faults.py` alone prints them and sets the exit code.
"""

from __future__ import annotations


class HipError(Exception):
    """A fault shown to the user as one sentence (what and why) and an optional hint (what to do next)."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HipError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class InputError(HipError):
    """A document cannot be used: missing, empty, encrypted, damaged, not what its name says, or without text."""

    exit_code = 3


class DoesNotFit(HipError):
    """The job needs more memory or context than there is; nothing was truncated to make it fit."""

    exit_code = 4


class ModelError(HipError):
    """The model or its tokenizer is missing, damaged, unsupported, or cannot be fetched."""

    exit_code = 5


class IncompleteError(HipError):
    """The work finished but some pages could not be read, and --strict was given; or some files of a batch failed."""

    exit_code = 6


class DiskError(HipError):
    """A write failed where it mattered."""

    exit_code = 7
