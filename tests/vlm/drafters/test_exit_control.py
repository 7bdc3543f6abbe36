"""DEL: words and distribution of drafts by the first layers, and the choice of exit and length."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.estimate.drafters import drafter_cost
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters.exit_control import DynamicExit, ExitControl, head_work
from tests.vlm.conversation.talks import talk
from tests.vlm.drafters.test_kangaroo import deep, law_of
from tests.vlm.drafters.test_swift import tall
from tests.vlm.drafters.watched import Watched
from tests.vlm.test_sampled_law import LAWS, PROMPT, STEPS, p_value
from tests.vlm.tiny import VLMS, prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)


def eager(exits: tuple[int, ...], planted: float | None = 0.9, **settings: object) -> DynamicExit:
    """A drafter that believes in its exits, so that it drafts; with `planted`, at the second exit."""

    class Eager(DynamicExit):
        def open(self, target: object) -> object:
            state = super().open(target)
            if planted is not None:
                state.control.learn([planted if place == 1 else 0.0 for place in range(len(exits))])
                state.control.rounds = 1e6
            return state

    return Eager(exits, **{"longest": 3, "keep": 0.9999, "stop": 0.0, **settings})


@pytest.mark.parametrize(
    "kind", ("qwen2_5_vl", *(pytest.param(k, marks=pytest.mark.whole) for k in ("llava", "qwen3_vl")))
)
def test_words_are_those_of_transformers_and_the_rest_alone_verifies(kind: str) -> None:
    model = tall(kind)
    inputs = dict(prompt(kind, images=int(kind in VLMS), batch=4), **GREEDY)
    watched = Watched(eager((1, 2, 4)))
    run = start(model, drafter=watched, **inputs)
    scored = set()
    while run.step():
        scored.add(run.target.scored)
    expected = model.generate(**inputs)
    assert run.target.tokens == expected[:, inputs["input_ids"].shape[1] :].tolist()
    assert 0 in scored and max(len(seen.draft.value[0]) for seen in watched.rounds) == 4


def test_a_pass_from_an_exit_gives_the_states_of_a_whole_pass_at_every_exit() -> None:
    watched = Watched(eager((1, 2, 4)))
    run = start(tall("llama"), drafter=watched, **dict(prompt("llama", batch=4), **GREEDY))
    run.step()
    draft = watched.state.propose(run.target, run.keys)
    mine, whole = run.target.score(draft), run.target.score(replace(draft, entry=None))
    assert draft.entry.layer == 2 and set(draft.entry.below) == {1}
    torch.testing.assert_close(mine.hidden, whole.hidden, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine.scores, whole.scores, atol=1e-4, rtol=1e-4)


def test_the_choice_is_the_best_of_all_exits_and_lengths() -> None:
    for rates in ([0.5, 0.7, 0.9], [0.9, 0.9, 0.95], [0.0, 0.2, 1.0], [0.1, 0.1, 0.1]):
        control = ExitControl((2, 4, 6), 8, head=1.5, longest=6, rates=rates)

        def gain(place: int, length: int, rates: list[float] = rates) -> float:
            tokens = sum(rates[place] ** depth for depth in range(length + 1))
            return tokens / (length * ((2, 4, 6)[place] + 1.5) + 8 + 1.5)

        brute = {(place, length): gain(place, length) for place in range(3) for length in range(7)}
        assert gain(*control.best(6)) == pytest.approx(max(brute.values()))
        assert control.best(2)[1] <= 2 and control.best(0) == (0, 0)
    assert control.best(6) == (0, 0)  # at a rate of 0.1 no draft pays
    assert ExitControl((2,), 8).best(6) == (0, 0)  # nothing is known


def test_a_rate_is_the_share_of_accepted_tokens_that_the_exit_would_have_chosen() -> None:
    """Tokens behind the first rejection change nothing: the rates are those of the committed text, read at once."""
    model, exits = tall("llama"), (1, 2, 4)
    ids = prompt("llama")["input_ids"]
    watched = Watched(eager(exits, longest=3))
    run = start(model, drafter=watched, input_ids=ids, max_new_tokens=24, do_sample=False)
    run.step()
    learned: list[list[float]] = []
    watched.state.control = _Learning(learned, watched.state.control)
    while run.step() and run.target.live[0]:
        text = torch.cat([ids[0], torch.tensor(run.target.tokens[0])])
        end, path = len(text) - 1, len(run.target.paths[0])
        states = model(text[None], output_hidden_states=True).hidden_states
        for place, level in enumerate(exits):
            chosen = model.lm_head(model.model.norm(states[level]))[0].argmax(-1)
            share = (chosen[end - path : end] == text[end - path + 1 :]).float().mean()
            assert learned[-1][place] == pytest.approx(float(share)), level
    drafted = [seen.draft.tree.nodes - 1 for seen in watched.rounds]
    accepted = [line[0] for line in run.stats.accepted[1:]]
    assert any(a < d for a, d in zip(accepted, drafted, strict=True)) and max(accepted) > 0


def test_rates_are_running_means_that_forget() -> None:
    control = ExitControl((1, 2), 4, keep=0.5)
    for shares in ([1.0, 0.0], [0.0, 0.0], [0.0, 1.0]):
        control.learn(shares)
    assert control.rates == pytest.approx([0.25 / 1.75, 1 / 1.75])


class _Learning:
    """A control that notes what it learns."""

    def __init__(self, learned: list, control: ExitControl):
        self.learned, self.control = learned, control

    def learn(self, shares: list[float]) -> None:
        self.learned.append(shares)
        self.control.learn(shares)

    def __getattr__(self, name: str) -> object:
        return getattr(self.control, name)


@pytest.mark.parametrize("setting", ("t1", pytest.param("t0.7", marks=pytest.mark.whole)))
def test_sampled_words_have_the_targets_distribution(setting: str) -> None:
    model = deep()
    out = mmspec.generate(
        model,
        input_ids=PROMPT.expand(2000, -1),
        drafter=eager((1, 2, 3), stop=0.3),
        seed=0,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        **LAWS[setting],
    )
    assert out.stats.exact and out.stats.accept_length > 1.1
    assert p_value(out.sequences[:, 3 : 3 + STEPS], law_of(model, **LAWS[setting])) > 1e-3


def test_rounds_are_plain_where_no_exit_agrees() -> None:
    watched, inputs = Watched(eager((1, 2, 4), 0.1, rest=4)), dict(prompt("llama"), **GREEDY)
    run = start(tall("llama"), drafter=watched, **inputs)
    run.step()
    learned: list[list[float]] = []
    watched.state.control = _Learning(learned, watched.state.control)
    run.run()
    assert run.target.tokens == tall("llama").generate(**inputs)[:, inputs["input_ids"].shape[1] :].tolist()
    assert all(seen.draft.tree.nodes == 1 for seen in watched.rounds) and watched.state.passes == 0
    assert len(learned) == 3  # of 15 rounds, the rates are measured in every fourth


@pytest.mark.whole
def test_turns_of_a_conversation_match_fresh_prompts() -> None:
    chat = talk("llava")
    past, said, drafter = Past(chat.model), None, DynamicExit((1,), rest=1)
    for number in range(3):
        inputs = chat.turn(number, said)
        said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY)
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY)), number


def test_its_text_form_and_its_refusals() -> None:
    model = tall("llama", 8)
    out = mmspec.generate(model, drafter="del:every=3,longest=2", return_dict=True, **prompt("llama"), **GREEDY)
    assert out.stats.drafter == "del" and drafter_cost("del").pattern == "part"
    assert head_work(take_apart(model)) == pytest.approx(
        101 * 32 / sum(p.numel() for p in model.model.layers[0].parameters())
    )
    with pytest.raises(ValueError, match="every: expected 1 to 7 layers between two exits, got 8"):
        mmspec.generate(model, drafter="del:every=8", **prompt("llama"), **GREEDY)
    with pytest.raises(ValueError, match="exit: expected a number of layers from 1 to 1, got 2"):
        mmspec.generate(tiny("llama"), drafter=DynamicExit((2,)), **prompt("llama"), **GREEDY)
    with pytest.raises(ValueError, match=r"exits: expected ascending numbers of layers, got \(2, 1\)"):
        DynamicExit((2, 1))
    with pytest.raises(ValueError, match="^keep: expected at least 0 and below 1"):
        DynamicExit((1,), keep=1.0)
