"""Keys and values in 8 bits: what a code stands for, and that every kernel reads codes as it reads the numbers they stand for."""

import pytest
import torch

from hipcli.kernels.coding import CODE, Coding
from hipcli.kernels.rope import Rope
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.kernels.triton_backend import TritonBackend
from hipcli.kernels.triton_encode import encode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KV, G, D = 2, 3, 32

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make_plan(**changes):
    stages = (PruneStage(32, 128, 4, 2, 8), PruneStage(8, 64, 2, 1, 4), PruneStage(2, 32, 1, 0, 2))
    fields = {"stages": stages, "sink_tokens": 32, "window_tokens": 20, "block_len": 16, "special_layers": 1, "special_keep_tokens": 48}
    return PrunePlan(**(fields | {"decode_rounds": (0, 0, 0)} | changes))


def make_coding(dim=D, reach=6.0):
    """Channels of very different size, keys with a bias far beyond their spread."""
    spread = torch.exp2(torch.arange(KV * dim, device=DEVICE).remainder(7) - 3.0).view(KV, dim)
    centre = 40 * torch.randn(KV, dim, device=DEVICE)
    return Coding.within(reach * spread, centre, spread, torch.randn(KV, dim, device=DEVICE)), spread


def some(count, coding, spread):
    """Keys and values that the coding is made for, [KV, count, D], and their codes."""
    k = coding.table[:, 1, None] + spread[:, None] * torch.randn(KV, count, D, device=DEVICE).clamp(-6, 6)
    v = coding.table[:, 3, None] + spread[:, None] * (2 * torch.rand(KV, count, D, device=DEVICE) - 1)
    return k, v, coding.encode_keys(k), coding.encode_values(v)


def test_a_code_is_within_a_sixteenth_of_its_distance_from_the_centre():
    """e4m3 has three bits after the first: half a unit of the last is 2^-4; below 2^-6 of a scale steps are even."""
    coding, spread = make_coding()
    k, v, k_codes, v_codes = some(500, coding, spread)
    assert k_codes.dtype == CODE and v_codes.dtype == CODE
    for numbers, codes, row, decode in ((k, k_codes, 0, coding.decode_keys), (v, v_codes, 2, coding.decode_values)):
        scale, centre = coding.table[:, row, None], coding.table[:, row + 1, None]
        bound = torch.maximum((numbers - centre).abs() * 2**-4, scale * 2**-10) + centre.abs() * 2**-22
        assert ((decode(codes, torch.float32) - numbers).abs() <= bound).all()


def test_the_reach_is_not_clipped_and_what_lies_beyond_becomes_the_farthest_code():
    coding, spread = make_coding(reach=1.0)
    edge = coding.table[:, 1, None] + torch.stack((spread, -spread, 1e6 * spread), dim=1)
    back = coding.decode_keys(coding.encode_keys(edge), torch.float32) - coding.table[:, 1, None]
    torch.testing.assert_close(back[:, 0], spread, rtol=2**-4, atol=1e-4)
    torch.testing.assert_close(back[:, 1], -spread, rtol=2**-4, atol=1e-4)
    assert back.isfinite().all() and (back[:, 2] >= back[:, 0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_the_kernel_encodes_as_torch_does(dtype, rows):
    coding, spread = make_coding()
    k, v, *_ = (x.to(dtype) for x in some(rows + 5, coding, spread))
    k, v = k[:, 2 : 2 + rows], v.transpose(0, 1).contiguous().transpose(0, 1)[:, :rows]
    found = encode(k, v, coding)
    for mine, theirs in zip(found, (coding.encode_keys(k), coding.encode_values(v))):
        assert torch.equal(mine.float(), theirs.float())


def backends(plan, coding, dense_below=0):
    rope = Rope(10000 ** -(torch.arange(0, D, 2, device=DEVICE) / D))
    return TritonBackend(plan, rope, dense_below, [coding] * 2), TritonBackend(plan, rope, dense_below)


@pytest.mark.parametrize(("layer", "dense_below"), [(0, 290), (1, 0)], ids=["special-after-dense", "ordinary"])
def test_prefill_over_codes_is_prefill_over_what_they_stand_for(layer, dense_below):
    """The same lists, bit for bit; outputs but for where the values' scale is applied."""
    coding, spread = make_coding()
    _, _, k, v = some(333, coding, spread)
    numbers = coding.decode_keys(k, torch.float32), coding.decode_values(v, torch.float32)
    q = torch.randn(KV * G, 77, D, device=DEVICE) * 0.05
    coded, plain = backends(make_plan(), coding, dense_below)
    for mine, theirs in zip(coded.kept_keys(layer, q[:, -13:], k, 320), plain.kept_keys(layer, q[:, -13:], numbers[0], 320)):
        assert torch.equal(mine, theirs)
    mine, theirs = coded.prefill(layer, q, k, v, coded.new_state()), plain.prefill(layer, q, *numbers, plain.new_state())
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "dense", "far"), [(0, False, False), (1, False, True), (1, True, False)], ids=["device", "bank", "dense"]
)
def test_decode_over_codes_is_decode_over_what_they_stand_for(layer, dense, far):
    """Steps of a refresh cycle; each stores its token as a code."""
    coding, spread = make_coding()
    first, steps, plan = 171, 5, make_plan()
    k, v, k_codes, v_codes = some(first + steps, coding, spread)
    room = first + steps + 3
    coded, plain = backends(plan, coding, 1000 if dense else 0)
    codes = [torch.zeros(KV, room, D, dtype=CODE, device=DEVICE) for _ in range(2)]
    numbers = [torch.full((KV, room, D), float("nan"), device=DEVICE) for _ in range(2)]
    for buffer, given in zip(
        (*codes, *numbers), (k_codes, v_codes, coding.decode_keys(k_codes, k.dtype), coding.decode_values(v_codes, k.dtype))
    ):
        buffer[:, :first] = given[:, :first]
    if DEVICE == "cuda" and far:
        codes, numbers = [x.cpu().pin_memory() for x in codes], [x.cpu().pin_memory() for x in numbers]
    states = coded.new_state(), plain.new_state()
    for step in range(steps):
        at = first + step
        now, stage = slice(at, at + 1), plan.refresh_stage(step, layer, 2)
        q, where = torch.randn(KV * G, 1, D, device=DEVICE) * 0.05, torch.tensor([at], dtype=torch.int32, device=DEVICE)
        mine = coded.decode_at(layer, q, k[:, now], v[:, now], *codes, states[0], stage, where, dense, (far, far))
        stored = coding.decode_keys(codes[0][:, now].to(DEVICE), k.dtype), coding.decode_values(codes[1][:, now].to(DEVICE), k.dtype)
        theirs = plain.decode_at(layer, q, *stored, *numbers, states[1], stage, where, dense, (far, far))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_backend_that_reads_no_codes_says_so():
    from hipcli.kernels.backends import backend_class

    coding, _ = make_coding()
    rope = Rope(10000 ** -(torch.arange(0, D, 2) / D))
    with pytest.raises(ValueError, match="torch does not read coded"):
        backend_class("torch")(make_plan(), rope, 0, [coding])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_no_key_or_value_of_a_model_is_clipped(family):
    """Hidden states with all their length in one channel, the worst there is, and ordinary ones; biases far beyond the spread."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    from hipcli.kv_codes import codings

    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config, network = kinds[family]
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    network = network(config(vocab_size=50, head_dim=12, **sizes)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * (30 if parameter.ndim == 1 else 1))
    for layer, coding in zip(network.model.layers, codings(network, 2)):
        hidden = torch.cat((torch.randn(20, 48), 1e4 * torch.eye(48), -1e4 * torch.eye(48)))[None]
        with torch.no_grad():
            normed = layer.input_layernorm(hidden)
            k, v = layer.self_attn.k_proj(normed), layer.self_attn.v_proj(normed)
            k, v = (x.view(1, -1, 2, 12) for x in (k, v))
            k = layer.self_attn.k_norm(k) if family == "qwen3" else k
        for numbers, codes, row in ((k, coding.encode_keys(k[0].transpose(0, 1)), 0), (v, coding.encode_values(v[0].transpose(0, 1)), 2)):
            scale, centre = coding.table[:, row, None], coding.table[:, row + 1, None]
            away = ((numbers[0].transpose(0, 1) - centre) / scale).abs()
            assert away.max() <= 448 * 1.0001 and codes.float().isfinite().all()
            # not wastefully far: the worst input comes within a factor of 2 (rounding to a power of two), and of the norm's own slack
            assert away.max() > 448 / 20
