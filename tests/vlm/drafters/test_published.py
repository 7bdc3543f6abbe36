"""Published drafters load by their published names at any size, and what does not fit is refused in one sentence."""

from __future__ import annotations

import re

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import DynamicTree
from tests.vlm.drafters.published_files import PUBLISHED, Published, random_file
from tests.vlm.tiny import prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)
each = pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)


def small(published: Published) -> tuple[dict, dict]:
    torch.manual_seed(0)
    config = published.small_config
    return random_file(published.shapes(config)), config


@each
@pytest.mark.filterwarnings("ignore:for head.*copying from a non-meta")
def test_published_shapes_are_those_of_our_modules(published: Published) -> None:
    """At full size, on the meta device."""
    config = dict(published.config)
    if published.kind == "eagle3":
        config["eagle_aux_hidden_state_layer_ids"] = [2, 16, 29]
    shapes = published.shapes(published.config)
    with torch.device("meta"):
        drafter = mmspec.vlm.drafter_from_state_dict(published.kind, random_meta(shapes), config)
    own = sum(weight.numel() for name, weight in drafter.named_parameters() if name != "embed_tokens.weight")
    inner = config.get("transformer_layer_config", config)
    assert own + inner["vocab_size"] * inner["hidden_size"] == published.parameters


def random_meta(shapes: dict) -> dict:
    """Tensors without memory, but for the buffers of a reduced vocabulary, whose values are checked."""
    with torch.device("cpu"):
        buffers = random_file({name: shape for name, shape in shapes.items() if name in ("d2t", "t2d")})
    return {**{name: torch.empty(shape, dtype=torch.half) for name, shape in shapes.items()}, **buffers}


@each
def test_a_small_file_drafts_and_keeps_the_targets_words(published: Published) -> None:
    state, config = small(published)
    model = tiny(published.model)
    drafter = mmspec.vlm.drafter_from_state_dict(published.kind, state, config, target=model)
    assert {weight.dtype for weight in drafter.parameters()} == {torch.float32}
    drafter = drafter.with_shape(DynamicTree(nodes=8, depth=3, width=3))
    inputs = prompt(published.model, images=0 if published.model == "llama" else 2)
    out = mmspec.generate(model, drafter=drafter, return_dict=True, **GREEDY, **inputs)
    assert torch.equal(out.sequences, model.generate(**inputs, **GREEDY))
    assert out.stats.drafter_passes > out.stats.target_passes


@each
def test_every_missing_and_every_unknown_key_is_listed(published: Published) -> None:
    state, config = small(published)
    gone = [name for name in state if "down_proj" in name or name == "fc.weight"]
    for name in gone:
        del state[name]
    state |= {"layers.1.mlp.gate_proj.weight": torch.zeros(1), "something": torch.zeros(1)}
    with pytest.raises(ValueError) as error:
        load(published, state, config)
    text = str(error.value)
    assert len(gone) == 2 and all(name in text for name in (*gone, "layers.1.mlp.gate_proj.weight", "something"))


@each
def test_every_shape_that_does_not_fit_is_listed(published: Published) -> None:
    state, config = small(published)
    down, key = (next(name for name in state if part in name) for part in ("down_proj", "k_proj.weight"))
    state[down], state[key] = state[down][:, :-1], state[key][:, :-1]
    with pytest.raises(ValueError) as error:
        load(published, state, config)
    text = str(error.value)
    assert f"{down}: expected shape (32, 48) by the config, got (32, 47)" in text and key in text
    assert "give the config the file was made with" in text


@each
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_named(value: float, published: Published) -> None:
    state, config = small(published)
    down = next(name for name in state if "down_proj" in name)
    state[down][0, 0] = value
    with pytest.raises(ValueError, match=f"sd: expected finite weights, got NaN or Inf in {re.escape(down)}"):
        load(published, state, config)


@each
def test_the_embedding_may_be_there_or_not(published: Published) -> None:
    state, config = small(published)
    inner = config.get("transformer_layer_config", config)
    with_it = {**state, "embed_tokens.weight": torch.zeros(inner["vocab_size"], inner["hidden_size"])}
    without = {name: value for name, value in state.items() if name != "embed_tokens.weight"}
    one, two = (load(published, given, config).state_dict() for given in (with_it, without))
    if published.kind == "eagle3":  # whose embedding may have been trained
        assert torch.equal(one.pop("embed_tokens.weight"), with_it["embed_tokens.weight"])
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@each
def test_a_target_of_another_size_is_refused(published: Published) -> None:
    config = published.small_config
    inner = config.get("transformer_layer_config", config)
    inner["vocab_size"] += 1
    with pytest.raises(ValueError, match="expected vocab_size 101 as in the target, got 102"):
        mmspec.vlm.drafter_from_state_dict(
            published.kind, random_file(published.shapes(config)), config, target=tiny(published.model)
        )


def load(published: Published, state: dict, config: dict) -> object:
    return mmspec.vlm.drafter_from_state_dict(published.kind, state, config)
