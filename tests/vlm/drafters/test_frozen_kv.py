"""LongSpec: no row for pictures, keys of verified tokens alone, and the drafts of its training pass."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.cross_drafter import Places
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.frozen_kv import LongSpec, LongSpecConfig, LongSpecState
from mmspec.vlm.hidden_states import LastKeys
from mmspec.vlm.training.objective import predictions
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.gemma4.test_drafter import gemma
from tests.vlm.drafters.mtp.test_drafter import deepseek
from tests.vlm.drafters.test_chimera import chains_differ
from tests.vlm.drafters.trained import SIZES, make
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

WHOLE = pytest.mark.whole


@pytest.mark.parametrize(
    ("kind", "images"),
    [
        ("qwen2_5_vl", 2),
        *(
            pytest.param(kind, n, marks=WHOLE)
            for kind, n in (("llava", 1), ("llama", 0), ("qwen3_vl", 1), ("qwen3", 0), ("mistral", 0))
        ),
    ],
)
def test_a_cached_draft_is_that_of_its_training_pass(kind: str, images: int) -> None:
    assert not chains_differ("longspec", kind, images)


def shows_its_own_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, a token at any depth sees the target up to the token before it."""
    unroll = LongSpec.unroll
    monkeypatch.setattr(LongSpec, "unroll", lambda self, *read: unroll(self, *read[:3], 1) * read[3])


def turns_queries_by_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.vlm.drafters import frozen_kv

    turn = frozen_kv.turned_at
    monkeypatch.setattr(frozen_kv, "turned_at", lambda parts, x, place: turn(parts, x, place * 0 + place.min()))


def keeps_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    place = LongSpecState._places

    def without(self: LongSpecState, *tokens: Tensor) -> Places:
        return replace(place(self, *tokens), bias=None)

    monkeypatch.setattr(LongSpecState, "_places", without)


@pytest.mark.parametrize("mutant", (shows_its_own_block, turns_queries_by_text_alone, keeps_no_window))
def test_other_drafts_than_in_training_are_noticed(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert chains_differ("longspec", "qwen2_5_vl", 2)


def test_slots_dropped_from_the_window_change_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.vlm.drafters.base.cross_drafter.SLACK", 0)
    assert not chains_differ("longspec", "llava", 1)


def rows_and_bytes(name: str, inputs: dict[str, Tensor]) -> tuple[int, int]:
    """The most slots in use, and the bytes of all, after a text of 48 tokens."""
    chain = make(name).with_shape(Chain(FixedLength(3)))
    run = mmspec.vlm.start(tiny("llava"), drafter=chain, max_new_tokens=48, do_sample=False, **inputs)
    widest = 0
    while any(run.target.live):
        run.step()
        widest = max(widest, run.state.cache.width)
    cache = run.state.cache
    return widest, sum(x.numel() * x.element_size() for x in cache.at(0))


def test_memory_does_not_depend_on_the_prompt() -> None:
    words = torch.randint(5, 90, (1, 300), generator=torch.Generator().manual_seed(1))
    short, many = prompt("llava", 1), prompt("llava", 6)
    long = dict(many, input_ids=torch.cat([many["input_ids"], words], 1))
    long["attention_mask"] = torch.ones_like(long["input_ids"])
    (own, size), *others = (rows_and_bytes("longspec", inputs) for inputs in (short, many, long))
    assert all((rows, count) == (own, size) for rows, count in others) and own < 6 + 32 + 8
    assert rows_and_bytes("eagle", long)[0] > long["input_ids"].shape[1] > 300


def test_a_draft_reads_verified_keys_alone() -> None:
    """The slots behind the committed ones may hold anything, as they do after a rejection."""
    run = mmspec.vlm.start(
        tiny("llava"),
        drafter=make("longspec").with_shape(Chain(FixedLength(3))),
        max_new_tokens=20,
        do_sample=False,
        **prompt("llava", 1),
    )
    for _ in range(3):
        run.step()
    keys, values = run.target.cache.at(1)
    keys[:, :, run.target.cache.width :] = values[:, :, run.target.cache.width :] = torch.nan
    with torch.no_grad():
        draft = run.state.propose(run.target, run.keys)
        first = run.state.drafter.logits(run.state.root, 1, run.target.parts.head)
    assert draft.tree.nodes == 4 and bool(first.isfinite().all())


def test_training_does_not_show_a_token_the_keys_of_its_own_block() -> None:
    inputs, parts = prompt("llava", 1), take_apart(tiny("llava"))
    answer = torch.arange(inputs["input_ids"].shape[1])[None] >= inputs["input_ids"].shape[1] - 6
    drafter, batch = make("longspec"), teacher_pass(parts, inputs, answer, (LastKeys(),))

    def outputs() -> list[Tensor]:
        view = batch.prompt_view(parts)
        slots = drafter.read(view)
        return [out[:, -1] for out in drafter.unroll(slots, view, slots.attend.shape[1] - 1, 4)]

    before = outputs()
    assert len(predictions(drafter, parts, batch, 4)) == 4
    batch.hidden[:, -3:-1, : 2 * HIDDEN // 2] += 1  # keys of the two tokens before the last
    changed = [not torch.equal(one, other) for one, other in zip(before, outputs(), strict=True)]
    assert changed == [True, True, False, False]


@pytest.mark.parametrize("kind", ["llava", pytest.param("qwen2_5_vl", marks=WHOLE)])
def test_greedy_text_is_that_of_generate(kind: str) -> None:
    inputs, model = prompt(kind, 2, batch=4), tiny(kind)
    words = model.generate(**inputs, max_new_tokens=64, do_sample=False)
    shaped = make("longspec").with_shape(StaticTree((0, 0, 0, 1, 1, 2)))
    planted = Planted(shaped, truth=words[:, inputs["input_ids"].shape[1] :].tolist())
    out = mmspec.generate(model, drafter=planted, max_new_tokens=56, do_sample=False, return_dict=True, **inputs)
    assert torch.equal(out.sequences, words[:, : out.sequences.shape[1]]) and out.stats.accept_length > 1.3


@WHOLE
def test_a_row_drafts_the_same_alone_and_in_a_batch() -> None:
    inputs, model = prompt("llama", batch=4), tiny("llama")
    options = dict(max_new_tokens=24, do_sample=True, top_k=6, return_dict=True, drafter=make("longspec"))
    together = mmspec.generate(model, seed=[5, 6, 7, 8], **options, **inputs)
    for row in range(4):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -24:], together.sequences[row, -24:])
        in_batch = [line[row] for line in together.stats.accepted if line[row] is not None]
        assert in_batch == [line[0] for line in alone.stats.accepted]


@pytest.mark.parametrize(
    ("target", "reason"),
    [(deepseek, r"latent keys \(MLA\)"), (lambda: gemma(VOCAB), "a last layer without keys of its own")],
)
def test_targets_whose_keys_cannot_be_read_are_refused(target, reason: str) -> None:
    model = target()
    parts = SimpleNamespace(
        **{name: getattr(take_apart(model), name) for name in ("model", "decoder", "plan", "rotary", "hidden_size")},
        vocab_size=VOCAB,
    )
    own = LongSpec(LongSpecConfig(**SIZES | {"hidden_size": parts.hidden_size}))
    with pytest.raises(ValueError, match=reason) as caught:
        own.check(parts)
    assert "\n" not in str(caught.value)


def test_other_heads_than_the_targets_are_refused() -> None:
    other = LongSpec(LongSpecConfig(**SIZES | {"num_attention_heads": 2}))
    with pytest.raises(ValueError, match="expected 4 heads of 8 as in the target, got 2 of 16"):
        other.check(take_apart(tiny("llava")))
    assert isinstance(tiny("llama"), hf.LlamaForCausalLM)


def test_it_is_saved_and_starts_with_the_targets_norm(tmp_path) -> None:
    drafter = make("longspec")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert again.config == drafter.config and again.teacher_levels == (LastKeys(),) and again.levels is None
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in drafter.state_dict().items())
    parts = take_apart(tiny("llava"))
    assert torch.equal(LongSpec.new(parts, {}).norm.weight, parts.decoder.norm.weight)
