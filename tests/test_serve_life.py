"""The life of a server: clients that leave, backlogs, documents that come and go, signals, kill -9 and what is there afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

TEXT = "The library was founded in 1911 by Maria Lindqvist, a printer. "


@pytest.fixture(scope="module")
def endless(tiny_model, tmp_path_factory):
    """The tiny model without an end of text: its answers are as long as they may be."""
    folder = tmp_path_factory.mktemp("endless") / "endless"
    shutil.copytree(tiny_model, folder)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        record = json.loads((folder / name).read_text())
        record = {key: value.replace("</s>", "") if isinstance(value, str) else value for key, value in record.items()}
        (folder / name).write_text(json.dumps({key: value for key, value in record.items() if not key.startswith("eos")}))
    return folder


@pytest.fixture(scope="module")
def served(serve, endless):
    return serve("--backlog", "3", "--loaded", "1", HIP_MODEL=str(endless))


@pytest.fixture
def client(served):
    with httpx.Client(base_url=served.url, trust_env=False, timeout=120) as client:
        yield client


def add(client: httpx.Client, text: str = TEXT, name: str = "a.txt") -> str:
    answer = client.post("/v1/files", params={"filename": name}, content=text.encode())
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def ask(document: str, **more) -> dict:
    return {"model": document, "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 4} | more


def figure(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.M)
    return float(found[1]) if found else 0.0


def until(what, seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.05)


def state(client: httpx.Client, document: str) -> str:
    return client.get(f"/v1/files/{document}").json()["hip"]["state"]


def long_stream(client: httpx.Client, document: str, **more):
    """A stream that would go on for thousands of tokens."""
    return client.stream("POST", "/v1/chat/completions", json=ask(document, stream=True, max_tokens=4096, temperature=2, **more))


def test_a_client_that_leaves_stops_its_answer(client):
    document, before = add(client), figure(client, 'hip_answers_total{end="gone"}')
    with long_stream(client, document) as answer:
        pieces = (line for line in answer.iter_lines() if '"content":"' in line and '"content":""' not in line)
        next(pieces), next(pieces)
    until(lambda: figure(client, 'hip_answers_total{end="gone"}') == before + 1)
    # the model is free at once, and the document as it was
    began = time.monotonic()
    answer = client.post("/v1/chat/completions", json=ask(document)).json()
    assert time.monotonic() - began < 5 and answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 10
    # and where nothing is streamed
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=ask(document, max_tokens=4096, temperature=2), timeout=1)
    until(lambda: figure(client, 'hip_answers_total{end="gone"}') == before + 2)
    assert client.post("/v1/chat/completions", json=ask(document)).json()["usage"] == answer["usage"]


def test_a_client_that_leaves_stops_a_prefill_which_goes_on_later(client, served):
    document, small = add(client, TEXT * 300, "long.txt"), add(client, TEXT, "short.txt")
    until(lambda: state(client, document) == "saved" and state(client, small) == "loaded")
    # so that it is the question that reads it
    shutil.rmtree(served.cache / "sessions" / client.get(f"/v1/files/{document}").json()["hip"]["session"])
    with client.stream("POST", "/v1/responses", json={"model": document, "input": "Who?", "stream": True}) as answer:
        assert any(re.match(r": prefill \d,\d+ of", line) for line in answer.iter_lines())
    left = client.post("/v1/chat/completions", json=ask(small)).json()
    assert left["choices"] and state(client, document) == "unread"
    session = client.post("/v1/chat/completions", json=ask(document)).json()["hip"]["session"]
    # whole chunks that were read before the client left count
    assert 1024 <= session["reused_tokens"] < session["tokens"]
    assert session["prefilled_tokens"] == session["tokens"] - session["reused_tokens"]


def test_a_backlog_that_is_full_is_told(client):
    document, answers = add(client), []
    until(lambda: client.get("/healthz").json()["waiting"] == 0)
    with long_stream(client, document) as first:
        # kept, since httpx hangs up when its iterator is let go
        lines = first.iter_lines()
        next(lines)
        until(lambda: client.get("/healthz").json()["waiting"] == 0)

        def one(number: int) -> None:
            answers.append(client.post("/v1/chat/completions", json=ask(document, user=f"u{number}")))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) == 5)
        assert {answer.status_code for answer in answers} == {429}
        assert all(1 <= int(answer.headers["retry-after"]) <= 120 for answer in answers)
        assert answers[0].json()["error"]["type"] == "rate_limit_error"
    for thread in threads:
        thread.join()
    # those that waited are answered
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5


def test_documents_take_turns_in_memory(client, served):
    one, two = add(client, TEXT, "one.txt"), add(client, TEXT.upper() * 30, "two.txt")
    answers = {}
    for document in (one, two, one, two):
        answer = client.post("/v1/chat/completions", json=ask(document)).json()
        text = answer["choices"][0]["message"]["content"]
        assert answers.setdefault(document, text) == text
        assert (figure(client, "hip_loaded_documents"), state(client, document)) == (1, "loaded")
    # out of memory, back from the disk
    assert answer["hip"]["session"]["reused_tokens"] == answer["hip"]["session"]["tokens"] and state(client, one) == "saved"
    sessions = [client.get(f"/v1/files/{document}").json()["hip"]["session"] for document in (one, two)]
    for document in (one, two):
        assert client.delete(f"/v1/files/{document}").status_code == 200
    kept = served.cache / "sessions"
    # what was kept of them goes with them
    until(lambda: not any((kept / key).exists() for key in sessions))


def test_the_figures_are_what_prometheus_reads(client):
    from prometheus_client.parser import text_string_to_metric_families

    client.post("/v1/chat/completions", json=ask(add(client)))
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    assert {"hip_requests", "hip_answers", "hip_prompt_tokens", "hip_queue_seconds", "process_resident_memory_bytes"} <= set(families)
    assert any(sample.labels == {"route": "POST /v1/chat/completions", "status": "200"} for sample in families["hip_requests"].samples)


def test_what_ends_a_server_loses_nothing(serve, endless):
    """SIGTERM, then kill -9, then Ctrl-C, each in the middle of an answer; the next server goes on from what is there."""
    server = serve(HIP_MODEL=str(endless))
    with visit(server) as client:
        document = add(client, TEXT * 20)
        first = client.post("/v1/chat/completions", json=ask(document)).json()
        until(lambda: complete(server.cache))
    for number, code, word in ((signal.SIGTERM, 143, "Terminated"), (signal.SIGKILL, -9, ""), (signal.SIGINT, 130, "Interrupted")):
        with visit(server) as client:
            rest = cut_off(server, client, document, number, code)
        if number == signal.SIGKILL:
            assert rest is None
        else:
            # the client is told, in the protocol's own words
            assert any("called_off" in line for line in rest) and server.log().endswith(f"{word}\n")
        if number == signal.SIGINT:
            return
        server = serve(HIP_MODEL=str(endless), HIP_CACHE_DIR=str(server.cache))
        with visit(server) as client:
            assert [file["id"] for file in client.get("/v1/files").json()["data"]] == [document]
            assert state(client, document) == "saved"
            again = client.post("/v1/chat/completions", json=ask(document)).json()
            assert again["choices"] == first["choices"]
            session = again["hip"]["session"]
            assert session["reused_tokens"] == session["tokens"] and session["prefilled_tokens"] == 0


def visit(server) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False, timeout=120)


def cut_off(server, client, document: str, number: int, code: int) -> list[str] | None:
    """End a server in the middle of an answer; what still came of it, None when it broke off."""
    with long_stream(client, document) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert server.end(number) == code
        try:
            return list(lines)
        except httpx.RemoteProtocolError:
            return None


def complete(cache) -> bool:
    """Whether all that was read is on the disk."""
    manifests = [json.loads(path.read_text())["manifest"] for path in cache.glob("sessions/*/manifest.json")]
    return bool(manifests) and all(manifest["chunks"] and manifest["chunks"][-1]["stop"] == manifest["tokens"] for manifest in manifests)


def test_uploads_go_with_the_server_where_nothing_is_to_be_kept(monkeypatch, tmp_path):
    from hipcli.options import RunOptions
    from hipcli.serving.start import uploads_folder

    monkeypatch.setenv("HIP_CACHE_DIR", str(tmp_path))
    with uploads_folder(RunOptions(("a",), no_session=True)) as folder:
        (folder / "x").write_text("x")
        assert tmp_path not in folder.parents
    assert not folder.exists()
    with uploads_folder(RunOptions(("a",))) as folder:
        assert tmp_path in folder.parents


def test_a_port_that_is_taken(tiny_model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [Path(sys.executable).with_name("hip"), "serve", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HIP_MODEL": str(tiny_model)}, timeout=60)
    assert done.returncode == 2 and "address already in use" in done.stderr and done.stdout == ""
