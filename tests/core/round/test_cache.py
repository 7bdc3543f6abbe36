"""The slot cache holds what a fresh pass over the committed ids would compute, whatever was drafted and rejected."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from torch import Tensor
from transformers import Cache

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.loop import DecodingRun
from mmspec.core.round.pool import SlotPool
from mmspec.imagegen import SCD
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.vlm import target as target_module
from mmspec.vlm.drafters import PromptLookup
from tests.imagegen.tiny import TinyModel
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.tiny import IMAGE, prompt, tiny

# a generated placeholder would look like a second picture to the fresh pass
SETTINGS = dict(max_new_tokens=40, suppress_tokens=[IMAGE])


def begin(kind: str, shape: str, inputs: dict[str, Tensor]) -> DecodingRun:
    plain = tiny(kind).generate(**inputs, **SETTINGS)
    drafter = Scripted(continuation(plain, inputs["input_ids"].shape[1]), shape, invalid=True)
    return mmspec.vlm.start(tiny(kind), drafter=drafter, **inputs, **SETTINGS)


def fresh(kind: str, row: int, decoding: DecodingRun, inputs: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [H, L, D] per layer of row `row`'s committed ids, without padding, in one pass."""
    keep = inputs["attention_mask"][row].bool()
    ids = torch.cat([inputs["input_ids"][row][keep], torch.tensor(decoding.target.tokens[row][:-1], dtype=torch.long)])
    pixels = {"pixel_values": inputs["pixel_values"]} if "pixel_values" in inputs else {}
    with torch.no_grad():
        cache = tiny(kind)(input_ids=ids[None], **pixels, use_cache=True).past_key_values
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def check(kind: str, decoding: DecodingRun, inputs: dict[str, Tensor]) -> None:
    cache = decoding.target.cache
    assert cache.lengths == cache.length.tolist()
    for row, live in enumerate(decoding.target.live):
        if not live:
            continue
        padding = int((inputs["attention_mask"][row] == 0).sum())
        for layer, expected in enumerate(fresh(kind, row, decoding, inputs)):
            for pool, pool_rows in zip((cache.keys, cache.values), expected, strict=True):
                torch.testing.assert_close(
                    pool[layer, row, :, padding : cache.lengths[row]], pool_rows, rtol=0, atol=1e-5
                )


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "images", "batch"), (("llama", 0, 4), ("qwen3", 0, 1), ("llava", 1, 1)))
def test_commit_equals_recomputation(kind: str, images: int, batch: int, shape: str) -> None:
    inputs = prompt(kind, images, batch=batch, seed=1)
    decoding = begin(kind, shape, inputs)
    while decoding.step():
        check(kind, decoding, inputs)
    counts = {count for line in decoding.stats.accepted for count in line}
    assert counts >= {0, 1, 2, 3}


def test_pool_grows_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_ROOM", -60)
    inputs = prompt("llama", batch=4, seed=2)
    decoding = begin("llama", "static", inputs)
    small = decoding.target.cache.capacity
    while decoding.step():
        check("llama", decoding, inputs)
    assert decoding.target.cache.capacity >= 2 * small
    assert decoding.target.emitted == [40] * 4


class Naive:
    """What a slot cache should hold: per cache row a list of committed columns."""

    def __init__(self, rows: int):
        self.rows = [[] for _ in range(rows)]

    def commit(self, new: Tensor, paths: list[list[int]]) -> None:
        for row, committed in enumerate(self.rows):
            committed += [new[:, row, :, node] for node in paths[row % len(paths)]]


def write(pool: SlotPool, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """As a transformers model does where the pool is one of its caches, else directly."""
    return pool.update(key, value, layer) if isinstance(pool, Cache) else pool.write(layer, key, value)


@pytest.mark.poison
@pytest.mark.parametrize("kind", (SlotPool, SlotCache))
@pytest.mark.parametrize("copies", (1, 2))
def test_random_commits_and_growth(copies: int, kind: type[SlotPool]) -> None:
    generator = torch.Generator().manual_seed(copies)
    layers, batch = 3, 3
    cache, naive = kind(layers, 2, copies=copies), Naive(batch * copies)
    for _ in range(30):
        nodes = int(torch.randint(1, 7, (), generator=generator))
        new = torch.randn(layers, batch * copies, 2, nodes, 4, generator=generator)
        for layer in range(layers):
            keys, values = write(cache, layer, new[layer], -new[layer])
            assert keys.shape[2] == values.shape[2] == cache.width + nodes
        take = torch.rand(batch, nodes, generator=generator) < 0.6
        paths = [[0, *(row.nonzero()[:, 0] + 1).tolist()] for row in take[:, 1:]]
        paths[1] = paths[1] if nodes > 2 else []  # a row that has stopped keeps nothing
        naive.commit(new, paths)
        cache.commit(paths)
        for row, columns in enumerate(naive.rows):
            assert cache.lengths[row] == len(columns)
            if columns:
                expected = torch.stack(columns, 2)
                assert torch.equal(cache.keys[:, row, :, : len(columns)], expected)
                assert torch.equal(cache.values[:, row, :, : len(columns)], -expected)


def test_the_cache_of_transformers_is_the_pool() -> None:
    assert issubclass(SlotCache, SlotPool) and issubclass(SlotCache, Cache)
    assert mmspec.core.SlotCache is SlotCache and not issubclass(SlotPool, Cache)
    own = {name for name in vars(SlotPool) if not name.startswith("_")}
    assert not own & vars(Cache).keys(), "a method of both would be another one for a model than for the engine"
    assert SlotCache(3, 8, copies=2).copies == 2 and len(SlotCache(3, 8)) == SlotCache(3, 8).depth == 3


@pytest.mark.poison
def test_layers_of_several_shapes_keep_pools_of_their_own() -> None:
    generator = torch.Generator().manual_seed(4)
    shapes = [(2, 4, 4), (1, 8, 8), (2, 4, 4), (1, 6, 2)]  # heads, key and value width of each layer
    cache, naive = SlotCache(len(shapes), 2), [[[] for _ in range(3)] for _ in shapes]
    for _ in range(12):
        nodes = int(torch.randint(1, 5, (), generator=generator))
        brought = [
            (torch.randn(3, h, nodes, k, generator=generator), torch.randn(3, h, nodes, v, generator=generator))
            for h, k, v in shapes
        ]
        for layer, (key, value) in enumerate(brought):
            cache.layers[layer].update(key, value)
        paths = [sorted(torch.randperm(nodes, generator=generator)[: nodes // 2 + 1].tolist()) for _ in range(2)] + [[]]
        cache.commit(paths)
        for layer, pair in enumerate(brought):
            for row, path in enumerate(paths):
                naive[layer][row] += [tuple(entry[row, :, node] for entry in pair) for node in path]
                held = [pool[row, :, : cache.lengths[row]] for pool in cache.at(layer)]
                for number, pool in enumerate(held):
                    if naive[layer][row]:
                        assert torch.equal(pool, torch.stack([pair[number] for pair in naive[layer][row]], 1))
    assert len(cache.groups) == 3
    with pytest.raises(ValueError, match="read a layer with `at`"):
        cache.keys  # noqa: B018


def test_a_layer_that_changes_its_shape_is_refused() -> None:
    cache = SlotCache(1, 8)
    cache.layers[0].update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    with pytest.raises(ValueError, match="as in its first pass"):
        cache.layers[0].update(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4))


@pytest.mark.poison
def test_named_slots_are_written_in_place_and_the_others_stay() -> None:
    layers, rows, extent = 2, 3, 11
    generator = torch.Generator().manual_seed(0)
    cache = SlotCache(layers, 4)
    with pytest.raises(ValueError, match="run the prompt first"):
        cache.place(torch.zeros(rows, 1, dtype=torch.long), extent)
    prompt = torch.randn(layers, rows, 2, 3, 4, generator=generator)
    for layer in range(layers):
        cache.layers[layer].update(prompt[layer], -prompt[layer])
    cache.advance(3)
    expected = torch.zeros(layers, rows, 2, extent, 4)
    expected[:, :, :, :3] = prompt
    for _ in range(6):
        slot = torch.stack([torch.randperm(extent, generator=generator)[:4] for _ in range(rows)])
        new = torch.randn(layers, rows, 2, 4, 4, generator=generator)
        cache.place(slot, extent)
        for row in range(rows):
            expected[:, row, :, slot[row]] = new[:, row]
        for layer in range(layers):
            keys, values = cache.layers[layer].update(new[layer], -new[layer])
            written = torch.zeros(rows, extent, dtype=torch.bool).scatter_(1, slot, True)
            assert keys.shape == values.shape == (rows, 2, extent, 4)
            for row in range(rows):
                assert torch.equal(keys[row][:, written[row]], expected[layer, row][:, written[row]])
                assert torch.equal(values[row][:, :3], -expected[layer, row, :, :3])
    assert cache.lengths == [3] * rows  # the caller keeps count of what it names
    cache.place(None)
    keys, _ = cache.layers[0].update(new[0], new[0])
    assert torch.equal(keys, torch.cat((expected[0, :, :, :3], new[0]), 2))


def test_a_finished_request_keeps_no_memory() -> None:
    """No cycle holds the keys and values of a request until the garbage collector comes by."""
    gc.collect()
    gc.disable()
    try:
        text = mmspec.vlm.start(tiny("llava"), drafter=PromptLookup(), max_new_tokens=4, **prompt("llava", images=1))
        image = ImagePipeline(TinyModel()).start([0, 1], decoding=SCD(4), guidance_scale=2.0, seed=0)
        for run in (text, image):
            run.run()
        kept = [ref(run.target.cache) for run in (text, image)]
        del text, image, run
        assert [cache() for cache in kept] == [None, None]
    finally:
        gc.enable()
