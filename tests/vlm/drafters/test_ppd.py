"""PPD: a draft is what the target says at the prompts behind the last accepted node, and prompts go where they pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.tree import chain, static_tree
from mmspec.vlm.drafters.base.probe_plan import allot, end_chances, probe_tree
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.ppd import PPD, PPDConfig, PPDState
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Planted, Watched
from tests.vlm.tiny import HIDDEN, IMAGE, VOCAB, prompt, tiny

SHAPES = {
    "chain": Chain(FixedLength(3)),
    "static": StaticTree((0, 0, 0, 1, 1, 3)),
    "dynamic": DynamicTree(nodes=6, depth=3, width=3),
}


def truth(kind: str, inputs: dict[str, Tensor], tokens: int) -> list[list[int]]:
    out = tiny(kind).generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return out[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["llava", pytest.param("qwen2_5_vl", marks=pytest.mark.whole)])
def test_greedy_text_is_that_of_generate_at_every_accepted_length(kind: str, shape: str) -> None:
    inputs = prompt(kind, images=2, batch=4)
    planted = Planted(make("ppd").with_shape(SHAPES[shape]).with_probes(7), truth=truth(kind, inputs, 30))
    out = mmspec.generate(tiny(kind), drafter=planted, max_new_tokens=24, do_sample=False, return_dict=True, **inputs)
    assert torch.equal(out.sequences, tiny(kind).generate(**inputs, max_new_tokens=24, do_sample=False))
    lengths = {count for counts in out.stats.accepted for count in counts if count is not None}
    assert {0, 1, 2} <= lengths and out.stats.exact and not out.stats.drafter_passes


def test_a_draft_holds_the_best_tokens_at_the_prompts_behind_the_last_accepted_token() -> None:
    """Recomputed by the target over the whole text; rows of a batch that know fewer levels draft fewer."""
    model, inputs = tiny("llama"), prompt("llama", batch=4)
    drafter, words = make("ppd").with_shape(SHAPES["chain"]).with_probes(5), truth("llama", inputs, 30)
    planted = Planted(drafter, truth=words)
    mmspec.generate(model, drafter=planted, max_new_tokens=20, do_sample=False, **inputs)
    known = set()
    for seen in planted.rounds[1:-1]:
        for row in range(4):
            ids = torch.tensor([inputs["input_ids"][row].tolist() + seen.tokens[row][:-1]])
            ids = ids[:, int((inputs["attention_mask"][row] == 0).sum()) :]
            whole = torch.cat([model.model.embed_tokens(ids), drafter.prompts[None]], 1)
            best = model.lm_head(model.model(inputs_embeds=whole).last_hidden_state[0, -3:]).argmax(-1).tolist()
            drafted = seen.drafted(row)
            assert drafted == best[: len(drafted)]
            known.add(len(drafted))
    assert len(known) > 1


@pytest.mark.parametrize("shape", ["chain", "static"])
def test_sampled_levels_are_drawn_from_the_distribution_on_record(shape: str) -> None:
    """Independent draws, a distribution per level: block verification of chains, traversal of trees."""
    watched = Watched(make("ppd").with_shape(SHAPES[shape]))
    settings = dict(seed=3, do_sample=True, temperature=0.8, top_k=20, max_new_tokens=12, return_dict=True)
    out = mmspec.generate(tiny("qwen2_5_vl"), drafter=watched, **settings, **prompt("qwen2_5_vl", images=3, batch=4))
    drafts = [seen.draft for seen in watched.rounds if seen.draft.tree.nodes > 1]
    assert out.stats.exact and drafts
    for draft in drafts:
        parent, depth = draft.tree.parent[0, 1:], draft.tree.depth[0, 1:]
        assert draft.law.drawn == "without_replacement" and torch.equal(draft.law.row[parent], depth - 1)
        q = draft.law.scores[:, depth - 1].softmax(-1).gather(-1, draft.value[:, 1:, None])[..., 0]
        there = slice(None) if draft.valid is None else draft.valid[:, 1:]
        assert (q[there] > 0).all() and not (draft.value[:, 1:] == IMAGE).any()


@pytest.mark.whole
def test_a_sampled_row_alone_equals_the_row_in_a_batch() -> None:
    model, inputs = tiny("llama"), prompt("llama", batch=4)
    for shape in ("chain", "static"):
        drafter = make("ppd").with_shape(SHAPES[shape])
        how = dict(drafter=drafter, do_sample=True, max_new_tokens=16)
        batch = mmspec.generate(model, seed=[1, 2, 3, 4], **how, **inputs)
        for row in range(4):
            ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
            alone = mmspec.generate(model, seed=[row + 1], **how, input_ids=ids)
            assert torch.equal(alone[0, ids.shape[1] :], batch[row, inputs["input_ids"].shape[1] :])


def test_the_chance_that_a_path_ends_at_a_node() -> None:
    """Levels 0.5, 0.3, 0.2 and 0.6, 0.4 on the tree 0 - (1 - 3), 2."""
    scores = torch.tensor([[[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]]]).log()
    draft = Draft(torch.tensor([[2, 0, 1, 1]]), static_tree((0, 0, 0, 1)), Law("deterministic"))
    torch.testing.assert_close(end_chances(draft, scores), torch.tensor([[0.2, 0.3, 0.3, 0.2]]))
    draft = replace(draft, valid=torch.tensor([[True, False, True, True]]))
    torch.testing.assert_close(end_chances(draft, scores), torch.tensor([[0.7, 0.0, 0.3, 0.0]]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("most", (1, 3, 5, 8, 40))
@pytest.mark.parametrize("parents", [(0,), (0, 0, 1, 2), (0, 0, 0, 1, 1, 2)])
def test_prompts_form_chains_behind_the_likeliest_ends(parents: tuple[int, ...], most: int) -> None:
    scores = None if len(parents) == 1 else torch.randn(2, 3, 11)
    value = torch.randint(11, (2, len(parents)))
    draft = Draft(value, static_tree(parents), Law("deterministic"))
    chains = allot(draft, scores, 3, most)
    probes = make("ppd").probe_inputs(probe_tree(draft, chains, 3), chains)
    nodes, count = len(parents), min(most, 3 * len(parents))
    assert chains.shape == (2, count) and torch.equal(probes.embeds, make("ppd").prompts[chains % 3])
    assert torch.equal(probes.tree.parent[:, :nodes], draft.tree.parent.expand(2, -1))
    end = end_chances(draft, scores)
    for row in range(2):
        kept = {(int(c) // 3, int(c) % 3): nodes + n for n, c in enumerate(chains[row])}
        for (node, level), place in kept.items():
            above = node if level == 0 else kept[node, level - 1]
            assert probes.tree.parent[row, place] == above
            assert probes.tree.depth[row, place] == draft.tree.depth[0, node] + level + 1
        gains = {(node, level): float(end[row, node]) * 0.6**level for node in range(nodes) for level in range(3)}
        left = [gain for place, gain in gains.items() if place not in kept]
        assert min(gains[place] for place in kept) >= max(left, default=0.0) - 1e-6


def test_a_chain_of_nodes_with_scattered_prompts_does_not_count_as_a_chain() -> None:
    for most in range(1, 9):
        draft = Draft(torch.randint(9, (1, 3)), chain(2), Law("deterministic"))
        tree = probe_tree(draft, allot(draft, torch.randn(1, 3, 9), 3, most), 3)
        lined = all(int(tree.parent[0, n]) == max(n - 1, 0) for n in range(tree.nodes))
        assert tree.straight <= lined


def test_drafts_of_others_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass without this drafter's probes leaves no chain: the next round drafts nothing, and text stays the same."""
    propose = PPDState.propose
    monkeypatch.setattr(PPDState, "propose", lambda *args: replace(propose(*args), probes=None))
    inputs = prompt("llama")
    out = mmspec.generate(
        tiny("llama"), drafter=make("ppd"), max_new_tokens=8, do_sample=False, return_dict=True, **inputs
    )
    assert torch.equal(out.sequences, tiny("llama").generate(**inputs, max_new_tokens=8, do_sample=False))
    assert out.stats.accept_length == 1


def test_it_saves_its_embeddings_and_refuses_what_does_not_fit(tmp_path) -> None:
    drafter = make("ppd")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llama"))
    assert torch.equal(again.prompts, drafter.prompts) and again.config == PPDConfig(HIDDEN, VOCAB)
    named = drafter_from_text(f"ppd:nodes=5,probes=4@{tmp_path}", tiny("llama"))
    assert named.probes == 4 and named.shapes[0] == DynamicTree(5, 3, 4)
    with pytest.raises(ValueError, match="probes: expected"):
        drafter.with_probes(0)
    with pytest.raises(ValueError, match="prompts: expected at least 1"):
        PPDConfig(HIDDEN, VOCAB, prompts=0)
    with pytest.raises(ValueError, match="at most 3 levels"):
        PPD(PPDConfig(HIDDEN, VOCAB)).with_shape(StaticTree((0, 0, 1, 2, 3)))
