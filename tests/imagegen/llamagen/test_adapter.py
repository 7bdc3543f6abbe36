"""LlamaGen through the engine: the same tokens as a plain loop over the whole sequence, batched and guided."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.imagegen import SCD
from mmspec.imagegen.jacobi import SJD, Proactive
from mmspec.imagegen.llamagen.adapter import Caption, LlamaGenModel
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.load import llamagen_from_state_dict
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.target import Guidance
from tests.imagegen.llamagen.tiny import CAPTION, CLASS, tokenizer_model, transformer
from tests.parity import case

LENGTHS = (2, 6, 1)


def captions() -> Caption:
    torch.manual_seed(5)
    mask = torch.arange(6) >= 6 - torch.tensor(LENGTHS)[:, None]
    return Caption(torch.randn(3, 6, 8) * mask[..., None], mask)


def by_hand(model: Transformer, condition: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Greedy codes without a cache, one whole pass per code and branch."""
    rows, total = len(condition), model.config.frames * model.config.block_size
    codes = torch.zeros(rows, total, dtype=torch.long)
    for step in range(total):
        cond, uncond = (
            model.training_logits(condition, codes, mask, torch.full((rows,), drop))[:, step] for drop in (False, True)
        )
        codes[:, step] = (uncond + scale * (cond - uncond) if scale > 1 else cond).argmax(-1)
    return codes


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("kind", ["c2i", "t2i"])
def test_greedy_codes_are_those_of_whole_passes(kind: str, scale: float) -> None:
    if kind == "c2i":
        model, condition = transformer(CLASS), torch.tensor([0, 4, 2])
        expected = by_hand(model, condition, None, scale)
        prompts = condition
    else:
        model, prompts = transformer(CAPTION), captions()
        expected = by_hand(model, prompts.features, prompts.mask, scale)
    out = LlamaGenPipeline(model)(prompts, guidance_scale=scale, temperature=0, pixels=False)
    assert torch.equal(out.tokens, expected) and len(expected.unique()) > 3 and out.stats.exact


@pytest.mark.covering(strength=1)
@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("config", [CLASS, CAPTION], ids=lambda config: config.model_type)
def test_greedy_codes_of_videos_are_those_of_whole_passes(config: GPTConfig, scale: float) -> None:
    model = transformer(replace(config, block_size=4, frames=5, time_pairs=2))
    prompts = captions() if config is CAPTION else torch.tensor([0, 4, 2])
    given = (prompts.features, prompts.mask) if config is CAPTION else (prompts, None)
    pipe, settings = LlamaGenPipeline(model), dict(guidance_scale=scale, temperature=0, pixels=False)
    out = pipe(prompts, **settings)
    assert torch.equal(out.tokens, by_hand(model, *given, scale)) and len(out.tokens.unique()) > 3
    for decoding in (SJD(6), SJD(6, "frame"), SCD(9, init="repeat_frame"), SJD(6, "frame", tree=Proactive(2, 2))):
        drafted = pipe(prompts, decoding=decoding, **settings)
        assert torch.equal(drafted.tokens, out.tokens) and drafted.stats.exact, decoding.name
        assert drafted.stats.row_passes < out.stats.row_passes


@torch.no_grad()
def test_the_distribution_of_a_code_depends_on_its_frame() -> None:
    model = transformer(replace(CLASS, block_size=4, frames=3, time_pairs=2))
    codes = torch.full((1, 12), 3)
    laws = model.training_logits(torch.tensor([1]), codes).softmax(-1)[0].view(3, 4, -1)
    assert (laws[1] - laws[2]).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize(
    ("name", "guidance"),
    [("cfg1", Guidance()), ("cfg3", Guidance(3.0)), ("cfg3_interval5", Guidance(3.0, interval=5))],
)
def test_the_engine_equals_the_public_loop(name: str, guidance: Guidance) -> None:
    data = case("llamagen/gpt_c2i_tiny")
    model = Transformer(GPTConfig(dim=64, n_layer=2, n_head=4, vocab_size=64, block_size=16, num_classes=10)).eval()
    model.load_state_dict({k.removeprefix("weights."): v for k, v in data.items() if k.startswith("weights.")})
    out = LlamaGenPipeline(model)(data["in.class_ids"], guidance_scale=guidance, temperature=0, pixels=False)
    assert torch.equal(out.tokens, data[f"out.greedy_{name}.tokens"])


def test_a_class_table_without_a_row_for_no_class_draws_unguided() -> None:
    bare = replace(CLASS, num_classes=6, class_dropout_prob=0)
    with_null, without = transformer(CLASS), transformer(bare)
    assert without.cls_embedding.embedding_table.num_embeddings == 6
    without.load_state_dict(with_null.state_dict())
    one, two = (
        LlamaGenPipeline(m)([0, 4, 5], guidance_scale=1.0, seed=2, pixels=False).tokens for m in (with_null, without)
    )
    assert torch.equal(one, two)
    assert LlamaGenPipeline(without).guidance_scale == 1 and LlamaGenPipeline(with_null).guidance_scale == 4
    with pytest.raises(ValueError, match=r"guidance_scale: expected at most 1, .*; use guidance_scale 1$"):
        LlamaGenPipeline(without)([0], guidance_scale=1.5, pixels=False)
    with pytest.raises(ValueError, match=r"labels from 0 to 5, got \[6\]"):
        LlamaGenPipeline(without)([6], guidance_scale=1.0, pixels=False)


def test_stored_rows_for_no_caption_may_be_more_than_the_prefix() -> None:
    model, prompts = transformer(CAPTION), captions()
    state = model.state_dict()
    null = state["cls_embedding.uncond_embedding"]
    longer = llamagen_from_state_dict({**state, "cls_embedding.uncond_embedding": torch.cat([null, null + 9])}, CAPTION)
    one, two = (LlamaGenPipeline(m)(prompts, guidance_scale=3.0, seed=2, pixels=False).tokens for m in (model, longer))
    assert torch.equal(one, two)


@pytest.mark.parametrize("row", range(3))
def test_a_caption_in_a_batch_matches_the_caption_alone(row: int) -> None:
    pipe, both = LlamaGenPipeline(transformer(CAPTION)), captions()
    batch = pipe(both, guidance_scale=3.0, seed=[11, 12, 13], pixels=False).tokens
    alone = Caption(both.features[row : row + 1], both.mask[row : row + 1])
    one = pipe(alone, guidance_scale=3.0, seed=[11 + row], pixels=False).tokens
    assert torch.equal(batch[row : row + 1], one)


def test_captions_without_padding_need_no_mask() -> None:
    pipe, whole = LlamaGenPipeline(transformer(CAPTION)), torch.randn(2, 6, 8)
    plain = pipe(Caption(whole), temperature=0, pixels=False).tokens
    assert torch.equal(plain, pipe(Caption(whole, torch.ones(2, 6).bool()), temperature=0, pixels=False).tokens)


def test_pixels_lie_between_0_and_1_and_follow_the_codes() -> None:
    vq = tokenizer_model()
    model = LlamaGenModel(transformer(CLASS), vq)
    codes = torch.randint(0, 16, (2, 16))
    pixels = model.decode(codes)
    assert pixels.shape == (2, 3, 8, 8) and 0 <= pixels.min() and pixels.max() <= 1
    torch.testing.assert_close(pixels, ((vq.decode_code(codes) + 1) / 2).clamp(0, 1))
    torch.testing.assert_close(model.codebook().norm(dim=-1), torch.ones(16))
    image = LlamaGenPipeline(transformer(CLASS), vq)(3, seed=0).images[0]
    assert image.size == (8, 8)


def test_defaults_are_the_public_demos() -> None:
    assert [(p.guidance_scale, p.top_k) for p in map(LlamaGenPipeline, (transformer(CLASS), transformer(CAPTION)))] == [
        (4.0, 2000),
        (7.5, 1000),
    ]


@pytest.mark.parametrize(
    ("config", "prompts", "message"),
    [
        (CLASS, "a dog", "expected class labels for a class-conditional model, got 'a dog'"),
        (CLASS, [0.5], "expected class labels"),
        (CLASS, [], "expected class labels"),
        (CLASS, [0, 6], r"labels from 0 to 4 \(5 for none\), got \[0, 6\]"),
        (CAPTION, "a dog", "expected a Caption, since this model has no caption encoder"),
        (CAPTION, [3], "expected texts or a Caption"),
        (CAPTION, Caption(torch.zeros(1, 5, 8)), r"features \[B, 6, 8\], got \(1, 5, 8\)"),
        (CAPTION, Caption(torch.zeros(1, 6, 8), torch.tensor([[1, 1, 0, 0, 0, 0]]).bool()), "real tokens last"),
    ],
)
def test_wrong_prompts_are_refused(config: GPTConfig, prompts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LlamaGenPipeline(transformer(config))(prompts, pixels=False)


def test_pixels_without_a_tokenizer_are_refused() -> None:
    model = LlamaGenModel(transformer(CLASS))
    for call in (lambda: model.decode(torch.zeros(1, 16).long()), model.codebook):
        with pytest.raises(ValueError, match="vq: expected a tokenizer"):
            call()
    with pytest.raises(ValueError, match="vq: expected a codebook of vocab_size 64, got 16"):
        LlamaGenModel(
            transformer(GPTConfig(dim=32, n_layer=1, n_head=4, vocab_size=64, block_size=16)), tokenizer_model()
        )
