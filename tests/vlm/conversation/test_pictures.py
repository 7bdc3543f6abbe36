"""Which pictures a turn adds is told by how its inputs have grown."""

from __future__ import annotations

import pytest
import torch

from mmspec.vlm.conversation.turn import added_pictures, picture_inputs, pixel_names

ONE, TWO = torch.arange(12.0).view(1, 3, 2, 2), torch.arange(24.0).view(2, 3, 2, 2)


def test_pictures_after_the_earlier_pictures_are_new() -> None:
    assert added_pictures({}, {"pixel_values": TWO})["pixel_values"] is TWO
    assert added_pictures({"pixel_values": ONE}, {}) == {}
    assert added_pictures({"pixel_values": TWO}, {"pixel_values": TWO.clone()}) == {}
    assert torch.equal(added_pictures({"pixel_values": ONE}, {"pixel_values": TWO})["pixel_values"], TWO[1:])


def test_grids_and_lists_grow_beside_the_patches() -> None:
    old = {"pixel_values": torch.ones(4, 5), "image_grid_thw": torch.tensor([[1, 2, 2]]), "sizes": [(2, 2)]}
    grid = torch.tensor([[1, 2, 2], [1, 2, 3]])
    new = {"pixel_values": torch.ones(10, 5), "image_grid_thw": grid, "sizes": [(2, 2), (2, 3)]}
    found = added_pictures(old, new)
    assert found["pixel_values"].shape == (6, 5)
    assert found["image_grid_thw"].tolist() == [[1, 2, 3]] and found["sizes"] == [(2, 3)]


def test_other_axes_may_have_been_padded_further() -> None:
    old = torch.ones(1, 2, 3)
    new = torch.nn.functional.pad(torch.cat([old, 2 * old]), (0, 0, 0, 2))
    assert torch.equal(added_pictures({"pixel_values": old}, {"pixel_values": new})["pixel_values"], new[1:])
    tiles = torch.arange(30.0).view(1, 5, 6)  # a batch of one row, whose second axis counts tiles
    assert torch.equal(
        added_pictures({"pixel_values": tiles[:, :3]}, {"pixel_values": tiles})["pixel_values"], tiles[:, 3:]
    )


@pytest.mark.parametrize(
    "old, new",
    (
        ({"pixel_values": TWO}, {"pixel_values": ONE}),
        ({"pixel_values": ONE}, {"pixel_values": TWO + 1}),
        ({"pixel_values": ONE}, {"pixel_values": TWO[:, 0]}),
        ({"pixel_values": ONE}, {"pixel_values": TWO, "image_sizes": torch.ones(2, 2)}),
        ({"counts": torch.tensor([1])}, {"counts": torch.tensor([2])}),
        ({"sizes": [1]}, {"sizes": [2, 3]}),
    ),
    ids=("fewer", "others", "another shape", "another input", "a count", "another list"),
)
def test_indistinguishable_pictures_return_none(old: dict, new: dict) -> None:
    assert added_pictures(old, new) is None


def test_pictures_that_are_others_now_are_refused() -> None:
    with pytest.raises(ValueError, match="pixel_values: expected the pictures of earlier turns first and unchanged"):
        added_pictures({"pixel_values": ONE}, {"pixel_values": ONE + 1})


def test_ids_and_masks_are_no_pictures() -> None:
    inputs = {
        "input_ids": torch.ones(1, 3),
        "attention_mask": torch.ones(1, 3),
        "num_return_sequences": 1,
        "pixel_values": ONE,
        "image_sizes": torch.tensor([[2, 2]]),
    }
    assert set(picture_inputs(inputs)) == {"pixel_values", "image_sizes"} and pixel_names(inputs) == {"pixel_values"}
