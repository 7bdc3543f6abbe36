"""SpecVLM: every row of a batch gets the rows it should, training reaches every weight, the target's words stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.prompt_slots import PictureSpans, PromptView
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.drafters.specvlm import BRANCHES, COMPOSITIONS, SpecVlm, SpecVlmConfig, question_state
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.vlm.drafters.trained import SIZES, leaning
from tests.vlm.tiny import HIDDEN, IMAGE, VOCAB, prompt, tiny

SHAPES = {
    "dynamic": DynamicTree(nodes=8, depth=3, width=3),
    "static": StaticTree((0, 0, 0, 1, 1, 2, 3)),
    "chain": Chain(FixedLength(4)),
}
SMALL = dict(prune_ratio=3, pool_ratio=4, conv_ratio=2, weight_ratio=2)  # so that tiny pictures keep rows
FEW = dict(prune_ratio=6, pool_ratio=6, conv_ratio=4, queries=1)  # so that all of them together make fewer rows


def drafter(composition: str = "select", **settings: object) -> SpecVlm:
    usual = FEW if composition == "concat" else SMALL
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = leaning(SpecVlm(SpecVlmConfig(**SIZES, composition=composition, **{**usual, **settings})))
    return made.eval().requires_grad_(False)


def view(pictures: list[list[int]], width: int = 30, seed: int = 0) -> PromptView:
    """Random pairs: rows of two text slots before and after every picture of the given lengths, padded on the left."""
    rng = torch.Generator().manual_seed(seed)
    rows = [[0, 0] + [n for at, length in enumerate(row, 1) for n in [at] * length + [0, 0]] for row in pictures]
    picture = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    embeds, hidden = torch.randn(2, len(rows), width, HIDDEN, generator=rng)
    return PromptView(embeds, hidden, picture, real)


def alone(of: PromptView, row: int) -> PromptView:
    """One row of a batch, without its padding."""
    there = of.real[row]
    return PromptView(of.embeds[row, there][None], of.hidden[row, there][None], of.picture[row, there][None])


def always(select: SpecVlm, branch: str) -> None:
    """Makes the gate choose `branch`."""
    select.elastic.gate.outer.weight.zero_()
    select.elastic.gate.outer.bias.copy_(torch.nn.functional.one_hot(torch.tensor(BRANCHES.index(branch)), 5))


@pytest.mark.parametrize("composition", ("prune", "pool", "conv", "weight"))
def test_a_ratio_of_1_is_no_compression(composition: str) -> None:
    specvlm = drafter(composition, prune_ratio=1, pool_ratio=1, conv_ratio=1, weight_ratio=1)
    plain = Eagle(EagleConfig(**SIZES, input_norm=True))
    plain.load_state_dict({k: v for k, v in specvlm.state_dict().items() if not k.startswith("elastic")})
    of = view([[5], [3, 4], []])
    expected, found = plain.read(of), specvlm.read(of)
    assert torch.equal(found.count, expected.count) and torch.equal(found.position, expected.position)
    for row, count in enumerate(expected.count.tolist()):
        torch.testing.assert_close(found.carry[row, :count], expected.carry[row, :count])
        torch.testing.assert_close(found.attend[row, :count], expected.attend[row, :count])


@pytest.mark.parametrize("composition", ("prune", "pool"))
def test_averaging_before_the_fusing_layer_is_averaging_behind_it(composition: str) -> None:
    specvlm, of = drafter(composition), view([[7], [5, 6]])
    spans = PictureSpans.of(of.picture)
    _, fused = specvlm.fuse(of.embeds, of.hidden)
    rows = specvlm.elastic.branch(spans.gather(fused), spans.length)
    found, counts = specvlm.read(of), specvlm.elastic.branch.count(spans.length).tolist()
    starts = {(0, 1): 2, (1, 1): 2, (1, 2): 4 + counts[1]}
    for k, count in enumerate(counts):
        row, first = int(spans.row[k]), starts[int(spans.row[k]), int(spans.number[k])]
        torch.testing.assert_close(found.carry[row, first : first + count], rows[k, :count])


@pytest.mark.parametrize(
    "composition, expected",
    [
        ("prune", [4 + 3, 6 + 1 + 2, 2]),
        ("pool", [4 + 2, 6 + 1 + 2, 2]),
        ("conv", [4 + 4, 6 + 1 + 3, 2]),
        ("resampler", [4 + 2, 6 + 1 + 2, 2]),
        ("text_only", [4, 6, 2]),
        ("weight", [4 + 4, 6 + 1 + 3, 2]),
        ("concat", [4 + 7, 6 + 1 + 5, 2]),
    ],
)
def test_slots_count_the_remaining_rows_and_stay_in_order(composition: str, expected: list[int]) -> None:
    of = view([[8], [1, 5], []])  # a picture that would get more rows than it has keeps what it has
    slots = drafter(composition).read(of)
    assert slots.count.tolist() == slots.next_position.tolist() == expected
    for row, count in enumerate(expected):
        text = (of.real[row] & (of.picture[row] == 0)).nonzero()[:, 0].tolist()
        assert slots.position[row, :count].tolist() == list(range(count))
        origin = slots.origin[row].tolist()
        assert [o for o in origin if o >= 0] == text and set(origin[count:]) <= {-1}
        assert origin[:2] == text[:2] and origin[count - 2 : count] == text[-2:]


def test_concatenated_rows_follow_the_order_of_the_compressors() -> None:
    specvlm, of = drafter("concat"), view([[12]])
    spans = PictureSpans.of(of.picture)
    u = spans.gather(specvlm.fuse(of.embeds, of.hidden)[1])
    parts = [branch(u, spans.length)[0, : int(branch.count(spans.length))] for branch in specvlm.elastic.branches]
    assert [len(part) for part in parts] == [2, 2, 3, 1]
    slots = specvlm.read(of)
    assert slots.count.tolist() == [4 + 8]
    torch.testing.assert_close(slots.carry[0, 2:10], torch.cat(parts))
    few = view([[3]])  # four rows of three are no gain
    torch.testing.assert_close(specvlm.read(few).carry[0, 2:5], specvlm.fuse(few.embeds, few.hidden)[1][0, -5:-2])


def test_the_gate_weighs_compressors_of_one_ratio() -> None:
    specvlm, of = drafter("weight"), view([[6], [4]])
    specvlm.elastic.gate.outer.weight.zero_()
    specvlm.elastic.gate.outer.bias.copy_(torch.tensor([0.0, 30.0, 0.0]))
    pooled = drafter("pool", pool_ratio=2)
    pooled.load_state_dict({k: v for k, v in specvlm.state_dict().items() if not k.startswith("elastic")})
    torch.testing.assert_close(specvlm.read(of).carry, pooled.read(of).carry)


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_chosen_branch_is_that_compressor_alone(branch: str) -> None:
    select, single = drafter("select"), drafter(branch)
    always(select, branch)
    own = {k: v for k, v in select.state_dict().items() if not k.startswith("elastic")}
    prefix = f"elastic.branches.{BRANCHES.index(branch)}."
    own |= {
        "elastic.branch." + k.removeprefix(prefix): v for k, v in select.state_dict().items() if k.startswith(prefix)
    }
    single.load_state_dict(own)
    of = view([[7], [3, 6], []])
    found, expected = select.read(of), single.read(of)
    assert torch.equal(found.count, expected.count)
    torch.testing.assert_close(found.attend, expected.attend)


def picky(specvlm: SpecVlm, of: PromptView) -> list[int]:
    """Turns the gate so that row r of a batch chooses branch r."""
    gate, states = specvlm.elastic.gate, question_state(of)
    normed = torch.nn.functional.rms_norm(states, states.shape[-1:])
    inner = torch.nn.functional.silu(gate.inner(normed))
    gate.outer.bias.zero_()
    gate.outer.weight.copy_(torch.linalg.lstsq(inner, torch.eye(len(states), 5)).solution.T)
    return specvlm.elastic.choose(states)[0].tolist()


def test_rows_select_their_own_compressor_and_match_the_row_alone() -> None:
    specvlm, of = drafter("select"), view([[9], [8, 3], [7], [6, 2], [5]])
    assert picky(specvlm, of) == [0, 1, 2, 3, 4]
    together = specvlm.read(of)
    assert len(set(together.count.tolist())) > 2
    for row in range(5):
        own, count = specvlm.read(alone(of, row)), int(together.count[row])
        assert own.count.tolist() == [count] == own.next_position.tolist() == [int(together.next_position[row])]
        torch.testing.assert_close(together.attend[row, :count], own.attend[0])
        torch.testing.assert_close(together.carry[row, :count], own.carry[0])


def test_the_gate_reads_the_text_behind_the_last_picture_of_the_prompt() -> None:
    of = view([[3], []], width=12)
    first = int(of.real[0].long().argmax())
    torch.testing.assert_close(question_state(of)[0], of.hidden[0, -2:].mean(0))
    torch.testing.assert_close(question_state(of)[1], of.hidden[1, -2:].mean(0))
    of.in_prompt = torch.arange(12) < 10  # the rest is an answer, which drafting has not when it chooses
    of.in_prompt = of.in_prompt.expand(2, -1)
    torch.testing.assert_close(question_state(of)[0], of.hidden[0, first : first + 2].mean(0))
    assert not question_state(of)[1].any()


def test_training_and_drafting_give_the_gate_the_same_inputs() -> None:
    model, inputs = tiny("llava"), prompt("llava", images=3, batch=4)
    parts, length = take_apart(model), inputs["input_ids"].shape[1]
    full = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 6), value=1)
    answer = torch.arange(length + 6).expand(4, -1) >= length
    teacher_batch = teacher_pass(parts, dict(inputs, input_ids=full, attention_mask=mask), answer)
    prompt_only = teacher_pass(parts, inputs, torch.zeros(4, length, dtype=torch.bool))
    torch.testing.assert_close(
        question_state(teacher_batch.prompt_view(parts)),
        question_state(prompt_only.prompt_view(parts)),
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    "kind, images, batch, composition, shape",
    [
        (kind, images, batch, COMPOSITIONS[(i + j) % len(COMPOSITIONS)], list(SHAPES)[(i + j) % 3])
        for i, kind in enumerate(("llava", "qwen2_5_vl", "llava_next"))
        for j, (images, batch) in enumerate(((0, 1), (1, 1), (3, 1), (3, 4)))
    ]
    + [("llava", 3, 4, "select", shape) for shape in SHAPES],
)
def test_greedy_words_are_the_targets_own(kind: str, images: int, batch: int, composition: str, shape: str) -> None:
    inputs = dict(prompt(kind, images=images, batch=batch), max_new_tokens=16, do_sample=False)
    specvlm = drafter(composition).with_shape(SHAPES[shape])
    out = mmspec.generate(tiny(kind), drafter=specvlm, return_dict=True, **inputs)
    assert torch.equal(out.sequences, tiny(kind).generate(**inputs)) and out.stats.exact
    assert out.stats.drafter_passes > out.stats.target_passes


def test_ragged_rows_draft_as_they_do_alone() -> None:
    specvlm, inputs = drafter("select").with_shape(SHAPES["dynamic"]), prompt("llava", images=3, batch=4)
    teacher_batch = teacher_pass(
        take_apart(tiny("llava")), inputs, torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    )
    assert picky(specvlm, teacher_batch.prompt_view(take_apart(tiny("llava")))) == [0, 1, 2, 3]
    options = dict(max_new_tokens=16, do_sample=False, return_dict=True)
    together = mmspec.generate(tiny("llava"), drafter=specvlm, **options, **inputs)
    pixels = iter(inputs["pixel_values"])
    for row in range(4):
        ids = inputs["input_ids"][row, inputs["attention_mask"][row] > 0][None]
        count = int((ids == IMAGE).sum()) // 4
        own = {"pixel_values": torch.stack([next(pixels) for _ in range(count)])} if count else {}
        by_itself = mmspec.generate(tiny("llava"), drafter=specvlm, input_ids=ids, **own, **options)
        assert torch.equal(by_itself.sequences[0, -16:], together.sequences[row, -16:])
        in_batch = [line[row] for line in together.stats.accepted if line[row] is not None]
        assert in_batch == [line[0] for line in by_itself.stats.accepted]


def teacher_batch() -> VlmTeacherBatch:
    """A made-up teacher batch: pictures of 12 slots among text, and answers that the states give away."""
    torch.manual_seed(1)
    model = tiny("llava")
    ids = torch.randint(5, 90, (8, 40))
    ids[:, 3:15] = IMAGE
    embeds = model.get_input_embeddings()(ids)
    embeds[:, 3:15] = torch.randn(8, 12, HIDDEN)
    last = model.model.language_model(inputs_embeds=embeds).last_hidden_state.detach()
    return VlmTeacherBatch(ids, (torch.arange(40) >= 20).expand(8, -1), embeds, last, last)


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_training_reaches_every_weight_and_lowers_the_loss(composition: str) -> None:
    parts, batch = replace(take_apart(tiny("llava")), tokens_per_image=None), teacher_batch()
    specvlm = drafter(composition).train().requires_grad_(True)
    objective = Objective(((0.1, cross_entropy), (1.0, smooth_l1)), depths=1)
    optimizer, losses, reached = torch.optim.Adam(specvlm.parameters(), 3e-3), [], set()
    for _ in range(15):
        loss, _ = objective(specvlm, parts, batch)
        optimizer.zero_grad()
        loss.backward()
        reached |= {name for name, w in specvlm.named_parameters() if w.grad is not None and bool(w.grad.any())}
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    missed = {name for name, _ in specvlm.named_parameters()} - reached
    assert not missed


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_saved_drafters_come_back(composition: str, tmp_path) -> None:
    saved = drafter(composition)
    saved.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert isinstance(again, SpecVlm) and again.config == saved.config
    of = view([[9], [2, 7]])
    assert torch.equal(again.read(of).attend, saved.read(of).attend)


@pytest.mark.parametrize(
    "settings, match",
    (
        (dict(composition="mix"), "composition: expected 'select'"),
        (dict(queries=0), "queries: expected at least 1"),
        (dict(weight_ratio=6), "at most 5, got 6"),
        (dict(gumbel_temperature=0.0), "gumbel_temperature"),
    ),
)
def test_impossible_settings_are_refused(settings: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SpecVlmConfig(HIDDEN, 48, 4, VOCAB, **settings)
    assert SpecVlmConfig(HIDDEN, 48, 4, VOCAB).input_norm
