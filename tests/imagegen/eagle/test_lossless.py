"""Whatever the drafter says, images have the law of plain decoding, and are the same images at temperature 0."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from mmspec.certify.samples import chi_square
from mmspec.imagegen.eagle.image_eagle import ImageEagle
from mmspec.imagegen.eagle.training import teacher_pass
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.target import Guidance
from tests.imagegen.eagle.small import ALIKE, CHAIN, HEAP, SHAPES, TREE, drafter_for, lined
from tests.imagegen.tiny import TinyModel, generate

LABELS = [0, 1, 3]  # the prompts of odd ones are padded


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_greedy_images_are_those_of_plain_decoding(shape: str, scale: float) -> None:
    model = TinyModel()
    plain = generate(model, LABELS, temperature=0, guidance_scale=scale)
    drafter = drafter_for(model).with_shape(SHAPES[shape])
    drafted = generate(model, LABELS, drafter, temperature=0, guidance_scale=scale)
    assert torch.equal(drafted.tokens, plain.tokens)
    assert drafted.stats.drafter_passes > 0 and drafted.stats.accept_length > 1


@pytest.mark.parametrize("shape", list(SHAPES))
def test_greedy_videos_are_those_of_plain_decoding(shape: str) -> None:
    model = TinyModel(Geometry(((2, 2),), frames=3))
    plain = generate(model, LABELS, temperature=0, guidance_scale=2.0)
    drafted = generate(model, LABELS, drafter_for(model).with_shape(SHAPES[shape]), temperature=0, guidance_scale=2.0)
    assert torch.equal(drafted.tokens, plain.tokens) and drafted.stats.drafter_passes > 0


def test_a_drafter_without_time_is_refused_for_videos() -> None:
    model = TinyModel(Geometry(((2, 2),), frames=3))
    drafter = ImageEagle(ImageEagle.sizes_for(model, heads=4))
    with pytest.raises(ValueError, match="drafter: expected time_pairs of 1 or more for 3 frames, got 0"):
        generate(model, LABELS, drafter)


@pytest.mark.parametrize("guidance", [Guidance(2.0, interval=3), Guidance(1.0, final=4.0)])
def test_greedy_images_under_schedules_and_forced_values(guidance: Guidance) -> None:
    model = lined()
    plain = generate(model, LABELS, temperature=0, guidance_scale=guidance)
    for shape in SHAPES.values():
        drafted = generate(model, LABELS, drafter_for(model).with_shape(shape), temperature=0, guidance_scale=guidance)
        assert torch.equal(drafted.tokens, plain.tokens)
        assert drafted.stats.accept_length > 1.2  # forced values are drafted as they will come


@pytest.mark.default_cells("dynamic", "chain")
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_row_does_not_depend_on_its_batch(shape: str) -> None:
    model = TinyModel()
    drafter = drafter_for(model).with_shape(SHAPES[shape])
    labels, seeds = [0, 1, 3, 2] * 4, list(range(16))  # enough of them that some near their end beside slower ones
    together = generate(model, labels, drafter, guidance_scale=2.0, seed=seeds).tokens
    alone = [
        generate(model, [label], drafter, guidance_scale=2.0, seed=[seed]).tokens
        for label, seed in zip(labels, seeds, strict=True)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_another_dtype_than_the_targets_is_refused() -> None:
    model = TinyModel()
    with pytest.raises(ValueError, match="expected torch.float32 on cpu as the target, got torch.float64 on cpu; call"):
        generate(model, [0], drafter_for(model).double())


@pytest.mark.default_cells("shape1-token", "shape3-recursive", "shape4-exact", "shape5-kseq", "shape6-exact")
@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        (CHAIN, "exact"),
        (CHAIN, "token"),
        (TREE, "exact"),
        (TREE, "recursive"),
        (ALIKE, "exact"),
        (ALIKE, "kseq"),
        (HEAP, "exact"),
        (HEAP, "recursive"),
    ],
)
def test_sampled_images_have_the_distribution_of_plain_decoding(shape: object, rule: str) -> None:
    model = TinyModel(Geometry.square(2), codes=3, sharp=0.7)
    drafter = drafter_for(model).with_shape(shape)
    tokens = generate(model, [1] * 2500, drafter, rule, guidance_scale=2.0, temperature=0.9, seed=0).tokens
    weight = torch.tensor([27, 9, 3, 1])
    observed = torch.bincount((tokens * weight).sum(-1), minlength=81)
    test = chi_square(observed, joint(model, 1, Guidance(2.0), 0.9) * len(tokens))
    assert test.passed, f"chi-square {test.statistic:.1f} over the limit {test.limit:.1f}"


def joint(model: TinyModel, label: int, guidance: Guidance, temperature: float) -> Tensor:
    """float64 [V^total], the law of whole images under plain sampling, in order of the first value, then the second..."""
    total = model.geometry.total
    images = torch.tensor(list(product(range(model.codes), repeat=total)))
    teacher_batch = teacher_pass(model, torch.full((len(images),), label), images, paired=True)
    logits = torch.cat([model.logits(teacher_batch.prompt[:, -1:]), teacher_batch.logits], 1)
    index = torch.arange(total).expand(len(images), -1)
    guided = guidance.apply(*logits.chunk(2), index, total) / temperature
    return guided.double().softmax(-1).gather(-1, images[..., None]).prod(1)[:, 0]
