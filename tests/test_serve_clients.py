"""Programs that know nothing of hip, unmodified, against `hip serve` with the real model: openai, curl, llm."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from hipcli import config

KEEPERS = """# The Keepers

The first head keeper was Ada Lindqvist, who came from Visby. She kept a goat.

# History

The lamp was first lit on 3 March 1874. It burned rape oil and was seen eleven miles away.

# Machinery

The lens weighs 4,200 kilograms and turns on a bath of mercury. It was made in Paris.
"""
ROOT = Path(__file__).resolve().parent.parent
QUESTION = "When was the lamp first lit?"


@pytest.fixture(scope="module")
def served(serve, real_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("given") / "keepers.md"
    path.write_text(KEEPERS)
    return serve(path, "--max-tokens", "24", HIP_DATA_DIR=str(config.data_dir()), HIP_OFFLINE="1", HIP_MODEL="")


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def asked(question: str = QUESTION, **more) -> dict:
    return {"model": "keepers.md", "messages": [{"role": "user", "content": question}]} | more


def test_openai_gets_an_answer_with_its_page(client):
    answer = client.chat.completions.create(**asked())
    (choice,) = answer.choices
    assert "3 March 1874" in choice.message.content and choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens > 5
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    best = answer.hip["citations"][0]
    assert (best["source"], best["page"], best["title"], best["index"]) == ("keepers.md", 2, "History", 1)
    assert best["quote"] == "The lamp was first lit on 3 March 1874."


def test_openai_streams_the_same_answer(client):
    whole = client.chat.completions.create(**asked()).choices[0].message.content
    chunks = list(client.chat.completions.create(**asked(), stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == whole and len(pieces) > 3
    assert chunks[0].choices[0].delta.role == "assistant" and len({chunk.id for chunk in chunks}) == 1
    ends = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert [chunk.choices[0].finish_reason for chunk in ends] == ["stop"] and ends[0].hip["citations"][0]["page"] == 2
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True] and not chunks[-1].choices


def test_openai_responses_whole_and_streamed(client):
    whole = client.responses.create(model="keepers.md", input=QUESTION)
    assert "3 March 1874" in whole.output_text and whole.status == "completed" and whole.usage.output_tokens > 5
    assert whole.hip["citations"][0]["page"] == 2
    (annotation,) = whole.output[0].content[0].annotations
    assert annotation.type == "file_citation" and annotation.filename == "keepers.md"
    with client.responses.stream(model="keepers.md", input=[{"role": "user", "content": QUESTION}]) as stream:
        events = list(stream)
        # the client puts the response together from its events
        assert stream.get_final_response().output_text == whole.output_text
    assert [event.sequence_number for event in events if event.type != "response.output_text.delta"] == sorted(
        event.sequence_number for event in events if event.type != "response.output_text.delta"
    )
    kinds = [event.type for event in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[-1] == "response.completed" and kinds.count("response.output_text.delta") > 3


def test_what_a_request_chooses_is_done(client):
    cut = client.chat.completions.create(**asked(max_tokens=3))
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)
    assert client.responses.create(model="keepers.md", input=QUESTION, max_output_tokens=3).status == "incomplete"
    stopped = client.chat.completions.create(**asked(stop=[" March"]))
    assert stopped.choices[0].message.content.endswith("3") and stopped.choices[0].finish_reason == "stop"
    pieces = client.chat.completions.create(**asked(stop=" March", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == stopped.choices[0].message.content
    drawn = [client.chat.completions.create(**asked(temperature=1.5, seed=seed, max_tokens=12)) for seed in (1, 1, 2)]
    texts = [answer.choices[0].message.content for answer in drawn]
    assert texts[0] == texts[1] != texts[2]


def test_earlier_turns_and_instructions_are_read(client):
    turns = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "Who was the first head keeper?"},
        {"role": "assistant", "content": "Ada Lindqvist."},
        {"role": "user", "content": [{"type": "text", "text": "Which animal did she keep?"}]},
    ]
    alone = client.chat.completions.create(**asked("Which animal did she keep?"))
    answer = client.chat.completions.create(model="keepers.md", messages=turns)
    assert "goat" in answer.choices[0].message.content
    assert answer.usage.prompt_tokens > alone.usage.prompt_tokens + 20


def test_a_document_is_brought_asked_listed_and_removed(client):
    text = b"The ferry to Norra leaves at 7.40 from pier nine. Tickets cost 12 crowns."
    file = client.files.create(file=("ferry.txt", text), purpose="user_data")
    assert (file.filename, file.bytes, file.hip["pages"]) == ("ferry.txt", len(text), 1)
    assert file.id in [other.id for other in client.files.list()] and file.id in [model.id for model in client.models.list()]
    part = {"type": "file", "file": {"file_id": file.id}}
    question = {"role": "user", "content": [{"type": "text", "text": "How much does a ticket cost?"}, part]}
    answer = client.chat.completions.create(model="default", messages=[question])
    assert "12" in answer.choices[0].message.content and answer.hip["document"] == file.id
    again = client.chat.completions.create(
        model="default", messages=asked("Which pier?")["messages"], extra_body={"hip": {"document": "ferry.txt"}}
    )
    assert again.hip["document"] == file.id
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=file.id, messages=asked()["messages"])


def test_a_document_within_a_request(client):
    data = "data:text/plain;base64," + base64.b64encode(b"The password of the pump house is heron.").decode()
    part = {"type": "input_file", "filename": "pump.txt", "file_data": data}
    content = [part, {"type": "input_text", "text": "What is the password of the pump house?"}]
    answers = [client.responses.create(model="default", input=[{"role": "user", "content": content}]) for _ in range(2)]
    assert all("heron" in answer.output_text for answer in answers)
    # the same bytes again are the same document, which was read already
    assert answers[0].hip["document"] == answers[1].hip["document"]
    client.files.delete(answers[0].hip["document"])


def test_what_is_not_done_is_refused_by_name(client):
    for more in ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"n": 2}, {"logprobs": True}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**asked(), **more)
        assert refused.value.code == "unsupported_parameter" and refused.value.param == next(iter(more))
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="keepers.md", input="x", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=asked()["messages"])
    assert unknown.value.code == "model_not_found"


def documented(served, folder: Path, language: str) -> list[str]:
    """Blocks of docs/serve.md in a language, about this server and these files."""
    page = (ROOT / "docs/serve.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.S)
    assert blocks
    names = {
        "http://127.0.0.1:8642": served.url,
        "lighthouse.pdf": "keepers.md",
        "@book.pdf": f"@{folder / 'note.txt'}",
        "book.pdf": "note.txt",
    }
    for old, new in names.items():
        blocks = [block.replace(old, new) for block in blocks]
    return blocks


def test_the_documented_program(served, tmp_path):
    (program,) = documented(served, tmp_path, "python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("3 March 1874") >= 4 and "p. 2, History" in done.stdout, done.stderr


def test_the_documented_commands(served, tmp_path):
    """curl, and the `llm` command with an OpenAI-compatible endpoint."""
    (tmp_path / "note.txt").write_text("The gate is green.")
    (tmp_path / "extra-openai-models.yaml").write_text(documented(served, tmp_path, "yaml")[0])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "unused", "PATH": path}

    def run(block: str) -> str:
        done = subprocess.run(["bash", "-ec", block], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    curl, llm = (block for block in documented(served, tmp_path, "bash") if block.startswith(("curl", "llm")))
    assert "3 March 1874" in run(llm)
    # each ends without a line break of its own
    answer, form, body = map(json.loads, run(curl.replace("\ncurl", "; echo\ncurl")).splitlines())
    assert "3 March 1874" in answer["choices"][0]["message"]["content"] and form["id"] == body["id"]
    page = json.loads(run(f"curl -sS {served.url}/v1/files/{form['id']}/pages/0"))
    assert (form["filename"], page["text"]) == ("note.txt", "The gate is green.")
    assert json.loads(run(f"curl -sS -X DELETE {served.url}/v1/files/{form['id']}"))["deleted"] is True


def test_the_log_holds_no_content(served, client):
    """Nor anything of what was asked and brought above."""
    file = client.files.create(file=("ferry.txt", b"The heron of Norra."), purpose="user_data")
    client.chat.completions.create(**asked(max_tokens=2))
    client.files.delete(file.id)
    log = served.log().lower()
    for word in ("lamp", "1874", "norra", "heron", "ferry.txt", "pier", "goat"):
        assert word not in log
