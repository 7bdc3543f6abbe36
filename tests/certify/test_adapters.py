"""Other projects' accept steps: the installed transformers' own, SGLang's in array terms, and how the others are called.

vLLM, FlashInfer and SGLang's kernels are stood in for by functions of their arguments that are right, or wrong.
"""

from __future__ import annotations

import sys
from functools import partial
from inspect import signature
from types import ModuleType, SimpleNamespace

import pytest
import torch
import transformers
from torch import Tensor

from mmspec.certify import Shape, StepFailed, adapters, certify
from mmspec.certify.adapters import SglangTree, TracedRng
from mmspec.certify.cases import chain_of
from tests.certify import planted

FEW = dict(samples=10_000, laws=("random", "far"))


def test_transformers_own_assisted_sampling_passes() -> None:
    for length, values in ((1, 3), (2, 2)):
        found = certify(
            adapters.transformers, shapes=[chain_of(length)], values=values, laws=("far", "top-k"), probes=100
        )
        assert found.exact and found.method == "regions" and found.distance < 1e-12


def test_transformers_with_its_weighted_ensemble_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.generation import utils

    own = utils._speculative_sampling
    if "assistant_ensemble_weight" not in signature(own).parameters:
        pytest.skip(f"transformers {transformers.__version__} has no weighted ensemble")
    monkeypatch.setattr(utils, "_speculative_sampling", partial(own, assistant_ensemble_weight=0.5))
    found = certify(adapters.transformers, shapes=[chain_of(1)], laws=("far",))
    assert not found.exact and found.distance > 0.05


def test_draws_take_the_given_uniforms_in_order() -> None:
    with TracedRng(torch.tensor([0.1, 0.2, 0.3, 0.9], dtype=torch.float64)):
        assert torch.rand_like(torch.zeros(1, 2)).tolist() == [[0.1, 0.2]] and float(torch.rand(1)) == 0.3
        assert torch.multinomial(torch.tensor([[1.0, 1.0, 2.0]]), num_samples=1).tolist() == [[2]]
        with pytest.raises(ValueError, match="at most 4 draws"):
            torch.rand(1)
        with pytest.raises(ValueError, match="torch.randn: expected draws by rand"):
            torch.randn(2)
        with pytest.raises(ValueError, match="one draw a row"):
            torch.multinomial(torch.ones(1, 3), 2)


def test_sglangs_tree_step_is_exact_for_differing_siblings_and_relaxed_below_its_thresholds() -> None:
    tree = Shape((0, 0, 1, 1), "deterministic")
    found = certify(adapters.sglang, shapes=[tree, Shape((0, 1), "deterministic")], laws=("far",), probes=1000)
    assert found.exact and found.distance < 1e-12
    for relaxed in (SglangTree(accumulated=0.7), SglangTree(single=0.5)):
        found = certify(relaxed, shapes=[Shape((0, 0), "deterministic")], laws=("random",))
        assert not found.exact and found.distance > 0.05
    equal = Shape((0, 0), "deterministic", distinct=False)
    assert not certify(adapters.sglang, shapes=[equal], laws=("random",)).exact


def test_sglangs_coin_of_zero_is_noted_as_it_was() -> None:
    picked = Shape((0, 0), "deterministic")
    before = certify(SglangTree(strict=False), shapes=[picked], laws=("p with zeros",))
    after = certify(SglangTree(), shapes=[picked], laws=("p with zeros",))
    assert before.exact and before.notes and after.exact and not after.notes


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **functions: object) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    for key, value in functions.items():
        setattr(sys.modules[name], key, value)


def padded(accepted: Tensor, following: Tensor, tokens: Tensor) -> Tensor:
    out = torch.nn.functional.pad(tokens, (0, 1), value=0).scatter(1, accepted[:, None], following[:, None])
    return out.masked_fill(torch.arange(out.shape[1]) > accepted[:, None], -1).int()


@pytest.mark.parametrize("right", (True, False))
def test_vllm_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    def rejection_sample(
        draft_token_ids: Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        bonus_token_ids: Tensor,
        sampling_metadata: SimpleNamespace,
    ) -> Tensor:
        rows = len(num_draft_tokens)
        assert sampling_metadata.all_random and cu_num_draft_tokens.tolist() == [
            max_spec_len * (i + 1) for i in range(rows)
        ]
        tokens = draft_token_ids.long().view(rows, max_spec_len)
        q, p = (x.double().view(rows, max_spec_len, -1) for x in (draft_probs, target_probs))
        bonus = torch.nn.functional.one_hot(bonus_token_ids.long(), p.shape[-1]).double()
        u = torch.rand(rows, max_spec_len + 1, dtype=torch.float64)
        u[:, :-1] *= right
        return padded(*planted.judge(tokens, q, torch.cat((p, bonus), 1), u), tokens)

    stand_in(monkeypatch, "vllm.v1.sample.rejection_sampler", rejection_sample=rejection_sample)
    assert certify(adapters.vllm, **FEW).exact == right


def test_a_vllm_that_asks_for_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "vllm.v1.sample.rejection_sampler", rejection_sample=lambda draft_token_ids, grammar: None)
    with pytest.raises(StepFailed, match="needs grammar"):
        certify(adapters.vllm, **FEW)


@pytest.mark.parametrize("right", (True, False))
def test_flashinfer_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    def chain_speculative_sampling(
        draft_probs: Tensor,
        draft_token_ids: Tensor,
        target_probs: Tensor,
        deterministic: bool = True,
        generator: object = None,
        seed: int | None = None,
        offset: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens = draft_token_ids.long()
        dice = torch.Generator().manual_seed(seed + offset)
        u = torch.rand(len(tokens), tokens.shape[1] + 1, generator=dice, dtype=torch.float64)
        u[:, :-1] *= right
        accepted, following = planted.judge(tokens, draft_probs.double(), target_probs.double(), u)
        return padded(accepted, following, tokens), accepted, accepted

    stand_in(monkeypatch, "flashinfer.sampling", chain_speculative_sampling=chain_speculative_sampling)
    assert certify(adapters.flashinfer, **FEW).exact == right


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(StepFailed, match="vllm.*install the package"):
        certify(adapters.vllm, **FEW)
