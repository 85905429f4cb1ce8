"""GGUF files written here, converted, loaded by transformers and held against the weights they came from."""

import json

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config, Qwen3Config

from hipcli.models import gguf_convert
from hipcli.errors import ModelError
from hipcli.models.gguf_convert import convert_gguf
from hipcli.models.gguf_tokenizer import write_tokenizer
from hipcli.models.progress import NoProgress

FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MARKED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = MARKED + sorted(ByteLevel.alphabet()) + ["Ġt", "he", "Ġthe", "la", "mp", "lamp", "<tool>"]
MERGES = ["Ġ t", "h e", "Ġt he", "l a", "m p", "la mp"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def source_model(family, tied=False):
    torch.manual_seed(7)
    config = FAMILIES[family](
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=tied,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for value in model.parameters():  # biases and norms too must be worth comparing
            value.normal_(std=0.2)
    return model


def gguf_tensors(model):
    """The model's tensors under their GGUF names, q and k of Llama interleaved as converters do."""
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stem, kind = name.rsplit(".", 1)
        array = value.numpy()
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            if model.config.model_type == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                array = array.reshape(-1, 2, 8, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            yield f"blk.{layer}.{NAMES[part]}.{kind}", array
        else:
            yield f"{NAMES[stem]}.{kind}", array


def write_gguf(path, model, pre="smollm", quant="F32", leave_out=(), extra=None, tensors=None, types=None):
    family = model.config.model_type
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(8192)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(types or [3] * len(MARKED) + [1] * (len(TOKENS) - len(MARKED) - 1) + [4])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in (extra or {}).items():
        {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}[type(value)](key, value)
    kind = gguf.GGMLQuantizationType[quant]
    for name, array in [*gguf_tensors(model), *(tensors or {}).items()]:
        if name in leave_out:
            continue
        if quant == "F32" or array.ndim == 1:
            writer.add_tensor(name, array.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(tmp_path, model, **options):
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(write_gguf(tmp_path / "tiny.gguf", model, **options), out, NoProgress())
    return out


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama", True), ("qwen2", True), ("qwen3", False)])
def test_logits_equal_the_source(tmp_path, monkeypatch, family, tied):
    monkeypatch.setattr(gguf_convert, "SLAB_VALUES", 64 * 7)  # slabs that end unevenly
    model = source_model(family, tied)
    out = converted(tmp_path, model, pre="qwen2", extra={f"{family}.attention.key_length": 16})
    loaded, report = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids = torch.arange(40).reshape(1, 40)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_settings_survive(tmp_path):
    out = converted(tmp_path, source_model("llama", tied=True))
    config = AutoModelForCausalLM.from_pretrained(out).config
    assert (config.head_dim, config.max_position_embeddings, config.rms_norm_eps) == (16, 8192, 1e-5)
    assert config.rope_parameters["rope_theta"] == 100000.0 and config.tie_word_embeddings
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def rotary_factors(theta, factor, dims=16):
    wavelengths = 2 * np.pi * theta ** (np.arange(0, dims, 2) / dims)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def test_scaled_positions_survive(tmp_path):
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 2048}
    config = json.loads((converted(tmp_path, source_model("llama"), extra=yarn) / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 2048}


def test_llama3_factors_become_its_setting(tmp_path):
    factors = rotary_factors(1e5, 32.0)
    out = converted(tmp_path, source_model("llama"), tensors={"rope_freqs.weight": factors})
    loaded = AutoModelForCausalLM.from_pretrained(out)
    plain = 1e5 ** -(np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(loaded.model.rotary_emb.inv_freq.numpy(), plain / factors, rtol=1e-5)
    with pytest.raises(ModelError, match="factors of its own"):
        convert_gguf(
            write_gguf(tmp_path / "b.gguf", source_model("llama"), tensors={"rope_freqs.weight": factors * 1.1}), out, NoProgress()
        )


@pytest.mark.parametrize(
    ("quant", "stored"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("Q8_0", torch.float32), ("Q4_1", torch.float32)]
)
def test_stored_values_are_the_files_values(tmp_path, quant, stored):
    from safetensors.torch import load_file

    model = source_model("llama")
    values = load_file(converted(tmp_path, model, quant=quant) / "model.safetensors")
    kind = gguf.GGMLQuantizationType[quant]
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.gate_proj.weight"):
        assert values[name].dtype == stored
        exact = gguf.dequantize(gguf.quantize(model.state_dict()[name].numpy(), kind), kind)
        assert torch.equal(values[name].float(), torch.from_numpy(exact))


def test_large_models_are_rounded_to_fp16(tmp_path, monkeypatch):
    from safetensors.torch import load_file

    monkeypatch.setattr(gguf_convert, "EXACT_VALUES", 100)
    model = source_model("llama")
    found = load_file(converted(tmp_path, model, quant="Q8_0") / "model.safetensors")["lm_head.weight"]
    kind = gguf.GGMLQuantizationType.Q8_0
    exact = torch.from_numpy(gguf.dequantize(gguf.quantize(model.state_dict()["lm_head.weight"].numpy(), kind), kind))
    assert found.dtype == torch.float16
    assert ((found.float() - exact).abs() <= exact.abs() * 2**-11 + 2**-25).all()


CUTS = [
    ("smollm", "In 1874 there", ["In", "Ġ", "1", "8", "7", "4", "Ġthere"]),
    ("gpt-2", "In 1874 there", ["In", "Ġ1874", "Ġthere"]),
    ("llama-bpe", "In 1874 there\n\nIT'S", ["In", "Ġ", "187", "4", "Ġthere", "ĊĊ", "IT", "'S"]),
    ("qwen2", "In 1874 there", ["In", "Ġ", "1", "8", "7", "4", "Ġthere"]),
    ("tekken", "camelCase 12", ["camel", "Case", "Ġ", "1", "2"]),
    ("default", "a <= 12345 b", ["a", "Ġ", "<=", "Ġ", "123", "45", "Ġb"]),
]


@pytest.mark.parametrize(("pre", "text", "pieces"), CUTS)
def test_text_is_cut_as_the_file_says(tmp_path, pre, text, pieces):
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, source_model("llama"), pre=pre))
    assert [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_tokens_roles_and_template_survive(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, source_model("llama")))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.chat_template) == (1, 2, TEMPLATE)
    text = " the lamp<|im_end|>é<tool>"
    ids = tokenizer.encode(text)
    assert tokenizer.convert_ids_to_tokens(ids) == ["Ġthe", "Ġ", "lamp", "<|im_end|>", "Ã", "©", "<tool>"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == " the lampé<tool>"


def test_bos_is_added_where_the_file_or_its_family_says(tmp_path):
    out = converted(tmp_path, source_model("llama"), pre="llama-bpe")
    assert AutoTokenizer.from_pretrained(out).encode("lamp")[0] == 1
    convert_gguf(
        write_gguf(tmp_path / "b.gguf", source_model("llama"), pre="llama-bpe", extra={"tokenizer.ggml.add_bos_token": False}),
        out,
        NoProgress(),
    )
    assert AutoTokenizer.from_pretrained(out).encode("lamp") == [TOKENS.index("lamp")]


REFUSED = [
    ({"pre": "made-up"}, "pre-tokenizer 'made-up'"),
    ({"pre": None}, "does not say how"),
    ({"leave_out": ("blk.1.ffn_up.weight",)}, "lacks the tensor blk.1.ffn_up.weight"),
    ({"leave_out": ("token_embd.weight",)}, "lacks the tensor token_embd.weight"),
    ({"tensors": {"blk.0.ffn_gate_inp.weight": np.zeros((4, 4))}}, "holds the tensor blk.0.ffn_gate_inp.weight"),
    ({"tensors": {"blk.0.attn_k.bias": np.zeros(32)}}, "holds the tensor blk.0.attn_k.bias"),
    ({"extra": {"llama.expert_count": 8}}, "expert_count"),
    ({"extra": {"llama.rope.scaling.type": "longrope"}}, "'longrope'"),
    ({"extra": {"llama.rope.dimension_count": 8}}, "rope.dimension_count"),
    ({"extra": {"split.count": 3}}, "one of 3 parts"),
    ({"types": [1] * 5}, "damaged vocabulary"),
    ({"extra": {"tokenizer.ggml.padding_token_id": 5000}}, "padding token lies beyond"),
    ({"tensors": {"rope_freqs.weight": np.full(8, np.nan)}}, "factors of its own"),
]


@pytest.mark.parametrize(("prefix", "tokens"), [(None, ["▁lamp", "▁", "<0xC3>", "<0xA9>"]), (False, ["lamp", "▁", "<0xC3>", "<0xA9>"])])
def test_sentencepiece(tmp_path, prefix, tokens):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "la", "mp", "lamp", "▁lamp", *"▁lamp"]
    writer = gguf.GGUFWriter(tmp_path / "spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(i) for i in range(len(pieces))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if prefix is not None:
        writer.add_add_space_prefix(prefix)
    writer.add_tensor("token_embd.weight", np.zeros((len(pieces), 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_tokenizer(tmp_path / "spm.gguf", gguf_convert.read_gguf(tmp_path / "spm.gguf")[0], tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer.encode("lamp é")
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *tokens]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "lamp é"


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_carried_over_is_refused_by_name(tmp_path, options, message):
    with pytest.raises(ModelError, match=message):
        converted(tmp_path, source_model("llama"), **options)


def test_damaged_files_are_refused(tmp_path):
    whole = write_gguf(tmp_path / "whole.gguf", source_model("llama"), quant="Q8_0").read_bytes()
    (tmp_path / "out").mkdir()
    for length in [0, 3, 4, 30, *range(100, len(whole), len(whole) // 25), len(whole) - 64]:
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(ModelError, match="cut.gguf"):
            convert_gguf(tmp_path / "cut.gguf", tmp_path / "out", NoProgress())
