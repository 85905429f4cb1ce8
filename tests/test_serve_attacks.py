"""What hostile and broken clients send to `hip serve`: refused in OpenAI's shape, logged without content, served on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

TOKENS = {"ada": "ada-0123456789abcdef", "bob": "bob-0123456789abcdef"}
SECRET = "xyzzyplugh"
HIP = Path(sys.executable).with_name("hip")


@pytest.fixture(scope="module")
def served(serve, tiny_model, tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text("# who may ask\n\n" + "\n".join(TOKENS.values()) + "\n")
    limits = ("--upload-size", "200KB", "--upload-pages", "40", "--upload-seconds", "3", "--documents", "3", "--max-tokens", "4")
    return serve("--token-file", file, *limits, HIP_MODEL=str(tiny_model))


@pytest.fixture
def ada(served):
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {TOKENS['ada']}"}, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
def bob(served):
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {TOKENS['bob']}"}, trust_env=False, timeout=60) as client:
        yield client


def upload(client: httpx.Client, text: str | bytes = "A page of a book.", name: str = "a.txt") -> httpx.Response:
    return client.post("/v1/files", files={"file": (name, text)}, data={"purpose": "user_data"})


def refused(answer: httpx.Response, status: int, code: str | None = None) -> dict:
    """The error of a refusal, which is whole, and quotes nothing that was sent."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and SECRET not in answer.text
    assert code is None or error["code"] == code, error
    return error


def connect(served) -> socket.socket:
    place = urlsplit(served.url)
    return socket.create_connection((place.hostname, place.port), timeout=30)


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong-0123456789abcdef", "Basic YTpi", TOKENS["ada"], f"Bearer {TOKENS['ada']}x", "Bearer \xe9\xe9\xe9"]
)
def test_a_wrong_token(served, header):
    for path in ("/v1/models", "/v1/files", "/metrics"):
        sent = {} if header is None else {"Authorization": header.encode("latin-1")}
        answer = httpx.get(served.url + path, headers=sent, trust_env=False)
        refused(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert httpx.get(f"{served.url}/healthz", trust_env=False).json()["status"] == "ok"


def test_documents_of_one_token_are_invisible_to_another(ada, bob):
    mine = upload(ada, "Maria Lindqvist was a printer.", "mine.txt").json()
    path, ask = f"/v1/files/{mine['id']}", {"messages": [{"role": "user", "content": "Who?"}]}
    assert ada.get(path).status_code == 200
    for get in (path, f"{path}/pages", f"{path}/pages/0"):
        refused(bob.get(get), 404, "document_not_found")
    refused(bob.delete(path), 404)
    refused(bob.post("/v1/chat/completions", json=ask | {"model": mine["id"]}), 404, "model_not_found")
    refused(bob.post("/v1/chat/completions", json=ask | {"hip": {"document": mine["id"]}}), 404, "document_not_found")
    nothing = refused(bob.get("/v1/files/file-000000000000000000000000"), 404)
    assert nothing == refused(bob.get(path), 404)
    for listed in ("/v1/files", "/v1/models"):
        assert mine["id"] in ada.get(listed).text and mine["id"] not in bob.get(listed).text
    # nor does it show in how fast the same bytes are read: what is kept of them is kept apart
    twin = upload(bob, "Maria Lindqvist was a printer.", "mine.txt").json()
    answers = [client.post("/v1/chat/completions", json=ask | {"model": of["id"]}).json() for client, of in ((ada, mine), (bob, twin))]
    assert [answer["hip"]["session"]["reused_tokens"] for answer in answers] == [0, 0]
    assert ada.delete(path).json()["deleted"] and bob.get(f"/v1/files/{twin['id']}").status_code == 200
    bob.delete(f"/v1/files/{twin['id']}")


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "..\\..\\boot.ini", "/etc/shadow", "a\x1b]0;x\x07b.txt", "..", ".", "x" * 4000 + ".txt"]
)
def test_path_tricks_in_names(ada, served, name, tmp_path):
    file = ada.post("/v1/files", params={"filename": name}, content=b"A page of a book.").json()
    shown = file["filename"]
    assert "/" not in shown and "\\." not in shown and ".." not in shown.removesuffix(".txt") and len(shown) <= 120 and shown.isprintable()
    page = ada.get(f"/v1/files/{file['id']}/pages/0").json()
    assert (page["text"], page["source"]) == ("A page of a book.", shown)
    ada.delete(f"/v1/files/{file['id']}")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/..%2f..%2fetc%2fpasswd",
        "/page/..%2fapp.py",
        "/page/../guard.py",
        "/page/%2e%2e/app.py",
        "/page//etc/passwd",
        "/v1/files/file-x/pages/-1",
    ],
)
def test_path_tricks_in_addresses(ada, served, path):
    with connect(served) as raw:
        # as it is: a client would tidy the path up
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['ada']}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ")[1] == b"404" and b"import" not in answer and b"root:" not in answer
    assert "etc" not in served.log() and "guard.py" not in served.log()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b'{"messages": 5}',
        b'{"messages": []}',
        b'{"messages": [5]}',
        b'{"messages": [{"role": "user", "content": 5}]}',
        b'{"messages": [{"role": "user", "content": [5]}]}',
        b'{"messages": [{"role": "user", "content": "  "}]}',
        b'{"messages": [{"role": "tool", "content": "x"}]}',
        b'{"messages": [{"role": "assistant", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1000000}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": true}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}',
        b'{"messages": [{"role": "user", "content": "x"}], "top_p": 7}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": -1}',
        b'{"messages": [{"role": "user", "content": "x"}], "stop": ["a","b","c","d","e"]}',
        b'{"messages": [{"role": "user", "content": "x"}], "stop": ""}',
        b'{"messages": [{"role": "user", "content": "x"}], "hip": 5}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        b'{"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "@@"}}]}]}',
        b'{"messages": [{"role": "user", "content": [{"type": "file"}]}]}',
    ],
)
def test_malformed_requests(ada, body):
    refused(ada.post("/v1/chat/completions", content=body), 400)
    refused(ada.post("/v1/responses", content=body.replace(b"messages", b"input")), 400)


def test_lone_surrogates_and_control_characters_in_a_question(ada):
    file = upload(ada).json()
    question = "Who \\ud800 \\u0000 \\u001b[31m <s>system"
    body = f'{{"model": "{file["id"]}", "messages": [{{"role": "user", "content": "{question}"}}]}}'
    assert ada.post("/v1/chat/completions", content=body).status_code == 200
    ada.delete(f"/v1/files/{file['id']}")


def test_uploads_that_are_too_much(ada, served):
    refused(upload(ada, b"x" * 300_000), 413, "too_large")
    refused(ada.post("/v1/files?filename=a.txt", content=b"x" * 300_000), 413, "too_large")
    # without a length that is told before
    refused(ada.post("/v1/files?filename=a.txt", content=(b"x" * 10_000 for _ in range(30))), 413, "too_large")
    refused(upload(ada, "\f".join(f"page {n}" for n in range(50))), 400, "invalid_document")
    refused(upload(ada, b""), 400, "invalid_document")
    refused(upload(ada, b"   "), 400, "invalid_document")
    refused(upload(ada, b"%PDF-1.7 " + SECRET.encode() + b"\0" * 100, "a.pdf"), 400, "invalid_document")
    refused(ada.post("/v1/files", content=b"x"), 400)
    refused(ada.post("/v1/files", content=b"--x\r\n", headers={"Content-Type": "multipart/form-data; boundary=y"}), 400)
    refused(ada.post("/v1/files", content=b"x", headers={"Content-Type": "multipart/form-data"}), 400)
    refused(ada.post("/v1/files", data={"file": "no file"}, files={"other": ("a.txt", "x")}), 400)
    kept = [upload(ada, f"Page {n}.").json() for n in range(3)]
    refused(upload(ada, "One more."), 409, "too_many_documents")
    for file in kept:
        ada.delete(f"/v1/files/{file['id']}")
    uploads = served.cache / "serve" / "uploads"
    assert not [path for path in uploads.rglob("*") if path.is_file() or path.name.startswith("incoming")]


def test_a_slow_loris_is_let_go(served, ada):
    """Heads that never end and bodies that drip end by their deadline, and nobody else waits for them."""
    heads = [connect(served) for _ in range(50)]
    for raw in heads:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    body = connect(served)
    body.sendall(
        f"POST /v1/files?filename=a.txt HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['ada']}\r\n"
        "Content-Length: 1000\r\n\r\n".encode()
    )
    began = time.monotonic()
    assert ada.get("/v1/models").status_code == 200 and time.monotonic() - began < 2
    for _ in range(4):
        body.sendall(b"x")
        time.sleep(1)
    answer = body.recv(65536)
    assert answer.split(b" ")[1] == b"408" and b'"error"' in answer
    for raw in heads:
        raw.settimeout(2)
        try:
            assert raw.recv(10) == b""
        except ConnectionResetError:
            pass
        raw.close()


def test_pages_of_other_sites_are_refused(served, ada):
    ask = {"messages": [{"role": "user", "content": "x"}]}
    for headers in (
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": served.url.replace("127.0.0.1", "localhost")},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        refused(ada.post("/v1/chat/completions", json=ask, headers=headers), 403)
        refused(ada.get("/v1/files", headers=headers), 403)
    assert ada.get("/v1/files", headers={"Origin": served.url, "Sec-Fetch-Site": "same-origin"}).status_code == 200
    page = httpx.get(served.url, headers={"Sec-Fetch-Site": "cross-site"}, trust_env=False)
    assert page.status_code == 200 and "access-control-allow-origin" not in page.headers
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'") and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert "http" not in page.text.replace("http-equiv", "").replace("www.w3.org", "")


def test_methods_and_addresses_that_are_not_there(ada):
    refused(ada.get("/nothing"), 404, "unknown_url")
    refused(ada.put("/v1/files"), 405)
    refused(ada.request("TRACE", "/v1/models"), 405)


def test_not_http_at_all(served, ada):
    for junk in (b"\x16\x03\x01\x02\x00\x01", b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 200_000 + b"\r\n\r\n"):
        with connect(served) as raw:
            try:
                raw.sendall(junk)
                raw.shutdown(socket.SHUT_WR)
                raw.recv(65536)
            except OSError:
                pass
    assert ada.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--host", "0.0.0.0"), "a token is needed"),
        (("--host", "::"), "a token is needed"),
        (("--host", "no-such-host.invalid"), "not an address of this machine"),
        (("--token-file", "missing"), "cannot read the token file"),
        (("--token-file", "short"), "at least 16"),
        (("--token-file", "empty"), "holds no token"),
        (("--upload-size", "big"), "--upload-size must be a size"),
        (("--backlog", "0"), "--backlog must be above 0"),
    ],
)
def test_what_is_refused_at_the_start(arguments, wanted, tmp_path, tiny_model):
    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "empty").write_text("# nothing\n")
    env = os.environ | {"HIP_MODEL": str(tiny_model)}
    done = subprocess.run([HIP, "serve", *arguments], cwd=tmp_path, capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stdout) == (2, "") and wanted in done.stderr and "abc" not in done.stderr


def test_the_log_names_refusals_and_no_content(served, ada):
    ada.delete(f"/v1/files/{upload(ada, SECRET, f'{SECRET}.txt').json()['id']}")
    refused(httpx.get(f"{served.url}/v1/files", headers={"Authorization": f"Bearer {SECRET}"}, trust_env=False), 401)
    refused(upload(ada, SECRET.encode() * 30_000, f"{SECRET}.txt"), 413)
    refused(ada.get("/v1/files", headers={"Host": SECRET}), 403)
    refused(ada.post("/v1/chat/completions", content=SECRET), 400)
    refused(ada.post("/v1/chat/completions", json={"model": SECRET, "messages": [{"role": "user", "content": SECRET}]}), 404)
    refused(ada.get(f"/{SECRET}", params={SECRET: SECRET}), 404)
    log = served.log()
    assert "invalid_api_key" in log and "too_large" in log and "wrong_host" in log and "invalid_json" in log
    assert SECRET not in log and not any(token in log for token in TOKENS.values()) and "Lindqvist" not in log
    metrics = ada.get("/metrics").text
    assert 'hip_refused_total{reason="invalid_api_key"}' in metrics and SECRET not in metrics
