"""Partial passes of a decoder, against one written out token by token, and what they choose."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.imagegen.continuous.mar.adapter import MARModel
from mmspec.imagegen.continuous.schedules import token_cache
from mmspec.imagegen.continuous.schedules.feature_cache import FeatureCachedModel, Lazy
from mmspec.imagegen.continuous.schedules.token_cache import least_similar
from tests.imagegen.continuous.mar.reference import State, conditions, decoder_input, linear, norm
from tests.imagegen.continuous.tiny import SIZES, transformer

CLOSE = dict(atol=2e-5, rtol=2e-5)
LABELS = torch.tensor([0, 4, 2])
SLOTS = SIZES.buffer_size + 16
Pass = tuple[Tensor, Tensor, Tensor]


def given() -> list[Pass]:
    """Five passes of three rows: tokens, mask and what is wanted. Rows know and want differently much; between passes a
    token of the last row is masked again, and one of the second gets another value."""
    drawn = torch.Generator().manual_seed(3)
    tokens = torch.randn(3, 16, 3, generator=drawn)
    order = torch.rand(3, 16, generator=drawn).argsort(1)
    known = [(0, 0, 0), (2, 1, 3), (4, 5, 3), (7, 6, 9), (9, 8, 12)]
    ahead = [(2, 1, 3), (2, 4, 0), (3, 1, 6), (2, 2, 3), (3, 4, 1)]
    passes = []
    for number, (counts, next_ones) in enumerate(zip(known, ahead, strict=True)):
        mask, wanted = torch.ones(3, 16, dtype=torch.bool), torch.full((3, max(next_ones) + 1), 16)
        for row in range(3):
            mask[row, order[row, : counts[row]]] = False
            wanted[row, 1 : 1 + next_ones[row]] = order[row, counts[row] : counts[row] + next_ones[row]]
        tokens = tokens.clone()
        if number == 2:
            tokens[1, order[1, 0]] += 1
            mask[2, order[2, 0]] = True
        passes.append((tokens.masked_fill(mask[..., None], 0), mask, wanted))
    return passes


class ByHand:
    """A decoder of one row that keeps keys, values and outputs of every token in lists."""

    def __init__(self, label: int, share: float):
        self.state: State = transformer().state_dict()
        self.label, self.share = label, share
        self.keys: list[list[Tensor]] = [[None] * SLOTS for _ in range(SIZES.decoder_depth)]
        self.values: list[list[Tensor]] = [[None] * SLOTS for _ in range(SIZES.decoder_depth)]
        self.read, self.out = [None] * SLOTS, [None] * SLOTS
        self.before: tuple[Tensor, Tensor] | None = None
        self.chosen: list[int] = []

    def run(self, tokens: Tensor, mask: Tensor, wanted: Tensor, whole: bool) -> Tensor:
        x = decoder_input(tokens, mask, self.label, self.state, SIZES.encoder_num_heads)
        self.chosen = list(range(SLOTS)) if whole else self.choose(x, tokens, mask, wanted)
        self.before = tokens, mask
        now = {slot: x[slot] for slot in self.chosen}
        self.read = [now.get(slot, old) for slot, old in enumerate(self.read)]
        for number in range(SIZES.decoder_depth):
            now = self.block(now, number)
        self.out = [now.get(slot, old) for slot, old in enumerate(self.out)]
        return conditions(torch.stack(self.out), self.state)

    def choose(self, x: Tensor, tokens: Tensor, mask: Tensor, wanted: Tensor) -> list[int]:
        must = {int(at) for at in wanted if at < 16}
        for at in range(16):
            other = bool(mask[at] != self.before[1][at])
            if other or (not mask[at] and not torch.equal(tokens[at], self.before[0][at])):
                must.add(at)
        must = {SIZES.buffer_size + at for at in must}
        like = {s: float(F.cosine_similarity(x[s], self.read[s], dim=0)) for s in range(SLOTS) if s not in must}
        like = {slot: round(value, 6) for slot, value in like.items()}
        return [*must, *sorted(like, key=like.get)[: math.ceil(self.share * SLOTS)]]

    def block(self, now: dict[int, Tensor], number: int) -> dict[int, Tensor]:
        state, name, heads = self.state, f"decoder_blocks.{number}", SIZES.decoder_num_heads
        query, made = {}, {}
        for slot, x in now.items():
            query[slot], self.keys[number][slot], self.values[number][slot] = linear(
                norm(x[None], state, f"{name}.norm1"), state, f"{name}.attn.qkv"
            )[0].chunk(3)
        keys, values = torch.stack(self.keys[number]), torch.stack(self.values[number])
        size = keys.shape[1] // heads
        for slot, x in now.items():
            parts = []
            for part in (slice(n * size, (n + 1) * size) for n in range(heads)):
                weight = torch.softmax(keys[:, part] @ query[slot][part] / math.sqrt(size), 0)
                parts.append(weight @ values[:, part])
            x = x + linear(torch.cat(parts)[None], state, f"{name}.attn.proj")[0]
            hidden = F.gelu(linear(norm(x[None], state, f"{name}.norm2"), state, f"{name}.mlp.fc1"))
            made[slot] = x + linear(hidden, state, f"{name}.mlp.fc2")[0]
        return made


def by_hand(lazy: Lazy, null: bool) -> tuple[list[Tensor], list[list[int]]]:
    """z [C, 3, 16, width] of every pass, and how many tokens each row computed in those that are not whole."""
    branches = [[ByHand(label, lazy.tokens) for label in labels] for labels in (LABELS.tolist(), [-1] * 3)]
    made, counts, gap = [], [], torch.zeros(())
    for number, (tokens, mask, wanted) in enumerate(given()):
        whole = lazy.whole(number)
        run = branches if whole or not null else branches[:1]
        z = torch.stack(
            [
                torch.stack([one.run(tokens[row], mask[row], wanted[row], whole) for row, one in enumerate(branch)])
                for branch in run
            ]
        )
        if len(run) == 1:
            z = torch.cat((z, z + gap))
        elif whole:
            gap = z[1:] - z[:1]
        made.append(z)
        if not whole:
            counts.append([len(one.chosen) for branch in run for one in branch])
    return made, counts


def built(lazy: Lazy, rows: slice = slice(None)) -> tuple[list[Tensor], FeatureCachedModel]:
    model, made = FeatureCachedModel(MARModel(transformer()), lazy), []
    for tokens, mask, wanted in given():
        made.append(model.condition(tokens[rows], mask[rows], LABELS[rows], True, wanted[rows]).clone())
    return made, model


@pytest.mark.covering(strength=1)
@torch.no_grad()
@pytest.mark.parametrize("share", (0.0, 0.2, 0.5))
@pytest.mark.parametrize("null", (True, False))
def test_a_partial_pass_matches_a_hand_written_reference(null: bool, share: float) -> None:
    lazy = Lazy(1, 3, null, share)  # whole: the first and the fourth of five
    made, model = built(lazy)
    expected, counts = by_hand(lazy, null)
    for number, (one, other) in enumerate(zip(made, expected, strict=True)):
        torch.testing.assert_close(one, other, **CLOSE, msg=lambda text, at=number: f"pass {at}: {text}")
    assert model.cache.computed == counts
    plain = MARModel(transformer())
    far = [
        not torch.allclose(entry, plain.condition(*asked[:2], LABELS, True), atol=1e-3)
        for entry, asked in zip(made, given(), strict=True)
    ]
    assert far == [False, True, True, False, True]


def stale_keys_and_values(patch: pytest.MonkeyPatch) -> None:
    def put(self: object, number: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(layer.now for layer in self.cache.layers[number])

    patch.setattr(token_cache._PartialPass, "_put", put)


def stale_inputs(patch: pytest.MonkeyPatch) -> None:
    enter = token_cache._PartialPass.enter

    def forgetful(self: object, x: Tensor) -> Tensor:
        before = self.cache.inputs.all.clone()
        chosen = enter(self, x)
        self.cache.inputs.all.copy_(before)
        return chosen

    patch.setattr(token_cache._PartialPass, "enter", forgetful)


def stale_outputs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(token_cache._PartialPass, "leave", lambda self, x: self.cache.outputs.now)


def stale_whole_passes(patch: pytest.MonkeyPatch) -> None:
    keep = token_cache._FullPass._keep

    def once(self: object, number: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return (keys, values) if number in self.cache.layers else keep(self, number, keys, values)

    patch.setattr(token_cache._FullPass, "_keep", once)


def changes_unseen(patch: pytest.MonkeyPatch) -> None:
    slots = FeatureCachedModel._slots

    def blind(self: object, tokens: Tensor, mask: Tensor, *rest: object) -> object:
        self._seen = tokens, mask
        return slots(self, tokens, mask, *rest)

    patch.setattr(FeatureCachedModel, "_slots", blind)


MUTANTS = (stale_keys_and_values, stale_inputs, stale_outputs, stale_whole_passes, changes_unseen)


@torch.no_grad()
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_cache_that_forgets_to_refresh_shows(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = Lazy(1, 3, False, 0.2)
    mutant(monkeypatch)
    made, expected = built(lazy)[0], by_hand(lazy, False)[0]
    assert not all(torch.allclose(entry, other, **CLOSE) for entry, other in zip(made, expected, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("lazy", (Lazy(1, 9, False, 1.0), Lazy(1, 1, True, 0.1), Lazy(5, 9, True, 0.0)))
def test_passes_that_leave_nothing_out_are_the_models_own(lazy: Lazy) -> None:
    model = MARModel(transformer())
    for one, (tokens, mask, _) in zip(built(lazy)[0], given(), strict=True):
        torch.testing.assert_close(one, model.condition(tokens, mask, LABELS, True), atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("null", (True, False))
def test_rows_that_want_differently_many_are_each_as_alone(null: bool) -> None:
    lazy = Lazy(1, 3, null, 0.2)
    together, model = built(lazy)
    assert all(len(set(counts)) > 1 for counts in model.cache.computed)
    for row in range(3):
        alone, own = built(lazy, slice(row, row + 1))
        for margin, all_rows in zip(alone, together, strict=True):
            torch.testing.assert_close(margin[:, 0], all_rows[:, row], **CLOSE)
        assert [counts[0] for counts in own.cache.computed] == [counts[row] for counts in model.cache.computed]


@torch.no_grad()
def test_wanted_and_changed_tokens_are_recomputed_with_the_share() -> None:
    passes = given()
    for share in (0.0, 0.2, 1.0):
        model = built(Lazy(1, 9, True, share))[1]
        must = []
        for (before, was_masked, _), (tokens, mask, wanted) in zip(passes, passes[1:], strict=False):
            other = (mask != was_masked) | ((before != tokens).any(-1) & ~mask)
            must.append(
                [len(set(other[row].nonzero()[:, 0].tolist()) | set(wanted[row].tolist()) - {16}) for row in range(3)]
            )
        assert model.cache.computed == [[min(n + math.ceil(share * SLOTS), SLOTS) for n in one] for one in must]


@torch.no_grad()
def test_an_unchanged_pass_repeats_the_last_and_by_default_all_tokens_are_wanted() -> None:
    model, (tokens, mask, _) = FeatureCachedModel(MARModel(transformer()), Lazy(1, 9, tokens=0.0)), given()[2]
    nothing = torch.full((3, 2), 16)
    first = model.condition(tokens, mask, LABELS, True, nothing)
    assert torch.equal(model.condition(tokens, mask, LABELS, True, nothing)[0], first[0])
    torch.testing.assert_close(model.condition(tokens, mask, LABELS, True), first, **CLOSE)
    assert model.cache.computed == [[0] * 3, [16] * 3]


@torch.no_grad()
def test_requests_that_interleave_have_each_a_cache_of_its_own() -> None:
    lazy, inner = Lazy(1, 9, tokens=0.2), MARModel(transformer())
    one, other = FeatureCachedModel(inner, lazy), FeatureCachedModel(inner, lazy)
    for (tokens, mask, wanted), expected in zip(given(), built(lazy)[0], strict=True):
        assert torch.equal(one.condition(tokens, mask, LABELS, True, wanted), expected)
        other.condition(-tokens, mask, LABELS.flip(0), True, wanted)


def test_the_least_alike_come_beside_those_that_must_and_the_unchanged_last() -> None:
    last = torch.randn(2, 12, 8)
    noise = torch.arange(12.0).sub(3).clamp_min(0)[None, :, None] / 40  # the first four are unchanged
    x = last + noise * torch.randn(2, 12, 8)
    must = torch.zeros(2, 12, dtype=torch.bool)
    must[0, 5], must[1, [2, 4, 7]] = True, True
    like = F.cosine_similarity(x, last, dim=-1)
    for share, extra in ((0.0, 0), (0.25, 3), (0.3, 4), (0.75, 9), (1.0, 12)):
        place, counts = least_similar(x, last, must, share)
        assert counts == [min(1 + extra, 12), min(3 + extra, 12)] and place.shape == (2, max(counts))
        for row in range(2):
            chosen = place[row, : counts[row]].tolist()
            assert (place[row, counts[row] :] == 12).all() and len(set(chosen)) == counts[row]
            free = [at for at in like[row].argsort().tolist() if not must[row, at] and at > 3]
            still = [at for at in range(4) if not must[row, at]]
            assert set(chosen) == set(must[row].nonzero()[:, 0].tolist()) | set([*free, *still][:extra])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(full=0), "full: expected at least 1, got 0"),
        (dict(every=0), "every: expected at least 1, got 0"),
        (dict(tokens=1.5), "tokens: expected at least 0 and at most 1, got 1.5"),
        (dict(tokens=math.nan), "tokens: expected a finite number"),
        (dict(null=False), "tokens: expected a share where null is off, got None"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Lazy(**settings)
