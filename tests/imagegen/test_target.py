"""The target of image requests: plain decoding is the naive loop, rows advance on their own, and fail on their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.loop import Memoryless
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import chain
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.imagegen.rowwise.row_parallel import RowParallelRule
from mmspec.imagegen.target import Guidance
from mmspec.methods import find
from tests.imagegen.tiny import LABELS, TinyModel, generate

FORCED = Geometry(((3, 4),), row_end=16, tail=(17,))
UNGUIDED = Guidance()


def guided(cond: Tensor, uncond: Tensor, guidance: Guidance, step: int, total: int) -> Tensor:
    scale = guidance.scale
    if guidance.final is not None:
        scale += (guidance.final - scale) * step / (total - 1)
    if guidance.interval is not None and 0 <= guidance.interval and step > guidance.interval + 1:
        scale = 1.0
    return uncond + scale * (cond - uncond)


def naive(
    model: TinyModel,
    labels: list[int],
    seed: int,
    guidance: Guidance = UNGUIDED,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    filter_order: str = "top_k_first",
) -> Tensor:
    """All values int64 [B, total], everything computed anew for each of them, one row at a time."""
    forced, keys = model.geometry.forced.tolist(), Keys.of(seed, len(labels))
    values = torch.zeros(len(labels), model.geometry.total, dtype=torch.long)
    for step in range(model.geometry.total):
        keys.round = step
        uniform = keys.uniform(Purpose.RESIDUAL, 1)[:, 0]
        for row, label in enumerate(labels):
            cond = logits_after(model, label, label % 2, values[row, :step])
            uncond = logits_after(model, LABELS, label % 2, values[row, :step])
            logits = guided(cond, uncond, guidance, step, model.geometry.total)[: model.codes]
            if forced[step] >= 0:
                values[row, step] = forced[step]
            elif not temperature:
                values[row, step] = logits.argmax()
            else:
                values[row, step] = sampled(logits / temperature, top_k, top_p, filter_order, float(uniform[row]))
    return values


def logits_after(model: TinyModel, label: int, padded: int, values: Tensor) -> Tensor:
    """Raw logits [V] after a prompt (padded or not) and values [n], from one pass over both and no cache."""
    x = torch.cat((model.label[label], model.embedding[values] + model.position[: len(values)]))
    size = len(x)
    seen = torch.ones(size, size, dtype=torch.bool).tril()
    if padded:
        seen[1:, 0] = False
    bias = torch.zeros(size, size).masked_fill_(~seen, -torch.inf)[None, None]
    return model.run(x[None], bias, SlotPool(model.layers, size)).logits[0, -1]


def sampled(logits: Tensor, top_k: int, top_p: float, filter_order: str, uniform: float) -> int:
    law = logits.double().softmax(-1).tolist()
    order = sorted(range(len(law)), key=lambda code: -law[code])
    first = len(order) if filter_order == "top_p_first" else top_k
    order = order[: first or None]
    mass, kept = sum(law[code] for code in order), []
    for code in order:
        if sum(law[c] for c in kept) / mass <= top_p:
            kept.append(code)
    kept = kept[: top_k or None]
    point, total = uniform * sum(law[code] for code in kept), 0.0
    for code in sorted(kept):
        total += law[code]
        if total > point:
            return code
    return max(kept)


@pytest.mark.parametrize(
    "settings",
    (
        dict(),
        dict(temperature=0.0),
        dict(temperature=0.0, guidance=Guidance(3.0)),
        dict(guidance=Guidance(2.5)),
        dict(guidance=Guidance(4.0, interval=3), temperature=0.7),
        dict(guidance=Guidance(4.0, interval=-1)),
        dict(guidance=Guidance(1.0, final=5.0)),
        dict(top_k=3),
        dict(top_p=0.6, guidance=Guidance(2.0), top_k=7),
        dict(top_p=0.8, top_k=3, filter_order="top_p_first"),
    ),
    ids=str,
)
def test_plain_decoding_is_the_naive_loop(settings: dict) -> None:
    model, labels = TinyModel(FORCED, sharp=0.7), [0, 1, 4]
    expected = naive(model, labels, 9, **settings)
    options = dict(settings, guidance_scale=settings.get("guidance"), seed=9)
    options.pop("guidance", None)
    run = ImagePipeline(model).start(labels, **options)
    stats = run.run()
    assert torch.equal(run.target.values, expected)
    assert stats.target_passes == FORCED.total and stats.emitted == [FORCED.total] * 3
    codes = generate(model, labels, **options).tokens
    assert torch.equal(codes, expected[:, FORCED.code_index])


class Oracle(Memoryless):
    """Knows the image; row b's chain is right for b values and wrong after."""

    name = "oracle"

    def __init__(self, truth: Tensor, length: int = 5):
        self.truth, self.length = truth, length

    def propose(self, target, keys) -> Draft:
        count = max(min(self.length, target.left - 1), 0)
        place = (target.last[:, None] + torch.arange(1, count + 1)).clamp(max=target.total - 1)
        value = self.truth.gather(1, place)
        wrong = torch.arange(count) >= torch.arange(target.batch)[:, None]
        value = torch.where(wrong, (value + 1) % 16, value)
        return Draft(torch.cat((target.pending[:, None], value), 1), chain(count), Law("deterministic"))


@pytest.mark.parametrize("settings", (dict(temperature=0.0), dict(guidance=Guidance(1.0, final=5.0))), ids=str)
def test_plain_decoding_of_videos_is_the_naive_loop(settings: dict) -> None:
    model, labels = TinyModel(Geometry(((2, 2),), row_end=16, frames=3), sharp=0.7), [0, 1, 4]
    out = generate(
        model, labels, guidance_scale=settings.get("guidance"), temperature=settings.get("temperature", 1.0), seed=9
    )
    assert torch.equal(out.tokens, naive(model, labels, 9, **settings)[:, model.geometry.code_index])
    assert out.tokens.shape == (3, 12)


@pytest.mark.parametrize("scale", (1.0, 2.0))
def test_rows_advance_by_their_own_accept_lengths(scale: float) -> None:
    model, labels = TinyModel(FORCED, sharp=0.7), [0, 1, 2, 3, 4]
    plain = ImagePipeline(model).start(labels, temperature=0, guidance_scale=scale)
    plain.run()
    seen: list[tuple[int, int]] = []
    run = ImagePipeline(model).start(
        labels,
        decoding=Oracle(plain.target.values),
        temperature=0,
        guidance_scale=scale,
        listener=lambda *a: seen.append(a),
    )
    assert run.step() and run.step() and run.step()
    assert run.target.filled == [3, 5, 7, 9, 11]
    slots = [n + 1 for n in run.target.filled]  # two of the prompt; the root waits to be fed
    assert run.target.cache.lengths == slots * run.target.copies
    assert run.target.left == FORCED.total - 3 and run.target.last.tolist() == [2, 4, 6, 8, 10]
    stats = run.run()
    assert torch.equal(run.target.values, plain.target.values)
    assert stats.accepted[1] == [0, 1, 2, 3, 4] and stats.accepted[-1][1:] == [None] * 4
    assert [row for row, filled in seen if filled == FORCED.total] == [4, 3, 2, 1, 0]
    assert stats.target_passes == FORCED.total  # row 0 accepts nothing


def test_a_row_of_nan_stops_alone() -> None:
    model = TinyModel(sharp=0.7)
    healthy = generate(model, [0, 1, 2], seed=4)
    model.label[3] = torch.nan
    out = generate(model, [0, 1, 3], seed=4)
    assert torch.equal(out.tokens[:2], healthy.tokens[:2])
    assert out.errors == {
        2: "row 2: expected finite logits, got NaN or Inf after 0 of 16 values; the row stopped there"
    }
    assert out.stats.emitted == [16, 16, 0] and not out.tokens[2].any()
    pictures = ImagePipeline(model)([0, 3], seed=4).images
    assert pictures[1] is None and pictures[0].size == (16, 16)


def test_frames_come_in_order_and_only_of_rows_that_did_not_fail() -> None:
    model = TinyModel(Geometry(((2, 3),), frames=3), sharp=0.7)
    out = ImagePipeline(model)([0, 1], seed=4)
    assert [[frame.size for frame in frames] for frames in out.videos] == [[(12, 8)] * 3] * 2
    pixels = out.arrays()  # four pixels a code and side
    assert pixels.shape == (2, 3, 8, 12, 3) and pixels.dtype == np.uint8
    colours = model.colours.mul(255).round().byte().numpy()
    assert (pixels[:, :, ::4, ::4] == colours[out.tokens.view(2, 3, 2, 3)]).all()
    assert out.images[1].tobytes() == out.videos[1][0].tobytes() != out.videos[1][1].tobytes()
    model.label[3] = torch.nan
    failed = ImagePipeline(model)([0, 3], seed=4)
    assert failed.videos[1] is None and failed.images[1] is None and len(failed.videos[0]) == 3
    for part in (failed, ImagePipeline(model)([0], pixels=False)):
        with pytest.raises(ValueError, match="videos: expected the frames of every row, got"):
            part.arrays()


@pytest.mark.parametrize("oracle", (False, True))
def test_nan_midway_keeps_the_earlier_codes(oracle: bool) -> None:
    model = TinyModel(sharp=0.7)
    plain = generate(model, [0, 1, 2, 4], temperature=0).tokens
    code = next(c for c in plain[3].tolist()[3:] if not (plain[:3] == c).any())
    stop = plain[3].tolist().index(code) + 1
    model.embedding[code] = torch.nan
    out = generate(model, [0, 1, 2, 4], Oracle(plain) if oracle else None, temperature=0)
    assert torch.equal(out.tokens[:3], plain[:3])
    assert torch.equal(out.tokens[3, :stop], plain[3, :stop]) and not out.tokens[3, stop:].any()
    assert list(out.errors) == [3] and f"after {stop} of 16 values" in out.errors[3]


@pytest.mark.parametrize("wrong", (3, SJD))
def test_invalid_drafters_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="decoding: expected None, 'auto' or a drafter object, got"):
        generate(TinyModel(), [0], wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    (
        (dict(top_k=2.7), "top_k: expected a whole number, got 2.7"),
        (dict(seed=1.5), "seed: expected a whole number, got 1.5"),
        (dict(seed=[1.5]), "seed: expected a whole number, got 1.5"),
        (dict(temperature=float("inf")), "temperature: expected a number"),
        (dict(filter_order="top_p"), "filter_order: expected 'top_k_first' or 'top_p_first', got 'top_p'"),
        (dict(guidance_scale=float("nan")), "guidance_scale: expected a number from 0 to 1000, got nan"),
    ),
)
def test_wrong_numbers_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(TinyModel(), [0], **wrong)


def test_schedules_end_at_a_scale() -> None:
    for final in (-2.0, float("nan")):
        with pytest.raises(ValueError, match="guidance_scale: expected a number from 0 to 1000"):
            Guidance(3.0, final=final)


def test_whole_numbers_of_any_kind_are_seeds() -> None:
    found = [generate(TinyModel(), [0], seed=seed).tokens for seed in (3, torch.tensor(3), np.int64(3))]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    several = [generate(TinyModel(), [0, 1], seed=seeds).tokens for seeds in ([3, 4], torch.tensor([3, 4]))]
    assert torch.equal(*several)


def test_next_to_no_temperature_is_greedy() -> None:
    cold = generate(TinyModel(sharp=5.0), [0, 1], temperature=1e-40, seed=0)
    assert torch.equal(cold.tokens, generate(TinyModel(sharp=5.0), [0, 1], temperature=0).tokens) and not cold.errors


def test_pixels_that_cannot_be_are_refused_before_anything_is_drawn() -> None:
    model, seen = TinyModel(), []
    model.no_pixels = "no tokenizer"
    with pytest.raises(ValueError, match="no tokenizer"):
        ImagePipeline(model)([0], listener=lambda row, filled: seen.append(filled))
    assert not seen and ImagePipeline(model)([0], pixels=False).tokens.shape == (1, 16)


def test_rules_of_other_domains_are_refused_in_the_first_round() -> None:
    pipeline = ImagePipeline(TinyModel())
    for temperature in (0, 1):
        with pytest.raises(ValueError, match="rule: expected one of exact, token.*got 'reflection'"):
            pipeline([0], rule="reflection", temperature=temperature)
        with pytest.raises(ValueError, match="rule 'reflection': expected a target that gives Gaussians"):
            pipeline([0], rule=find("reflection", kind="rule").load()(), temperature=temperature)
        with pytest.raises(ValueError, match="expected a rule with a path verdict for this target, got a mask"):
            pipeline([0], rule=RowParallelRule(), temperature=temperature)
