"""The hybrid VLM of the zoo: its rows, its labels, and a build from nothing that the package decodes and drafts for."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.training.examples import Example, encode, reference_answer_ids
from mmspec.zoo.architectures.hybrid import END, IMAGE, SIDE, VISION_START, HybridSize, new_model, new_processor
from mmspec.zoo.architectures.llava import PATCH_HEADS
from mmspec.zoo.files.registry import read
from mmspec.zoo.files.vlm import read_hybrid
from mmspec.zoo.training.vlm import build_drafter, build_hybrid
from mmspec.zoo.training.vlm.build_hybrid import HybridRecipe
from mmspec.zoo.training.vlm.drafter_recipes import RECIPES, TARGETS, DrafterRecipe
from mmspec.zoo.training.vlm.drafter_requests import DocumentRequests, HeldOutDocumentRequests
from mmspec.zoo.training.vlm.hybrid_rows import DENSE, HybridEncoder, HybridRow, grids, hybrid_row, patches
from mmspec.zoo.training.vlm.merged_tower import (
    SIGNS,
    MergedReader,
    document_labels,
    reading_batch,
    reading_loss,
    speak_words,
)
from mmspec.zoo.world.documents import REQUESTS, page, sample_document
from mmspec.zoo.world.scene import EVAL_START

TINY = HybridSize(kinds="df", width=64, inner=64, tower_width=32, tower_inner=32, tower_layers=1)


@cache
def processor():
    return new_processor()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A hybrid of two layers, trained for three steps."""
    folder = tmp_path_factory.mktemp("hybrid")
    recipe = HybridRecipe(TINY, tower_steps=2, steps=3, dense_steps=1, batch=2)
    return folder, build_hybrid.build(folder / "out", folder / "work", recipe)


@pytest.mark.whole
def test_the_processor_lays_pictures_out_as_training_does() -> None:
    pictures = [picture for seed in range(6) for picture in hybrid_row(seed).pictures]
    inputs = encode(processor(), [Example("a", "Hi", tuple(map(Image.fromarray, pictures)))])
    torch.testing.assert_close(inputs["pixel_values"], patches(np.stack(pictures)), atol=1e-6, rtol=0)
    assert torch.equal(inputs["image_grid_thw"], grids(len(pictures)))
    image = processor().tokenizer.convert_tokens_to_ids(IMAGE)
    assert int((inputs["input_ids"] == image).sum()) == len(pictures) * SIDE * SIDE


def test_a_training_row_is_the_prompt_and_the_answer_that_drafters_are_given() -> None:
    document = sample_document(7)
    example = Example("a", REQUESTS[0], (page(document),), document.text)
    row = HybridRow((np.asarray(page(document)),), ((REQUESTS[0], document.text),))
    batch = HybridEncoder(processor().tokenizer)([row])
    prompt = encode(processor(), [example])["input_ids"][0].tolist()
    answer = reference_answer_ids(processor(), example)
    ids, supervised = batch.inputs["input_ids"][0].tolist(), batch.supervised[0].tolist()
    assert ids[: len(prompt) + len(answer)] == prompt + answer
    assert [index for index, learned in enumerate(supervised) if learned] == [
        *range(len(prompt), len(prompt) + len(answer))
    ]


def test_rows_are_pure_and_of_every_kind() -> None:
    rows = [hybrid_row(seed) for seed in range(120)]
    again = hybrid_row(5)
    assert again.turns == rows[5].turns and all(map(np.array_equal, again.pictures, rows[5].pictures))
    assert {len(row.pictures) for row in rows} == {0, 1, 2, 3}
    asked = {row.turns[0][0] for row in rows}
    assert asked & set(REQUESTS) and asked - set(REQUESTS)


def test_the_first_rows_are_short_answers_about_one_picture() -> None:
    rows = [hybrid_row(seed, DENSE) for seed in range(60)]
    assert {len(row.pictures) for row in rows} == {1} and {len(row.turns) for row in rows} == {1, 3}
    assert max(len(answer.split()) for row in rows for _, answer in row.turns) < 40
    again = hybrid_row(7, DENSE)
    assert again.turns == rows[7].turns and np.array_equal(again.pictures[0], rows[7].pictures[0])


def test_sight_is_the_loss_with_each_others_pictures() -> None:
    torch.manual_seed(0)
    model, encode_rows = new_model(processor().tokenizer, TINY).eval(), HybridEncoder(processor().tokenizer)
    rows = [hybrid_row(seed, {"many": 1.0}) for seed in range(3)]  # of two and three pictures
    shown = [picture for row in rows for picture in row.pictures]
    moved = [*shown[1:], shown[0]]
    swapped = []
    for row in rows:
        swapped.append(HybridRow(tuple(moved[: len(row.pictures)]), row.turns))
        moved = moved[len(row.pictures) :]
    logits, target, _ = build_hybrid.answer_logits(model, encode_rows(swapped), encode_rows.digits)
    expected = float(torch.nn.functional.cross_entropy(logits, target).detach())
    assert build_hybrid.swapped_image_loss(model, encode_rows, rows, "cpu") == pytest.approx(expected, rel=1e-6)
    logits, target, _ = build_hybrid.answer_logits(model, encode_rows(rows), encode_rows.digits)
    own = float(torch.nn.functional.cross_entropy(logits, target).detach())
    assert own != pytest.approx(expected, rel=1e-6)
    texts = [hybrid_row(seed, {"text": 1.0}) for seed in range(2)]
    assert build_hybrid.swapped_image_loss(model, encode_rows, texts, "cpu") > 0


def test_numbers_are_spelled_and_words_are_single_tokens() -> None:
    tokenizer = processor().tokenizer
    for seed in (*range(40), *range(EVAL_START, EVAL_START + 40)):
        text = sample_document(seed).text
        names = tokenizer.tokenize(text)
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        words = [name.removeprefix("Ġ") for name in names]
        assert not [word for word in words if len(word) > 1 and any(letter.isdigit() for letter in word)]
        assert all(word in words for word in text.replace(".", "").split() if word.isalpha())
        assert len(names) < TARGETS["vlm/hybrid"].new_tokens
    assert tokenizer.eos_token == END


def test_labels_are_the_letters_of_the_page() -> None:
    document = sample_document(11)
    labels = document_labels(document)
    for row, line in enumerate(document.lines):
        for column, letter in enumerate(line):
            token, corner = row // 2 * SIDE + column // 2, row % 2 * 2 + column % 2
            assert SIGNS[labels[f"letter{corner}"][token]] == letter
    torch.manual_seed(0)
    reader = MergedReader(new_model(processor().tokenizer, TINY).model.visual)
    pixels, grid, wanted = reading_batch(3, 2, 2)
    loss, notes = reading_loss(reader(pixels, grid), wanted)
    assert torch.isfinite(loss) and {"letter", "color", "shape", "digit"} <= notes.keys()
    alone = reading_loss(reader(*reading_batch(3, 0, 1)[:2]), reading_batch(3, 0, 1)[2])[1]
    assert alone.keys() == {"letter"}


def test_the_merger_speaks_the_words_of_the_text_model_all_properties_alike() -> None:
    tokenizer, (pixels, grid, _) = processor().tokenizer, reading_batch(3, 4, 4)
    spoken = []
    for loud in (1.0, 50.0):
        torch.manual_seed(0)
        model = new_model(tokenizer, TINY)
        reader, embedding = MergedReader(model.model.visual), model.get_input_embeddings().weight
        with torch.no_grad():
            reader.heads["color"].weight.mul_(loud)  # would drown the others
            logits = {name: one.flatten(0, 1) for name, one in reader(pixels, grid).items()}
            speak_words(reader, tokenizer, embedding, first_seed=64, pictures=8)
            spoken.append(reader.tower(pixels, grid_thw=grid).pooler_output)
    torch.testing.assert_close(*spoken, atol=1e-4, rtol=1e-3)
    assert float(spoken[0].std()) == pytest.approx(0.1, rel=0.2)
    for name, sign in (("color", " "), ("kind", " "), ("letter0", "")):
        names = SIGNS if name == "letter0" else PATCH_HEADS[name][0]
        ids = [tokenizer(f"{sign}{word}", add_special_tokens=False)["input_ids"][-1] for word in names]
        heard = spoken[0] @ torch.nn.functional.normalize(embedding[ids], dim=-1).T
        alike = torch.corrcoef(
            torch.stack([(heard - heard.mean(0)).flatten(), (logits[name] - logits[name].mean(0)).flatten()])
        )
        assert alike[0, 1] > 0.25, (name, alike)


def test_the_tower_is_frozen_and_its_merger_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = new_model(processor().tokenizer, TINY)
    before = {name: parameter.detach().clone() for name, parameter in model.model.visual.named_parameters()}
    recipe = HybridRecipe(TINY, steps=2, batch=2)
    build_hybrid.train_hybrid(model, HybridEncoder(processor().tokenizer), recipe, tmp_path)
    for name, parameter in model.model.visual.named_parameters():
        assert torch.equal(parameter, before[name]) != name.startswith("merger."), name


def test_the_shipped_size_is_three_megabytes_at_most() -> None:
    model = new_model(processor().tokenizer)
    assert sum(weight.numel() for weight in model.parameters()) * 2 <= 3_000_000
    assert set(model.config.text_config.layer_types) == {"linear_attention", "full_attention"}


@pytest.mark.whole
def test_a_build_is_resumed_and_gives_a_model_that_all_shapes_decode_alike(built: tuple[Path, dict]) -> None:
    folder, card = built
    recipe = HybridRecipe(TINY, tower_steps=2, steps=3, dense_steps=1, batch=2)
    assert build_hybrid.build(folder / "out", folder / "work", recipe)["training"] == card["training"]
    assert json.loads((folder / "out" / "card.json").read_text()) == card and card["layers"] == "df"
    model, own = read_hybrid(folder / "out")
    said = f"{sample_document(3).text} It is a handwritten 7."
    assert own.tokenizer.tokenize(said) == processor().tokenizer.tokenize(said)
    document, other = sample_document(EVAL_START), sample_document(EVAL_START + 1)
    asked = [Example("a", REQUESTS[0], (page(document),)), Example("b", REQUESTS[1], (page(other), page(document)))]
    inputs = encode(own, asked)
    expected = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    for drafter in (None, mmspec.drafters.PromptLookup(), mmspec.drafters.TokenRecycling()):
        found = mmspec.generate(model, drafter=drafter, max_new_tokens=12, do_sample=False, **inputs)
        assert torch.equal(found, expected)


@pytest.mark.whole
@pytest.mark.parametrize("name", ("vlm/hybrid/dflash", "vlm/hybrid/mtp"))
def test_its_drafters_are_built_loaded_and_lossless(
    name: str, built: tuple[Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(TARGETS["vlm/hybrid"], held_out=HeldOutDocumentRequests(2), pictures=4, texts=2)
    monkeypatch.setitem(build_drafter.TARGETS, "vlm/hybrid", few)
    model, own = read_hybrid(built[0] / "out")
    kind, sizes = RECIPES[name].kind, dict(RECIPES[name].sizes)
    recipe = DrafterRecipe(kind, sizes, steps=3, batch=2, eval_every=3, target="vlm/hybrid")
    card = build_drafter.build(tmp_path / "out", tmp_path / "work", (model, own), name, recipe)
    assert card["target"] == "vlm/hybrid" and card["training"]["loss"] > 0 and card["training"]["accept_length"] >= 1
    assert card == json.loads((tmp_path / "out" / "card.json").read_text())
    if kind == "mtp":
        drafter = mmspec.vlm.load_drafter(tmp_path / "out", target=model)
    else:
        drafter = read(name, tmp_path / "out")
    inputs = encode(own, [Example("a", REQUESTS[0], (page(sample_document(EVAL_START)),)), Example("b", "Hello.", ())])
    expected = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    for shape in (Chain(FixedLength(7)), DynamicTree(nodes=8, depth=4, width=3), StaticTree((0, 0, 1, 2, 2))):
        found = mmspec.generate(model, drafter=drafter.with_shape(shape), max_new_tokens=12, do_sample=False, **inputs)
        assert torch.equal(found, expected)


def test_mask_tokens_use_a_row_that_never_occurs_in_answers() -> None:
    row = RECIPES["vlm/hybrid/dflash"].sizes["mask_token_id"]
    assert processor().tokenizer.convert_ids_to_tokens(row) == VISION_START


def test_hybrid_drafters_are_also_trained_on_documents() -> None:
    few = DocumentRequests(40)
    keys = [few[index].key for index in range(40)]
    assert len(set(keys)) == 40 and {key.split("-")[0] for key in keys} == {"picture", "document"}
    assert [HeldOutDocumentRequests()[index].key.split("-")[0] for index in range(4)] == ["held", "document"] * 2
    assert few[14].text in REQUESTS and few[14].answer == sample_document(int(keys[14].split("-")[1])).text


@pytest.mark.parametrize(
    "wrong", ({"kinds": "ddd"}, {"kinds": ""}, {"kinds": "dx"}, {"width": 48}, {"tower_width": 40})
)
def test_sizes_that_are_none_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        HybridSize(**wrong)
