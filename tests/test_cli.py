"""The command line: arguments, exit codes, JSON records, and what help may import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hipcli

HIP = Path(sys.executable).with_name("hip")
TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. " * 12


@pytest.fixture
def hip(tmp_path, request):
    """Runs the installed command in tmp_path; the tiny model is there for tests that ask for it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HIP_") and name != "NO_COLOR"}
    env = kept | {
        "HIP_DATA_DIR": str(tmp_path / "data"),
        "HIP_CACHE_DIR": str(tmp_path / "cache"),
        "HIP_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if "tiny_model" in request.fixturenames:
        env["HIP_MODEL"] = str(request.getfixturevalue("tiny_model"))
    (tmp_path / "book.txt").write_text(TEXT)

    def run(*arguments: str, stdin: bytes = b"", **extra: str) -> subprocess.CompletedProcess:
        return subprocess.run([HIP, *arguments], input=stdin, capture_output=True, cwd=tmp_path, env=env | extra, timeout=120)

    return run


def test_help_names_every_command_and_imports_nothing_heavy():
    # typer itself loads pydantic for some kinds of option
    heavy = "torch transformers tokenizers tiktoken pypdf pypdfium2 httpx numpy chardet psutil platformdirs tomlkit click".split()
    code = (
        "import atexit, sys, hipcli.cli as cli\n"
        f"atexit.register(lambda: print([name for name in {heavy} if name in sys.modules], file=sys.stderr))\n"
        "sys.argv = ['hip', *sys.argv[1:]]; cli.main()"
    )
    for command in (
        [],
        ["ask"],
        ["summarize"],
        ["batch"],
        ["inspect"],
        ["extract"],
        ["models"],
        ["bench"],
        ["doctor"],
        ["models", "get"],
        ["help"],
        ["config", "set"],
    ):
        done = subprocess.run([sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True, check=True)
        assert "Example:  hip" in done.stdout
        assert done.stderr.strip() == "[]", command


def test_version_and_bare_call(hip):
    assert hip("--version").stdout.decode() == f"hip {hipcli.__version__}\n"
    bare, short = hip(), hip("-h")
    assert bare.returncode == short.returncode == 0
    assert bare.stdout == short.stdout
    assert b"summarize" in bare.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask"], "the question is missing"),
        (["ask", "Who founded it?"], "the question is missing"),
        (["ask", "book.txt", "book.txt"], "the last argument, 'book.txt', is a document"),
        (["ask", "-f", "book.txt", "book.txt"], "the last argument, 'book.txt', is a document"),
        (["ask", "book.txt", " "], "the question is empty"),
        (["ask", "-q", "Who?"], "no document was given"),
        (["ask", "book.txt", "-q", "Who?", "--questions", "x"], "not both"),
        (["ask", "-", "-", "Who?"], "only once"),
        (["ask", "-", "--questions", "-"], "both document and questions"),
        (["ask", "book.txt", "Who?", "--temperature", "-1"], "--temperature must be 0 or more, got -1.0"),
        (["ask", "book.txt", "Who?", "--temperature", "nan"], "--temperature"),
        (["ask", "book.txt", "Who?", "--top-p", "0"], "--top-p"),
        (["ask", "book.txt", "Who?", "--max-tokens", "0"], "--max-tokens"),
        (["ask", "book.txt", "Who?", "--dense-below", "-1"], "--dense-below"),
        (["ask", "book.txt", "Who?", "--seed", "-1"], "--seed"),
        (["ask", "book.txt", "Who?", "--preset", "nope"], "--preset: preset must be one of default, cpu, paper"),
        (["ask", "book.txt", "Who?", "--backend", "nope"], "--backend"),
        (["ask", "book.txt", "Who?", "--nope"], "No such option"),
        (["ask", "book.txt", "Who?", "--session", "../x"], "a session cannot be called '../x'"),
        (["ask", "book.txt", "Who?", "--session", "a", "--no-session"], "not both"),
        (["ask", "book.txt", "Who?", "--out", "rows.jsonl"], "--out keeps the answers of --questions"),
        (["chat", "-"], "both document and questions"),
        (["sessions", "prune", "--max-size", "much"], "--max-size must be a size"),
        (["sessions", "prune", "--older-than", "old"], "--older-than must be an age"),
        (["sessions", "rm"], "name the sessions to remove"),
        (["summarize", "book.txt", "--spans", "0"], "--spans must be within 1 and 1000"),
        (["summarize"], "no document was given"),
        (["nope"], "No such command"),
    ],
)
def test_wrong_command_lines_exit_with_2(hip, arguments, words):
    done = hip(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    as_json = hip(*arguments, "--json")
    assert (as_json.returncode, as_json.stdout) == (2, b"")
    error = json.loads(as_json.stderr)["error"]
    assert error["code"] == 2 and error.keys() == {"code", "message", "hint"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ask", "book.txt", "-q", "Who?", "-q", "When?"], 2, "-q/--question was given 2 times"),
        (["summarize", "book.txt", "--pages", "1", "--pages", "2"], 2, "--pages was given 2 times"),
        (["ask", "book.txt", "Who?", "--dense", "--preset", "cpu"], 2, "--preset changes nothing"),
        (["chat", "book.txt", "--dense", "--dense-below", "4096"], 2, "--dense-below changes nothing"),
        (["ask", "missing.txt", "Who?"], 3, "missing.txt"),
        (["ask", "folder", "Who?"], 3, "no file in it can be read"),
        (["ask", "empty.txt", "Who?"], 3, "empty"),
        (["extract", "blank.txt"], 3, "no text"),
        (["ask", "book.txt", "--questions", "missing.txt"], 3, "cannot read questions"),
        (["ask", "book.txt", "Who?", "-m", "nowhere"], 5, "nowhere"),
        (["ask", "book.txt", "Who?"], 5, "SmolLM2"),
        (["models", "rm", "nowhere"], 5, "nowhere"),
        (["models", "path", "nowhere"], 5, "nowhere"),
    ],
)
def test_faults_have_their_codes_and_one_sentence(hip, tmp_path, arguments, code, words):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "blank.txt").write_text(" \n \n")
    done = hip(*arguments)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (code, b"")
    assert lines[-1].startswith(("hip: ", "  try: ")) and words in done.stderr.decode()
    assert sum(line.startswith("hip: ") for line in lines) == 1


def test_a_place_that_a_machine_does_not_have_is_said(hip, tiny_model):
    done = hip("ask", "book.txt", "Who?", "--kv", "host", "--device", "cpu", "--max-tokens", "2")
    assert done.returncode == 0 and done.stderr.count(b"--kv host changes nothing on a CPU") == 1


def test_memory_that_cannot_be_had_is_refused(hip, tiny_model):
    for arguments, code, words in (
        (("--gpu-memory", "1GiB"), 2, "--gpu-memory needs a GPU"),
        (("--gpu-memory", "lots"), 2, "--gpu-memory must be a size like 20GB or 500MB, got 'lots'"),
        (("--kv-dtype", "fp8"), 2, "--kv-dtype fp8 needs an NVIDIA GPU"),
        (("--kv-dtype", "bf16", "--dtype", "float32"), 2, "cannot keep what a model computes in float32"),
        (("--host-memory", "1MB"), 4, "of memory and 0.0 GiB are free"),
    ):
        done = hip("ask", "book.txt", "Who?", "--device", "cpu", *arguments)
        assert done.returncode == code and words in done.stderr.decode() and not done.stdout


def test_a_plan_is_told_and_nothing_is_asked(hip, tiny_model):
    shown = hip("ask", "book.txt", "Who?", "--plan", "--device", "cpu", "--dtype", "float32").stdout.decode()
    assert "KV memory" in shown and ", float32" in shown and "peak" in shown
    plan = json.loads(hip("ask", "book.txt", "Who?", "--plan", "--json", "--device", "cpu").stdout)["plan"]
    assert plan["fits"] and plan["device_key_layers"] == plan["device_value_layers"] == 2 and plan["host_bytes"] is None


def test_an_unexpected_fault_is_one_line(hip, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import hipcli.input\nhipcli.input.read = None\n")
    done = hip("extract", "book.txt", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().count("\n") == 1 and b"HIP_DEBUG=1" in done.stderr and b"Traceback" not in done.stderr
    assert b"Traceback" in hip("extract", "book.txt", PYTHONPATH=str(tmp_path), HIP_DEBUG="1").stderr


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("MemoryError()", 4, "not enough memory"),
        ("RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried to allocate 9 bytes')", 4, "not enough memory"),
        ("OSError(28, 'No space left on device', 'model.bin')", 7, "cannot write model.bin"),
    ],
)
def test_faults_of_the_machine_have_codes_too(hip, tmp_path, fault, code, words):
    planted = f"import hipcli.input\ndef read(*given): raise {fault}\nhipcli.input.read = read\n"
    (tmp_path / "sitecustomize.py").write_text(planted)
    done = hip("extract", "book.txt", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, b"") and words in done.stderr.decode()


def test_an_answer_and_its_record(hip, tiny_model):
    plain = hip("ask", "book.txt", "Who founded it?", "--max-tokens", "12")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.endswith(b"\n") and not plain.stdout.endswith(b"\n\n")
    assert b"prefill" in plain.stderr and b"Sources" in plain.stderr
    done = hip("ask", "book.txt", "Who founded it?", "--max-tokens", "12", "--json", "--dense")
    record = json.loads(done.stdout)
    assert done.stderr == b"" and done.stdout.count(b"\n") == 1
    assert record["schema_version"] == 1 and record["hip_version"] == hipcli.__version__
    assert record["answer"] and record["finish_reason"] in ("stop", "length") and record["answer_tokens"] <= 12
    assert record["document"]["path"] == "book.txt" and record["document"]["truncated"] is False
    assert record["document"]["pages"] == 1 and record["document"]["tokens"] > 50
    assert record["attention"]["mode"] == "dense" and record["model"]["name"] == "tiny"
    assert record["timing"]["prefill_tokens_per_second"] > 0


def test_many_questions_give_one_object_each(hip, tiny_model, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "Who?"}\n\n{"question": "¿Cuándo?"}\n')
    done = hip("ask", "book.txt", "--questions", "q.jsonl", "--max-tokens", "4", "--json")
    records = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [record["question"] for record in records] == ["Who?", "¿Cuándo?"]
    assert "¿Cuándo?".encode() in done.stdout
    plain = hip("ask", "book.txt", "--questions", "-", "--max-tokens", "4", "--quiet", stdin=b"Who?\nWhen?\n")
    assert plain.stderr == b"" and plain.stdout.startswith(b"Q: Who?\n") and b"\n\nQ: When?\n" in plain.stdout


def test_a_document_that_does_not_fit_is_refused_and_nothing_is_cut(hip, tiny_model, tmp_path):
    """A model with a megabyte of K and V a token, and a document of 300,000."""
    import shutil

    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(tiny_model, wide := tmp_path / "wide")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 64}
    LlamaForCausalLM(LlamaConfig(vocab_size=400, head_dim=512, max_position_embeddings=4096, **sizes)).save_pretrained(wide)
    (tmp_path / "long.txt").write_text(TEXT * 200)
    for arguments in (("ask", "long.txt", "Who?"), ("summarize", "long.txt")):
        done = hip(*arguments, "--model", "wide")
        assert (done.returncode, done.stdout) == (4, b""), done.stderr
        assert b"GiB of memory" in done.stderr and b"try: " in done.stderr
    plan = json.loads(hip("inspect", "long.txt", "--model", "wide", "--json").stdout)["plan"]
    assert plan["fits"] is False and plan["kv_bytes"] > plan["available_bytes"]


def test_inspect_with_and_without_a_model(hip, tiny_model, tmp_path):
    record = json.loads(hip("inspect", "book.txt", "--json").stdout)
    assert record["document"]["words"] == len(TEXT.split())
    assert record["document"]["tokens_estimated"] is False and record["plan"]["fits"] is True
    bare = hip("inspect", "book.txt", HIP_MODEL="")
    assert bare.returncode == 0
    assert b"about" in bare.stdout and b"hip models get" in bare.stdout


def test_extract_marks_every_page(hip, pdf, tmp_path):
    (tmp_path / "two.pdf").write_bytes(pdf.book("First page here", "Second page here"))
    marked = hip("extract", "two.pdf").stdout.decode()
    assert marked == "--- two.pdf, page 1 ---\nFirst page here\n\n--- two.pdf, page 2 ---\nSecond page here\n\n"
    assert "---" not in hip("extract", "two.pdf", "--no-marks").stdout.decode()
    pages = json.loads(hip("extract", "two.pdf", "--json").stdout)["pages"]
    assert [(page["page"], page["text"].strip()) for page in pages] == [(1, "First page here"), (2, "Second page here")]


def test_strict_ends_with_6_when_a_page_is_lost(hip, pdf, tmp_path):
    good = pdf.stream(pdf.lines(b"A page of text"))
    (tmp_path / "torn.pdf").write_bytes(pdf.build([good, pdf.packed(pdf.lines(b"Lost words") * 40, damaged=True), good]))
    lax, strict = hip("extract", "torn.pdf"), hip("extract", "torn.pdf", "--strict")
    assert (lax.returncode, strict.returncode) == (0, 6)
    assert lax.stdout == strict.stdout and b"A page of text" in lax.stdout
    assert b"p. 2" in strict.stderr


def test_doctor_reports_as_lines_and_as_json(hip, tiny_model):
    record = json.loads(hip("doctor", "--json", HOME=str(tiny_model.parent)).stdout)
    checks = {check["name"]: check for check in record["checks"]}
    assert {"python", "torch", "transformers", "memory", "data folder", "sessions", "model", "terminal"} <= checks.keys()
    assert checks["model"]["state"] == "ok" and "~/tiny" in checks["model"]["detail"]
    broken = hip("doctor", HIP_DATA_DIR="book.txt/data")
    assert broken.returncode == 1 and b"fail  data folder" in broken.stdout and b"try: " in broken.stdout


def test_models_path_and_empty_list(hip, tiny_model, tmp_path):
    assert hip("models", "path").stdout.decode() == f"{tmp_path / 'data'}\n"
    assert hip("models", "path", str(tiny_model)).stdout.decode() == f"{tiny_model}\n"
    assert json.loads(hip("models", "ls", "--json").stdout) == {"schema_version": 1, "models": []}


def test_an_interruption_that_comes_while_an_object_is_deleted_is_not_lost():
    program = """
import os, signal, time
from hipcli import faults

class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

faults.prepare()
slow = Slow()
try:
    del slow
    time.sleep(20)
    print("went on")
except KeyboardInterrupt:
    print("stopped", faults.report(KeyboardInterrupt(), False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped 130\n" and "Traceback" not in done.stderr, done
