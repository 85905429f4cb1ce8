"""What only a GPU can show: captured steps equal eager ones, whole answers too, and picks on real text hold in bf16."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from hipcli.cache.base import StoreShape
from hipcli.cache.resident import ResidentStore
from hipcli.decoding import EagerDecoder, GraphDecoder
from hipcli.engine import Engine
from hipcli.kernels import reference, torch_scan
from hipcli.kernels.rope import Rope
from hipcli.kernels.presets import DEFAULT_PLAN
from hipcli.kernels.stages import PrunePlan, PruneStage
from hipcli.kernels.triton_backend import TritonBackend
from hipcli.kernels.triton_prune import empty_selection, first_candidates, prune
from hipcli.kernels.triton_scan import scan
from hipcli.model import checked, load_model
from hipcli.settings import AttentionSettings
from hipcli.tokens import load_tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: CUDA graphs, and bf16 products")

DEVICE = "cuda"
HANDBOOK = Path(__file__).resolve().parent.parent / "samples/handbook.md"


def captured(step, reset):
    """A graph of `step` and what it returns; reset: undoes what running it to compile the kernels did."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def small_plan():
    """Refreshes that leave steps on every stage and steps that reuse the list."""
    stages = (PruneStage(32, 128, 4, 2, 8), PruneStage(8, 64, 2, 1, 4), PruneStage(2, 32, 1, 0, 2))
    return PrunePlan(stages, sink_tokens=32, window_tokens=20, block_len=16, special_layers=1, special_keep_tokens=48)


class CapturedLayer:
    """Decode steps of one layer as graphs, one for each stage that a refresh may begin at, over static inputs."""

    def __init__(self, plan, rope, layer, first_tokens, capacity):
        self.backend = TritonBackend(plan, rope, 0)
        self.state, self.first = self.backend.new_state(), first_tokens[0].shape[1]
        room = (0, 0, 0, capacity - self.first)
        # nobody may read what was not stored
        self.buffers = [F.pad(x, room, value=float("nan")) for x in first_tokens]
        kv, _, dim = first_tokens[0].shape
        self.inputs = [torch.zeros(heads, 1, dim, device=DEVICE) for heads in (3 * kv, kv, kv)]
        self.position = torch.empty(1, dtype=torch.int32, device=DEVICE)
        self.reset()
        # the first of them fills the lists that the others reuse
        self.graphs = {stage: captured(partial(self.run, layer, stage), self.reset) for stage in (0, 1, 2, None)}

    def reset(self):
        self.position.fill_(self.first)

    def run(self, layer, stage):
        out = self.backend.decode_at(layer, *self.inputs, *self.buffers, self.state, stage, self.position)
        self.position.add_(1)
        return out

    def step(self, stage, *tensors):
        for place, tensor in zip(self.inputs, tensors):
            place.copy_(tensor)
        graph, out = self.graphs[stage]
        graph.replay()
        return out


@pytest.mark.parametrize("layer", [0, 1], ids=["special", "ordinary"])
def test_replayed_steps_equal_eager_ones(poisoned_memory, layer):
    """The position advances on the device alone; lists are refreshed as the plan says, by one graph each."""
    kv, group, dim, first, steps, plan = 2, 3, 64, 165, 48, small_plan()
    total = first + steps
    q, k, v = (torch.randn(heads, total, dim, device=DEVICE) for heads in (kv * group, kv, kv))
    rope = Rope(10000 ** -(torch.arange(0, dim, 2, device=DEVICE) / dim))
    replayed = CapturedLayer(plan, rope, layer, (k[:, :first], v[:, :first]), total + 5)
    eager, store = TritonBackend(plan, rope, 0), ResidentStore(StoreShape(1, kv, dim, torch.float32, DEVICE))
    store.append(0, k[:, :first], v[:, :first])
    state, seen = eager.new_state(), set()
    for step in range(steps):
        now, stage = slice(first + step, first + step + 1), plan.refresh_stage(step, layer, 2)
        seen.add(stage)
        store.append(0, k[:, now], v[:, now])
        wanted = eager.decode(layer, q[:, now], *store.view(0), state, stage)
        got = replayed.step(stage, q[:, now], k[:, now], v[:, now])
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        for mine, theirs in zip(replayed.state.selection.inputs[1:], state.selection.inputs[1:]):
            assert torch.equal(mine.starts, theirs.starts) and torch.equal(mine.counts, theirs.counts)
    assert seen == {0, 1, 2, None} and replayed.position.item() == total
    for buffer, held in zip(replayed.buffers, store.view(0)):
        assert torch.equal(buffer[:, :total], held) and buffer[:, total:].isnan().all()


def tiny_network():
    """A random Llama whose last layers are ordinary ones."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97}
    torch.manual_seed(1)
    network = LlamaForCausalLM(LlamaConfig(num_hidden_layers=6, max_position_embeddings=8192, **sizes)).eval()
    # random weights of the usual size hardly attend: larger ones make every wrong angle show
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.data.mul_(8)
    return network.to(DEVICE)


def draw_ids(count, seed):
    return torch.randint(0, 97, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


DOCUMENT_TOKENS = 5000  # beyond the budget of ordinary and of special layers


@pytest.mark.parametrize(
    ("document_tokens", "dense_below"),
    [(DOCUMENT_TOKENS, 0), (DOCUMENT_TOKENS, DOCUMENT_TOKENS + 20), (300, None)],
    ids=["sparse", "dense-then-sparse", "short"],
)
def test_answers_through_graphs_equal_eager_ones(document_tokens, dense_below):
    """Two questions on one prefix with one given up between them, then one after the prefix has grown.

    The short document's tables grow while graphs that read them are being captured.
    """
    answers = {}
    for kind in (GraphDecoder, EagerDecoder):
        model = checked(tiny_network(), "tiny", torch.float32, DEVICE)
        engine = Engine(model, AttentionSettings(dense_below=dense_below))
        engine.decoder = kind(model, engine.runtime)
        engine.prefill(draw_ids(document_tokens, 2))
        found = [list(engine.generate(draw_ids(5, 3), max_tokens=50))]
        given_up = engine.generate(draw_ids(3, 4), max_tokens=50)
        found.append([next(given_up), next(given_up)])
        given_up.close()
        found.append(list(engine.generate(draw_ids(7, 5), max_tokens=40)))
        assert engine.cached_len == document_tokens
        engine.prefill(draw_ids(100, 6))
        found.append(list(engine.generate(draw_ids(5, 3), max_tokens=40)))
        engine.store.check_integrity()
        engine.close()
        answers[kind] = found
    assert answers[GraphDecoder] == answers[EagerDecoder]
    # an answer that says one thing only would hide a wrong step
    assert all(len(set(answer)) > 5 for answer in answers[EagerDecoder] if len(answer) > 5)


TOKENS, BLOCKS, CHUNK, KEEP = 6016, 4, 32, 2048
LAYERS = {"special": 0, "ordinary": 12}


@pytest.fixture(scope="module")
def real_heads(real_model):
    """The default model's rotary table, and un-rotated queries and keys of two layers over a long text, in bf16."""
    model = load_model(real_model.path, dtype="bfloat16", device=DEVICE)
    ids = load_tokenizer(real_model.path).encode(HANDBOOK.read_text(encoding="utf-8"))[:TOKENS]
    engine = Engine(model, AttentionSettings(), chunk_tokens=8192)
    seen, prefill = {}, engine.runtime.backend.prefill

    def recorded(layer, q, k, v, state):
        if layer in LAYERS.values():
            seen[layer] = q.clone(), k.clone()
        return prefill(layer, q, k, v, state)

    engine.runtime.backend.prefill = recorded
    engine.prefill(ids)
    engine.close()
    return model.rope, seen


def score_bounds(rows, keys, turned):
    """Largest error that roundings explain of the best product of rows [KV, NB, R, D] with each key [KV, T, D]: [KV, NB, T].

    A pair of length r is off by r times the unit of the phases (fp16) and that of bf16 after it was turned; pairs add
    up. turned: keys are as well. fp32 sums lose next to nothing.
    """
    unit, phase = torch.finfo(torch.bfloat16).eps / 2, torch.finfo(torch.float16).eps / 2
    once = unit + phase + unit * phase
    share = (2 * once + once**2 if turned else once) + 2 * keys.shape[-1] * torch.finfo(torch.float32).eps
    lengths = [torch.complex(*x.float().chunk(2, dim=-1)).abs() for x in (rows, keys)]
    return share * (lengths[0] @ lengths[1][:, None].transpose(-1, -2)).amax(2)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_picks_on_real_text_differ_from_fp32_only_near_the_cut(real_heads, layer):
    """A first stage that scores its chunks whole, in bf16 by the kernels and in fp32 by torch."""
    rope, (q, k) = real_heads[0], real_heads[1][layer]
    plan = replace(DEFAULT_PLAN, stages=(PruneStage(CHUNK, KEEP, 4, 0, 8),), special_keep_tokens=KEEP)
    (heads, total, dim), kv = q.shape, k.shape[0]
    assert total == TOKENS
    firsts = total - plan.block_len * torch.arange(BLOCKS, 0, -1, device=DEVICE)
    stops = firsts - plan.window_tokens + 1
    rows = q[:, firsts[0] :]
    selection = empty_selection(kv, BLOCKS, total, plan, layer, DEVICE)
    selection.stops.copy_(stops)
    prune(rows, k, firsts.int(), selection, plan, layer, rope)
    starts = torch.arange(plan.sink_tokens, int(stops.max()), CHUNK, device=DEVICE)
    candidates = first_candidates(kv, BLOCKS, int(stops.max()), plan, DEVICE)
    scores = scan(rows, k, firsts.int(), selection.stops, candidates, 0, plan, layer, rope).unflatten(0, (kv, -1)).amax(1)
    # [H, NB * BQ, D] -> [KV, NB, G, BQ, D]
    packed = rows.float().reshape(kv, heads // kv, BLOCKS, plan.block_len, dim).transpose(1, 2)
    everywhere = starts.expand(kv, BLOCKS, -1)
    exact = torch_scan.scan(packed, k.float(), everywhere, stops, firsts, 0, plan, layer, rope)
    averaged = torch_scan.mean_rows(packed, plan.stages[0].rows_mean).flatten(2, 3)
    past = starts[0] + CHUNK * starts.numel()
    # [KV, NB, T] -> [KV, NB, C]
    bound = score_bounds(averaged, k[:, starts[0] : past], plan.is_special(layer)).unflatten(-1, (-1, CHUNK)).amax(-1)
    inside = everywhere < stops[:, None]
    assert ((scores - exact).abs() <= bound)[inside].all()
    for i_kv in range(kv):
        for i_b in range(BLOCKS):
            here = i_kv, i_b, inside[i_kv, i_b]
            best = reference.keep_best(starts[here[2]].tolist(), exact[here].tolist(), KEEP // CHUNK)
            kept = torch.isin(starts[here[2]], selection.inputs[1].starts[i_kv, i_b])
            wanted = torch.isin(starts[here[2]], torch.tensor(best, device=DEVICE))
            wrong, missed = kept & ~wanted, wanted & ~kept
            assert wrong.sum() == missed.sum()
            if wrong.any():
                assert (exact[here] + bound[here])[wrong].min() >= (exact[here] - bound[here])[missed].max()
