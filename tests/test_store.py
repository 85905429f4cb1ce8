"""The contract of a KV store: what goes in comes out, growing and cutting included."""

import pytest
import torch

from hipcli.cache import lane
from hipcli.cache.base import StoreShape
from hipcli.cache.host import HostStore
from hipcli.cache.pinned import PinnedSegment
from hipcli.cache.resident import ResidentStore

SHAPE = StoreShape(layers=2, kv_heads=3, head_dim=4, dtype=torch.float32)
STORES = {
    "resident": ResidentStore,
    "host": HostStore,
    "keys on the device": lambda shape: HostStore(shape, key_layers=shape.layers),
    "mixed": lambda shape: HostStore(shape, key_layers=1),
}

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.fixture(params=list(STORES))
def store(request):
    return STORES[request.param](SHAPE)


def fill(store, pieces):
    held = []
    for n in pieces:
        k, v = torch.randn(3, n, 4), torch.randn(3, n, 4)
        for layer in range(2):
            store.append(layer, k + layer, v - layer)
        held.append((k, v))
    return torch.cat([k for k, _ in held], 1), torch.cat([v for _, v in held], 1)


@pytest.mark.parametrize("pieces", [(1,), (5, 1, 1), (64, 3, 200)], ids=str)
@pytest.mark.parametrize("reserved", [0, 7, 500])
def test_what_is_appended_comes_back(store, pieces, reserved):
    store.reserve(reserved)
    k, v = fill(store, pieces)
    for layer in range(2):
        keys, values = store.view(layer)
        assert torch.equal(keys, k + layer) and torch.equal(values, v - layer)
    assert store.length == sum(pieces)
    assert store.allocated_bytes >= store.length * SHAPE.bytes_per_token
    store.check_integrity()


def test_truncating_and_going_on(store):
    k, _ = fill(store, (10, 5))
    store.truncate(12)
    more, _ = fill(store, (4,))
    assert torch.equal(store.view(0)[0], torch.cat([k[:, :12], more], 1))
    for bad in (-1, 17):
        with pytest.raises(ValueError, match="within 0..16"):
            store.truncate(bad)


def test_growing_keeps_what_is_held(store):
    k, v = fill(store, (10,))
    store.reserve(1000)
    assert torch.equal(store.view(1)[0], k + 1) and torch.equal(store.view(1)[1], v - 1)


def test_wrong_shapes_are_refused_and_uneven_layers_are_found(store):
    with pytest.raises(ValueError, match="keys must have shape"):
        store.append(0, torch.zeros(2, 1, 4), torch.zeros(3, 1, 4))
    store.append(0, torch.zeros(3, 1, 4), torch.zeros(3, 1, 4))
    assert store.length == 0
    with pytest.raises(RuntimeError, match="different numbers"):
        store.check_integrity()
    store.truncate(0)
    store.check_integrity()


def test_what_memory_cannot_hold_is_a_memory_error(store):
    with pytest.raises(MemoryError, match="no memory for"):
        store.reserve(2**50)


def test_a_growth_that_fails_half_way_loses_nothing(monkeypatch):
    store = ResidentStore(SHAPE)
    k, v = fill(store, (10,))
    real, calls = torch.empty, []

    def failing(*size, **kwargs):
        if 1000 in size:
            calls.append(size)
            if len(calls) == 2:
                raise RuntimeError("no more")
        return real(*size, **kwargs)

    monkeypatch.setattr(torch, "empty", failing)
    with pytest.raises(MemoryError):
        store.reserve(1000)
    monkeypatch.setattr(torch, "empty", real)
    store.check_integrity()
    more, _ = fill(store, (5,))
    assert torch.equal(store.view(1)[0], torch.cat([k, more], 1) + 1) and store.length == 15
    store.reserve(2000)
    store.check_integrity()


def test_closing_gives_the_memory_back(store):
    fill(store, (10,))
    store.close()
    assert store.length == 0 and store.allocated_bytes == 0


def test_growing_takes_what_is_needed_where_there_is_no_room_for_more(monkeypatch):
    store = ResidentStore(SHAPE)
    k, _ = fill(store, (10,))
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **kwargs: real(2**50) if size[1:2] == (20,) else real(*size, **kwargs))
    more, _ = fill(store, (4,))
    assert torch.equal(store.view(1)[0], torch.cat([k, more], 1) + 1)
    store.check_integrity()


def test_a_failure_while_growing_loses_nothing_and_leaves_keys_and_values_of_one_length(monkeypatch):
    store = ResidentStore(StoreShape(3, 2, 4, torch.float32))
    keys = torch.randn(2, 5, 4)
    for layer in range(3):
        store.append(layer, keys + layer, -keys)
    grown, calls = store._grown, iter(range(100))

    def fails_in_the_second_layer(*arguments):
        if next(calls) == 3:
            raise MemoryError
        return grown(*arguments)

    monkeypatch.setattr(store, "_grown", fails_in_the_second_layer)
    with pytest.raises(MemoryError):
        store.reserve(500)
    for layer in range(3):
        held_keys, held_values = store.view(layer)
        assert torch.equal(held_keys, keys + layer) and torch.equal(held_values, -keys)
        assert held_keys.stride() == held_values.stride()
    store.check_integrity()


class Crowded(PinnedSegment):
    """Host memory in which a segment of more than `most` tokens finds no room, once `left` have found it."""

    most, left, opened = 10**9, 0, 0

    def __init__(self, shape, dtype, lock=True):
        if shape[1] > Crowded.most:
            if not Crowded.left:
                raise MemoryError("no memory for it")
            Crowded.left -= 1
        super().__init__(shape, dtype, lock)
        Crowded.opened += 1

    def close(self):
        Crowded.opened -= 1
        super().close()


def test_a_growth_on_the_host_that_fails_half_way_loses_nothing(monkeypatch):
    monkeypatch.setattr(lane, "PinnedSegment", Crowded)
    store = HostStore(SHAPE)
    k, _ = fill(store, (10,))
    Crowded.most, Crowded.left = 900, 3
    with pytest.raises(MemoryError):
        store.reserve(1000)
    assert Crowded.opened == 2 * SHAPE.layers
    more, _ = fill(store, (5,))
    assert torch.equal(store.view(1)[0], torch.cat([k, more], 1) + 1) and store.length == 15
    store.check_integrity()
    Crowded.most = 10**9
    store.reserve(2000)
    assert torch.equal(store.view(0)[0], torch.cat([k, more], 1))


@pytest.mark.parametrize("resident", [(0, 0), (5, 0), (3, 1), (4, 5)], ids=str)
def test_layers_in_any_order_and_prefixes_that_grow_on_the_host(resident):
    """Staging buffers change hands: what a view shows is always the layer's own, also after tokens were written on the host."""
    shape = StoreShape(layers=5, kv_heads=3, head_dim=4, dtype=torch.float32)
    near, far = ResidentStore(shape), HostStore(shape, *resident)
    draw = torch.Generator().manual_seed(5)
    for store in (near, far):
        store.reserve(400)
    for _ in range(60):
        kind = int(torch.randint(0, 4, (), generator=draw))
        if kind < 2:
            for layer in range(5):
                k, v = torch.randn(2, 3, 1 + kind * 6, 4, generator=draw)
                near.append(layer, k, v), far.append(layer, k, v)
        elif kind == 2 and near.length < 390:
            k, v = torch.randn(2, 3, 1, 4, generator=draw)
            for store in (near, far):
                at = store.length
                for layer in range(5):
                    keys, values = store.buffers(layer)
                    keys[:, at : at + 1], values[:, at : at + 1] = k + layer, v - layer
                store.claim(1)
        else:
            keep = int(torch.randint(near.length // 2, near.length + 1, (), generator=draw))
            near.truncate(keep), far.truncate(keep)
            far.check_integrity()
            if int(torch.randint(0, 2, (), generator=draw)):
                # nobody looks before the next tokens come
                continue
        for layer in torch.randperm(5, generator=draw).tolist():
            for mine, theirs in zip(far.view(layer), near.view(layer)):
                assert torch.equal(mine, theirs)
        far.check_integrity()


@pytest.mark.parametrize(("layers", "resident"), [(1, 0), (1, 1), (28, 9), (32, 31), (5, 5), (24, 12)])
def test_layers_on_the_device_lie_evenly_among_those_on_the_host(layers, resident):
    placed = lane.spread(layers, resident)
    assert len(placed) == layers and sum(placed) == resident
    runs = [len(run) for run in "".join("d" if here else "h" for here in placed).split("d" if 2 * resident < layers else "h")]
    assert max(runs[1:-1], default=0) - min(runs[1:-1], default=0) <= 1


def test_bytes_over_the_bus_are_counted():
    """Three layers of which one keeps both parts on the device: two send what is new; each prefix that a view shows came once."""
    shape = StoreShape(layers=3, kv_heads=3, head_dim=4, dtype=torch.float32)
    store, part = HostStore(shape, key_layers=1, value_layers=1), 3 * 4 * 4
    store.reserve(100)
    for _ in range(2):
        for at in range(3):
            store.append(at, torch.randn(3, 10, 4), torch.randn(3, 10, 4))
    sent = 2 * 2 * 20 * part
    assert store.bus_bytes >= sent and (store.bus_bytes - sent) % (10 * part) == 0
    assert store.host_bytes == 2 * 2 * 100 * part and store.allocated_bytes == 3 * store.host_bytes // 2
