"""Prompts that do not go on where the last answer ended, calls that fail, and what is refused."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

import mmspec
from mmspec.vlm.conversation import Past
from tests.vlm.conversation.talks import talk
from tests.vlm.layer_kinds import KINDS, STATEFUL, STATEFUL_ONCE, model_with, ragged
from tests.vlm.tiny import tiny

GREEDY = dict(max_new_tokens=8, do_sample=False)
SLOTS = tuple(name for name in KINDS if name not in STATEFUL)


def opened(model: torch.nn.Module, ids: torch.Tensor, tail: int = 0) -> tuple[Past, torch.Tensor]:
    """A conversation behind its first answer."""
    past = Past(model)
    past.tail = tail
    return past, mmspec.generate(model, past_key_values=past, input_ids=ids, **GREEDY)


def fresh(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)


@pytest.mark.parametrize("name", SLOTS)
def test_an_answer_rendered_otherwise_is_read_again_from_where_it_differs(name: str) -> None:
    model, ids = model_with(name), ragged((12,), seed=3)["input_ids"]
    past, said = opened(model, ids)
    kept = torch.cat([said[:, :15], said[:, 17:], torch.tensor([[7, 8, 9]])], 1)  # two of its tokens are gone
    same = next(n for n in range(kept.shape[1]) if kept[0, n] != said[0, n])
    out = mmspec.generate(model, past_key_values=past, input_ids=kept, return_dict=True, **GREEDY)
    assert torch.equal(out.sequences, fresh(model, kept))
    assert out.read == kept.shape[1] - same + 1


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("tail", (0, 3))
@pytest.mark.parametrize("name", STATEFUL_ONCE)
def test_recurrent_layers_go_back_to_where_the_prompt_or_its_tail_began(name: str, tail: int) -> None:
    """Templates leave thoughts out of answers given, and may begin the next one otherwise."""
    model, ids = model_with(name), ragged((12,), seed=3)["input_ids"]
    past, said = opened(model, ids, tail)
    place = 12 - tail
    for _ in range(2):
        other = torch.tensor([[51 - said[0, place].item() % 2, 52, 53, 54]])
        kept = torch.cat([said[:, :place], other, torch.tensor([[7, 8, 9]])], 1)
        out = mmspec.generate(model, past_key_values=past, input_ids=kept, return_dict=True, **GREEDY)
        assert torch.equal(out.sequences, fresh(model, kept))
        assert out.read == kept.shape[1] - place
        said, place = out.sequences, kept.shape[1] - tail


@pytest.mark.parametrize("name", ("Qwen3_5ForCausalLM", "Lfm2ForCausalLM", "JambaForCausalLM"))
def test_recurrent_layers_refuse_earlier_changes_and_restart_after_a_reset(name: str) -> None:
    model, ids = model_with(name), ragged((12,), seed=3)["input_ids"]
    past, said = opened(model, ids)
    changed = said.clone()
    changed[0, 6] = 59 - changed[0, 6] % 2
    with pytest.raises(ValueError, match="differs from token 6 on, where recurrent layers"):
        mmspec.generate(model, past_key_values=past, input_ids=changed, **GREEDY)
    on = torch.cat([said, torch.tensor([[7, 8]])], 1)
    assert torch.equal(mmspec.generate(model, past_key_values=past, input_ids=on, **GREEDY), fresh(model, on))
    past.forget()
    out = mmspec.generate(model, past_key_values=past, input_ids=changed, **GREEDY)
    assert torch.equal(out, fresh(model, changed))


@pytest.mark.parametrize("name", ("LlamaForCausalLM", "Qwen3_5ForCausalLM"))
def test_the_same_prompt_again_is_answered_again(name: str) -> None:
    model, ids = model_with(name), ragged((12,), seed=3)["input_ids"]
    past, said = opened(model, ids, tail=2)
    out = mmspec.generate(model, past_key_values=past, input_ids=ids, return_dict=True, **GREEDY)
    assert torch.equal(out.sequences, said) and out.read == 2


def test_a_cut_before_a_picture_reads_everything_again() -> None:
    chat = talk("llava")
    past = Past(chat.model)
    said = mmspec.generate(chat.model, past_key_values=past, **chat.turn(0, None), **GREEDY)
    inputs = chat.turn(1, said)
    inputs["input_ids"][0, 1] = 59
    out = mmspec.generate(chat.model, past_key_values=past, **inputs, **GREEDY, return_dict=True)
    assert torch.equal(out.sequences, chat.model.generate(**inputs, **GREEDY))
    assert out.read == inputs["input_ids"].shape[1]


class Breaks(LogitsProcessor):
    """Fails, or turns everything into NaN, behind so many tokens."""

    def __init__(self, after: int, nan: bool):
        self.after, self.nan = after, nan

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] < self.after:
            return scores
        if self.nan:
            return torch.full_like(scores, -torch.inf)
        raise KeyboardInterrupt


@pytest.mark.parametrize("nan", (False, True), ids=("interrupted", "no token left"))
@pytest.mark.parametrize("name", ("LlamaForCausalLM", "Qwen3_5ForCausalLM", "Gemma3ForCausalLM"))
def test_a_call_that_fails_leaves_the_conversation_as_it_was(name: str, nan: bool) -> None:
    model, ids = model_with(name), ragged((12,), seed=3)["input_ids"]
    past, said = opened(model, ids)
    on = torch.cat([said, torch.tensor([[7, 8, 9]])], 1)
    breaks = LogitsProcessorList([Breaks(on.shape[1] + 3, nan)])
    sampled = GREEDY | dict(do_sample=True)
    with pytest.raises(ValueError if nan else KeyboardInterrupt):
        mmspec.generate(model, past_key_values=past, input_ids=on, logits_processor=breaks, seed=1, **sampled)
    assert past.ids == said[0].tolist() and not past.busy
    out = mmspec.generate(model, past_key_values=past, input_ids=on, return_dict=True, **GREEDY)
    assert torch.equal(out.sequences, fresh(model, on)) and out.read == on.shape[1] - said.shape[1] + 1


def test_another_drafter_reads_all_again() -> None:
    from tests.vlm.drafters.trained import make

    chat = talk("llava")
    past, said, eagle = Past(chat.model), None, make("eagle")
    for number, drafter in enumerate((make("msd"), eagle, eagle)):
        inputs = chat.turn(number, said)
        out = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
        said = out.sequences
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY))
        assert (out.read == inputs["input_ids"].shape[1]) == (number < 2)


def test_invalid_changes_are_refused() -> None:
    chat, other = talk("llava"), tiny("llama")
    model, ids = chat.model, chat.inputs["input_ids"]
    inputs = chat.turn(0, None)
    held = DynamicCache(config=other.config)
    other(input_ids=ids[:, :3].clamp(max=90), past_key_values=held)
    with pytest.raises(ValueError, match="or that of a mmspec.Session, got a DynamicCache with content"):
        mmspec.generate(other, past_key_values=held, input_ids=ids[:, :3], **GREEDY)
    with pytest.raises(ValueError, match="expected the conversation of this model, got another model's"):
        mmspec.generate(model, past_key_values=Past(other), **inputs, **GREEDY)
    with pytest.raises(ValueError, match="expected a single row in a conversation, got 2"):
        mmspec.generate(other, past_key_values=Past(other), input_ids=torch.full((2, 3), 7), **GREEDY)
    with pytest.raises(ValueError, match="expected a single row in a conversation, got 3"):
        mmspec.generate(
            other,
            past_key_values=Past(other),
            input_ids=torch.full((1, 3), 7),
            num_return_sequences=3,
            do_sample=True,
            max_new_tokens=2,
        )
    with pytest.raises(ValueError, match="without padding, got zeros"):
        mmspec.generate(
            other,
            past_key_values=Past(other),
            input_ids=torch.full((1, 3), 7),
            attention_mask=torch.tensor([[0, 1, 1]]),
            **GREEDY,
        )
    with pytest.raises(ValueError, match="expected none to step by hand, got a conversation"):
        mmspec.vlm.start(other, past_key_values=Past(other), input_ids=torch.full((1, 3), 7), **GREEDY)
    with pytest.raises(ValueError, match="expected a call that mmspec decodes, got the model's own"):
        other.generate(torch.full((1, 3), 7), past_key_values=Past(other), **GREEDY)
    with pytest.raises(ValueError, match="expected the ids of the whole conversation, got none"):
        mmspec.generate(other, past_key_values=Past(other), **GREEDY)
    busy = Past(other)
    busy.busy = True
    with pytest.raises(ValueError, match="got a conversation whose last call still runs"):
        mmspec.generate(other, past_key_values=busy, input_ids=torch.full((1, 3), 7), **GREEDY)


def test_pictures_of_earlier_turns_must_not_change() -> None:
    chat = talk("llava")
    past = Past(chat.model)
    said = mmspec.generate(chat.model, past_key_values=past, **chat.turn(0, None), **GREEDY)
    inputs = chat.turn(1, said)
    inputs["pixel_values"] = inputs["pixel_values"].flip(0)
    with pytest.raises(ValueError, match="pixel_values: expected the pictures of earlier turns first and unchanged"):
        mmspec.generate(chat.model, past_key_values=past, **inputs, **GREEDY)


def test_a_rope_that_changes_with_the_length_is_read_again_behind_the_change() -> None:
    from tests.vlm.classes.build import model_of
    from tests.vlm.classes.variants import variants

    found = {label: config for label, config in variants("LlamaForCausalLM") if "dynamic" in label or "rope" in label}
    model = model_of("LlamaForCausalLM", next(iter(found.values())))
    past, ids = Past(model), ragged((4,), seed=3)["input_ids"]
    for _ in range(4):  # changes at 16 tokens
        out = mmspec.generate(model, past_key_values=past, input_ids=ids, return_dict=True, max_new_tokens=4)
        assert torch.equal(out.sequences, model.generate(ids, max_new_tokens=4, do_sample=False))
        ids = torch.cat([out.sequences, torch.tensor([[7, 8]])], 1)
    assert out.read == out.sequences.shape[1] - 4
