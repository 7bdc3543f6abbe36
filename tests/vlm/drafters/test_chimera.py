"""Chimera: drafts are those of the whole text read anew, and a code holds the last three tokens of its own path."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.chimera import Chimera, ChimeraConfig, ChimeraState
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import HIDDEN, IMAGE, VIDEO, VOCAB, prompt, tiny


def chains_differ(name: str, kind: str, images: int, where: str = "middle") -> int:
    """How many drafted tokens differ from those that the drafter's training pass computes over the whole text.

    True words are planted, so that all accept lengths come up; drafts are seen as they were.
    """
    model, inputs = tiny(kind), prompt(kind, images, where)
    count, parts = inputs["input_ids"].shape[1], take_apart(model)
    how = dict(do_sample=False, suppress_tokens=[95, 96, 97, 98])
    words = model.generate(**inputs, max_new_tokens=24, **how)[:, count:]
    planted = Planted(make(name).with_shape(Chain(FixedLength(3))), truth=words.tolist())
    out = mmspec.generate(model, drafter=planted, max_new_tokens=20, return_dict=True, **how, **inputs)
    assert torch.equal(out.sequences[:, count:], words[:, :20])
    assert {0, 1, 2, 3} == {n for counts in out.stats.accepted[1:-1] for n in counts}
    wrong = 0
    for seen in planted.rounds[:-1]:
        known = [*seen.tokens[0], *seen.draft.value[0, 1:].tolist()]
        ids = torch.cat([inputs["input_ids"], torch.tensor([known])], 1)
        full = dict(inputs, input_ids=ids, attention_mask=torch.ones_like(ids))
        if "mm_token_type_ids" in inputs:
            full["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(known)))
        drafter = planted.drafter
        batch = teacher_pass(parts, full, torch.arange(ids.shape[1])[None] >= count, drafter.teacher_levels)
        view = batch.prompt_view(parts)
        slots = drafter.read(view)
        outputs = drafter.unroll(slots, view, 0, 3)
        start = count + len(seen.tokens[0]) - 2  # the pair of the state behind the token before the root
        for depth, states in enumerate(outputs):
            scores = drafter.logits(states[:, slots.origin[0] == start + depth][:, 0], depth + 1, parts.head)
            scores[:, [95, 96, IMAGE, VIDEO]] = -torch.inf
            wrong += int(scores.argmax(-1) != seen.draft.value[0, 1 + depth])
    return wrong


@pytest.mark.parametrize(
    ("kind", "images", "where"),
    [
        ("llava", 1, "end"),
        pytest.param("llama", 0, "middle", marks=pytest.mark.whole),
        pytest.param("qwen2_5_vl", 2, "middle", marks=pytest.mark.whole),
    ],
)
def test_a_cached_draft_is_that_of_the_whole_text(kind: str, images: int, where: str) -> None:
    assert not chains_differ("chimera", kind, images, where)


def test_a_code_without_visual_features_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt ends in a picture, so its placeholders' embeddings are none of the text's."""
    monkeypatch.setattr(
        ChimeraState, "_end_of_prompt", lambda self: self.target.parts.embed(self.target.prompt[:, -2:])
    )
    assert chains_differ("chimera", "llava", 1, "end")


def test_a_code_of_the_wrong_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = ChimeraState.observe

    def forgetting(self: ChimeraState, *round_: object) -> None:
        before = self.before
        observe(self, *round_)
        self.before = self.before if before is None else before

    monkeypatch.setattr(ChimeraState, "observe", forgetting)
    assert chains_differ("chimera", "llava", 1, "end")


@pytest.mark.parametrize("name", ["chimera", "clover"])
def test_greedy_text_is_that_of_generate(name: str) -> None:
    inputs, model = prompt("llava", 2, batch=4), tiny("llava")
    words = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    planted = Planted(make(name), truth=words[:, inputs["input_ids"].shape[1] :].tolist())
    out = mmspec.generate(model, drafter=planted, max_new_tokens=16, do_sample=False, return_dict=True, **inputs)
    assert torch.equal(out.sequences, words[:, : out.sequences.shape[1]]) and out.stats.accept_length > 1.3


def test_a_head_reads_three_tokens_and_no_more() -> None:
    drafter, states = make("chimera"), torch.randn(1, 1, HIDDEN)
    path = torch.randn(1, 5, HIDDEN)
    outputs = [drafter.feature(2, states, path[:, -3:].flatten(1)[:, None])]
    for place in (2, 3, 4):
        other = path.clone()
        other[:, place] = 0
        outputs.append(drafter.feature(2, states, other[:, -3:].flatten(1)[:, None]))
    assert all(not torch.allclose(output, other) for n, output in enumerate(outputs) for other in outputs[:n])
    new = Chimera(ChimeraConfig(HIDDEN, VOCAB, intermediate_size=48, num_attention_heads=4))
    assert not new.encoder(torch.randn(2, 3 * HIDDEN)).any()  # a new drafter starts as Medusa on the layer


def test_it_is_saved_and_its_trees_end_where_its_heads_do(tmp_path) -> None:
    drafter = make("chimera")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert again.config == drafter.config and again.shapes[0] == DynamicTree(24, 3, 4)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in drafter.state_dict().items())
    assert not drafter.heads and not drafter.from_ids
