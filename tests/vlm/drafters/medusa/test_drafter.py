"""Heads on the target's last state: drafting is what training saw, drafts keep their law, and shapes end with the heads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree, sampled_tree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Evidence, Verdict, root_only
from mmspec.core.round.tree import static_tree
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.head_drafter import HeadConfig, HeadDrafter
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.chimera import Chimera, ChimeraConfig
from mmspec.vlm.drafters.clover import Clover, CloverConfig
from mmspec.vlm.drafters.hydra import Hydra, HydraConfig
from mmspec.vlm.drafters.medusa import Medusa
from mmspec.vlm.processors.nodes import NodeProcessors
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher import VlmTeacherBatch
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, IMAGE, VOCAB, prompt, tiny

NAMES = ("medusa", "hydra", "hydra_with_prefix_layer", "chimera", "clover")
SIZES = dict(intermediate_size=48, num_attention_heads=4, final_norm=True)
LAYER = dict(prefix_layer=True, **SIZES)
NEW = {
    "medusa": lambda **how: Medusa(HeadConfig(HIDDEN, VOCAB, **how)),
    "hydra": lambda **how: Hydra(HydraConfig(HIDDEN, VOCAB, heads=3, **how)),
    "hydra_with_prefix_layer": lambda **how: Hydra(HydraConfig(HIDDEN, VOCAB, heads=3, **LAYER, **how)),
    "chimera": lambda **how: Chimera(ChimeraConfig(HIDDEN, VOCAB, heads=3, **SIZES, **how)),
    "clover": lambda **how: Clover(CloverConfig(HIDDEN, VOCAB, heads=3, **SIZES, **how)),
}
SHAPES = {
    "static": StaticTree((0, 0, 0, 1, 1, 2, 3)),
    "chain": Chain(FixedLength(5)),
    "confident-chain": Chain(ConfidenceStop(0.15, longest=5)),
}


def opened(drafter: HeadDrafter, ids: Tensor, hidden: Tensor) -> object:
    """A state about to draft behind ids [1, n] whose states but the last's are known, hidden [1, n - 1, H]."""
    parts = take_apart(tiny("llama"))
    target = SimpleNamespace(
        parts=parts,
        processors=NodeProcessors(LogitsProcessorList(), 1),
        greedy=True,
        batch=1,
        padding=None,
        device=ids.device,
        cache=SlotCache(1, 32),
        prompt=ids[:, :-1],
        prompt_embeds=parts.embed(ids[:, :-1]),
        prompt_hidden=hidden,
        tokens=[[]],
        paths=[[0]],
        pending=ids[:, -1],
    )
    state, zero = drafter.open(target), torch.zeros(1, dtype=torch.long)
    verdict = Verdict("path", zero, zero[:, None], zero, correction=ids[:, -1])
    state.observe(target, root_only(ids[:, -2]), Evidence(hidden=hidden[:, -1:]), verdict)
    state.ready()
    return state


@pytest.mark.parametrize("name", NAMES)
def test_the_unrolled_training_pass_matches_drafting(name: str) -> None:
    drafter, embed, root, first = make(name), take_apart(tiny("llama")).embed, 4, 2
    ids, hidden = torch.randint(5, 90, (1, 10)), torch.randn(1, 9, HIDDEN)
    view = PromptView(embed(ids)[:, 1:], hidden, torch.zeros(1, 9, dtype=torch.long))
    outputs = drafter.unroll(drafter.read(view), view, first, depths=5)
    assert len(outputs) == 3  # one for each head
    # slot `root` holds the state behind token `root`; the draft's root is the token after
    state = opened(drafter, ids[:, : root + 2], hidden[:, : root + 1])
    torch.testing.assert_close(outputs[0][:, root - first], state.root)
    # the true path lies among wrong siblings: tree 0 - 1, 2 (true); 1 - 3; 2 - 4, 5 (true)
    true = ids[:, root + 2 :]
    tree, wrong = static_tree([0, 0, 0, 1, 2, 2]), torch.full_like(true[:, :1], 3)
    token = torch.cat([wrong, true[:, :1]], 1)
    out = state.expand(token, state.root[:, None].expand(-1, 2, -1), tree.ancestor[:, 1:3, 1:3], 0, 1)
    torch.testing.assert_close(outputs[1][:, root + 1 - first], out[:, 1])
    token = torch.cat([wrong, wrong, true[:, 1:2]], 1)
    out = state.expand(token, out[:, [0, 1, 1]], tree.ancestor[:, 3:, 1:], 2, 2)
    torch.testing.assert_close(outputs[2][:, root + 2 - first], out[:, 2])
    if name != "medusa":
        assert not torch.allclose(out[:, 1], out[:, 2])  # the last token matters
        assert not torch.allclose(out[:, 0], out[:, 1])  # and so does the one before


@pytest.mark.default_cells("medusa", "hydra", "hydra_with_prefix_layer")
@pytest.mark.parametrize("name", NAMES)
def test_training_learns_the_next_tokens_of_the_target(name: str) -> None:
    inputs = prompt("llama")
    model, drafter = tiny("llama"), NEW[name](own_head=False)
    ids = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    hidden = model.model(ids).last_hidden_state
    wanted = torch.arange(ids.shape[1])[None] >= ids.shape[1] - 24
    teacher_batch = VlmTeacherBatch(ids, wanted, model.model.embed_tokens(ids), hidden, hidden)
    objective = Objective(((1.0, cross_entropy), (0.2, smooth_l1)), depths=4)
    optimizer, losses = torch.optim.Adam(drafter.parameters(), 1e-2), []
    for _ in range(60):
        loss, notes = objective(drafter, take_apart(model), teacher_batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0] and set(notes) == {"hit0", "hit1", "hit2"}
    # what was learned at each depth is what is drafted at that depth: nearly all chains are right
    out = mmspec.generate(
        model,
        drafter=drafter.eval().requires_grad_(False).with_shape(Chain()),
        max_new_tokens=24,
        do_sample=False,
        return_dict=True,
        **inputs,
    )
    assert torch.equal(out.sequences, ids) and out.stats.accept_length > 2.8


@pytest.mark.parametrize("own", (True, False))
def test_heads_have_vocabularies_of_their_own_or_share_the_targets(own: bool) -> None:
    parts = take_apart(tiny("llama"))
    for make_one in NEW.values():
        drafter = make_one(own_head=own)
        assert len(drafter.heads) == (3 if own else 0)
        drafter.start_from(parts)
        out, teacher = torch.randn(4, HIDDEN), torch.randn(4, VOCAB)
        prediction = drafter.prediction(
            out, 1, parts, teacher, torch.zeros(4, dtype=torch.long), torch.randn(4, HIDDEN)
        )
        read = drafter.output(out) if isinstance(drafter, Clover) else out
        torch.testing.assert_close(prediction.student, parts.head(read))
        assert (prediction.feature is None) == own


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_sampled_requests_draft_by_the_distribution_they_record(name: str, shape: str) -> None:
    watched = Watched(make(name).with_shape(SHAPES[shape]))
    inputs = prompt("qwen2_5_vl", images=3, batch=4)
    out = mmspec.generate(
        tiny("qwen2_5_vl"),
        drafter=watched,
        seed=3,
        do_sample=True,
        temperature=0.8,
        top_k=20,
        max_new_tokens=12,
        return_dict=True,
        **inputs,
    )
    assert out.stats.exact
    for seen in watched.rounds:
        draft = seen.draft
        if draft.tree.nodes == 1:  # no room was left for a draft
            continue
        assert draft.law.drawn == "without_replacement" and draft.tree.max_depth <= 3
        assert not (draft.value[:, 1:] == IMAGE).any()
        q = draft.law.scores[:, draft.law.row[draft.tree.parent[0, 1:]]].softmax(-1)
        drawn = q.gather(-1, draft.value[:, 1:, None])[..., 0]
        there = slice(None) if draft.valid is None else draft.valid[:, 1:]
        assert (drawn[there] > 0).all() and (q > 0).sum(-1).max() <= 20


def test_drafts_end_where_the_heads_do() -> None:
    medusa = make("medusa")
    assert medusa.shape_for(greedy=True) == DynamicTree(nodes=24, depth=3, width=4)
    assert medusa.shape_for(greedy=False) == sampled_tree(3)
    assert medusa.with_shape(DynamicTree(nodes=60, depth=8, width=3)).shapes[0] == DynamicTree(21, 3, 3)
    with pytest.raises(ValueError, match="at most 3 levels, as many as medusa drafts, got 4"):
        medusa.with_shape(Chain(), StaticTree((0, 0, 1, 2, 3)))
    watched = Watched(medusa.with_shape(Chain(FixedLength(9))))
    out = mmspec.generate(
        tiny("llama"), drafter=watched, max_new_tokens=8, do_sample=False, return_dict=True, **prompt("llama")
    )
    assert watched.rounds[0].draft.tree.max_depth == 3
    drafts = sum(seen.draft.tree.nodes > 1 for seen in watched.rounds)
    assert out.stats.drafter_passes == drafts  # no head looks at drafted tokens, so all come from one pass
    with pytest.raises(ValueError, match="at least 1"):
        HeadConfig(HIDDEN, VOCAB, heads=0)
