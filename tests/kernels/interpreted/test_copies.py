"""What moves, mirrors, pools and attends: kernels against references."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.tree import static_tree
from mmspec.kernels.draft_tree import move_slots, move_slots_reference, take_nodes, take_nodes_reference
from mmspec.kernels.neighbour_pooling import (
    borrowed_mass,
    borrowed_mass_reference,
    pooled_mass,
    pooled_mass_reference,
    ranked_window,
    ranked_window_reference,
)
from mmspec.kernels.reflection_coupling import log_ratio, log_ratio_reference, reflect_point, reflect_point_reference
from mmspec.kernels.tree_attention import ancestor_bits, tree_attention, tree_attention_reference
from tests.kernels.interpreted.conftest import DEVICE
from tests.kernels.interpreted.laws import scores


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("width", (1, 3, 16, 1100))
@pytest.mark.parametrize("each", (False, True), ids=("one scale", "scale each"))
@pytest.mark.poison
def test_reflection(width: int, each: bool) -> None:
    generator = torch.Generator().manual_seed(width)
    for dtype, close in (
        (torch.float32, {"rtol": 1e-4, "atol": 1e-4}),
        (torch.float64, {"rtol": 1e-12, "atol": 1e-12}),
    ):
        value, draft, mean = torch.randn(3, 2, 3, width, generator=generator, dtype=dtype)
        scale = torch.rand(2, 3, width if each else 1, generator=generator, dtype=dtype) + 0.3
        mean[0, 0], value[1, 1] = draft[0, 0], torch.nan
        given = (value, draft, mean, scale)
        torch.testing.assert_close(log_ratio(*given), log_ratio_reference(*given), equal_nan=True, **close)
        torch.testing.assert_close(reflect_point(*given), reflect_point_reference(*given), equal_nan=True, **close)
        ours, expected = reflect_point(*given)[0, 0], reflect_point_reference(*given)[0, 0]
        assert torch.equal(ours, expected) if DEVICE == "cpu" else torch.allclose(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_path_moves_into_place_in_every_layer_and_touches_nothing_else(dtype: torch.dtype) -> None:
    keys, values = torch.randn(3, 3, 2, 20, 5).to(dtype), torch.randn(3, 3, 2, 20, 3).to(dtype)
    length = torch.tensor([4, 0, 9])
    source = torch.tensor([[0, 2, 5, 3], [1, 3, 4, 9], [0, 1, 2, 3]])
    expected = keys.clone(), values.clone()
    move_slots_reference(*expected, length, source)
    stayed = keys[:, 2].clone()
    move_slots(keys, values, length, source)
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
    assert torch.equal(keys[:, 2], stayed) and torch.equal(keys[:, 0, :, 5], expected[0][:, 0, :, 5])


def test_hidden_states_of_a_path_lie_side_by_side() -> None:
    states, node = torch.randn(2, 6, 5000), torch.tensor([[0, 2, 5, 5], [0, 1, 1, 1]])
    assert torch.equal(take_nodes(states, node), take_nodes_reference(states, node))
    assert torch.equal(take_nodes(states[..., 0], node), take_nodes_reference(states[..., 0], node))


@pytest.mark.parametrize(("size", "codes", "near"), [(7, 7, 3), (1013, 1000, 50), (16384, 16384, 1000)])
def test_neighbours_lend_mass_within_the_budget(size: int, codes: int, near: int) -> None:
    law = scores(size, 2, torch.float32, 0).softmax(-1)
    table = torch.randint(codes, (codes, near))
    token = torch.tensor([[0, size - 1], [codes - 1, size // 2]])
    law[1, 1, table[size // 2, :3]] = 0
    for budget in (0.0, 0.01, 0.3, 1.0):
        given = (law, token, table, torch.full((2, 2), budget))
        found, expected = borrowed_mass(*given), borrowed_mass_reference(*given)
        # one more neighbour where the sum lies on the budget
        assert ((found - expected).abs() < 1e-6).sum() >= 3 and (found <= budget + 1e-6).all()


@pytest.mark.parametrize(("size", "below", "above"), [(7, 2, 2), (1013, 7, 6), (16384, 7, 6)])
def test_ranked_windows_and_their_pooled_mass(size: int, below: int, above: int) -> None:
    law = scores(size, 2, torch.float32, 1).softmax(-1)
    law[0, 0] = (law[0, 0] * 50).round() / 50  # ties
    token = torch.stack((law[:, 0].argmax(-1), torch.randint(size, (2,))), 1)
    member, mass = ranked_window(law, token, below, above)
    _, expected = ranked_window_reference(law, token, below, above)
    assert torch.equal(mass, expected)
    there = mass.isfinite()
    assert torch.equal(law.gather(2, member)[there], mass[there])
    own = law.gather(2, token[..., None])
    key = torch.where(mass == own, member, -1)
    assert ((key > token[..., None]) | (key < 0))[..., :below].all()  # of equals, the lower id is the likelier
    found, pooled = (f(law, token, member, there) for f in (pooled_mass, pooled_mass_reference))
    torch.testing.assert_close(found, pooled)


@pytest.mark.parametrize(
    ("nodes", "width", "hidden", "heads", "key_heads", "size", "dtype"),
    [
        (1, 0, 0, 2, 1, 8, torch.float32),
        (7, 13, 3, 4, 2, 24, torch.float32),
        (31, 600, 0, 2, 2, 16, torch.float32),
        (64, 70, 5, 2, 2, 64, torch.bfloat16),
    ],
)
@pytest.mark.poison
def test_a_tree_attends_to_the_cache_and_its_own_path(
    nodes: int, width: int, hidden: int, heads: int, key_heads: int, size: int, dtype: torch.dtype
) -> None:
    tree = static_tree([0] + [int(torch.randint(i, ())) for i in range(1, nodes)])
    query = torch.randn(2, heads, nodes, size).to(dtype)
    keys, values = (torch.randn(2, key_heads, width + nodes + 3, size).to(dtype) for _ in range(2))
    length = torch.tensor([width, max(width - 4, 0)])
    for b in range(2):  # what no node may see
        keys[b, :, length[b] + nodes :], values[b, :, length[b] + nodes :] = torch.nan, torch.nan
    gone = None
    if hidden:
        gone = torch.zeros(2, hidden, dtype=torch.bool)
        gone[1, :2] = True
    found = tree_attention(query, keys, values, length, width, tree.ancestor, gone)
    keys, values = keys.nan_to_num(), values.nan_to_num()
    expected = tree_attention_reference(query, keys, values, length, width, tree.ancestor, gone, size**-0.5)
    torch.testing.assert_close(found, expected, **({} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}))


def test_bits_name_the_ancestors_up_to_the_64th_node() -> None:
    tree = static_tree([max(i - 1, 0) for i in range(64)])
    bits = ancestor_bits(tree.ancestor)[0].tolist()
    assert bits[0] == 1 and bits[5] == 0b111111 and bits[63] == -1
    with pytest.raises(ValueError, match="expected at most 64 nodes, got 65"):
        ancestor_bits(torch.ones(1, 65, 65, dtype=torch.bool))
