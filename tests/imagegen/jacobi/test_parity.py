"""One verification step of the public code, on its recorded uniforms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules import TokenWise
from mmspec.core.round.rules.base import at_node
from mmspec.core.round.tree import chain
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.jacobi import SJD
from tests.parity import case

ROUND = 3  # rounds before this one moved the root here


@pytest.mark.parametrize("name", ("sjd0", "sjd1", "sjd2", "sjd3"))
def test_a_step_of_the_public_code(name: str) -> None:
    found = {key.split(".", 1)[1]: tensor for key, tensor in case("llamagen/sjd_step").items() if key.startswith(name)}
    p, q, token = found["in.p"], found["in.q"], found["in.draft_tokens"]
    batch, length, size = p.shape
    row = torch.arange(length)
    row[-1] = -1
    draft = Draft(token, chain(length - 1), Law("without_replacement", row, q[:, 1:].log()))
    evidence, rule = Evidence(p.log()), TokenWise()
    weights = rule.weigh(evidence, draft)
    for run, uniform in enumerate(found["in.uniforms"]):
        verdict = rule.select(weights, uniform, draft)
        committed = verdict.depth + 1
        assert torch.equal(committed, found["out.committed"][run])
        law = rule.residual(evidence, draft, weights, verdict.node)
        law = law / law.sum(-1, keepdim=True)
        # a row whose drafts all passed has its bonus there, and no replacement
        rejected, place = committed < length, committed.clamp(max=length - 1)
        replaced = at_node(found["out.replacement_law"][run], place)
        assert torch.allclose(law[rejected], replaced[rejected], atol=1e-6)

        verdict = rule.resample(evidence, draft, weights, verdict, Keys.of(0, batch))
        target = SimpleNamespace(
            geometry=Geometry.square(8),
            model=SimpleNamespace(codes=size),
            device=p.device,
            paths=[range(length)],
            last=ROUND + committed,
            greedy=False,
        )
        state = SJD(length).open(target)
        state.observe(target, draft, evidence, verdict)
        slot = torch.arange(length)
        laws = state.laws.read(ROUND + 1 + slot.expand(batch, -1)).softmax(-1)
        behind = slot >= committed[:, None]
        assert bool((found["out.stored_law_kind"][run][behind] == 0).all())
        assert torch.allclose(laws[behind], p[behind], atol=1e-6)
        assert torch.equal(state.known, length - committed)
