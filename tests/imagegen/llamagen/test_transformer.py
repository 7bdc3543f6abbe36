"""The transformer against the public code's outputs, and its cached passes against its full one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.pool import SlotPool
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.target import Guidance
from tests.parity import case

PARITY = GPTConfig(dim=64, n_layer=2, n_head=4, vocab_size=64, block_size=16, num_classes=10)
CAPTION = GPTConfig(
    dim=48,
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    vocab_size=20,
    block_size=16,
    model_type="t2i",
    cls_token_num=5,
    caption_dim=7,
    ffn=40,
)


def tiny(config: GPTConfig, scale: float = 5.0) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale if weight.dim() > 1 else 1.0)
    return model


@pytest.fixture(scope="module")
def public() -> tuple[Transformer, dict[str, Tensor]]:
    data = case("llamagen/gpt_c2i_tiny")
    model = Transformer(PARITY).eval()
    model.load_state_dict({k.removeprefix("weights."): v for k, v in data.items() if k.startswith("weights.")})
    return model, data


@torch.no_grad()
@pytest.mark.parametrize(("label", "name"), [(None, "out.logits_full"), (10, "out.logits_full_null_class")])
def test_a_full_pass_equals_the_public_code(public, label: int | None, name: str) -> None:
    model, data = public
    assert PARITY.hidden == 256
    labels, tokens = data["in.class_ids"], data["in.tokens"]
    prefix = model.condition(labels, None if label is None else torch.ones(3, dtype=torch.bool))
    hidden = model(torch.cat([prefix, model.embed(tokens)], 1), torch.arange(17), causal=True)
    torch.testing.assert_close(model.logits(hidden), data[name], atol=1e-4, rtol=0)
    trained = model.training_logits(labels, tokens, drop=None if label is None else torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(trained, data[name][:, :-1], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "guidance"),
    [("cfg1", Guidance()), ("cfg3", Guidance(3.0)), ("cfg3_interval5", Guidance(3.0, interval=5))],
)
def test_cached_greedy_generation_equals_the_public_code(public, name: str, guidance: Guidance) -> None:
    model, data = public
    labels, copies = data["in.class_ids"], 2 if guidance.paired else 1
    drop = torch.arange(3 * copies) >= 3
    cache = SlotPool(2, 20, copies=copies)
    x, tokens = model.condition(labels.repeat(copies), drop), []
    for step in range(16):
        logits = model.logits(model(x, torch.tensor([step]), cache=cache))[:, -1]
        cache.advance(1)
        torch.testing.assert_close(logits, data[f"out.greedy_{name}.raw_logits"][:, step], atol=1e-4, rtol=0)
        if copies == 2:
            logits = guidance.apply(*logits[:, None].chunk(2), torch.full((3, 1), step), 16)[:, 0]
        torch.testing.assert_close(logits, data[f"out.greedy_{name}.guided_logits"][:, step], atol=1e-4, rtol=0)
        tokens.append(logits.argmax(-1))
        x = model.embed(tokens[-1].repeat(copies))[:, None]
    assert torch.equal(torch.stack(tokens, 1), data[f"out.greedy_{name}.tokens"])


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_passes_over_a_cache_equal_a_single_full_pass(masked: bool) -> None:
    model = tiny(CAPTION)
    features, tokens = torch.randn(3, 5, 7), torch.randint(0, 20, (3, 16))
    mask = torch.arange(5) >= torch.tensor([[0], [2], [4]]) if masked else torch.ones(3, 5, dtype=torch.bool)
    drop = torch.tensor([False, True, False])
    full = model.training_logits(features, tokens, mask, drop)
    cache = SlotPool(2, 8)
    visible = (torch.ones(5, 5).tril().bool() & mask[:, None]) | torch.eye(5).bool()
    bias = torch.zeros(3, 1, 5, 5).masked_fill(~visible[:, None], -torch.inf)
    seen = [model(model.condition(features, drop), torch.arange(5), bias, cache)[:, -1:]]
    cache.advance(5)
    cache.hidden = ~mask
    for start, stop in ((0, 1), (1, 4), (4, 15)):
        bias = cache.bias(torch.ones(1, stop - start, stop - start).tril().bool(), torch.float32)
        position = torch.arange(5 + start, 5 + stop).expand(3, -1)
        seen.append(model(model.embed(tokens[:, start:stop]), position, bias, cache))
        cache.advance(stop - start)
    torch.testing.assert_close(model.logits(torch.cat(seen, 1)), full, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_says_nothing() -> None:
    model = tiny(CAPTION)
    tokens, features = torch.randint(0, 20, (2, 16)), torch.randn(1, 5, 7).repeat(2, 1, 1)
    features[1, :3] += 9
    mask = torch.tensor([[False, False, False, True, True]] * 2)
    out = model.training_logits(features, tokens, mask)
    torch.testing.assert_close(out[0, :1], model.training_logits(features, tokens[:1].repeat(2, 1), mask)[1, :1])
    assert not torch.allclose(out[0, 0], model.training_logits(features, tokens)[0, 0])


def test_dropped_rows_do_not_see_their_condition() -> None:
    model, drop = tiny(CAPTION), torch.tensor([True, False])
    features, tokens = torch.randn(2, 5, 7, requires_grad=True), torch.randint(0, 20, (2, 16))
    model.training_logits(features, tokens, drop=drop).sum().backward()
    assert not features.grad[0].any() and features.grad[1].any()


@torch.no_grad()
def test_a_head_dim_of_100_runs() -> None:
    model = tiny(GPTConfig(dim=200, n_layer=1, n_head=2, vocab_size=8, block_size=4, num_classes=3))
    assert model.training_logits(torch.tensor([0, 3]), torch.zeros(2, 4, dtype=torch.long)).isfinite().all()


def test_sixteen_bit_weights_keep_the_table_in_float32() -> None:
    model = tiny(PARITY).to(torch.bfloat16)
    out = model.training_logits(torch.tensor([1]), torch.randint(0, 64, (1, 16)))
    assert out.dtype == torch.float32 and model.rope.at(torch.arange(3)).dtype == torch.complex64


def test_causal_over_filled_slots_is_refused() -> None:
    model, cache = tiny(PARITY), SlotPool(2, 4)
    x = model.condition(torch.tensor([1]))
    model(x, torch.tensor([0]), cache=cache)
    cache.advance(1)
    with pytest.raises(ValueError, match="empty cache"):
        model(x, torch.tensor([1]), cache=cache, causal=True)
