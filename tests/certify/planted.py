"""Accept steps with one planted mistake each, written as users write them, and right ones beside them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def draw(law: Tensor, uniform: Tensor) -> Tensor:
    """One index a row by inversion, whatever the law sums to; what it lacks falls on the last index."""
    return (law.cumsum(-1) <= uniform[:, None]).sum(-1).clamp_max(law.shape[-1] - 1)


def scaled(law: Tensor, otherwise: Tensor) -> Tensor:
    total = law.sum(-1, keepdim=True)
    return torch.where(total > 0, law / total, otherwise)


def judge(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor, scale: bool = True) -> tuple[Tensor, Tensor]:
    """Token-wise rejection, right where `scale`."""
    rows, length = tokens.shape
    own = tokens[..., None]
    ratio = (p[:, :-1].gather(2, own) / q.gather(2, own).clamp_min(1e-300))[..., 0]
    accepted = (uniforms[:, :-1] < ratio).long().cumprod(1).sum(1)
    at = torch.arange(rows)
    law, drafted = p[at, accepted], q[at, accepted.clamp_max(length - 1)]
    rest = (law - drafted).clamp_min(0)
    rest = torch.where((accepted < length)[:, None], scaled(rest, law) if scale else rest, law)
    # rounding may leave a law a little short of 1
    return accepted, draw(rest / rest.sum(-1, keepdim=True).clamp_min(1e-300) if scale else rest, uniforms[:, -1])


def right(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return judge(tokens, q, p, uniforms)


def in_numpy(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, uniforms: np.ndarray) -> tuple[list[int], list[int]]:
    """A right one, a row at a time and in float32, as one writes it in numpy."""
    found = [], []
    for x, drafter, target, u in zip(tokens, q.astype("f4"), p.astype("f4"), uniforms.astype("f4"), strict=True):
        count = 0
        while count < len(x) and u[count] * drafter[count, x[count]] < target[count, x[count]]:
            count += 1
        law = target[count] if count == len(x) else np.maximum(target[count] - drafter[count], 0)
        found[0].append(count)
        found[1].append(int(np.searchsorted(np.cumsum(law), u[-1] * law.sum(), side="right").clip(0, len(law) - 1)))
    return found


def always_accepts(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """A generator that was never advanced: its uniforms are 0."""
    return judge(tokens, q, p, torch.cat((torch.zeros_like(uniforms[:, :-1]), uniforms[:, -1:]), 1))


def not_renormalised(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return judge(tokens, q, p, uniforms, scale=False)


def cut_forgotten(tokens: Tensor, q_uncut: Tensor, p: Tensor, uniforms: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Makes q of the drafter's raw law and leaves the cut to top_k out."""
    return judge(tokens, q_uncut, p, uniforms)


def cut_made(tokens: Tensor, q_uncut: Tensor, p: Tensor, uniforms: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    best = q_uncut.topk(top_k)
    q = torch.zeros_like(q_uncut).scatter(-1, best.indices, best.values)
    return judge(tokens, q / q.sum(-1, keepdim=True), p, uniforms)


def never_cropped(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Its cache keeps every draft."""
    accepted, following = judge(tokens, q, p, uniforms)
    return accepted, following, torch.full_like(accepted, tokens.shape[1])


class Haunted:
    """A drafted token that was rejected stays in its buffer, and is judged in the place of the next call's first."""

    def __init__(self) -> None:
        self.left: Tensor | None = None

    def __call__(self, tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        if self.left is not None:
            tokens = torch.cat((self.left.expand(len(tokens), -1), tokens[:, 1:]), 1)
        accepted, following = judge(tokens, q, p, uniforms)
        rejected = bool((accepted == 0).all())
        self.left = tokens[:1, :1] if rejected else None
        return accepted, following


def shortest_of_batch(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Every row accepts as many as the row that accepts fewest, and goes on with p."""
    accepted, following = judge(tokens, q, p, uniforms)
    least = accepted.min().expand(len(accepted))
    other = draw(p[torch.arange(len(p)), least], uniforms[:, -1])
    return least, torch.where(least < accepted, other, following)


def first_rows_coins(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return judge(tokens, q, p, uniforms[:1].expand(len(uniforms), -1))


def draws(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """A right one that draws for itself."""
    return judge(tokens, q, p, torch.rand(len(tokens), tokens.shape[1] + 1, dtype=torch.float64))


def draws_zeros(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    u = torch.rand(len(tokens), tokens.shape[1] + 1, dtype=torch.float64)
    return always_accepts(tokens, q, p, u)


def mixes(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Right, with every uniform but the first shifted by the one before it: no boxes, the same law."""
    shifted = torch.cat((uniforms[:, :1], (uniforms[:, 1:] + uniforms[:, :-1]) % 1), 1)
    return judge(tokens, q, p, shifted)


def shares_noise(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """What follows is drawn with the uniform that tested the first token."""
    return judge(tokens, q, p, torch.cat((uniforms[:, :-1], uniforms[:, :1]), 1))


def one_row_late(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return judge(tokens, q, torch.cat((p[:, 1:], p[:, -1:]), 1), uniforms)


def from_the_target(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    accepted, _ = judge(tokens, q, p, uniforms)
    return accepted, draw(p[torch.arange(len(p)), accepted] * (1 + 1e-12), uniforms[:, -1])


def likeliest(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    best = p.argmax(-1)
    accepted = (tokens == best[:, :-1]).long().cumprod(1).sum(1)
    return accepted, best[torch.arange(len(p)), accepted]


def three_in_a_hundred(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Tests u < 1.03 p / q."""
    return judge(tokens, q, p, torch.cat((uniforms[:, :-1] / 1.03, uniforms[:, -1:]), 1))


def up_to_and_including(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Tests u <= p / q, so that a uniform of 0 passes anything."""
    return judge(
        tokens, q, p, torch.cat((torch.nextafter(uniforms[:, :-1], uniforms[:, :-1] - 1), uniforms[:, -1:]), 1)
    )


def coins(tokens: Tensor) -> Tensor:
    return torch.rand(len(tokens), tokens.shape[1] + 1, dtype=torch.float64)


def draws_and_keeps(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return never_cropped(tokens, q, p, coins(tokens))


def draws_for_the_first_row(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """No row accepts more than the first one."""
    accepted, following = judge(tokens, q, p, coins(tokens))
    most = accepted.clamp_max(int(accepted[0]))
    return most, torch.where(most < accepted, p[torch.arange(len(p)), most].argmax(-1), following)


class DrawsHaunted(Haunted):
    def __call__(self, tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        return super().__call__(tokens, q, p, coins(tokens))


def ignores_its_uniforms(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return judge(tokens, q, p, coins(tokens))


def takes_trees(tokens: Tensor, p: Tensor, uniforms: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Accepts nothing, which is right."""
    return torch.zeros(len(tokens), dtype=torch.long), draw(p[:, 0] * (1 + 1e-12), uniforms[:, -1])


def draws_zeros_and_takes_the_last(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Accepts whatever was drafted, and goes on with the least likely value."""
    return torch.full((len(tokens),), tokens.shape[1]), p[:, -1].argmin(-1)


def in_float32(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Right, and made for uniforms below 1 in its own precision."""
    u = uniforms.float()
    assert float(u.max()) < 1 and float(u.min()) >= 0
    return judge(tokens, q.float(), p.float(), u)


class Island:
    """A right step whose answer is wrong if a chosen uniform falls into a narrow band.

    Args:
        place: Seed of the band's place: its lower end, the uniform and the draft.
        width: Width of the band.
        one_draft: Whether the defect concerns one of the nine drafts of two values, or all of them.
    """

    def __init__(self, place: int, width: float, one_draft: bool):
        dice = torch.Generator().manual_seed(place)
        self.low = float(torch.rand((), generator=dice, dtype=torch.float64)) * (1 - width)
        self.high, self.one_draft = self.low + width, one_draft
        self.axis = int(torch.randint(3, (), generator=dice))
        self.draft = torch.randint(3, (2,), generator=dice)

    def __call__(self, tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        accepted, following = judge(tokens, q, p, uniforms)
        coin = uniforms[:, self.axis]
        is_wrong = (coin >= self.low) & (coin < self.high)
        if self.one_draft:
            is_wrong &= (tokens == self.draft).all(1)
        return torch.where(is_wrong, 0, accepted), torch.where(is_wrong, (following + 1) % 3, following)


def wrong_in_large_batches(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Every row behind the first four thousand is answered as the row that many places before it."""
    accepted, following = judge(tokens, q, p, uniforms)
    row = torch.arange(len(tokens)) % 4096
    return accepted[row], following[row]


class Ball(Island):
    """A right step that answers wrongly where its uniforms fall into a ball.

    Args:
        place: Seed of the centre and of the draft.
        radius: Radius of the ball.
        one_draft: As of `Island`.
        keeps_the_law: Whether the answers on the two halves of the ball are only exchanged.
    """

    def __init__(self, place: int, radius: float, one_draft: bool, keeps_the_law: bool = False):
        super().__init__(place, 2 * radius, one_draft)
        dice = torch.Generator().manual_seed(place)
        self.centre = radius + (1 - 2 * radius) * torch.rand(3, generator=dice, dtype=torch.float64)
        self.radius, self.keeps_the_law = radius, keeps_the_law

    def __call__(self, tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        accepted, following = judge(tokens, q, p, uniforms)
        away = uniforms - self.centre
        is_wrong = away.square().sum(1) < self.radius**2
        if self.one_draft:
            is_wrong &= (tokens == self.draft).all(1)
        if self.keeps_the_law:
            return judge(tokens, q, p, torch.where(is_wrong[:, None], self.centre - away, uniforms))
        return torch.where(is_wrong, 0, accepted), torch.where(is_wrong, (following + 1) % 3, following)
