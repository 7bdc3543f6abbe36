"""The causal variant: its cache, plain decoding, and exact drafting under shared noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import BlockVerification, Reflection, Weights
from mmspec.core.round.rules.base import at_node
from mmspec.imagegen import ContinuousARPipeline
from mmspec.imagegen.continuous.causal.causal_drafter import SmallCausal
from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer
from mmspec.imagegen.continuous.head_sampling.head import sample
from mmspec.imagegen.continuous.head_sampling.sampling import GivenNoise, HeadSampling, KeyedNoise
from tests.imagegen.continuous.tiny import autoencoder, redrawn

SMALL = CausalConfig(
    grid=2, token_dim=3, width=16, depth=2, heads=2, class_num=4, head_depth=1, head_width=12, head_steps=4
)


def model(config: CausalConfig = SMALL, seed: int = 0, std: float = 0.2) -> CausalTransformer:
    return redrawn(CausalTransformer(config), seed, std)


@torch.no_grad()
@pytest.mark.parametrize("head", ("sde", "diffusion"))
@pytest.mark.parametrize("scale", (1.0, 2.5))
def test_plain_decoding_is_token_after_token_without_a_cache(head: str, scale: float) -> None:
    causal = model(replace(SMALL, head=head))
    pipe = ContinuousARPipeline(causal)
    run = pipe.start([1, -1, 3], seed=5, guidance_scale=scale)
    keys, noise = Keys.of(5, 3), run.target.noise
    run.run()
    found = run.target.values
    assert run.stats.target_passes == 4 and run.stats.emitted == [4, 4, 4]
    for index in range(4):
        labels = torch.tensor([1, -1, 3])
        z = torch.stack([causal.training_z(one, found)[:, index] for one in (labels, torch.full_like(labels, -1))])
        initial, steps = (x[:, 0] for x in noise.at(torch.full((3, 1), index)))
        guidance = None if scale == 1 else torch.full((3,), scale)
        walk = sample(causal.head(), z[0] if guidance is None else z, initial, steps, guidance=guidance)
        expected = walk.last.mean
        if head == "sde":
            keys.round = index
            expected = expected + walk.last.log_scale.exp() * keys.normal(Purpose.BONUS, 3)
        torch.testing.assert_close(found[:, index], expected, atol=1e-3, rtol=1e-3)


ROWS, ONE = 4000, replace(SMALL, token_dim=1)


def most_apart(seed: int, **how) -> float:
    """Plain and drafted tokens under one noise for all rows: the largest Kolmogorov-Smirnov distance, of any token and of
    what it has to do with the one before, in units of its 0.1 % point."""
    pipe, labels = ContinuousARPipeline(model(ONE)), [1] * ROWS
    initial, steps = KeyedNoise(Keys.of(2, 1), 4, 1).at(torch.arange(4)[None])
    noise = GivenNoise(initial.expand(ROWS, -1, -1), steps.expand(ROWS, -1, -1, -1))
    plain, drafted = (
        pipe(labels, seed=number, noise=noise, pixels=False, **settings).tokens[..., 0]
        for number, settings in ((seed, {}), (seed + 1, how))
    )
    pairs = [(plain[:, i], drafted[:, i]) for i in range(4)]
    pairs += [(plain[:, i] - plain[:, i - 1], drafted[:, i] - drafted[:, i - 1]) for i in range(1, 4)]
    return max(distance(*pair) for pair in pairs) / (1.95 * (2 / ROWS) ** 0.5)


def near_model(length: int) -> SmallCausal:
    """A drafter about half of whose tokens stand."""
    near, other = model(ONE), model(ONE, seed=7)
    for parameter, two in zip(near.parameters(), other.parameters(), strict=True):
        parameter.lerp_(two, 0.2)
    return SmallCausal(near, length)


@pytest.mark.parametrize("length", (1, 2, 5))
def test_drafts_under_shared_noise_keep_the_distribution(length: int) -> None:
    stats = ContinuousARPipeline(model(ONE))([1] * 100, seed=0, decoding=near_model(length), pixels=False).stats
    assert 1.2 < stats.accept_length < 1.9
    assert most_apart(0, decoding=near_model(length)) < 1


class Fresh(Reflection):
    """Wrong: after a rejection it draws from the target anew."""

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        alone = root_only(at_node(draft.value, verdict.node))
        mean, scale = (at_node(x, verdict.node)[:, None] for x in (evidence.mean, evidence.scale))
        node = torch.zeros_like(verdict.node)
        lone = Verdict("path", node, node[:, None], node)
        verdict.correction = super().resample(Evidence(mean=mean, scale=scale), alone, weights, lone, keys).correction
        return verdict


def test_a_wrong_rule_changes_the_distribution() -> None:
    assert most_apart(0, decoding=near_model(2), rule=Fresh()) > 2


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    at = torch.cat((one, two)).sort().values
    below = [torch.searchsorted(x.sort().values, at, right=True) / len(x) for x in (one, two)]
    return float((below[0] - below[1]).abs().max())


def test_given_the_noise_a_drafted_token_is_accepted_or_mirrored() -> None:
    """One round: the token behind the root is the draft, or its mirror image about the two means."""
    pipe = ContinuousARPipeline(model())
    small = SmallCausal(model(replace(SMALL, width=8, depth=1), seed=7, std=0.4), 1)
    run = pipe.start([1] * 400, seed=3, decoding=small)
    run.step()
    draft = run.state.propose(run.target, run.keys)
    evidence = run.target.score(draft)
    verdict = Reflection().select(Reflection().weigh(evidence, draft), torch.rand(400, 2).double(), draft)
    rejected = verdict.node == 0
    assert 0 < int(rejected.sum()) < 400
    mean, q, scale = evidence.mean[:, 0], draft.law.mean[:, 0], evidence.scale[:, 0]
    torch.testing.assert_close(scale, draft.law.scale[:, 0])
    weights = Reflection().weigh(evidence, draft)
    value = Reflection().resample(evidence, draft, weights, verdict, run.keys).correction
    z, mirrored = (draft.value[:, 1] - q) / scale, (value - mean) / scale
    torch.testing.assert_close(z.norm(dim=-1)[rejected], mirrored.norm(dim=-1)[rejected], atol=1e-4, rtol=1e-4)


def test_a_drafter_that_is_the_target_is_always_accepted() -> None:
    larger = replace(SMALL, grid=3)
    pipe = ContinuousARPipeline(model(larger), guidance_scale=2.0)
    run = pipe.start([0, 1, -1], seed=0, decoding=SmallCausal(model(larger), 2))
    score, seen = run.target.score, []

    def watched(draft: Draft) -> Evidence:
        seen.append((draft, score(draft)))
        return seen[-1][1]

    run.target.score = watched
    stats = run.run()
    assert stats.accepted == [[0] * 3, [2] * 3, [2] * 3, [1] * 3] and stats.emitted == [9] * 3
    assert stats.exact and stats.drafter == "small_causal_2" and stats.drafter_passes == 9
    for draft, evidence in seen:  # it read what the target read
        torch.testing.assert_close(draft.law.mean, evidence.mean[:, :-1], atol=1e-4, rtol=1e-4)


def test_rows_that_drift_apart_are_each_as_alone() -> None:
    pipe = ContinuousARPipeline(model(replace(SMALL, grid=3)), guidance_scale=1.5)
    small = SmallCausal(model(replace(SMALL, grid=3, width=8, depth=1), seed=7), 3)
    labels, seeds = [0, 1, 2, 3], [11, 12, 13, 14]
    run = pipe.start(labels, seed=seeds, decoding=small)
    stats = run.run()
    assert len({tuple(row) for row in zip(*stats.accepted, strict=True)}) > 1
    for row in range(4):
        alone = pipe.start([labels[row]], seed=[seeds[row]], decoding=small)
        alone.run()
        torch.testing.assert_close(alone.target.values[0], run.target.values[row], atol=1e-4, rtol=1e-4)


def test_nan_stops_its_row_and_leaves_the_others() -> None:
    causal = model()
    whole = ContinuousARPipeline(causal)([0, 1], seed=[1, 2], pixels=False)
    with torch.no_grad():
        causal.class_embed.weight[0] = torch.nan
    for decoding in (None, SmallCausal(model(), 2)):
        out = ContinuousARPipeline(causal)([0, 1], seed=[1, 2], pixels=False, decoding=decoding)
        assert list(out.errors) == [0] and out.stats.emitted == [0, 4] and (out.tokens[0] == 0).all()
        if decoding is None:
            torch.testing.assert_close(out.tokens[1], whole.tokens[1])


def test_the_evidence_is_of_the_last_step() -> None:
    causal = model()
    run = ContinuousARPipeline(causal).start([1], seed=0, temperature=0.5)
    _, evidence = run.target.prefill()
    assert evidence.scale.shape == (1, 1, 1)
    torch.testing.assert_close(evidence.scale, torch.full((1, 1, 1), 0.5 * 2**0.5 / 4))
    assert run.target.score(root_only(run.target.pending)).mean.shape == (1, 1, 3)


@pytest.mark.parametrize(
    ("config", "how", "message"),
    [
        (replace(SMALL, head="diffusion"), {}, "drafter: expected heads whose last step is drawn"),
        (replace(SMALL, span=0.96), {}, "drafter: expected heads whose last step is drawn"),
        (SMALL, {"rule": BlockVerification()}, "rule 'block': expected a target that gives scores"),
        (SMALL, {"guidance_scale": -1.0}, "guidance_scale: expected"),
    ],
)
def test_settings_without_a_distribution_are_refused(config: CausalConfig, how: dict, message: str) -> None:
    pipe = ContinuousARPipeline(model(config))
    with pytest.raises(ValueError, match=message):
        pipe([1], seed=0, decoding=SmallCausal(model(config)), pixels=False, **how)


def test_without_noise_nothing_is_drafted() -> None:
    """Refused before a pass is made."""
    pipe, none = ContinuousARPipeline(model()), dict(seed=0, temperature=0)
    for how in ({"decoding": SmallCausal(model())}, {"head_sampling": HeadSampling(4)}):
        with pytest.raises(ValueError, match="temperature: expected a number above 0"):
            pipe.start([1], **none, **how)
    assert pipe.start([1], **none, head_sampling=HeadSampling(1)).step()


def test_a_pipeline_comes_back(tmp_path: Path) -> None:
    pipe = ContinuousARPipeline(model(), autoencoder(), guidance_scale=1.5)
    pipe.save_pretrained(tmp_path)
    again = ContinuousARPipeline.from_pretrained(tmp_path)
    one, two = (p([1, 2], seed=3) for p in (pipe, again))
    assert torch.equal(one.tokens, two.tokens) and one.images[0].size == (4, 4)
    assert [x.tobytes() for x in one.images] == [x.tobytes() for x in two.images]


def test_noise_of_the_steps_is_shared_by_heads_of_every_model() -> None:
    noise = KeyedNoise(Keys.of(0, 2), 4, 3)
    longer = KeyedNoise(Keys.of(0, 2), 9, 3)
    position = torch.tensor([[0, 3], [2, 2]])
    (initial, steps), (other, more) = noise.at(position), longer.at(position)
    assert torch.equal(initial, other) and torch.equal(steps, more[:, :, :4])
    assert torch.equal(steps[1, 0], steps[1, 1]) and not torch.equal(steps[0, 0], steps[0, 1])


def test_auto_is_plain_and_a_drafter_that_reads_as_it_drafts_takes_no_controller() -> None:
    from mmspec.core.length.goodput import Goodput

    pipe = ContinuousARPipeline(model())
    plain = pipe([0, 1], seed=3, pixels=False)
    assert torch.equal(pipe([0, 1], decoding="auto", seed=3, pixels=False).tokens, plain.tokens)
    with pytest.raises(ValueError, match="expected a drafter that can skip rounds, got 'small_causal_2'"):
        pipe([0], decoding=Goodput(SmallCausal(model(), 2)), seed=3, pixels=False)
