"""The registry of formats: which reader a source gets, and that every name is known to the command line."""

from __future__ import annotations

import time
from pathlib import Path
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


PROSE = "Some words of text that goes on, and on, for a line. " * 6
MAKERS = {
    "html": lambda zips, n: "".join(f"<h2>S {i}</h2><p>{PROSE}</p><ul><li>a</ul>" for i in range(n)),
    "epub": lambda zips, n: zips.epub({f"{i}.xhtml": f"<h1>C{i}</h1><p>{PROSE}" for i in range(n)}),
    "docx": lambda zips, n: zips.docx(f"<w:p><w:r><w:t>{PROSE}</w:t></w:r></w:p>" * n),
    "md": lambda zips, n: "".join(f"## S {i}\n\n{PROSE}\n\n" for i in range(n)),
    "rst": lambda zips, n: "".join(f"Sec {i}\n------------\n\n{PROSE}\n\n" for i in range(n)),
    "tex": lambda zips, n: "".join(f"\\section{{S {i}}}\n{PROSE} % c\n\n" for i in range(n)),
    "srt": lambda zips, n: "".join(f"{i}\n00:00:01,000 --> 00:00:02,000\n{PROSE}\n\n" for i in range(n)),
    "jsonl": lambda zips, n: f'{{"a": "{PROSE}", "b": [1, 2]}}\n' * n,
    "mbox": lambda zips, n: f"From a Mon Nov 30 10:00:00 2026\nTo: b\n\n{PROSE}\n\n" * n,
    "rtf": lambda zips, n: "{\\rtf1 " + f"{PROSE}\\par \\'e9 " * n + "}",
    "zip": lambda zips, n: zips.zip({f"d/{i}.txt": PROSE for i in range(n)}),
}


@pytest.mark.parametrize("suffix", MAKERS)
def test_twice_as_much_takes_twice_as_long(tmp_path, zips, suffix):
    seconds = []
    for count in (1000, 2000):
        data = MAKERS[suffix](zips, count)
        path = tmp_path / f"{count}.{suffix}"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        seconds.append(min(timed(path) for _ in range(3)))
    assert seconds[1] < 2.5 * seconds[0] + 0.02, seconds


def timed(path: Path) -> float:
    """Processor seconds that reading takes."""
    began = time.process_time()
    assert read_document([str(path)]).chars > 100_000
    return time.process_time() - began
