"""Clover: a level depends on the token before it through the folded state, in drafting as in training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.clover import Clover, CloverConfig, TokenFold
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.training.recipes import equal_recipe, published_recipes
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.test_chimera import chains_differ
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny


@pytest.mark.parametrize(("kind", "images"), [("llava", 1), pytest.param("qwen2_5_vl", 2, marks=pytest.mark.whole)])
def test_a_cached_draft_is_that_of_the_whole_text(kind: str, images: int) -> None:
    assert not chains_differ("clover", kind, images)


def clover2() -> Clover:
    """Clover-2 with residual blocks that are not identities."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = new_drafter("clover2", tiny("llama"), heads=3).eval()
        drafter.output[0].linear.weight.data.normal_(0, 0.1)
    return drafter.requires_grad_(False)


def changes(drafter: Clover, place: int) -> list[bool]:
    """Per depth, whether the training pass of a draft that starts at slot 0 changes with the token at a slot."""
    embeds, hidden = torch.randn(1, 6, HIDDEN), torch.randn(1, 6, HIDDEN)
    other = embeds.clone()
    other[:, place] += torch.randn(HIDDEN)
    pictures = torch.zeros(1, 6, dtype=torch.long)
    views = [PromptView(made, hidden, pictures) for made in (embeds, other)]
    one, two = (drafter.unroll(drafter.read(view), view, 0, 3) for view in views)
    return [not torch.allclose(a[:, depth], b[:, depth]) for depth, (a, b) in enumerate(zip(one, two, strict=True))]


@pytest.mark.parametrize("made", [lambda: make("clover"), clover2], ids=("clover", "clover2"))
def test_a_level_depends_on_the_token_before_it_and_on_those_above(made) -> None:
    drafter = made()
    assert changes(drafter, 0) == [True, True, True]
    assert changes(drafter, 1) == [False, True, True]
    assert changes(drafter, 2) == [False, False, True]


def test_a_fold_that_ignores_the_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Medusa does: no level depends on a token."""
    forward = TokenFold.forward
    monkeypatch.setattr(TokenFold, "forward", lambda self, state, embed: forward(self, state, torch.zeros_like(embed)))
    assert changes(make("clover"), 0) == changes(make("clover"), 1) == [False, False, False]


def attention(fold: TokenFold, state: Tensor, embed: Tensor) -> Tensor:
    """The formula with torch's own attention: s + Attn(s, {Proj(e), s}), then the norm."""
    pair = torch.stack([fold.token(embed), state], 1)  # [N, 2, H]
    query, key, value = (
        part.unflatten(-1, (fold.heads, -1)).transpose(1, 2)
        for part in (fold.query(state)[:, None], fold.key(pair), fold.value(pair))
    )
    read = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(1)
    return fold.norm(state + fold.out(read))


def test_the_fold_is_attention_to_the_token_and_to_the_state() -> None:
    fold = TokenFold(HIDDEN, 4, 1e-6)
    state, embed = torch.randn(7, HIDDEN), torch.randn(7, HIDDEN)
    torch.testing.assert_close(fold(state, embed), attention(fold, state, embed))


def test_all_depths_share_their_weights_and_are_saved(tmp_path) -> None:
    two, four = (
        Clover(CloverConfig(HIDDEN, VOCAB, heads=heads, intermediate_size=48, num_attention_heads=4))
        for heads in (2, 4)
    )
    assert sum(p.numel() for p in two.parameters()) == sum(p.numel() for p in four.parameters())
    drafter = make("clover")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert again.config == drafter.config and again.trained_depth == 3
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in drafter.state_dict().items())
    with pytest.raises(ValueError, match="num_attention_heads: expected a divisor of hidden_size 32, got 5"):
        Clover(CloverConfig(HIDDEN, VOCAB, prefix_layer=False, num_attention_heads=5))


def test_clover_2_drafts_what_training_unrolls_and_learns_states() -> None:
    """A chain of a request has the states of the training pass over the text with these tokens."""
    model, inputs, drafter = tiny("llama"), prompt("llama"), clover2().with_shape(Chain(FixedLength(3)))
    assert not any("query" in name for name, _ in drafter.named_parameters()) and drafter.predicts_states
    run = start(model, drafter=drafter, max_new_tokens=16, do_sample=False, **inputs)
    run.step()
    run.step()
    draft = run.state.propose(run.target, run.keys)
    ids = torch.cat([inputs["input_ids"], torch.tensor(run.target.tokens), draft.value[:, 1:]], 1)
    batch = teacher_pass(take_apart(model), {"input_ids": ids}, torch.ones_like(ids) > 0)
    view = batch.prompt_view(take_apart(model))
    outputs = drafter.unroll(drafter.read(view), view, 0, 3)
    count = draft.value.shape[1] - 1
    best = [drafter.logits(outputs[d][:, d - count - 1], d + 1, model.lm_head).argmax(-1) for d in range(count)]
    assert torch.stack(best, 1).tolist() == draft.value[:, 1:].tolist()
    out = mmspec.generate(model, drafter=drafter, max_new_tokens=12, do_sample=False, **inputs)
    assert torch.equal(out, model.generate(**inputs, max_new_tokens=12, do_sample=False))
    made = drafter.prediction(outputs[0][0], 0, take_apart(model), None, None, batch.last[0])
    torch.testing.assert_close(model.lm_head(made.feature), made.student)
    assert [term.__name__ for _, term in equal_recipe(drafter).objective.terms] == ["cross_entropy", "smooth_l1"]
    assert published_recipes()["clover2"].objective.depths == 1
    with pytest.raises(ValueError, match="cell: expected"):
        CloverConfig(HIDDEN, VOCAB, intermediate_size=48, num_attention_heads=4, cell="lstm")
