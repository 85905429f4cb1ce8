"""Requests for other engines: as clients' types want them, the text whole, each written once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hipcli.batching.job import BatchJob
from hipcli.batching.run import batch
from hipcli.console import Terminal
from hipcli.errors import IncompleteError, InputError, UsageError
from hipcli.options import RunOptions
from hipcli.questions import Question

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. "


@pytest.fixture
def job(tmp_path, monkeypatch, pdf):
    """Makes a job that exports requests about two small files, for a model that is not here."""
    monkeypatch.setenv("HIP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("HIP_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book é.txt").write_text(TEXT + "Ärger im Café. " + TEXT * 3)
    (tmp_path / "two.pdf").write_bytes(pdf.book(TEXT, "It has nine rooms."))

    def make(*sources: str, questions=("Who?", "When?"), model="some/model-7B", max_context=None, **more) -> BatchJob:
        options = RunOptions(sources or ("book é.txt", "two.pdf"), model=model, max_tokens=50, offline=True, no_session=True, **more)
        asked = tuple(Question(question) for question in questions)
        return BatchJob(options, asked, "requests.jsonl", export="openai-batch", max_context=max_context)

    return make


def run(job: BatchJob) -> None:
    batch(job, Terminal(quiet=True))


def requests():
    return [json.loads(line) for line in Path("requests.jsonl").read_text(encoding="utf-8").splitlines()]


def failed():
    return {row["path"]: row["error"]["message"] for row in map(json.loads, Path("requests.jsonl.failed").read_text().splitlines())}


def test_requests_are_what_clients_send(job):
    pytest.importorskip("openai")
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Params
    from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

    # a field that the client does not know is refused too
    body = TypeAdapter(with_config(ConfigDict(extra="forbid"))(Params))
    run(job("book é.txt", "two.pdf", str(SAMPLES / "lighthouse.md"), system="Be brief.", seed=3, top_p=0.5, temperature=0.25))
    assert len(requests()) == 6
    for request in requests():
        assert list(request) == ["custom_id", "method", "url", "body"]
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        body.validate_python(request["body"])
        assert request["body"]["model"] == "some/model-7B" and request["body"]["max_tokens"] == 50
        with pytest.raises(ValidationError):
            body.validate_python(request["body"] | {"unheard": 1})
    ids = [request["custom_id"] for request in requests()]
    assert len(set(ids)) == 6 and all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", custom_id) for custom_id in ids)
    assert ids[0].startswith("book_txt-") and ids[4].split("-")[0].endswith("samples_lighthouse_md")


def test_the_whole_text_travels(job):
    run(job(system="Be brief.", temperature=0.5))
    first, second, third, _ = requests()
    text = (TEXT + "Ärger im Café. " + TEXT * 3).strip()
    system, user = first["body"]["messages"]
    assert system == {"role": "system", "content": "Be brief."} and user["role"] == "user"
    document, _, question = user["content"].rpartition("\n\n")
    assert (document.strip(), question) == (text, "Question: Who?") and first["body"]["temperature"] == 0.5
    assert second["body"]["messages"][1]["content"].endswith("\n\nQuestion: When?")
    pages = third["body"]["messages"][1]["content"].split("\n\n")
    assert [page.strip() for page in pages] == [TEXT.strip(), "It has nine rooms.", "Question: Who?"]


def test_each_request_is_written_once(job):
    run(job(questions=["Who?", "Who?"]))
    assert len(requests()) == 2
    run(job())
    whole = Path("requests.jsonl").read_bytes()
    assert [request["body"]["messages"][0]["content"].split()[-1] for request in requests()] == ["Who?", "Who?", "When?", "When?"]
    for left in (-30, -len(whole.splitlines(keepends=True)[-1]) + 5):
        Path("requests.jsonl").write_bytes(whole[:left])
        run(job())
        assert Path("requests.jsonl").read_bytes() == whole
    run(job(model="another"))
    assert len(requests()) == 8 and len({request["custom_id"] for request in requests()}) == 8


def test_what_is_too_long_is_refused_and_not_cut(job, tiny_model):
    from hipcli.tokens import load_tokenizer

    prompt = load_tokenizer(tiny_model).prompt()
    around = len(prompt.prefix_ids) + len(prompt.suffix_ids("Question: When?"))
    document = len(load_tokenizer(tiny_model).encode(Path("book é.txt").read_text()))
    exact = job("book é.txt", model=str(tiny_model), max_context=around + document + 50)
    with pytest.raises(IncompleteError):
        run(replace(exact, max_context=exact.max_context - 1))
    tokens = f"{around + document:,} tokens and an answer of up to 50 are more than {exact.max_context - 1:,}"
    assert failed() == {"book é.txt": f"{tokens}; nothing was cut"} and not requests()
    # the document has not changed, so it takes a word to try again
    with pytest.raises(IncompleteError):
        run(exact)
    run(replace(exact, retry_failed=True))
    assert len(requests()) == 2 and not Path("requests.jsonl.failed").exists()


def test_tokens_are_estimated_where_no_tokenizer_is(job):
    bytes_ = len(Path("book é.txt").read_bytes()) + len("Question: When?")
    with pytest.raises(IncompleteError):
        run(job("book é.txt", "two.pdf", max_context=bytes_ // 3 + 49))
    assert list(failed()) == ["book é.txt"] and failed()["book é.txt"].startswith("about ") and len(requests()) == 2
    run(replace(job("book é.txt", "two.pdf", max_context=bytes_ // 3 + 51), retry_failed=True))
    assert len(requests()) == 4


def test_a_model_has_to_be_named_and_the_file_has_to_be_one_of_requests(job):
    with pytest.raises(UsageError, match="say which model"):
        run(job(model=None))
    Path("requests.jsonl").write_text('{"schema_version": 1, "question": "Who?"}\n')
    with pytest.raises(InputError, match="not one of hip's rows"):
        run(job())
