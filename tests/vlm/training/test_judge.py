"""The head of a judge: states after each token, a weighted convex training, one file, one text form."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.core.round.draft import Verdict, root_only
from mmspec.vlm import load_drafter
from mmspec.vlm.drafters import PromptLookup, SmallModel
from mmspec.vlm.drafters.judge_head import JudgeConfig, JudgeHead
from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.judge import JudgedTokens, judge_figures, judge_loss, judged_tokens, train_judge
from mmspec.vlm.training.teacher import VlmTeacherBatch
from tests.vlm.drafters.watched import noisy
from tests.vlm.tiny import HIDDEN, prompt, tiny


def planted(count: int = 400) -> JudgedTokens:
    """Tokens that a plane divides: one in ten is wrong."""
    torch.manual_seed(0)
    hidden = torch.randn(count, HIDDEN)
    right = torch.rand(count) > 0.1
    hidden[:, 3] = torch.where(right, 1.0, -1.0) * (0.2 + hidden[:, 3].abs())
    return JudgedTokens(hidden, right)


def test_training_finds_the_plane_between_right_and_wrong() -> None:
    tokens = planted()
    head = train_judge(tokens)
    figures = judge_figures(head, tokens)
    assert figures["right_accepted"] > 0.98 and figures["wrong_accepted"] < 0.02
    axis = head.linear.weight[1] - head.linear.weight[0]
    assert axis.abs().argmax() == 3 and axis[3] > 0
    with pytest.raises(ValueError, match="right and wrong"):
        train_judge(JudgedTokens(tokens.hidden, torch.ones_like(tokens.right)))


def test_both_labels_have_the_same_weight() -> None:
    logits, right = torch.tensor([[0.0, 2.0], [0.0, -1.0], [1.0, 0.0], [0.0, 0.5]]), torch.tensor([1, 1, 0, 1]).bool()
    log = logits.log_softmax(-1)
    expected = -(log[[0, 1, 3], 1].mean() + log[2, 0]) / 2
    torch.testing.assert_close(judge_loss(logits, right), expected)


def test_a_label_belongs_to_the_state_after_its_token() -> None:
    last = torch.arange(12.0).view(2, 6, 1)
    answer = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0]]).bool()
    batch = VlmTeacherBatch(torch.zeros(2, 6).long(), answer, last, last, last)
    right = {"a": [True, False, True], "b": [False, True]}
    tokens = judged_tokens(lambda examples: batch, [Example("a", ""), Example("b", "")], right)
    assert tokens.hidden[:, 0].tolist() == [2, 3, 4, 9, 10] and tokens.right.tolist() == [
        True,
        False,
        True,
        False,
        True,
    ]
    with pytest.raises(ValueError, match="each of 3 tokens of 'a'.*2"):
        judged_tokens(lambda examples: batch, [Example("a", "")], {"a": [True, False]})


def test_the_evidence_at_a_token_is_the_state_that_the_teacher_sees_there() -> None:
    model, ids = tiny("llama"), prompt("llama")["input_ids"]
    states, token = model.model(ids).last_hidden_state[0, -1], ids[:, -1]
    run = mmspec.vlm.start(model, input_ids=ids[:, :-1], max_new_tokens=4)
    draft, evidence = run.target.prefill()
    node = torch.zeros_like(token)
    run.target.commit(draft, evidence, Verdict("path", node, node[:, None], node, correction=token))
    torch.testing.assert_close(run.target.score(root_only(token)).hidden[0, 0], states, atol=1e-5, rtol=1e-5)


def test_a_saved_head_is_a_rule_by_its_text(tmp_path: Path) -> None:
    head = train_judge(planted())
    head.save_pretrained(tmp_path / "judge")
    loaded = load_drafter(tmp_path / "judge", target=tiny("llama"))
    assert isinstance(loaded, JudgeHead) and torch.equal(loaded.linear.weight, head.linear.weight)
    model, inputs = tiny("llama"), dict(prompt("llama", batch=4), max_new_tokens=16, do_sample=False)
    drafter, plain = SmallModel(noisy("llama")), model.generate(**inputs)
    inputs["return_dict"] = True
    off = mmspec.generate(model, drafter=drafter, rule=f"judge:threshold=1.01@{tmp_path / 'judge'}", **inputs)
    on = mmspec.generate(model, drafter=drafter, rule=f"judge:threshold=0@{tmp_path / 'judge'}", **inputs)
    assert torch.equal(off.sequences, plain) and not on.stats.exact and "relaxed" in on.stats.rule
    assert {a for line in on.stats.accepted[1:-1] for a in line} == {5}
    sampled = dict(inputs, do_sample=True, top_k=0, seed=3)
    words = [
        mmspec.generate(model, drafter=drafter, rule=rule, **sampled).sequences for rule in ("token", head.rule(1.01))
    ]
    assert torch.equal(*words)


def test_wrong_weights_and_widths_are_refused(tmp_path: Path) -> None:
    JudgeHead(JudgeConfig(8)).save_pretrained(tmp_path / "narrow")
    inputs = dict(prompt("llama"), max_new_tokens=4, drafter=PromptLookup())
    with pytest.raises(ValueError, match="hidden_size 32.*got 8"):
        mmspec.generate(tiny("llama"), rule=f"judge@{tmp_path / 'narrow'}", **inputs)
    with pytest.raises(ValueError, match="weights behind @"):
        mmspec.generate(tiny("llama"), rule="judge", **inputs)


def test_an_enabled_model_takes_the_rule_when_relaxed_rules_are_allowed(tmp_path: Path) -> None:
    JudgeHead(JudgeConfig(HIDDEN)).save_pretrained(tmp_path / "judge")
    model, rule = copy.deepcopy(tiny("llama")), f"judge@{tmp_path / 'judge'}"
    with pytest.raises(ValueError, match="exact rule"):
        mmspec.enable(model, PromptLookup(), rule=rule)
    mmspec.enable(model, PromptLookup(), rule=rule, mode="relaxed")
    model.generate(**prompt("llama"), max_new_tokens=4, do_sample=False)
    noted = mmspec.summary(model)
    assert noted.calls == 1 and not noted.exact and "judge (relaxed)" in noted.rules
    mmspec.disable(model)
