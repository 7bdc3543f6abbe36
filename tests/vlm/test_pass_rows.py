"""Probes behind the nodes of a draft: they change no node, see no other branch, and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Probes
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.core.round.tree import static_tree
from mmspec.vlm.api import start
from mmspec.vlm.pass_rows import PassRows
from mmspec.vlm.target import TextTarget
from tests.vlm.tiny import HIDDEN, prompt, tiny

NODES = (0, 0, 0, 1, 2)  # two branches of two levels behind the root
BEHIND = (*NODES, 0, 5, 3, 7, 4, 9)  # chains of two probes behind the root, node 3 and node 4
CASES = [("llama", 0, 1), ("llava", 2, 4), ("qwen2_5_vl", 2, 4)]


def prefilled(kind: str, images: int = 0, batch: int = 1) -> TextTarget:
    model = tiny(kind, dtype=torch.float64)
    inputs = prompt(kind, images=images, batch=batch)
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    run = start(model, do_sample=False, max_new_tokens=30, **inputs)
    run.step()
    return run.target


def drafted(target: TextTarget, parents: tuple[int, ...] = BEHIND, seed: int = 0) -> Draft:
    rng = torch.Generator().manual_seed(seed)
    value = torch.randint(5, 90, (target.batch, len(NODES)), generator=rng)
    value[:, 0] = target.pending
    embeds = torch.randn(target.batch, len(parents) - len(NODES), HIDDEN, generator=rng, dtype=torch.float64)
    probes = Probes(static_tree(parents), embeds) if len(parents) > len(NODES) else None
    return Draft(value, static_tree(NODES), Law("deterministic"), probes=probes)


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize(("kind", "images", "batch"), CASES)
def test_nodes_have_the_same_evidence_with_probes(kind: str, images: int, batch: int) -> None:
    target = prefilled(kind, images, batch)
    draft = drafted(target)
    plain, probed = target.score(replace(draft, probes=None)), target.score(draft)
    assert plain.probed is None and probed.probed.shape == (batch, 6, HIDDEN)
    assert far(plain.scores, probed.scores) < 1e-6 and far(plain.hidden, probed.hidden) < 1e-6


@pytest.mark.parametrize("width", (11, 14))
def test_a_probe_holds_the_states_behind_its_own_path(width: int) -> None:
    """The target reads the prompt, the path and the probes in a row; padding behind the probes changes nothing."""
    target = prefilled("llama")
    draft = drafted(target)
    target.pads, target.pass_costs.padded = True, lambda nodes, adapts: width
    evidence = target.score(draft)
    decoder, embed = target.parts.decoder, target.parts.embed
    for path, probes in (((0,), (0, 1)), ((0, 1, 3), (2, 3)), ((0, 2, 4), (4, 5))):
        known = embed(torch.cat([target.prompt, draft.value[:, path]], 1))
        whole = torch.cat([known, draft.probes.embeds[:, probes]], 1)
        with torch.no_grad():
            states = decoder(inputs_embeds=whole).last_hidden_state[:, -2:]
        assert far(states, evidence.probed[:, probes]) < 1e-6


def isolated(target: TextTarget) -> float:
    """How much the probes behind node 3 change when those behind node 4 do."""
    draft = drafted(target)
    other = replace(draft, probes=Probes(draft.probes.tree, draft.probes.embeds.clone()))
    other.probes.embeds[:, 4:] *= -1
    return far(target.score(draft).probed[:, 2:4], target.score(other).probed[:, 2:4])


def test_probes_of_a_branch_see_no_other_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    target = prefilled("llama")
    assert isolated(target) == 0
    rows_of = PassRows.of

    def seeing(draft: Draft, width: int) -> PassRows:
        rows = rows_of(draft, width)
        rows.ancestor = rows.ancestor.clone()
        rows.ancestor[:, 5:, 5:] = True
        return rows

    monkeypatch.setattr(PassRows, "of", seeing)
    assert isolated(target) > 1e-3


def commit(target: TextTarget, draft: Draft) -> tuple[Evidence, list[Tensor]]:
    """Accept the second branch; return the next evidence, and the committed keys and values."""
    evidence = target.score(draft)
    draft.value[:, [2, 4]] = torch.stack([evidence.scores[:, 0].argmax(-1)] * 2, 1)
    evidence = target.score(draft)
    draft.value[:, 4] = evidence.scores[:, 2].argmax(-1)
    evidence = target.score(draft)
    rule = TargetMatch()
    weights = rule.weigh(evidence, draft)
    verdict = rule.select(weights, torch.zeros_like(weights.threshold), draft)
    target.commit(draft, evidence, rule.resample(evidence, draft, weights, verdict, None))
    assert target.paths == [[0, 2, 4]] * target.batch
    kept = [half[:, :, : target.cache.lengths[0]] for layer in range(2) for half in target.cache.at(layer)]
    return target.score(drafted(target, NODES, seed=1)), kept


def test_nothing_of_a_probe_stays_in_the_cache() -> None:
    targets = [prefilled("llava", 1) for _ in range(2)]
    plain, probed = (
        commit(target, drafted(target, parents)) for target, parents in zip(targets, (NODES, BEHIND), strict=True)
    )
    assert targets[0].cache.lengths == targets[1].cache.lengths and targets[0].tokens == targets[1].tokens
    assert far(plain[0].scores, probed[0].scores) < 1e-6
    assert all(far(image_set, other) < 1e-6 for image_set, other in zip(plain[1], probed[1], strict=True))


def test_rules_and_processors_never_see_a_probe() -> None:
    target, seen = prefilled("llama"), []
    score = target.processors.__class__.__call__

    class Noting(target.processors.__class__):
        def __call__(self, logits: Tensor, *rest: object) -> Tensor:
            seen.append(logits.shape[1])
            return score(self, logits, *rest)

    target.processors.__class__ = Noting
    draft = drafted(target)
    evidence = target.score(draft)
    assert seen == [5] and evidence.scores.shape[1] == draft.tree.nodes == 5
    assert TargetMatch().weigh(evidence, draft).threshold.shape == (1, 5)
