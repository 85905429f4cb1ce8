"""How much memory a run may count on, what it plans to take, and that a prefill keeps to it."""

from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from hipcli import memory
from hipcli.engine import GPU_CHUNK_TOKENS, Engine
from hipcli.kernels.presets import preset
from hipcli.memory import HOST_SCRATCH_BYTES, available_bytes, peak_memory_bytes, plan_memory, ran_out_of_memory, working_bytes
from hipcli.model import checked
from hipcli.settings import AttentionSettings

GIB = 1 << 30


def test_a_container_with_less_memory_than_the_machine_counts(tmp_path):
    free = available_bytes(tmp_path)
    assert free > 1 << 20
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 600000\ninactive_file 50000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) > 1 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    assert available_bytes(tmp_path) == 350_000


def on_gpu(**changes):
    """Sizes of Qwen2.5-7B as a plan reads them."""
    sizes = {
        "device": "cuda", "dtype": torch.bfloat16, "layers": 28, "heads": 28, "kv_heads": 4, "head_dim": 128, "hidden_size": 3584,
        "intermediate_size": 18944, "vocab": 152064, "parameters": 7_615_616_512, "kv_bytes_per_token": 2 * 28 * 4 * 128 * 2,
    }  # fmt: skip
    return SimpleNamespace(**sizes | changes)


def plan_with(monkeypatch, free, tokens, model=None, held=0):
    monkeypatch.setattr(memory, "used_bytes", lambda device: 15 * GIB)
    return plan_memory(
        model or on_gpu(),
        tokens,
        prune=preset("default"),
        token_bytes=57344,
        device_parts=(28, 28),
        free=free,
        host_free=0,
        held_bytes=held,
        host_held_bytes=0,
        rotated_tokens=0,
        dense_tokens=0,
        keys_read=3000.0,
        rate=1e14,
        chunk_lengths=GPU_CHUNK_TOKENS,
    )


@pytest.mark.parametrize(
    ("free_gib", "tokens", "chunk", "fits"),
    [
        (120, 1 << 20, 32768, True),
        (60, 1 << 20, 16384, True),
        (57.5, 1 << 20, 8192, True),
        (57, 1 << 20, 4096, True),
        (56.9, 1 << 20, 1024, False),
        (120, 20_000, 32768, True),
        (120, 5_000, 8192, True),
        (120, 10, 1024, True),
    ],
)
def test_the_longest_useful_chunk_that_fits_is_chosen(monkeypatch, free_gib, tokens, chunk, fits):
    plan = plan_with(monkeypatch, int(free_gib * GIB), tokens)
    assert (plan.chunk_tokens, plan.fits) == (chunk, fits)
    assert plan.kv_bytes == tokens * 57344 and plan.peak_bytes == plan.kv_bytes + plan.working_bytes
    assert plan.planned_peak_bytes == 15 * GIB + plan.peak_bytes


def test_what_is_held_already_is_not_counted_twice(monkeypatch):
    plan = plan_with(monkeypatch, 100 * GIB, 1000, held=57344 * 400)
    assert plan.peak_bytes == 600 * 57344 + plan.working_bytes


def test_working_bytes_on_a_gpu_grow_with_chunk_and_context_up_to_the_scans_limit():
    plan, model = preset("default"), on_gpu()
    by_chunk = [working_bytes(model, chunk, 1 << 20, plan) for chunk in (8192, 16384, 32768)]
    assert by_chunk == sorted(by_chunk) and by_chunk[2] < 6 * GIB
    longer = working_bytes(model, 32768, 1 << 22, plan) - by_chunk[2]
    assert 0 < longer <= 256 << 20
    # the scan keeps a score for every query head, but never more than its limit at a time
    assert by_chunk[2] <= working_bytes(model, 32768, 1 << 20, preset("paper-3k")) < by_chunk[2] + (512 << 20)
    # a short document never fills a long chunk
    assert working_bytes(model, 32768, 9000, plan) == working_bytes(model, 16384, 9000, plan)


class LiveBytes(TorchDispatchMode):
    """Peak of the bytes of all tensors made under it that are alive at the same time."""

    def __init__(self):
        super().__init__()
        self.peak, self._held = 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._held = {key: value for key, value in self._held.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._held.values()))
        return result


@pytest.mark.parametrize("mode", ["dense", "sparse"])
@pytest.mark.parametrize(
    ("family", "dtype", "wide"),
    [("llama", torch.float32, 3), ("llama", torch.bfloat16, 3), ("qwen2", torch.bfloat16, 5), ("qwen3", torch.bfloat16, 1)],
    ids=["llama-fp32", "llama-bf16", "qwen2", "qwen3-narrow"],
)
def test_a_prefill_keeps_to_its_plan(family, dtype, wide, mode):
    """Every tensor that is alive at the same time, counted: the sizes in the plan are those of the layers that really run."""
    sizes = {"hidden_size": 256, "intermediate_size": wide * 256, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 32}
    config = AutoConfig.for_model(family, num_key_value_heads=2, vocab_size=97, max_position_embeddings=512, **sizes)
    network = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    model = checked(network, "small", dtype, "cpu")
    engine = Engine(model, AttentionSettings(mode=mode, dense_below=0), chunk_tokens=2048)
    ids = torch.randint(0, 97, (4096,)).tolist()
    engine.prefill(ids[:2048], room=2048)
    plan = engine.plan(4096)
    with LiveBytes() as live:
        engine.prefill(ids[2048:])
    # the store's own buffers are seen as well, when they are written
    took = live.peak - plan.kv_bytes
    assert took <= plan.working_bytes
    if mode == "dense":
        # without the space for gathered keys, which dense attention does not use, the plan is tight
        tight = plan.working_bytes - HOST_SCRATCH_BYTES
        assert 0.7 * tight < took <= tight


def test_logits_are_made_for_the_last_position_only():
    """A vocabulary of 50,000 would be 400 MB for a chunk of 2,048."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.for_model("llama", vocab_size=50_000, max_position_embeddings=4096, **sizes)
    model = checked(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval(), "small", torch.float32, "cpu")
    engine = Engine(model, AttentionSettings(mode="dense"), chunk_tokens=2048)
    engine.prefill([1] * 64, room=2048)
    with LiveBytes() as live:
        engine.prefill([1] * 2048)
    assert live.peak < 100 << 20


def test_the_end_of_memory_is_told_from_other_faults():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert ran_out_of_memory(caught.value)
    for fault in (MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")):
        assert ran_out_of_memory(fault)
    for fault in (RuntimeError("out of resource: shared memory"), ValueError("out of memory"), KeyboardInterrupt()):
        assert not ran_out_of_memory(fault)


def test_a_peak_is_measured():
    assert peak_memory_bytes() > 1 << 20
