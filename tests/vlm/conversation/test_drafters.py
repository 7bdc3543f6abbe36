"""Drafters follow a conversation: their own caches hold what reading the whole of it would have left."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

import mmspec
from mmspec.core.drafting.layer import DraftLayer
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.api import start
from mmspec.vlm.conversation import Past
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.viskip import VisionSkip
from tests.vlm.conversation.talks import Talk, talk
from tests.vlm.drafters.eagle3.reference import published
from tests.vlm.drafters.test_trainer_layouts import FIELDS, eagle3
from tests.vlm.drafters.trained import DRAFTERS, NAMES, make
from tests.vlm.tiny import tiny

GREEDY = dict(max_new_tokens=10, do_sample=False)
SHAPES = (DynamicTree(nodes=8, depth=3, width=3), StaticTree((0, 0, 0, 1, 1, 2, 3)), Chain(FixedLength(4)))
# their slots are functions of what is read, whatever it is read with; SpecVLM's gate looks at one question at a time
ALIKE = tuple(name for name in DRAFTERS if name not in ("specvlm", "medusa", "hydra", "ppd", "hidden_transfer"))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind, apart", (("llava", False), ("qwen2_5_vl", True)), ids=("together", "apart"))
@pytest.mark.parametrize("name", NAMES)
def test_turns_match_fresh_prompts(name: str, kind: str, apart: bool) -> None:
    chat, drafter = talk(kind, apart), make(name)
    past, said = Past(chat.model), None
    drafter = drafter.with_shape(SHAPES[0] if "flash" not in name else SHAPES[2])
    for number in range(3):
        inputs = chat.turn(number, said)
        out = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
        said = out.sequences
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY)), number
        assert (out.read < inputs["input_ids"].shape[1]) == (number > 0 and name != "moa")  # it reads the whole prompt


@pytest.mark.default_cells(
    "eagle3-together",
    "eagle_without_pictures-apart",
    "flash-together",
    "dspark-together",
    "dflash-together",
    "hydra_with_prefix_layer-together",
)
@pytest.mark.parametrize("apart", (False, True), ids=("together", "apart"))
@pytest.mark.parametrize("name", ALIKE)
def test_a_followed_cache_is_that_of_the_whole_prompt(name: str, apart: bool) -> None:
    check_followed(talk("llava", apart), make(name))


@pytest.mark.parametrize("kind", ("eagle3", "peagle"))
def test_several_layers_with_windows_follow_too(kind: str) -> None:
    chat = talk("llava")
    config, state = published("everything", speculators_model_type=kind, mask_token_id=90)
    check_followed(chat, mmspec.vlm.drafter_from_state_dict(kind, state, config, chat.model))


@pytest.mark.parametrize("apart", (False, True), ids=("together", "apart"))
def test_slots_at_the_targets_positions_follow_too(apart: bool) -> None:
    chat, fields = talk("qwen2_5_vl", apart), dict(FIELDS, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]})
    check_followed(chat, mmspec.vlm.drafter_from_state_dict("eagle3", eagle3(), fields, chat.model))


def check_followed(chat: Talk, drafter: ShapedDrafter) -> None:
    past, said = Past(chat.model), None
    for number in range(3):
        inputs = chat.turn(number, said)
        said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY)
        run = start(chat.model, drafter=drafter, **inputs, **GREEDY)
        run.run()
        own, fresh = past.state, run.state
        count = fresh.cache.width
        assert own.cache.width >= count > 0
        for layer in range(fresh.cache.depth):
            for mine, theirs in zip(own.cache.at(layer), fresh.cache.at(layer), strict=True):
                assert torch.allclose(mine[:, :, :count], theirs[:, :, :count], atol=1e-4), (number, layer)
        if own.pictures is not None:
            wide = min(own.pictures.shape[1], fresh.pictures.shape[1])
            assert torch.equal(own.pictures[:, :wide], fresh.pictures[:, :wide])
        assert own.next_position - own.cache.width == fresh.next_position - fresh.cache.width
        if own.context is not None:
            assert torch.allclose(own.context, fresh.context, atol=1e-4)


def test_a_drafter_reads_no_picture_twice() -> None:
    """Slots that pass its layer in the second turn: those of the new tokens and of the last accepted ones."""
    chat, drafter = talk("llava"), make("msd")
    past, read = Past(chat.model), []
    said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **chat.turn(0, None), **GREEDY)
    inputs, remember = chat.turn(1, said), DraftLayer.remember

    def noted(layer: DraftLayer, attend: torch.Tensor, *rest: object) -> None:
        read.append(attend.shape[1])
        remember(layer, attend, *rest)

    with patch.object(DraftLayer, "remember", noted):
        mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY)
    assert read == [inputs["input_ids"].shape[1] - said.shape[1] + 1]


@pytest.mark.parametrize("wrapped", ("goodput", "viskip", "both", "lookup", "merged"))
def test_wrapped_drafters_follow(wrapped: str) -> None:
    chat, inner = talk("qwen2_5_vl", apart=True), make("msd")
    drafter = {
        "goodput": lambda: Goodput(inner),
        "viskip": lambda: VisionSkip(inner, 0.5),
        "both": lambda: Goodput(VisionSkip(inner, 0.5)),
        "merged": lambda: mmspec.drafters.Merged(inner),
        "lookup": lambda: Goodput(mmspec.drafters.PromptLookup()),
    }[wrapped]()
    past, said = Past(chat.model), None
    for number in range(3):
        inputs = chat.turn(number, said)
        out = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
        said = out.sequences
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY))
        assert (out.read < inputs["input_ids"].shape[1]) == (number > 0)


@pytest.mark.parametrize("name", ("small", "small, with pictures", "recycling"))
def test_drafters_that_open_from_ids_open_anew(name: str) -> None:
    chat = talk("llava", apart=True)
    drafter = {
        "small": lambda: mmspec.drafters.SmallModel(tiny("llama")),
        "small, with pictures": lambda: mmspec.drafters.SmallModel(chat.model),
        "recycling": mmspec.drafters.TokenRecycling,
    }[name]()
    past, said = Past(chat.model), None
    for number in range(3):
        inputs = chat.turn(number, said)
        out = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
        said = out.sequences
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY))
        assert (out.read < inputs["input_ids"].shape[1]) == (number > 0)


@pytest.mark.parametrize("name", ("msd", "eagle3", "vispec"))
def test_sampled_turns_match_a_fresh_prompt_with_the_same_seed(name: str) -> None:
    chat, drafter = talk("llava", apart=True), make(name).with_shape(SHAPES[2], SHAPES[1])
    settings = dict(max_new_tokens=10, do_sample=True, temperature=0.9, top_k=20)
    past, said = Past(chat.model), None
    for number in range(3):
        inputs = chat.turn(number, said)
        truth = mmspec.generate(chat.model, drafter=drafter, seed=number, **inputs, **settings)
        said = mmspec.generate(chat.model, drafter=drafter, seed=number, past_key_values=past, **inputs, **settings)
        assert torch.equal(said, truth), number


@pytest.mark.parametrize("name", ("msd", "vispec", "flash", "eagle3"))
def test_drafters_go_back_with_the_target(name: str) -> None:
    """An answer is rendered otherwise in the next turn: pairs that are no longer the prompt's are forgotten."""
    chat, drafter = talk("llava"), make(name)
    past = Past(chat.model)
    said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **chat.turn(0, None), **GREEDY)
    length = chat.turn(0, None)["input_ids"].shape[1]
    kept = torch.cat([said[:, : length + 3], said[:, length + 5 :]], 1)
    inputs = chat.turn(1, kept)
    said = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY)
    assert torch.equal(said, chat.model.generate(**inputs, **GREEDY))
    run = start(chat.model, drafter=drafter, **inputs, **GREEDY)
    run.run()
    count = run.state.cache.width
    for mine, theirs in zip(past.state.cache.at(0), run.state.cache.at(0), strict=True):
        assert torch.allclose(mine[:, :, :count], theirs[:, :, :count], atol=1e-4)
