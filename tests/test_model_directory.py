"""Model directories, the hub's cache and everything else a user may name."""

import http.server
import json
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file

from hipcli.errors import ModelError
from hipcli.models import DEFAULT_MODEL, obtain_model


def spoil(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def drop(name):
    return lambda folder: (folder / name).unlink()


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-10])


DIRECTORIES = [
    (drop("config.json"), "no config.json"),
    (spoil("config.json", b"{"), "config.json is damaged"),
    (spoil("config.json", b"\xff\xfe"), "config.json is damaged"),
    (drop("tokenizer.json"), "no tokenizer.json"),
    (drop("model.safetensors"), "no \\*.safetensors"),
    (pickled, "pytorch_model.bin only"),
    (cut, "bytes instead of"),
    (spoil("model.safetensors", b""), "header cannot be read"),
    (spoil("model.safetensors", b"\xff" * 400), "header cannot be read"),
    (spoil("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
    (spoil("model.safetensors.index.json", b'{"weight_map": {"a": "model-2.safetensors"}}'), "model-2.safetensors, which is not there"),
]


@pytest.fixture
def folder(tmp_path):
    """What a model directory looks like from outside."""
    return make(tmp_path / "mine")


def make(folder, value=0.0):
    folder.mkdir(parents=True)
    save_file({"a": np.full((64, 64), value, np.float32)}, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(("harm", "message"), DIRECTORIES, ids=[message for _, message in DIRECTORIES])
def test_directories_are_checked(tmp_path, folder, harm, message):
    files = obtain_model(str(folder), data_dir=tmp_path / "unused")
    assert (files.name, files.origin, files.path) == ("mine", "directory", folder)
    harm(folder)
    with pytest.raises(ModelError, match=message):
        obtain_model(str(folder), data_dir=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()


def test_fingerprint_follows_every_part(tmp_path, folder):
    digests = {obtain_model(str(folder), data_dir=tmp_path).digest for _ in range(2)}
    assert len(digests) == 1
    for name in ("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        (folder / name).write_text('{"x": 1}')
        digests.add(obtain_model(str(folder), data_dir=tmp_path).digest)
    save_file({"a": np.full((64, 64), 0.5, np.float32)}, folder / "model.safetensors")
    digests.add(obtain_model(str(folder), data_dir=tmp_path).digest)
    assert len(digests) == 6


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as one model needs: org/tiny."""

    folder, commit = None, "a" * 40

    def do_GET(self):
        route = self.path.split("?")[0].strip("/").split("/")
        if route[:4] == ["api", "models", "org", "tiny"]:
            files = [
                {"type": "file", "path": p.name, "rfilename": p.name, "size": p.stat().st_size, "oid": p.name}
                for p in self.folder.iterdir()
            ]
            listing = files if "tree" in route else {"id": "org/tiny", "sha": self.commit, "siblings": files}
            self.answer(json.dumps(listing).encode())
        elif route[:3] == ["org", "tiny", "resolve"]:
            self.answer((self.folder / route[4]).read_bytes(), etag=route[4])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

    do_HEAD = do_GET

    def answer(self, body, etag="x"):
        self.send_response(200)
        for key, value in {"Content-Length": len(body), "X-Repo-Commit": self.commit, "ETag": f'"{etag}"'}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        pass


ASK_HUB = """
    import sys
    from pathlib import Path
    from hipcli.errors import ModelError
    from hipcli.models import obtain_model

    class Log:
        def start(self, label, total):
            self.total, self.done = total, 0
        def advance(self, n):
            self.done += n
        def finish(self):
            print("bytes", self.done == self.total)

    try:
        files = obtain_model(sys.argv[1], data_dir=Path("unused"), offline=sys.argv[2] == "offline", progress=Log())
        print(files.origin, files.name, *sorted(path.name for path in files.path.iterdir()))
    except ModelError as error:
        print(error)
"""


def ask_hub(home, address, spec, offline=""):
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home)}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", textwrap.dedent(ASK_HUB), spec, offline]
    done = subprocess.run(command, env=environment, cwd=home.parent, capture_output=True, text=True, timeout=120)
    assert "%|" not in done.stderr  # the hub draws no bars of its own
    return done.stdout.splitlines()


def test_hub(tmp_path, folder):
    for unwanted in ("pytorch_model.bin", "consolidated.safetensors", "README.md"):
        (folder / unwanted).write_text("unwanted")
    handler, home = type("Handler", (Hub,), {"folder": folder}), tmp_path / "home"
    found = "hub org/tiny config.json model.safetensors tokenizer.json"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert "hip is offline" in ask_hub(home, address, "org/tiny", "offline")[0] and not home.exists()
        assert ask_hub(home, address, "org/tiny") == ["bytes True", found]
        assert ask_hub(home, address, "org/none") == ["the hub has no model org/none, or it is private"]
        server.shutdown()
    assert ask_hub(home, "http://127.0.0.1:9", "org/tiny") == [found]
    assert "org/none could not be fetched from the hub" in ask_hub(home, "http://127.0.0.1:9", "org/none")[0]


UNKNOWN = [
    ("SmolLM2-135M-Instrukt", "unknown model", DEFAULT_MODEL),
    ("./no/such/place", "no such file or directory", "a .gguf file"),
    ("missing.gguf", "no such file or directory", "a .gguf file"),
    ("/nonexistent/model", "no such file or directory", "a model directory"),
    ("~no-such-user/model", "no such file or directory", "a model directory"),
    ("gpt", "unknown model", 'a hub id "org/name"'),
    ("a\0b", "unknown model", "a model directory"),
]


@pytest.mark.parametrize(("spec", "message", "hint"), UNKNOWN)
def test_unknown_models(tmp_path, spec, message, hint):
    with pytest.raises(ModelError, match=message) as caught:
        obtain_model(spec, data_dir=tmp_path)
    assert hint in caught.value.hint


@pytest.mark.parametrize(("name", "content", "message"), [("a.gguf", b"GGU", "not a GGUF"), ("a.txt", b"hello", "is not a model")])
def test_files_that_are_no_models(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        obtain_model(str(tmp_path / name), data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_name_too_long_for_a_path(tmp_path):
    with pytest.raises(ModelError, match="File name too long"):
        obtain_model("x" * 5000, data_dir=tmp_path)
