"""The training of prompt embeddings: it computes the states that drafting reads, and learns the target's next tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.round.draft import Probes, root_only
from mmspec.core.round.tree import dynamic_tree
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.training import prompts as module
from mmspec.vlm.training.losses import cross_entropy
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.prompts import PromptObjective, prompt_states
from mmspec.vlm.training.recipes import equal_recipe, published_recipe
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import HIDDEN, prompt, tiny

TOKENS = 12
HOW = dict(max_new_tokens=TOKENS, do_sample=False, suppress_tokens=[95, 96, 97, 98])  # none that belong to pictures


def answered(kind: str, images: int = 0, batch: int = 4) -> tuple[dict[str, Tensor], VlmTeacherBatch]:
    """Ragged prompts, and the target's states on them with its own answers."""
    model, inputs = tiny(kind), prompt(kind, images=images, batch=batch)
    count = inputs["input_ids"].shape[1]
    ids = model.generate(**inputs, **HOW)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, TOKENS), value=1)
    full = dict(inputs, input_ids=ids, attention_mask=mask)
    if "mm_token_type_ids" in inputs:
        full["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, TOKENS))
    return inputs, teacher_pass(take_apart(model), full, torch.arange(ids.shape[1]).expand_as(ids) >= count)


def drafted_states(kind: str, inputs: dict[str, Tensor], rounds: int, embeds: Tensor) -> Tensor:
    """The states [B, K, H] at prompts behind the last token after some plain rounds."""
    run = start(tiny(kind), **HOW, **inputs)
    for _ in range(rounds):
        run.step()
    draft, count = root_only(run.target.pending), len(embeds)
    tree = dynamic_tree((torch.arange(count + 1) - 1).clamp(min=0).expand(run.target.batch, -1), count, 0)
    return run.target.score(replace(draft, probes=Probes(tree, embeds[None]))).probed


@pytest.mark.parametrize(("kind", "images"), [("llava", 2), ("qwen2_5_vl", 2)])
def test_training_computes_the_states_that_drafting_reads(kind: str, images: int, monkeypatch) -> None:
    inputs, batch = answered(kind, images)
    first, embeds = inputs["input_ids"].shape[1], torch.randn(3, HIDDEN)
    anchor = torch.tensor([[first + 1, first + 4]] * 4)
    parts = take_apart(tiny(kind))
    made = prompt_states(parts, batch, anchor, embeds)
    for n, rounds in enumerate((2, 5)):
        torch.testing.assert_close(made[:, n], drafted_states(kind, inputs, rounds, embeds), atol=2e-5, rtol=1e-4)
    # a mask through which prompts see the rest of the answer gives other states
    monkeypatch.setattr(module, "_sight", lambda *args: torch.zeros(4, 1, 6, batch.ids.shape[1] + 6))
    assert not torch.allclose(made, prompt_states(parts, batch, anchor, embeds), atol=1e-2)


def test_prompts_learn_the_next_tokens_and_nothing_else_changes() -> None:
    """Behind one token of a random model; its text does not repeat, so three embeddings learn no more of it."""
    inputs, batch = answered("llama", batch=1)
    ends = torch.arange(batch.ids.shape[1])[None] >= batch.ids.shape[1] - 5
    batch = replace(batch, answer=ends)
    model, parts = tiny("llama"), take_apart(tiny("llama"))
    torch.manual_seed(0)
    drafter = new_drafter("ppd", model)
    objective = replace(equal_recipe(drafter).objective, anchors=1)
    optimizer, losses = torch.optim.Adam(drafter.parameters(), 0.1), []
    for _ in range(60):
        torch.manual_seed(0)  # the same anchor
        loss, notes = objective(drafter, parts, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0] and set(notes.values()) == {1.0}
    assert [name for name, _ in drafter.named_parameters()] == ["prompts"]
    assert all(weight.grad is None for weight in model.parameters())


def test_the_loss_compares_every_prompt_with_the_token_two_ahead() -> None:
    """The weights of the depths are 1, 0.8 and 0.64; a batch without answers gives no loss."""
    _, batch = answered("llama")
    parts, drafter = take_apart(tiny("llama")), make("ppd")
    each = [PromptObjective(Objective(((1.0, cross_entropy),), 3, decay), anchors=40) for decay in (1e-9, 0.8, 1.0)]
    first, mixed, whole = (float(objective(drafter, parts, batch)[0]) for objective in each)
    assert first < mixed < whole
    states = prompt_states(parts, batch, (anchor := torch.tensor([[batch.ids.shape[1] - 3]] * 4)), drafter.prompts)
    student, teacher = parts.head(states[:, 0, 0]), parts.head(batch.last[:, -2])
    expected = -(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1).mean()
    alone = replace(batch, answer=torch.arange(batch.ids.shape[1]).expand_as(batch.ids) >= anchor)
    one = module._depth(drafter, parts, alone, anchor, torch.ones_like(anchor) > 0, states, 0)
    torch.testing.assert_close(one.losses([cross_entropy], anchor.device).mean([1.0]), expected)
    nothing = replace(batch, answer=torch.zeros_like(batch.answer))
    assert each[0](drafter, parts, nothing)[0] == 0


def test_its_recipes_train_prompts_and_what_it_cannot_train_is_refused() -> None:
    drafter, (_, batch) = make("ppd"), answered("llama")
    for recipe in (equal_recipe(drafter), published_recipe("ppd", drafter)):
        assert isinstance(recipe.objective, PromptObjective) and recipe.lr == 1e-2
        assert recipe.objective.objective.decay == 0.8 and recipe.objective.depths >= 3
    parts, anchor = take_apart(tiny("llama")), torch.tensor([[9]] * 4)
    for wrong, message in (
        (replace(batch, place=None), "expected the online teacher"),
        (replace(batch, last=batch.last + 1), "reads pictures through its embeddings alone"),
    ):
        with pytest.raises(ValueError, match=message):
            prompt_states(parts, wrong, anchor, drafter.prompts)
    with pytest.raises(ValueError, match="anchors: expected at least 1"):
        PromptObjective(Objective(((1.0, cross_entropy),)), anchors=0)
