"""STAND: the table of distributions, the drawn trees, the law of what is sampled, and what requests share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.core.drafting.stored_laws import NgramLaws, StoredLawTrees
from mmspec.core.round.draft import Law
from mmspec.vlm.drafters.ngram_laws import LawTable
from mmspec.vlm.drafters.stand import Stand
from tests.vlm.drafters.watched import Watched
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value
from tests.vlm.tiny import IMAGE, VIDEO, prompt, tiny

SIZES = dict(max_ngram=3, min_ngram=1, width=3)


def laws(**sizes: int) -> NgramLaws:
    return NgramLaws(*(dict(max_ngram=3, min_ngram=2, width=2, most=9) | sizes).values())


def run(drafter: object, kind: str = "llama", tokens: int = 30, **inputs: object) -> object:
    settings = dict(max_new_tokens=tokens, return_dict=True, do_sample=False) | inputs
    return mmspec.generate(tiny(kind), drafter=drafter, **settings)


def test_a_stored_law_is_the_mean_over_the_union_of_the_likeliest_tokens() -> None:
    table = laws()
    table.store((4, 5), (7, 8), (0.6, 0.3))
    table.store((4, 5), (8, 9), (0.9, 0.1))
    assert (table.find((4, 5)).ids, table.find((4, 5)).count) == ([8, 7], 2)
    table.store((4, 5), (9, 7), (0.9, 0.06))
    law = table.find((4, 5))
    assert law.ids == [8, 9] or law.ids == [8, 7]
    assert law.mass[0] == pytest.approx(0.4) and law.mass[1] == pytest.approx(0.3)


def test_the_longest_known_ngram_is_read_and_short_ones_are_not_stored() -> None:
    table = laws()
    table.store((3, 4, 5), (7,), (1.0,))
    assert set(table.laws) == {(3, 4, 5), (4, 5)}
    table.store((9, 4, 5), (8,), (1.0,))
    assert table.find((1, 3, 4, 5)).ids == (7,) and table.find((9, 4, 5)).ids == (8,)
    assert table.find((2, 4, 5)).mass == [0.5, 0.5] and table.find((5,)) is None and table.find((4, 6)) is None


def test_the_oldest_ngrams_are_forgotten() -> None:
    table = laws(most=2)
    for token in range(3):
        table.store((token, token), (1,), (1.0,))
    assert list(table.laws) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("batch", (pytest.param(1, marks=pytest.mark.whole), 4))
@pytest.mark.parametrize("kind", (pytest.param("llama", marks=pytest.mark.whole), "llava", "qwen2_5_vl"))
def test_greedy_text_is_that_of_transformers_and_placeholders_are_never_touched(kind: str, batch: int) -> None:
    inputs = prompt(kind, images=0 if kind == "llama" else 1, where="echo", batch=batch)
    drafter = Watched(Stand(nodes=12))
    out = run(drafter, kind, 24, **inputs)
    assert torch.equal(out.sequences, tiny(kind).generate(**inputs, max_new_tokens=24, do_sample=False))
    barred = drafter.state.barred
    assert ({IMAGE, VIDEO} <= barred) == (kind == "qwen2_5_vl") and (IMAGE in barred) == (kind != "llama")
    assert not barred & {token for r in drafter.rounds for row in range(batch) for token in r.drafted(row)}
    for table in drafter.state.laws:
        assert not barred & {token for key, law in table.laws.items() for token in (*key, *law.ids)}
    assert any(r.draft.tree.nodes > 1 for r in drafter.rounds)


def test_ngrams_do_not_cross_a_picture() -> None:
    decoding = mmspec.vlm.start(tiny("llava"), drafter=Stand(), max_new_tokens=4, **prompt("llava", 1, where="end"))
    decoding.step()
    state = decoding.state
    assert state.tail((3, 4, IMAGE, IMAGE, 5, 6)) == (5, 6) and state.tail((1, 2, 3, 4, 5, 6)) == (3, 4, 5, 6)
    assert state.prompts[0] == () and state.text(decoding.target, 0) == tuple(decoding.target.tokens[0])


def test_children_are_stored_tokens_in_draw_order_and_unknown_ngrams_are_leaves() -> None:
    drafter = Watched(Stand(nodes=12, width=4))
    run(drafter, tokens=40, do_sample=True, seed=3, **prompt("llama", batch=4))
    leaves = 0
    for r in drafter.rounds:
        law, parent = r.draft.law, r.draft.tree.parent[0].tolist()
        if r.draft.tree.nodes == 1:
            continue
        assert law.drawn == "without_replacement"
        for row in range(4):
            valid = [True] * len(parent) if r.draft.valid is None else r.draft.valid[row].tolist()
            leaves += not all(valid)
            # nothing is drafted past the end
            assert not any(
                valid[n] for n in range(1, len(parent)) if r.draft.tree.depth[0, n] >= 40 - len(r.tokens[row])
            )
            for node in (n for n in range(1, len(parent)) if valid[n]):
                place, token = int(law.row[parent[node]]), int(r.draft.value[row, node])
                chances = law.scores[row, place].softmax(-1)
                assert float(chances[law.ids[row, place] == token]) > 0 and valid[parent[node]]
            family = [(parent[n], int(r.draft.value[row, n])) for n in range(1, len(parent)) if valid[n]]
            assert len(family) == len(set(family))
    assert leaves


def warm(**settings: object) -> Stand:
    """A drafter whose table knows the narrow target's distributions, of which it stores three tokens."""
    drafter = Stand(nodes=5, depth=3, **SIZES, table=LawTable(**SIZES), **settings)
    sample(drafter, rows=60, seed=77)
    return drafter


def sample(drafter: Stand, rule: str = "exact", rows: int = ROWS, seed: int = 0) -> tuple[torch.Tensor, float]:
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(rows, -1),
        drafter=drafter,
        rule=rule,
        seed=seed,
        do_sample=True,
        top_k=0,
        temperature=1.0,
        max_new_tokens=STEPS + 2,
        return_dict=True,
    )
    return out.sequences[:, PROMPT.shape[1] :][:, :STEPS], out.stats.accept_length


@pytest.mark.parametrize(
    ("rule", "drawn"),
    [
        ("exact", "without_replacement"),
        pytest.param("recursive", "without_replacement", marks=pytest.mark.whole),
        pytest.param("match", "deterministic", marks=pytest.mark.whole),
    ],
)
def test_sampled_text_has_the_targets_joint_law(rule: str, drawn: str) -> None:
    tokens, length = sample(warm(drawn=drawn), rule)
    assert p_value(tokens, exact_law(1.0)) > 1e-3 and length > 1.3


def test_a_record_that_is_not_renormalised_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    record = StoredLawTrees.record

    def with_rest(self: StoredLawTrees, laws: object, device: torch.device) -> Law:
        """The stored probabilities as they are, with the rest on tokens that are not stored."""
        law = record(self, laws, device)
        rest = [[max(1 - sum(entry.mass), 1e-9) for entry in row] for row in laws]
        other = [[next(t for t in range(8) if t not in entry.ids) for entry in row] for row in laws]
        mass = torch.tensor([[(*entry.mass, *[0.0] * (3 - len(entry.mass))) for entry in row] for row in laws])
        return replace(
            law,
            scores=torch.cat([mass, torch.tensor(rest)[..., None]], -1).log(),
            ids=torch.cat([law.ids, torch.tensor(other)[..., None]], -1),
        )

    drafter = warm()
    monkeypatch.setattr(StoredLawTrees, "record", with_rest)
    assert p_value(sample(drafter, rows=ROWS // 2)[0], exact_law(1.0)) < 1e-6


@pytest.mark.parametrize("drawn", ("without_replacement", pytest.param("deterministic", marks=pytest.mark.whole)))
def test_a_row_alone_is_the_row_in_a_batch(drawn: str) -> None:
    inputs = prompt("llama", batch=4)
    settings = dict(do_sample=True, temperature=0.8, tokens=24)
    together = run(Stand(drawn=drawn), seed=[5, 6, 7, 8], **settings, **inputs).sequences[:, -24:]
    for row in range(4):
        keep = inputs["attention_mask"][row].bool()
        alone = run(Stand(drawn=drawn), seed=[5 + row], **settings, input_ids=inputs["input_ids"][row : row + 1, keep])
        assert torch.equal(alone.sequences[0, -24:], together[row])


def test_requests_share_a_table_of_their_settings_only() -> None:
    inputs, table = prompt("llama"), LawTable()
    alone = [run(Stand(), **inputs) for _ in range(2)]
    assert alone[0].stats.accepted == alone[1].stats.accepted
    sharing = [run(Stand(table=table), **inputs) for _ in range(2)]
    assert torch.equal(sharing[0].sequences, sharing[1].sequences)
    assert sharing[1].stats.target_passes < sharing[0].stats.target_passes == alone[0].stats.target_passes
    for temperature in (1.0, 0.7, 1.0):
        run(Stand(table=table), tokens=3, do_sample=True, temperature=temperature, **inputs)
    assert len(table.parts) == 3


def test_the_text_form_makes_the_drafter() -> None:
    made = mmspec.methods.parse("stand:nodes=5,min_ngram=2,drawn=deterministic", domain="vlm").make()
    assert made == Stand(nodes=5, min_ngram=2, drawn="deterministic")


def test_settings_are_checked() -> None:
    for wrong in (dict(min_ngram=0), dict(max_ngram=1, min_ngram=2), dict(width=0), dict(nodes=0), dict(depth=0)):
        with pytest.raises(ValueError, match="expected"):
            Stand(**wrong)
    with pytest.raises(ValueError, match="drawn"):
        Stand(drawn="none")
    with pytest.raises(ValueError, match="use its sizes"):
        Stand(table=LawTable(width=4))
    table = LawTable()
    run(Stand(table=table), **prompt("llama"))
    with pytest.raises(ValueError, match="vocabulary 101"):
        mmspec.generate(narrow(), input_ids=PROMPT, drafter=Stand(table=table), max_new_tokens=3)
