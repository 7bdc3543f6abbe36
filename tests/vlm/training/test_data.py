"""Examples of files: what is held out, what the streams hold, and keys that stay apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmspec.vlm.training.data import load_training_data


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Six examples, every other with a picture, and four texts whose keys are the same numbers."""
    Image.new("RGB", (8, 8), "navy").save(tmp_path / "a.png")
    first = [{"text": f"one {n}", **({"images": ["a.png"]} if n % 2 else {})} for n in range(6)]
    second = [{"text": f"two {n}"} for n in range(4)]
    made = []
    for name, lines in (("first", first), ("second", second)):
        made.append(tmp_path / f"{name}.jsonl")
        made[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made[0], made[1]


def test_every_example_is_in_one_split(files: tuple[Path, Path]) -> None:
    data = load_training_data(*files, held_out=2)
    mixed, pictures, texts, held_out = (
        [part[i] for i in range(len(part))] for part in (data.mixed, data.pictures, data.texts, data.held_out)
    )
    assert [bool(prompt.images) for prompt in held_out] == [True, True]
    assert [bool(picture.images) for picture in pictures] == [True] and not any(text.images for text in texts)
    assert {one.key for one in mixed} == {picture.key for picture in pictures + texts}
    keys = [one.key for one in mixed + held_out]
    assert len(set(keys)) == 10 and {"0", "text-0"} <= set(keys)


def test_the_order_is_that_of_the_seed(files: tuple[Path, Path]) -> None:
    def order(seed: int) -> list[str]:
        mixed = load_training_data(*files, held_out=0, seed=seed).mixed
        return [mixed[i].text for i in range(len(mixed))]

    assert order(0) == order(0) != order(1) and sorted(order(0)) == sorted(order(1))


def test_pictures_are_kept_out_of_the_texts(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="expected examples without images, got some with"):
        load_training_data(files[1], files[0])
