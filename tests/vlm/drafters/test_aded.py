"""ADED: the likeliest paths of the table, exact text, and rows that do not depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

import mmspec
from mmspec.vlm.drafters.aded import Aded
from mmspec.vlm.drafters.base.likeliest_paths import LikeliestPaths
from mmspec.vlm.drafters.ngram_laws import LawTable
from tests.vlm.drafters.watched import Watched
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import prompt, tiny

SHARES = {0: (0.5, 0.3, 0.2), 1: (0.7, 0.2, 0.1), 2: (0.4, 0.35, 0.25)}  # after each token, the chances of 0, 1 and 2


def chain_of(place: int) -> Iterator[tuple[int, float, int]]:
    for token in sorted(range(3), key=lambda token: -SHARES[place][token]):
        yield token, SHARES[place][token], token


def paths_of(tree: LikeliestPaths) -> set[tuple[int, ...]]:
    paths = [()]
    for parent, token in zip(tree.parent[1:], tree.value[1:], strict=True):
        paths.append((*paths[parent], token))
    return set(paths[1:])


def chances() -> dict[tuple[int, ...], float]:
    """The chance of every path of up to three tokens from place 2."""
    every = {}
    for length in (1, 2, 3):
        for path in product(range(3), repeat=length):
            chance = 1.0
            for before, token in zip((2, *path), path, strict=False):
                chance *= SHARES[before][token]
            every[path] = chance
    return every


@pytest.mark.parametrize("nodes", (1, 4, 9, 20))
def test_the_search_finds_the_likeliest_paths(nodes: int) -> None:
    found = paths_of(LikeliestPaths(nodes, 3).grow(2, chain_of))
    best = sorted(chances().values(), reverse=True)[:nodes]
    assert sorted((chances()[path] for path in found), reverse=True) == pytest.approx(best)


def test_the_search_stops_at_its_depth_and_at_unlikely_paths() -> None:
    assert paths_of(LikeliestPaths(50, 2).grow(2, chain_of)) == {path for path in chances() if len(path) < 3}
    assert paths_of(LikeliestPaths(50, 3, 0.1).grow(2, chain_of)) == {p for p, c in chances().items() if c >= 0.1}
    assert LikeliestPaths(50, 0).grow(2, chain_of).value == [0]


@pytest.mark.parametrize("kind", ("llama", "qwen2_5_vl"))
def test_greedy_text_is_that_of_transformers(kind: str) -> None:
    inputs = prompt(kind, images=0 if kind == "llama" else 1, where="echo", batch=4)
    drafter, settings = Watched(Aded(table=LawTable(2, 2))), dict(max_new_tokens=24, do_sample=False)
    truth = tiny(kind).generate(**inputs, **settings)
    passes = []
    for _ in range(2):
        out = mmspec.generate(tiny(kind), drafter=drafter, return_dict=True, **settings, **inputs)
        assert torch.equal(out.sequences, truth)
        passes.append(out.stats.target_passes)
    assert passes[1] < passes[0]
    barred = drafter.state.barred
    assert not barred & {token for r in drafter.rounds for row in range(4) for token in r.drafted(row)}


@pytest.mark.whole
def test_sampled_text_has_the_targets_joint_law() -> None:
    drafter = Aded(table=LawTable(2, 2))
    for rows in (60, ROWS // 2):
        out = mmspec.generate(
            narrow(),
            input_ids=PROMPT.expand(rows, -1),
            drafter=drafter,
            seed=rows,
            do_sample=True,
            top_k=0,
            temperature=1.0,
            max_new_tokens=STEPS + 2,
            return_dict=True,
        )
    assert p_value(out.sequences[:, PROMPT.shape[1] :][:, :STEPS], exact_law(1.0)) > 1e-3
    assert out.stats.accept_length > 1.3


def test_a_row_alone_is_the_row_in_a_batch() -> None:
    inputs = prompt("llama", batch=4)
    settings = dict(drafter=Aded(), do_sample=True, temperature=0.8, max_new_tokens=24)
    together = mmspec.generate(tiny("llama"), seed=[5, 6, 7, 8], **settings, **inputs)[:, -24:]
    for row in range(4):
        keep = inputs["attention_mask"][row].bool()
        ids = inputs["input_ids"][row : row + 1, keep]
        assert torch.equal(
            mmspec.generate(tiny("llama"), seed=[5 + row], input_ids=ids, **settings)[0, -24:], together[row]
        )


def test_settings_are_read_and_checked() -> None:
    assert mmspec.methods.parse("aded:nodes=5,least=0.1", domain="vlm").make() == Aded(nodes=5, least=0.1)
    for wrong in (dict(nodes=0), dict(depth=0), dict(least=1.0), dict(ngram=0), dict(table=LawTable())):
        with pytest.raises(ValueError, match="expected"):
            Aded(**wrong)
