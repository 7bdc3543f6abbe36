"""Prompts: what texts become, how the unconditional branch is built, and what is refused."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen import pipeline_for
from mmspec.imagegen.adapters.chameleon import Chameleon
from mmspec.imagegen.adapters.emu3 import NEGATIVE_PROMPT, Emu3
from mmspec.imagegen.adapters.glm_image import GlmImage, axis_positions, preview_grid
from mmspec.imagegen.adapters.janus import Janus
from mmspec.imagegen.adapters.registry import FAMILIES, supported
from mmspec.imagegen.geometry import Geometry
from tests.imagegen.adapters.models import (
    BEGIN,
    BOS,
    COLS,
    LARGE,
    NAMES,
    PAD,
    ROWS,
    SMALL,
    batch,
    grids,
    prompts,
    tiny,
)
from tests.imagegen.adapters.pipelines import pipeline
from tests.imagegen.adapters.processors import NUMBERS, SPECIAL, TALK, processor

A, RED, CUBE, BLUE, BALL = TALK.values()
TEXTS = ["a red cube", "a blue ball a red cube"]


def lists(rows: tuple[torch.Tensor, ...]) -> list[list[int]]:
    return [row.tolist() for row in rows]


def test_janus_keeps_only_the_ends_of_the_prompt_in_the_unconditional_branch() -> None:
    made = Janus(tiny("janus"), processor("janus")).prepare(TEXTS)
    assert lists(made.cond) == [[BOS, A, RED, CUBE, BEGIN], [BOS, A, BLUE, BALL, A, RED, CUBE, BEGIN]]
    assert lists(made.uncond) == [[BOS, PAD, PAD, PAD, BEGIN], [BOS, *[PAD] * 6, BEGIN]]


def test_emu3_gives_the_negative_prompt_the_same_image_header() -> None:
    model = Emu3(tiny("emu3"), processor("emu3"), (ROWS * 2, COLS * 2), negative="blue")
    made = model.prepare(TEXTS)
    header = [BEGIN, NUMBERS[str(ROWS)], SPECIAL["*"], NUMBERS[str(COLS)], SPECIAL["<img>"]]
    assert lists(made.cond)[0] == [BOS, A, RED, CUBE, *header]
    assert lists(made.uncond) == [[BOS, BLUE, *header]] * 2
    assert Emu3(tiny("emu3"), size=(6, 8)).negative == NEGATIVE_PROMPT


def test_chameleon_begins_the_image_behind_the_separator() -> None:
    made = Chameleon(tiny("chameleon"), processor("chameleon")).prepare(["<s>" + text for text in TEXTS])
    assert lists(made.cond)[0] == [BOS, A, RED, CUBE, SPECIAL["<sep>"], BEGIN]
    assert lists(made.uncond) == [[BOS, BEGIN]] * 2


def test_glm_image_names_both_grids() -> None:
    made = GlmImage(tiny("glm_image"), processor("glm_image"), (128, 96)).prepare(TEXTS)
    first = [A, RED, CUBE, SPECIAL["<grid>"], NUMBERS["4"], NUMBERS["3"], SPECIAL["</grid>"]]
    assert lists(made.cond)[0][: len(first)] == first
    assert made.uncond is None


def test_glm_image_takes_the_grids_of_its_processor() -> None:
    given = processor("glm_image")(text=TEXTS, target_h=128, target_w=96, padding=True, return_tensors="pt")
    model = pipeline_for(tiny("glm_image"), size=(128, 96)).model
    assert model.geometry.grids == (preview_grid(4, 3), (4, 3))
    assert model.rows(model.prepare(given)) == 2
    with pytest.raises(ValueError, match="image_grid_thw: expected .* open the pipeline with the size"):
        pipeline_for(tiny("glm_image")).model.prepare(given)


def test_glm_image_places_are_those_of_its_own_index() -> None:
    rows = prompts((3, 7))
    model = tiny("glm_image").model
    model.get_rope_index(**batch(rows), **grids(2))
    ours = axis_positions(Geometry((SMALL, LARGE)))
    for found, row in zip(model._cached_decode_position_ids, rows, strict=True):
        assert torch.equal(found[:, :-1], ours + len(row))


@pytest.mark.parametrize("name", NAMES)
def test_ids_tensors_lists_and_padding_on_any_side_give_the_same_condition(name: str) -> None:
    rows = prompts((3, 7))
    model = pipeline(name).model
    right = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    mask = torch.arange(right.shape[1]) < torch.tensor([[len(row)] for row in rows])
    forms = [batch(rows), {"input_ids": right, "attention_mask": mask.long()}, list(rows), lists(rows)]
    assert all(lists(model.prepare(form).cond) == lists(rows) for form in forms)
    assert lists(model.prepare(rows[0]).cond) == lists(rows[:1])


@pytest.mark.parametrize("given", [None, {}, [], 3, [[]], {"input_ids": torch.zeros(1, 2)}], ids=repr)
def test_invalid_prompts_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="prompts: expected texts, token ids or a processor.s output"):
        pipeline("chameleon").model.prepare(given)


def test_texts_need_a_processor_and_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="got text and no processor"):
        pipeline("janus")("a red cube")
    with pytest.raises(ValueError, match="got images"):
        pipeline("janus")({**batch(prompts((3,))), "pixel_values": torch.zeros(1, 3, 8, 8)})
    with pytest.raises(ValueError, match="generation_mode='image'"):
        pipeline("janus")([[BOS, A, RED]])


def test_an_emu3_prompt_for_another_size_is_refused() -> None:
    given = {**batch(prompts((3,))), "image_sizes": [[ROWS, COLS + 1]]}
    with pytest.raises(ValueError, match="image_sizes: expected .3, 4. for every image"):
        pipeline("emu3")(given)
    with pytest.raises(ValueError, match="negative_prompt_ids: expected 1 row or 2, got 3"):
        pipeline("emu3")({**batch(prompts((3, 7))), "negative_prompt_ids": torch.ones(3, 2, dtype=torch.long)})


def test_a_model_without_an_unconditional_branch_refuses_guidance() -> None:
    with pytest.raises(ValueError, match="guidance_scale: expected at most 1 for GLM-Image"):
        pipeline("glm_image")(batch(prompts((3,))), guidance_scale=3.0, pixels=False)


def test_pipelines_have_the_published_defaults() -> None:
    defaults = {name: (pipeline(name).guidance_scale, pipeline(name).top_k) for name in NAMES}
    assert defaults == {
        "janus": (5.0, 0),
        "emu3": (3.0, 2048),
        "emu3_text": (3.0, 2048),
        "chameleon": (3.0, 2000),
        "glm_image": (1.0, 0),
    }


def test_every_supported_class_is_tested_and_other_classes_are_refused() -> None:
    assert {family.name for family in supported()} == {type(tiny(name)).__name__ for name in NAMES}
    assert supported() is FAMILIES
    with pytest.raises(ValueError, match="model: expected one of Janus.*, got Linear"):
        pipeline_for(torch.nn.Linear(2, 2))


def test_sizes_a_model_cannot_draw_are_refused() -> None:
    with pytest.raises(ValueError, match="size: expected None, since JanusForConditionalGeneration"):
        pipeline_for(tiny("janus"), size=(8, 8))
    with pytest.raises(ValueError, match="size: expected a width that is a multiple of 32 pixels, got 100"):
        pipeline_for(tiny("glm_image"), size=(64, 100))
    with pytest.raises(ValueError, match="processor: expected a processor, since Emu3ForCausalLM"):
        pipeline_for(tiny("emu3_text"))


def test_an_attention_that_takes_no_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny("janus").model.language_model.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ValueError, match="attn_implementation: expected 'sdpa' or 'eager'"):
        pipeline_for(tiny("janus"))
