"""S2D: a node's distribution on record is that of the exit used, and deeper exits see every drafted token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting import growth
from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.sampling import draw
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.s2d import S2D, S2DConfig, S2DState
from mmspec.vlm.hidden_states import record_states
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import SortedExits
from mmspec.vlm.training.recipes import equal_recipe, published_recipe
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Planted
from tests.vlm.test_sampled_law import LAWS, PROMPT, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)
CHAIN = Chain(FixedLength(5))
SHAPES = (CHAIN, DynamicTree(9, 4, 3), StaticTree((0, 0, 0, 1, 1, 2, 3, 4, 7)), BestFirst(8, 4, 3))
CLOSE = dict(atol=1e-4, rtol=1e-4)


def recomputed(model: nn.Module, drafter: S2D, text: Tensor, path: list[int], exits: list[int]) -> Tensor:
    """The features [len(exits), H] behind a text and then each token of a path, each by its exit, without a cache."""
    with record_states(take_apart(model).decoder, drafter.levels) as seen:
        model(text[:, :-1])
    embed, found = model.get_input_embeddings(), []
    attend, carry = drafter.fuse(embed(text[:, 1:]), seen.levels)
    for place, layers in enumerate(exits):
        part = drafter.with_exit(layers)
        rotary = part.layer.rotary_at(torch.arange(attend.shape[1])[None], attend.dtype)
        found.append(part(attend, carry, rotary, SlotCache(layers, 0), None)[:, -1:])
        if place < len(path):
            more = drafter.fuse(embed(torch.tensor([[path[place]]])), found[-1])
            attend, carry = (torch.cat(pair, 1) for pair in zip((attend, carry), more, strict=True))
    return torch.cat(found, 1)[0]


@pytest.mark.parametrize("shape", (CHAIN, *(pytest.param(s, marks=pytest.mark.whole) for s in SHAPES[1:])), ids=str)
def test_every_node_has_the_feature_of_its_exit_computed_from_the_whole_text(shape: Shape) -> None:
    """Through layers that read several levels late; the law on record of a chain is that of these features."""
    model, drafter, used = tiny("llama"), make("s2d").with_shape(shape), set()
    inputs = prompt("llama")
    sampled = not isinstance(shape, DynamicTree)
    run = start(model, drafter=drafter, max_new_tokens=30, do_sample=sampled, seed=3, **inputs)
    for _ in range(3):
        run.step()
        state, levels = run.state, []
        expand = state.expand

        def watched(token, hidden, ancestor, back, depth, expand=expand, levels=levels, state=state):
            levels.append(
                (token[0], ancestor, back, expand(token, hidden, ancestor, back, depth)[0], state.exits[-1][0])
            )
            return levels[-1][3][None]

        state.expand = watched
        draft = state.propose(run.target, run.keys)
        state.expand = expand
        text = torch.cat([inputs["input_ids"], torch.tensor(run.target.tokens)], 1)
        tokens, exits, deepest = [], [], drafter.config.num_hidden_layers
        for token, ancestor, back, out, own in levels:
            tokens, exits = tokens[:back] + token.tolist(), exits[:back] + own.tolist()
            for node in range(len(token)):
                above = [True] * len(tokens) if ancestor is None else ancestor[0, node].tolist()
                path = [(t, e) for t, e, seen in zip(tokens, exits, above, strict=True) if seen]
                features = recomputed(model, drafter, text, [t for t, _ in path], [deepest, *(e for _, e in path)])
                torch.testing.assert_close(out[node], features[-1], **CLOSE)
        if shape is CHAIN:
            scores = drafter.scores(features)[None] + state.ruling
            torch.testing.assert_close(draft.law.scores, run.target.processors.warp(scores, True), **CLOSE)
        used |= set(exits)
    assert used == {1, 2, 3}


def sampled(drafter: S2D, rows: int = 2000) -> tuple[float, float]:
    """The p-value of the joint of three tokens, and the accept length."""
    settings = LAWS["t0.7"]
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(rows, -1),
        drafter=drafter,
        rule="exact",
        seed=0,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        **settings,
    )
    return p_value(out.sequences[:, 3 : 3 + STEPS], exact_law(**settings)), out.stats.accept_length


def for_narrow() -> S2D:
    """A drafter whose first exit copies the target's state, and whose deeper exits disagree with it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drafter = new_drafter("s2d", narrow(), levels=(0, 1)).eval().requires_grad_(False)
        drafter.fc.weight.normal_(0, 0.1)[:, 16:].add_(torch.eye(16))
        for weight in drafter.rest.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.5)
    return drafter.with_thresholds(0.4).with_shape(Chain(FixedLength(3)))


def test_sampled_words_have_the_targets_distribution() -> None:
    chance, length = sampled(for_narrow())
    assert chance > 1e-3 and length > 1.2


def test_the_law_of_all_layers_on_record_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are drawn by the exit used, as ever."""
    seen: list[Tensor] = []
    drawn: list[Tensor] = []
    logits = FeatureState.logits

    def watched(self: S2DState, out: Tensor, depth: int) -> Tensor:
        seen.append(logits(self, out, depth))
        return seen[-1]

    def law(self: S2DState, out: Tensor, depth: int) -> Tensor:
        deepest = self.logits(out, depth)
        first, second = (deepest, deepest) if depth == 1 else seen[-3:-1]
        used = torch.where(second.softmax(-1).amax(-1, True) > 0.4, second, deepest)
        used = torch.where(first.softmax(-1).amax(-1, True) > 0.4, first, used)
        drawn.append(self.target.processors.warp(used, self.ids is not None)[:, 0])
        return self.target.processors.warp(deepest, self.ids is not None)

    monkeypatch.setattr(FeatureState, "logits", watched)
    monkeypatch.setattr(S2DState, "law", law)
    monkeypatch.setattr(growth, "draw", lambda scores, uniform: draw(drawn[-1], uniform))
    assert sampled(for_narrow().with_thresholds(1.0))[0] < 1e-6


@pytest.mark.parametrize("shape", (CHAIN, pytest.param(SHAPES[1], marks=pytest.mark.whole)), ids=("chain", "tree"))
def test_words_are_those_of_transformers(shape: Shape) -> None:
    """With right words planted, so that drafts of every exit are accepted to every depth."""
    inputs = prompt("llama", batch=4)
    expected = tiny("llama").generate(**inputs, **GREEDY)
    planted = Planted(make("s2d").with_shape(shape), truth=expected[:, inputs["input_ids"].shape[1] :].tolist())
    out = mmspec.generate(tiny("llama"), drafter=planted, return_dict=True, **inputs, **GREEDY)
    assert torch.equal(out.sequences, expected)
    assert out.stats.accept_length > 1.5 and out.stats.exact


@pytest.mark.whole
@pytest.mark.parametrize("shape", (CHAIN, SHAPES[2]), ids=("chain", "tree"))
def test_a_row_drafts_the_same_alone_and_in_a_batch(shape: Shape) -> None:
    """Though rows of a batch leave at different exits."""
    inputs, model, drafter = prompt("llama", batch=4), tiny("llama"), make("s2d").with_shape(shape)
    options = dict(max_new_tokens=16, do_sample=True, top_k=6, return_dict=True)
    together = mmspec.generate(model, drafter=drafter, seed=[5, 6, 7, 8], **options, **inputs)
    for row in (1, 3):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, drafter=drafter, seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -16:], together.sequences[row, -16:])
        assert [line[row] for line in together.stats.accepted if line[row] is not None] == [
            line[0] for line in alone.stats.accepted
        ]


def answers(levels: tuple[int, ...]) -> VlmTeacherBatch:
    """The states of a text whose second half is the answer."""
    ids = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    return teacher_pass(take_apart(tiny("llama")), {"input_ids": ids}, torch.arange(12).expand(2, -1) >= 6, levels)


def test_training_sums_the_losses_of_the_exits() -> None:
    """Each exit alone is an EAGLE-3 drafter of so many layers, whose loss reaches these layers only."""
    drafter = new_drafter("s2d", tiny("llama")).requires_grad_(True)
    parts, batch = take_apart(tiny("llama")), answers(drafter.levels)
    objective = equal_recipe(drafter).objective
    assert isinstance(objective, SortedExits) and isinstance(objective.objective, Objective)
    each = [objective.objective(drafter.with_exit(layers), parts, batch)[0] for layers in (1, 2, 3)]
    total, notes = objective(drafter, parts, batch)
    torch.testing.assert_close(total, sum(each))
    assert {"hit0", "exit1_hit0", "exit3_hit3"} <= notes.keys() and notes["hit0"] == notes["exit3_hit0"]
    each[0].backward()
    assert drafter.layer.down.weight.grad is not None and drafter.rest[0].down.weight.grad is None
    assert isinstance(published_recipe("s2d", drafter).objective, SortedExits)


def test_settings_are_saved_and_checked(tmp_path) -> None:
    drafter = make("s2d")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llama"))
    assert again.config == drafter.config and again.config.exits == (1, 2, 3)
    assert again.config.thresholds == (0.3, 0.25) and drafter.with_thresholds(0.5).config.thresholds == (0.5, 0.5)
    assert drafter_from_text(f"s2d:chain=4,threshold=0.7@{tmp_path}", tiny("llama")).config.thresholds == (0.7, 0.7)
    assert drafter_from_text(f"s2d@{tmp_path}", tiny("llama")).config.thresholds == (0.3, 0.25)
    wrong = {
        "expected ascending": dict(exits=(2, 1, 3)),
        "the last of which is 3": dict(exits=(1, 2)),
        "layers that see all earlier slots": dict(windows=(4, 0, 0)),
    }
    for reason, settings in wrong.items():
        with pytest.raises(ValueError, match=reason):
            S2DConfig(32, 48, 4, 101, (0, 1), **settings)
    with pytest.raises(ValueError, match="exit: expected one of .*, got 4"):
        drafter.with_exit(4)
    with pytest.raises(ValueError, match="thresholds: expected 2 numbers"):
        drafter.with_thresholds(0.1, 0.2, 0.3)
