"""Device functions of truncation: scores as integer keys, and the interval of a cut from measures above pivots."""

from __future__ import annotations

import triton
import triton.language as tl

PIVOTS = tl.constexpr(16)
WILD = tl.constexpr(1 << 20)  # beyond it whole numbers are too coarse or not exact in float32


@triton.jit
def key_of(score):
    """Map floats to unsigned integers of the same order: negative floats with all bits flipped, the others above them.
    The flip is an exclusive or: the interpreter of Triton 3.8 evaluates `~` to -1, which no unsigned integer can hold.
    """
    # a single return: Triton 3.6 also compiles the statements after a branch that is always taken
    if score.dtype == tl.float64:
        bits = score.to(tl.uint64, bitcast=True)
        key = tl.where(bits >> 63 != 0, bits ^ 0xFFFFFFFFFFFFFFFF, bits | 0x8000000000000000)
    else:
        bits = score.to(tl.uint32, bitcast=True)
        key = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return key


@triton.jit
def score_of(key):
    if key.dtype == tl.uint64:
        bits = tl.where(key >> 63 != 0, key & 0x7FFFFFFFFFFFFFFF, key ^ 0xFFFFFFFFFFFFFFFF)
        score = bits.to(tl.float64, bitcast=True)
    else:
        bits = tl.where(key >> 31 != 0, key & 0x7FFFFFFF, key ^ 0xFFFFFFFF)
        score = bits.to(tl.float32, bitcast=True)
    return score


@triton.jit
def scaled_tile(
    p_row, p_inverse, p_floor, o, V: tl.constexpr, SCALED: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr
):
    """Return scaled scores; -Inf outside the row and below the floor of an earlier truncation."""
    score = tl.load(p_row + o, mask=o < V, other=float("-inf")).to(WIDE)
    score = score * tl.load(p_inverse).to(WIDE) if SCALED else score
    score = tl.where(score < tl.load(p_floor), float("-inf"), score) if CUT else score
    return tl.where(score == 0, 0.0, score)  # both zeros get the same key


@triton.jit
def measure(score, base, BY_K: tl.constexpr):
    return tl.where(score == score, 1.0, 0.0).to(score.dtype) if BY_K else tl.exp(score - base)


@triton.jit
def finite(top):
    return tl.where((top == float("-inf")) | (top == float("inf")), 0.0, top)


@triton.jit
def coarse_bounds(p_part, p_end, amount, spans, BY_K: tl.constexpr, SPANS: tl.constexpr):
    """Return a row's largest and least score, the bound of F, and the interval (low, high] of whole numbers of the cut."""
    span, j = tl.arange(0, SPANS), tl.arange(0, PIVOTS)
    inside = span < spans
    tops = tl.load(p_end + span * 2, mask=inside, other=float("-inf"))
    least = tl.min(tl.load(p_end + span * 2 + 1, mask=inside, other=float("inf")), 0)
    top = tl.max(tops, 0)
    base = finite(top)
    own = tl.where(tops == float("-inf"), base, finite(tops))
    grid = tl.ceil(base)
    behind = tl.minimum(tl.maximum(grid - tl.ceil(own), 0.0), 16.0).to(tl.int32)
    at = tl.where(j == 0, 0, j[None, :] - behind[:, None])  # entry 0 is the total
    known = inside[:, None] & ((at > 0) | (j == 0)[None, :])
    part = tl.load(p_part + span[:, None] * PIVOTS + at, mask=known, other=0.0)
    part = part if BY_K else part * tl.exp(own - base)[:, None]
    above = tl.sum(part, 0)
    total = tl.sum(tl.where(j == 0, above, 0.0), 0)
    bound = total * 0.0 + amount if BY_K else total * amount
    passed = tl.sum(((above <= bound) & (j > 0)).to(tl.int32), 0)
    wild = tl.abs(base) > WILD
    high = tl.where(wild | (passed == 0), top, grid - passed)
    low = tl.where(wild | (passed == PIVOTS - 1), float("-inf"), grid - (passed + 1))
    return top, least, bound, low, high


@triton.jit
def point(low, high, least, j):
    """Return point j of 16 from `high` down to `low`, or to the least score where `low` is -Inf."""
    step = tl.maximum(high - tl.where(low == float("-inf"), least, low), 0.0) * 0.0625
    at = high - step * j
    return tl.where((at == at) & (at != 0), at, tl.where(at == 0, 0.0, high))


@triton.jit
def fine_bounds(p_part, low, high, least, bound, spans, SPANS: tl.constexpr):
    """Return the interval (low, high] between two points, and F(high)."""
    span, j = tl.arange(0, SPANS), tl.arange(0, PIVOTS)
    part = tl.load(p_part + span[:, None] * PIVOTS + j[None, :], mask=(span < spans)[:, None], other=0.0)
    above = tl.sum(part, 0)
    passed = tl.sum(((above <= bound) & (j > 0)).to(tl.int32), 0)
    under = tl.where(passed == PIVOTS - 1, low, point(low, high, least, (passed + 1).to(low.dtype)))
    return under, point(low, high, least, passed.to(low.dtype)), tl.sum(tl.where(j == passed, above, 0.0), 0)


@triton.jit
def listed(p_list, p_count, o, spans, SPAN: tl.constexpr, SPANS: tl.constexpr):
    """Return the scores o of a row's lists, one after the other, and where there is a score; -Inf behind the end."""
    place, start = tl.full(o.shape, -1, tl.int32), tl.full((), 0, tl.int32)
    for span in tl.static_range(SPANS):
        end = start + tl.load(p_count + span, mask=span < spans, other=0)
        place = tl.where((o >= start) & (o < end), span * SPAN + o - start, place)
        start = end
    return tl.load(p_list + place, mask=place >= 0, other=float("-inf")), place >= 0
