"""The engine on tiny random models of every family: equal to the stock model, whole or in chunks, with or without pruning."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hipcli.decoding import last_logits
from hipcli.engine import Engine
from hipcli.errors import DoesNotFit, ModelError, UsageError
from hipcli.model import checked, load_model, unsupported
from hipcli.settings import AttentionSettings

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
FAMILIES = {
    "llama": {},
    "llama-head-dim": {"model_type": "llama", "head_dim": 16},
    "llama3-scaling": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "yarn": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
}


def stock(family="llama", dtype=torch.float32, **changes):
    fields = SIZES | {"max_position_embeddings": 4096} | FAMILIES[family] | changes
    config = AutoConfig.for_model(fields.pop("model_type", family), **fields)
    torch.manual_seed(1)
    network = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    # random weights of the usual size hardly attend: larger ones make every wrong angle show
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.data.mul_(8)
    return network


@torch.inference_mode()
def greedy(network, ids, count):
    """The stock model's greedy continuation."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(network(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-count:]


def draw_ids(count, seed=3):
    return torch.randint(0, SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_every_family_answers_as_the_stock_model_does(family, mode):
    network = stock(family)
    document, question = draw_ids(75), draw_ids(5, seed=4)
    expected = greedy(network, document + question, 8)
    engine = Engine(checked(network, family, torch.float32, "cpu"), AttentionSettings(mode=mode))
    engine.prefill(document)
    assert list(engine.generate(question, max_tokens=8)) == expected
    assert engine.finish_reason == "length"


@pytest.mark.parametrize(
    "settings",
    [AttentionSettings(mode="dense"), AttentionSettings(), AttentionSettings(dense_below=0)],
    ids=["dense", "early-dense", "sparse"],
)
@pytest.mark.parametrize("length", [1, 2, 63, 65, 1279, 1500])
def test_logits_equal_the_stock_model_while_the_budget_covers_the_middle(settings, length):
    network, ids = stock(), draw_ids(length)
    with torch.inference_mode():
        expected = network(torch.tensor([ids]), use_cache=False).logits[0, -1]
    engine = Engine(checked(network, "tiny", torch.float32, "cpu"), settings)
    engine.prefill(ids[:-1])
    list(engine._forward_chunks(ids[-1:]))
    got = last_logits(engine.model, engine._hidden)
    # a few roundings per layer on each path, in fp32
    assert (got - expected).norm() <= 2e-5 * expected.norm()


def test_chunked_prefill_equals_unchunked():
    network = checked(stock(), "tiny", torch.float32, "cpu")
    ids, hidden = draw_ids(1600), []
    for chunk in (64, 192, 4096):
        engine = Engine(network, AttentionSettings(dense_below=0), chunk_tokens=chunk)
        engine.prefill(ids)
        hidden.append(engine._hidden)
    for other in hidden[1:]:
        assert (other - hidden[0]).norm() <= 2e-5 * hidden[0].norm()


def test_the_suffix_and_the_answer_are_dropped_and_the_prefix_stays():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings())
    engine.prefill(draw_ids(200))
    first = list(engine.generate([5, 6, 7], max_tokens=12))
    assert engine.cached_len == 200
    other = list(engine.generate([8, 9], max_tokens=12))
    assert list(engine.generate([5, 6, 7], max_tokens=12)) == first != other
    stream = engine.generate([5, 6, 7], max_tokens=12)
    assert [next(stream), next(stream)] == first[:2]
    stream.close()
    assert engine.cached_len == 200
    engine.store.check_integrity()


def test_a_prefix_can_be_extended():
    network, ids = checked(stock(), "tiny", torch.float32, "cpu"), draw_ids(1500)
    engine = Engine(network, AttentionSettings(mode="dense"))
    engine.prefill(ids[:700])
    engine.prefill(ids[700:])
    whole = Engine(network, AttentionSettings(mode="dense"))
    whole.prefill(ids)
    assert list(engine.generate([1], max_tokens=5)) == list(whole.generate([1], max_tokens=5))


def test_stop_ids_end_an_answer_without_being_part_of_it():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings())
    engine.prefill(draw_ids(50))
    free = list(engine.generate([5], max_tokens=6))
    stop = next(token for token in free if token != free[0])
    assert list(engine.generate([5], max_tokens=6, stop_ids=frozenset([stop]))) == free[: free.index(stop)]
    assert engine.finish_reason == "stop"


def test_progress_counts_tokens_in_chunks():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings())
    seen = []
    engine.prefill(draw_ids(1030), lambda done, total: seen.append((done, total)))
    assert seen == [(1024, 1030), (1030, 1030)]
    with pytest.raises(ValueError, match="at least one id"):
        next(engine.generate([], max_tokens=1))


def test_an_interrupted_prefill_keeps_whole_chunks_and_can_go_on():
    network, ids = checked(stock(), "tiny", torch.float32, "cpu"), draw_ids(2100)
    engine = Engine(network, AttentionSettings())

    def stop_after_one(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.prefill(ids, stop_after_one)
    assert engine.cached_len == 1024
    engine.store.check_integrity()
    engine.prefill(ids[1024:])
    whole = Engine(network, AttentionSettings())
    whole.prefill(ids)
    assert list(engine.generate([1], max_tokens=5)) == list(whole.generate([1], max_tokens=5))


def test_what_does_not_fit_is_refused_before_any_work():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings())

    class Endless(list):
        def __len__(self):
            return 10**13

    with pytest.raises(DoesNotFit, match="10,000,000,000,000 tokens need .* GiB"):
        engine.prefill(Endless())
    assert engine.cached_len == 0


def test_memory_of_a_plan_grows_by_the_kv_alone_once_nothing_is_dense():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings(dense_below=0))
    small, large = engine.plan(1000), engine.plan(3000)
    assert large.peak_bytes - small.peak_bytes == 2000 * engine.model.kv_bytes_per_token
    assert small.kv_bytes == 1000 * 2 * 3 * 2 * 8 * 4 and small.fits


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window of 4096"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1, "num_hidden_layers": 3},
            "sliding-window layers",
        ),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
        (
            {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "only part of each head",
        ),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_architectures_that_cannot_work_are_refused_by_name(fields, reason):
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    assert reason in unsupported(config)


def test_a_model_that_does_not_agree_with_the_stock_one_is_refused():
    network = stock()
    network.model.rotary_emb.attention_scaling = 1.0

    class Wrong(type(network.model.rotary_emb)):
        """A rotary module whose forward does not follow its own frequencies."""

        def forward(self, x, position_ids=None, **kwargs):
            cos, sin = super().forward(x, position_ids * 3)
            return cos, sin

    network.model.rotary_emb.__class__ = Wrong
    with pytest.raises(ModelError, match="self-check"):
        checked(network, "wrong", torch.float32, "cpu")


def test_loading_from_a_directory_and_damaged_files(tmp_path):
    stock().save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="float32", name="tiny")
    assert (model.name, model.layers, model.kv_heads, model.dtype_name) == ("tiny", 3, 2, "float32")
    assert load_model(tmp_path, dtype="bfloat16").check_error < 0.1
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(tmp_path, dtype="float32")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(tmp_path)


def test_weights_that_do_not_belong_to_the_config_are_refused_by_name(tmp_path):
    from safetensors.torch import load_file, save_file

    stock().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    changed = {
        "lacks": {key: value for key, value in whole.items() if key != name},
        "has no place for": whole | {name.replace("1", "7"): whole[name].clone()},
        "wrong shape": whole | {name: whole[name][:-1].clone()},
    }
    for words, weights in changed.items():
        save_file(weights, path, metadata={"format": "pt"})
        with pytest.raises(ModelError, match=words if words != "wrong shape" else "wrong shape|cannot be loaded"):
            load_model(tmp_path, dtype="float32")


@pytest.mark.parametrize(
    "change", [{"num_attention_heads": 0}, {"head_dim": 7}, {"hidden_act": "none"}, {"vocab_size": "x"}, {"num_hidden_layers": 0}], ids=str
)
def test_a_config_that_makes_no_sense_is_a_model_error(tmp_path, change):
    stock().save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ModelError):
        load_model(tmp_path, dtype="float32")


def test_room_for_the_question_is_kept_at_once_and_counts():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings())
    engine.prefill(draw_ids(300), room=40)
    room = engine.store.allocated_bytes
    list(engine.generate(draw_ids(20), max_tokens=20))
    assert engine.store.allocated_bytes == room == 340 * engine.model.kv_bytes_per_token
    with pytest.raises(DoesNotFit):
        engine.prefill([1], room=10**13)


def test_a_second_answer_waits_for_the_first():
    engine = Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings())
    engine.prefill(draw_ids(30))
    first = engine.generate([1], max_tokens=5)
    next(first)
    with pytest.raises(RuntimeError, match="still open"):
        next(engine.generate([2], max_tokens=5))
    first.close()
    assert len(list(engine.generate([2], max_tokens=5))) == 5


def test_an_unknown_preset_is_refused_with_the_list():
    with pytest.raises(UsageError, match="paper-3k"):
        Engine(checked(stock(), "tiny", torch.float32, "cpu"), AttentionSettings(preset="nope"))
