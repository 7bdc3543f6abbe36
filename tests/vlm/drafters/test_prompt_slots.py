"""What a drafter reads of a prompt: which tokens are which picture, whatever the padding, and how rows are packed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mmspec.vlm.drafters.base.prompt_slots import PictureSpans, PromptView, pack_slots, picture_numbers

P, Q = 90, 91  # placeholders


def test_runs_of_placeholders_are_pictures_numbered_from_1() -> None:
    ids = torch.tensor([[5, P, P, 6, P, 7, P, P, P], [P, 5, 6, 7, 8, 9, 5, 6, Q]])
    expected = [[0, 1, 1, 0, 2, 0, 3, 3, 3], [1, 0, 0, 0, 0, 0, 0, 0, 2]]
    assert picture_numbers(ids, (P, Q)).tolist() == expected
    assert picture_numbers(ids, ()).sum() == 0


def test_adjacent_pictures_are_separated_where_all_have_the_same_length() -> None:
    ids = torch.tensor([[P, P, P, P, 5, P, P, 6], [5, P, P, P, P, P, P, 6]])
    assert picture_numbers(ids, (P,), 2).tolist() == [[1, 1, 2, 2, 0, 3, 3, 0], [0, 1, 1, 2, 2, 3, 3, 0]]
    assert picture_numbers(ids, (P,)).tolist() == [[1, 1, 1, 1, 0, 2, 2, 0], [0, 1, 1, 1, 1, 1, 1, 0]]


def view(rows: list[list[int]], left: list[int], right: list[int], per_image: int | None = None) -> PromptView:
    """Rows padded on both sides, embeddings and states that say which token they are of."""
    ids = torch.stack([F.pad(torch.tensor(r), (a, b)) for r, a, b in zip(rows, left, right, strict=True)])
    real = [F.pad(torch.ones(len(r)), (a, b)) for r, a, b in zip(rows, left, right, strict=True)]
    padding = torch.stack(real) == 0
    mark = (ids * 10 + torch.arange(ids.shape[1]) / 100)[..., None].expand(-1, -1, 2)
    return PromptView.of(ids, mark, -mark, (P, Q), per_image, padding if padding.any() else None)


def test_pairs_are_shifted_by_one_token_with_their_pictures() -> None:
    read = view([[5, P, P, 6, 7]], [0], [0])
    assert read.picture.tolist() == [[1, 1, 0, 0]] and read.real is None
    assert read.embeds[0, :, 0].mul(0.1).round().tolist() == [P, P, 6, 7]
    assert read.hidden[0, :, 0].mul(-0.1).round().tolist() == [5, P, P, 6]
    assert read.last_picture.tolist() == [[1, 1, 1, 1]]
    assert read.position.tolist() == [[0, 1, 2, 3]]


def test_padding_on_either_side_changes_no_row() -> None:
    rows = [[P, P, P, 5, 6, P, P, 7], [5, 6], [5, P, P, 6], [P, 5, 6, 7]]
    together = view(rows, [1, 4, 2, 3], [1, 4, 4, 3])
    for row, ids in enumerate(rows):
        alone = view([ids], [0], [0])
        real = together.real[row]
        assert int(real.sum()) == len(ids) - 1
        for name in ("picture", "position", "last_picture"):
            assert torch.equal(getattr(together, name)[row, real], getattr(alone, name)[0]), name
        assert torch.equal(together.embeds[row, real].round(), alone.embeds[0].round())
        assert (together.picture[row, ~real] == 0).all()


def test_spans_know_where_pictures_lie() -> None:
    read = view([[P, P, P, 5, P], [5, 6, 7, 8, 9], [5, P, Q, P, P]], [0, 0, 0], [0, 0, 0])
    spans = PictureSpans.of(read.picture)
    assert spans.row.tolist() == [0, 0, 2]
    assert spans.number.tolist() == [1, 2, 1]
    assert spans.first.tolist() == [0, 3, 0]
    assert spans.length.tolist() == [2, 1, 4] and spans.longest == 4  # the first row of a first picture is shifted away
    there = spans.there
    assert there.sum(1).tolist() == [2, 1, 4]
    rows = spans.gather(read.embeds)
    assert rows.shape == (3, 4, 2)
    for k, (row, first, length) in enumerate(zip(spans.row, spans.first, spans.length, strict=True)):
        assert torch.equal(rows[k][there[k]], read.embeds[row, first : first + length])
    assert PictureSpans.of(torch.zeros(2, 5, dtype=torch.long)) is None


def test_spans_give_the_last_places_of_every_picture() -> None:
    spans = PictureSpans.of(torch.tensor([[0, 1, 1, 1, 0, 2], [1, 1, 0, 0, 0, 0]]))
    row, slot, used = spans.slots(2, 2)
    assert row.tolist() == [[0], [0], [1]]
    assert used.tolist() == [[True, True], [False, False], [True, True]]
    assert slot[0].tolist() == [2, 3] and slot[2].tolist() == [0, 1]
    row, slot, used = spans.slots(spans.length.clamp(max=2), 3)
    assert used.tolist() == [[True, True, False], [True, False, False], [True, True, False]]
    assert slot[used].tolist() == [2, 3, 5, 0, 1]


def packed_one_by_one(rows: Tensor, keep: Tensor) -> list[Tensor]:
    return [rows[b, keep[b]] for b in range(len(rows))]


def test_packing_moves_kept_rows_to_the_front() -> None:
    torch.manual_seed(0)
    attend, carry, context = torch.randn(3, 3, 7, 4)
    keep = torch.tensor([[1, 0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 0]]) > 0
    text = torch.tensor([1, 1, 0, 1, 1, 1, 1]).bool().expand(3, -1)
    position = torch.arange(7).expand(3, -1) + 10
    slots = pack_slots(attend, carry, keep, text, position=position, context=context, last_context=context[:, -1])
    assert slots.count.tolist() == [4, 0, 5] and slots.attend.shape == (3, 5, 4)
    for name, source in (("attend", attend), ("carry", carry), ("context", context)):
        for b, rows in enumerate(packed_one_by_one(source, keep)):
            assert torch.equal(getattr(slots, name)[b, : len(rows)], rows)
    assert slots.position[0, :4].tolist() == [10, 12, 13, 16] and slots.position[2].tolist() == [11, 12, 13, 14, 15]
    assert slots.next_position.tolist() == [17, 0, 16]
    assert slots.origin.tolist() == [[0, -1, 3, 6, -1], [-1] * 5, [1, -1, 3, 4, 5]]
    counted = pack_slots(attend, attend, keep, text)
    assert counted.next_position.tolist() == counted.count.tolist() == [4, 0, 5]
    assert counted.position[2].tolist() == [0, 1, 2, 3, 4]


def test_nothing_to_pack_is_passed_on() -> None:
    attend, text = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    for keep in (None, text):
        slots = pack_slots(attend, attend, keep, text)
        assert slots.attend is attend and slots.count.tolist() == slots.next_position.tolist() == [3, 3]
        assert slots.position.tolist() == slots.origin.tolist() == [[0, 1, 2]] * 2
    empty = pack_slots(attend[:, :0], attend[:, :0], text[:, :0], text[:, :0])
    assert empty.count.tolist() == empty.next_position.tolist() == [0, 0]
