"""The registry of formats: which reader a source gets, and that every name is known to the command line."""

from __future__ import annotations

from typing import get_args

import pytest

from hipcli.option_types import FormatName
from hipcli.errors import UsageError
from hipcli.readers import FORMAT_NAMES, read_document
from hipcli.readers.formats import FORMATS


def test_the_command_line_knows_every_format():
    assert get_args(FormatName) == FORMAT_NAMES
    assert len({suffix for format in FORMATS for suffix in format.suffixes}) == sum(len(format.suffixes) for format in FORMATS)


def test_an_unknown_type_is_answered_with_all_names():
    with pytest.raises(UsageError) as fault:
        read_document(["a"], type="nope")
    assert all(name in fault.value.hint for name in FORMAT_NAMES)
