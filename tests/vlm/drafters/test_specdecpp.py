"""SpecDec++: the head computes what the public one does, ends drafts by its rule, and learns what gets accepted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.methods import parse
from mmspec.training.schedule import Schedule
from mmspec.vlm import drafter_from_state_dict, load_drafter
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.small_model import SmallModel
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead, AcceptanceStop
from mmspec.vlm.training.acceptance_head import (
    AcceptanceSettings,
    acceptance_label,
    acceptance_loss,
    sample_acceptance,
    train_acceptance,
)
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.parity import case
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched, noisy
from tests.vlm.tiny import HIDDEN, prompt, tiny

CLOSE = dict(atol=1e-5, rtol=1e-4)
CONFIG = {"hidden_size": 64, "num_layers": 3}


def published(public: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}


def test_the_loaded_head_matches_the_public_code() -> None:
    public = case("vlm/specdecpp_head")
    head = drafter_from_state_dict("specdecpp", published(public), CONFIG)
    torch.testing.assert_close(head(public["x"]), public["logits"], **CLOSE)
    torch.testing.assert_close(head.accepts(public["x"]), public["p_accept"], **CLOSE)
    for weight in (1, 6):
        loss = acceptance_loss(head(public["x"]), public["loss.soft_labels"], weight)
        torch.testing.assert_close(loss, public[f"loss.value_w{weight}"], **CLOSE)


def test_labels_match_the_public_code() -> None:
    public = case("vlm/specdecpp_head")
    first = len(public["label.prefix"]) - 1  # logits of the position before each token
    rows = slice(first, first + len(public["label.draft"]))
    label = acceptance_label(
        public["label.target_logits"][0, rows], public["label.draft_logits"][0, rows], public["label.draft"]
    )
    torch.testing.assert_close(label, public["label.p_acc"], **CLOSE)


def test_misfitting_files_are_refused() -> None:
    size = {"weight": (8, 8), "bias": (8,)}
    state = {f"model.{layer}.linear.{x}": torch.zeros(size[x]) for layer in (0, 1) for x in size}
    state |= {"model.2.weight": torch.zeros(2, 8), "model.2.bias": torch.zeros(2)}
    drafter_from_state_dict("specdecpp", state, {"hidden_size": 8, "num_layers": 2})
    with pytest.raises(ValueError, match="missing .*model.3.weight.*unknown .*model.2.weight"):
        drafter_from_state_dict("specdecpp", state, {"hidden_size": 8, "num_layers": 3})
    with pytest.raises(ValueError, match="expected shape"):
        drafter_from_state_dict("specdecpp", state, {"hidden_size": 9, "num_layers": 2})
    with pytest.raises(ValueError, match="hidden_size 32 as in the target, got 8"):
        drafter_from_state_dict("specdecpp", state, {"hidden_size": 8, "num_layers": 2}, target=tiny("llama"))
    with pytest.raises(ValueError, match="got none for num_layers"):
        drafter_from_state_dict("specdecpp", state, {"hidden_size": 8})


def test_blocks_have_weights_of_their_own_and_heads_come_back(tmp_path) -> None:
    head = AcceptanceHead(AcceptanceConfig(HIDDEN))
    with torch.no_grad():
        for number, block in enumerate(head.blocks):
            block.weight.fill_(0.01 * number)
    assert not torch.equal(head.blocks[1].weight, head.blocks[2].weight)
    head.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llama"))
    assert isinstance(again, AcceptanceHead)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), head.state_dict().values(), strict=True))


class Told(nn.Module):
    """Judges by the first number of a state."""

    def accepts(self, feature: Tensor) -> Tensor:
        return feature[:, 0]


@pytest.mark.parametrize("newest, drawn", ((False, (4, 6, 2)), (True, (3, 6, 2))))
def test_drafts_end_where_a_rejection_gets_likely(newest: bool, drawn: tuple[int, ...]) -> None:
    control = AcceptanceStop(Told(), threshold=0.3, shortest=2, longest=6, newest=newest)
    growth = control.begin()
    # per step, the chance that the token read last is accepted; what step 0 holds belongs to no drafted token
    chances = torch.tensor(
        [[0.0, 0.9, 0.9, 0.8, 0.1, 0.1, 0.1], [0.0] + [0.99] * 6, [0.0, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9]]
    )
    lengths, growing = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    for step in range(7):
        growing &= growth.grow(step, torch.ones(3), chances[:, step : step + 1])
        lengths += growing
    assert tuple(lengths.tolist()) == drawn


def head_for(width: int = HIDDEN) -> AcceptanceHead:
    torch.manual_seed(5)
    head = AcceptanceHead(AcceptanceConfig(width, 1))
    with torch.no_grad():
        head.judge.weight.normal_(0, 2.0)
        head.judge.bias.copy_(torch.tensor([-3.0, 3.0]))
    return head.eval().requires_grad_(False)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ("msd", "eagle3", "flash", "medusa"))
@pytest.mark.parametrize("sampled", (False, True))
def test_words_stay_and_lengths_vary(name: str, sampled: bool) -> None:
    control = AcceptanceStop(head_for(), longest=6)
    watched = Watched(make(name).with_shape(Chain(control)))
    inputs = prompt("llava", images=1, batch=4)
    options = dict(do_sample=True, temperature=0.9, top_k=20, seed=1) if sampled else dict(do_sample=False)
    out = mmspec.generate(tiny("llava"), drafter=watched, max_new_tokens=24, return_dict=True, **options, **inputs)
    if not sampled:
        assert torch.equal(out.sequences, tiny("llava").generate(**inputs, max_new_tokens=24, do_sample=False))
    lengths = {len(seen.drafted(row)) for seen in watched.rounds for row in range(4) if seen.live[row]}
    assert out.stats.exact and len(lengths) > 1


def test_a_small_model_is_judged_by_its_own_states() -> None:
    drafter = SmallModel(noisy("llama"), AcceptanceStop(head_for(), longest=6))
    out = mmspec.generate(
        tiny("llama"), drafter=drafter, max_new_tokens=16, do_sample=False, **prompt("llama", batch=4)
    )
    reference = tiny("llama").generate(**prompt("llama", batch=4), max_new_tokens=16, do_sample=False)
    assert torch.equal(out, reference)


def answered(kind: str = "llava", tokens: int = 24) -> VlmTeacherBatch:
    """Answers of the tiny model to its prompts, which are of one length."""
    inputs = prompt(kind, images=1)
    torch.manual_seed(2)
    rows = {name: value.repeat(4, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
    ids = tiny(kind).generate(**rows, max_new_tokens=tokens, do_sample=True, temperature=0.7, top_k=0)
    rows |= dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    answer = torch.arange(ids.shape[1]).expand_as(ids) >= inputs["input_ids"].shape[1]
    return teacher_pass(take_apart(tiny(kind)), rows, answer)


def test_acceptance_labels_cover_only_drafts_that_follow_the_text() -> None:
    teacher_batch, drafter, parts = answered(), make("msd"), take_apart(tiny("llava"))
    settings = AcceptanceSettings(depths=3, replaced=0.2)
    made = sample_acceptance(drafter, parts, teacher_batch, settings, torch.Generator().manual_seed(0))
    counts = [len(judged.label) for judged in made]
    assert len(made) == 3 and 0.6 * int(teacher_batch.answer.sum()) < counts[0] < int(teacher_batch.answer.sum())
    assert counts[0] > counts[1] > counts[2] > 0  # only drafts that have held the text go on
    for judged in made:
        assert ((judged.label >= 0) & (judged.label <= 1)).all() and judged.feature.shape[1] == HIDDEN
    everything = AcceptanceSettings(depths=3, replaced=0.0)
    made = sample_acceptance(drafter, parts, teacher_batch, everything, torch.Generator().manual_seed(0))
    assert len(made[0].label) == int(teacher_batch.answer.sum())
    with pytest.raises(ValueError, match="decoder layer, got 'medusa'"):
        sample_acceptance(make("medusa"), parts, teacher_batch, settings, torch.Generator())


def test_training_separates_accepted_drafts_from_rejected_drafts() -> None:
    teacher_batch, drafter = answered(tokens=48), make("msd")
    seen: list[dict[str, float]] = []
    head = train_acceptance(
        drafter,
        tiny("llava"),
        lambda step: teacher_batch,
        Schedule(60, lr=3e-3, warmup=5),
        AcceptanceSettings(depths=2),
        on_step=lambda step, notes: seen.append(notes),
    )
    assert sum(n["loss"] for n in seen[-5:]) < 0.9 * sum(n["loss"] for n in seen[:5])
    fresh = torch.Generator().manual_seed(999)
    judged = sample_acceptance(drafter, take_apart(tiny("llava")), teacher_batch, AcceptanceSettings(depths=1), fresh)[
        0
    ]
    verdict = head.accepts(judged.feature)
    good, bad = judged.label > 0.8, judged.label < 0.2
    assert verdict[good].mean() > verdict[bad].mean() + 0.1
    assert not any(parameter.requires_grad for parameter in drafter.parameters())


def test_impossible_settings_are_refused() -> None:
    for settings in (dict(depths=0), dict(reject_weight=0.0), dict(replaced=1.0), dict(temperature=0.0)):
        with pytest.raises(ValueError, match=f"^{next(iter(settings))}: expected"):
            AcceptanceSettings(**settings)
    with pytest.raises(ValueError, match="threshold"):
        AcceptanceStop(Told(), threshold=1.5)
    with pytest.raises(ValueError, match="shortest"):
        AcceptanceStop(Told(), shortest=5, longest=4)
    with pytest.raises(ValueError, match="provides its hidden state"):
        AcceptanceStop(Told()).begin().grow(0, torch.ones(1))


def test_the_control_is_made_by_its_text_over_a_head_at_hand() -> None:
    head = AcceptanceHead(AcceptanceConfig(HIDDEN))
    made = parse("specdecpp:threshold=0.5,longest=9", "vlm", "controller").make(HeadAtHand(head))
    assert made == AcceptanceStop(head, threshold=0.5, longest=9)
    with pytest.raises(
        ValueError, match="controller 'specdecpp': weights: expected weights of a drafter of kind specdecpp"
    ):
        parse("specdecpp", "vlm", "controller").make(HeadAtHand(object()))


@dataclass(frozen=True)
class HeadAtHand:
    """Parts of a method that are a head alone."""

    head: object

    def part(self, name: str) -> object:
        assert name == "weights"
        return self.head
