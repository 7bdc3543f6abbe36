"""A cascade: its record is the middle model's law, and it goes back with its middle model after any verdict."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.certify.enumeration import (
    EnumeratedDrafts,
    RuleBehaviour,
    Tables,
    _reach,
    contrasted_tables,
    enumerate_rule,
    joint_law,
    target_law,
    total_variation,
)
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.rules import BlockVerification, Rule, TargetMatch, TokenWise
from mmspec.core.round.tree import chain
from mmspec.vlm.drafters import Cascade, PromptLookup, SmallModel, TokenRecycling
from mmspec.vlm.drafters.cascade import RunRecord
from mmspec.vlm.drafters.drafter_names import new_drafter
from tests.vlm.drafters.watched import Round, Watched, noisy
from tests.vlm.tiny import PAD, prompt, tiny

SAMPLED = dict(do_sample=True, top_k=0)
V, RUN, INNER = 3, 2, chain(2)
INNERS = {
    "lookup": lambda: PromptLookup(),
    "recycling": lambda: TokenRecycling(),
    "small": lambda: SmallModel(noisy("llama", 0.05)),
}


def whole_runs(rule: Rule, middle: Tables, inner: Tables) -> list[tuple[float, list[tuple]]]:
    """Every run of at least RUN tokens: its probability, and per round (value, scores, node, correction, proposed scores)."""
    ended, open_runs = [], [(1.0, [], 0, 0)]
    while open_runs:
        chance, rounds, code, length = open_runs.pop()
        if length >= RUN:
            ended.append((chance, rounds))
            continue
        p, q = (
            [t.view(V**length, -1, V)[code] for t in tables[length : length + size]]
            for tables, size in ((middle, 3), (inner, 2))
        )
        seen = enumerate_rule(rule, INNER, p, q)
        for draft in range(len(seen.drafts.value)):
            for node in range(3):
                here = torch.full((len(seen.drafts.value),), node)
                law = seen.rule.residual(seen.evidence, seen.draft, seen.weights, here)[draft]
                for token, share in enumerate((law / law.sum() * seen.reach[draft, node]).tolist()):
                    if share > 0:
                        value, scores = seen.drafts.value[draft], seen.evidence.scores[draft]
                        proposed = torch.cat([seen.draft.law.scores[draft], scores[-1:]])
                        grown = code
                        for x in (*value[1 : node + 1].tolist(), token):
                            grown = grown * V + x
                        line = (value, scores, node, token, proposed)
                        open_runs.append((chance * share, [*rounds, line], grown, length + node + 1))
    return ended


def recorded(runs: list[tuple[float, list[tuple]]], mistake: str = "") -> tuple[Draft, Tensor]:
    """The runs as a batch, as the drafter records them, and their probabilities."""
    record, rows = RunRecord(), len(runs)
    for number in range(max(len(rounds) for _, rounds in runs)):
        lines = [rounds[number] if number < len(rounds) else None for _, rounds in runs]
        blank = next(line for line in lines if line is not None)
        full = [blank if line is None else line for line in lines]
        value, scores, proposed = (torch.stack([line[i] for line in full]) for i in (0, 1, 4))
        node, token = (torch.tensor([line[i] for line in full]) for i in (2, 3))
        count = torch.tensor([0 if line is None else line[2] + 1 for line in lines])
        scores = proposed if mistake == "inner law" else scores.roll(1, 1) if mistake == "node before" else scores
        verdict = Verdict("path", node, INNER.path[0, node], node, correction=token)
        record.add(Draft(value, INNER, Law("deterministic")), Evidence(scores), verdict, count)
    request = SimpleNamespace(greedy=False, device="cpu", pending=torch.zeros(rows, dtype=torch.long))
    return record.draft(request), torch.tensor([chance for chance, _ in runs], dtype=torch.float64)


def off(inner_rule: Rule, rule: Rule, kind: str, mistake: str = "") -> float:
    """The total variation of the text after a cascade round from the target's law."""
    depth = RUN - 1 + INNER.nodes
    p, _ = contrasted_tables("random", V, depth, seed=1)
    middle, inner = contrasted_tables(kind, V, depth, seed=5)
    draft, chance = recorded(whole_runs(inner_rule, middle, inner), mistake)
    assert draft.tree.max_depth == depth and len({*draft.valid.sum(-1).tolist()}) == depth - RUN + 1
    return total_variation(emitted(rule, draft, chance, p), target_law(p))


def emitted(rule: Rule, draft: Draft, chance: Tensor, p: Tables) -> Tensor:
    code = torch.zeros_like(draft.value)
    for node in range(1, draft.tree.nodes):
        code[:, node] = code[:, node - 1] * V + draft.value[:, node].where(draft.valid[:, node], 0)
    evidence = Evidence(torch.stack([table[code[:, depth]] for depth, table in enumerate(p)], 1).log())
    weights, tree = rule.weigh(evidence, draft), draft.tree
    drafts = EnumeratedDrafts(draft.value, code, draft.valid, chance)
    reach = _reach(rule, weights, draft, tree, chance, False)
    return joint_law(RuleBehaviour(rule, drafts, draft, evidence, weights, reach, torch.zeros(len(code)).long()), p)


@pytest.mark.covering(strength=2)
@pytest.mark.parametrize("kind", ("random", "both with zeros"))
@pytest.mark.parametrize("inner", (TokenWise(), BlockVerification(), TargetMatch()), ids=lambda rule: rule.name)
@pytest.mark.parametrize("outer", (TokenWise(), BlockVerification()), ids=lambda rule: rule.name)
def test_a_run_of_any_length_is_verified_exactly(inner: Rule, outer: Rule, kind: str) -> None:
    assert off(inner, outer, kind) < 1e-12


@pytest.mark.parametrize("mistake", ("inner law", "node before"))
@pytest.mark.parametrize("outer", (TokenWise(), BlockVerification()), ids=lambda rule: rule.name)
def test_another_law_on_record_is_detected(outer: Rule, mistake: str) -> None:
    assert off(TokenWise(), outer, "random", mistake) > 1e-2


@pytest.mark.default_cells("False")
@pytest.mark.parametrize("greedy", (True, False))
def test_without_an_inner_drafter_it_is_the_small_model_bit_for_bit(greedy: bool) -> None:
    options = dict(prompt("llama"), max_new_tokens=24, seed=3, do_sample=not greedy, temperature=0.8, top_k=9)
    small, cascade = Watched(SmallModel(noisy("llama"), FixedLength(4))), Watched(Cascade(noisy("llama"), None, 4))
    texts = [mmspec.generate(tiny("llama"), drafter=drafter, **options) for drafter in (small, cascade)]
    assert torch.equal(*texts) and small.passes == cascade.passes
    assert len(small.rounds) == len(cascade.rounds) > 3
    for round_, other in zip(small.rounds, cascade.rounds, strict=True):
        assert torch.equal(round_.draft.value, other.draft.value)
        assert greedy or round_.draft.tree.nodes == 1 or torch.equal(round_.draft.law.scores, other.draft.law.scores)


def from_scratch(model: torch.nn.Module, ids: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([ids])).logits[0, -1]


def check_record(model: torch.nn.Module, ids: list[int], r: Round, row: int) -> None:
    """The record is the model's law after every drafted token, computed from the whole text."""
    text = [i for i in ids if i != PAD] + r.tokens[row]
    for step, token in enumerate(r.drafted(row)):
        expected = from_scratch(model, text)
        torch.testing.assert_close(r.draft.law.scores[row, step], expected, rtol=1e-4, atol=1e-3)
        text.append(token)


@pytest.mark.default_cells("recycling")
@pytest.mark.parametrize("inner", INNERS)
def test_the_record_after_any_verdict_is_the_middle_models_law(inner: str) -> None:
    middle, inputs = noisy("llama"), prompt("llama", batch=4)
    drafter = Watched(Cascade(middle, INNERS[inner](), run=3))
    out = mmspec.generate(
        tiny("llama"), drafter=drafter, max_new_tokens=24, return_dict=True, seed=1, **SAMPLED, **inputs
    )
    kept = [a for line in out.stats.accepted[1:] for a in line if a is not None]
    assert {0, 3} <= set(kept)
    assert out.stats.drafter_passes == drafter.passes > len(drafter.rounds)
    for r in drafter.rounds:
        for row, ids in enumerate(inputs["input_ids"].tolist()):
            if r.draft.tree.nodes > 1 and r.live[row]:
                check_record(middle, ids, r, row)


def test_rounds_of_other_drafters_are_read_later() -> None:
    model, inputs = tiny("llama"), prompt("llama", batch=4)
    truth = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    run = mmspec.vlm.start(model, drafter=Cascade(noisy("llama"), PromptLookup(), 3), max_new_tokens=24, **inputs)
    run.step()
    rows = truth[:, inputs["input_ids"].shape[1] :]
    while not run.target.done:
        state, before = run.state, [len(row) for row in run.target.tokens]
        if max(before) < 12:  # a draft that the cascade has not made, right down to another depth in every row
            values = [[*rows[b, n - 1 : n + 1 + b].tolist(), *[0] * (3 - b)] for b, n in enumerate(before)]
            draft = Draft(torch.tensor(values), chain(len(values[0]) - 1), Law("deterministic"))
            state = SimpleNamespace(propose=lambda *_, draft=draft: draft, observe=run.state.observe, passes=0)
        kept, run.state = run.state, state
        run.step()
        run.state = kept
    assert run.target.tokens == rows.tolist()
    assert run.state.middle.passes > 5


def test_processors_and_a_row_that_ends_early() -> None:
    model, inputs = tiny("llama"), dict(prompt("llama", batch=4), do_sample=False)
    plain = model.generate(**inputs, max_new_tokens=20, repetition_penalty=1.3)
    end = int(plain[1, inputs["input_ids"].shape[1] + 6])
    options = dict(inputs, max_new_tokens=20, repetition_penalty=1.3, eos_token_id=end, pad_token_id=PAD)
    drafter = Watched(Cascade(model, TokenRecycling(), 3))
    out = mmspec.generate(model, drafter=drafter, return_dict=True, **options)
    assert torch.equal(out.sequences, model.generate(**options))
    assert not all(drafter.rounds[-1].live)
    for row in range(4):  # it is its own middle model, so only a row's last draft may be cut
        kept = [line[row] for line in out.stats.accepted[1:] if line[row] is not None]
        assert all(count >= 3 for count in kept[:-1])


def test_a_shorter_vocabulary_and_a_model_that_breaks() -> None:
    broken, inputs = noisy("llama"), dict(prompt("llama", batch=4), max_new_tokens=6, do_sample=False)
    with torch.no_grad():
        broken.lm_head.weight[7] = float("nan")
    plain = tiny("llama").generate(**inputs)
    out = mmspec.generate(tiny("llama"), drafter=Cascade(broken, PromptLookup()), return_dict=True, **inputs)
    assert torch.equal(out.sequences, plain) and out.stats.target_passes == 6


def test_drafters_that_cannot_go_back_are_refused() -> None:
    model = tiny("llama")
    eagle = new_drafter("eagle", model)
    with pytest.raises(ValueError, match="inner.*forget.*eagle"):
        mmspec.generate(model, drafter=Cascade(model, eagle), max_new_tokens=4, **prompt("llama"))
    with pytest.raises(ValueError, match="run.*0"):
        Cascade(model, None, 0)


def test_its_text_names_the_middle_model_and_the_inner_drafter(tmp_path) -> None:
    from mmspec.vlm.drafters.from_text import drafter_from_text

    tiny("llama").save_pretrained(tmp_path / "middle")
    made = drafter_from_text(f"cascade:run=3,inner=(lookup:longest=2)@{tmp_path / 'middle'}", noisy("llama"))
    assert (made.run, made.inner) == (3, PromptLookup(longest=2))
    assert drafter_from_text(f"cascade:inner=none@{tmp_path / 'middle'}", noisy("llama")).inner is None


@pytest.mark.whole
def test_the_zoos_small_model_is_a_middle_model_by_name() -> None:
    model = mmspec.zoo.load("vlm")[0]
    made = mmspec.vlm.drafters.Cascade(mmspec.zoo.load("vlm/small")[0], PromptLookup())
    inputs = dict(input_ids=torch.arange(5, 25)[None], max_new_tokens=12, do_sample=False)
    texts = [mmspec.generate(model, drafter=drafter, **inputs) for drafter in ("cascade@zoo:vlm/small", made, None)]
    assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])
