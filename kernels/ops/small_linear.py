"""Linear layers over few rows on a CPU: the form of the matrix product that is fastest there.

A pass over 2 to 64 drafted tokens reads each weight once, so it should cost little more than a pass over one token. But
`F.linear` takes a slow path: up to five times a single row's time on AVX2 processors. The forms:

- linear: `F.linear` itself.
- transposed: the same product with the operands exchanged, (W x^T)^T, which takes a fast path of the same library.
- packed: oneDNN's product with a copy of the weight in oneDNN's own order, which doubles the memory of the weights.

Which of the first two wins depends on processor, dtype, sizes and threads, so it is measured once in a process for each
of them. The third is used where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from time import perf_counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

FORMS = ("linear", "transposed", "packed")
_WITHOUT_COPIES = FORMS[:2]
MEASURED = "measured"
VARIABLE = "MMSPEC_SMALL_LINEAR"
MOST_ROWS = 64
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
# numbers of rows that the library multiplies well; the transposed form pads to the next of them
_GOOD_ROWS = (2, 4, 5, 6, 8, *range(16, MOST_ROWS + 1, 8))
_PADDED = [next(good for good in _GOOD_ROWS if good >= rows) for rows in range(MOST_ROWS + 1)]
_SMALLEST = 2**14  # elements of a weight below which a product is mostly the cost of the call
_PIECE = 2**21  # elements of a weight that a sample multiplies: 8 MB in float32, more than a core's own cache
_PIECES, _SAMPLES = 16, 4  # the most pieces to measure on, and the fewest samples of a form
_PACKED_FOR = 16  # the number of rows that oneDNN orders a copied weight for; the order is the same from 4 rows on
_COMPARED = 16  # values of a weight that show whether it has changed
_MARGIN = 0.95  # another form has to take less than this share of the time of `F.linear`


class Product(NamedTuple):
    """The products that share a form: the shape of the weight, and the rows with padding."""

    dtype: torch.dtype
    out_features: int
    in_features: int
    rows: int
    threads: int


_chosen: dict[tuple, str] = {}
_pinned: ContextVar[str | None] = ContextVar("pinned", default=None)


def small_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, form: str | None = None, alike: Sequence[Tensor] = ()
) -> Tensor:
    """Return x W^T + bias like `F.linear`, in the fastest form; contiguous. x is [..., K], the weight [N, K] of the
    same dtype. `form` None is the pinned form, or else the measured form. A single row, more than `MOST_ROWS` rows,
    other devices than a CPU, gradients, autocast, torch function modes, compiled and traced code, and weights that are
    no plain dense tensors keep `F.linear`. `alike` are weights of the same shape on which forms are measured: a weight
    that is used again at once is still in the processor's cache."""
    rows = x.numel() // (x.shape[-1] or 1)
    if not 2 <= rows <= MOST_ROWS or not _is_plain(x, weight) or not in_eager_inference():
        return F.linear(x, weight, bias)
    form = form or form_of(weight, rows, alike)
    return F.linear(x, weight, bias) if form == "linear" else few_rows(form, x, weight, bias)


def form_of(weight: Tensor, rows: int, alike: Sequence[Tensor] = ()) -> str:
    if (pinned := set_form()) != MEASURED:
        return pinned
    if weight.numel() < _SMALLEST:
        return "linear"
    height, width = weight.shape
    product = weight.dtype, height, width, _PADDED[rows], torch.get_num_threads()
    if (form := _chosen.get(product)) is None:
        form = _chosen.setdefault(product, _fastest(Product(*product), alike or (weight,)))
    return form


def few_rows(form: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of x [..., K] with 1 to `MOST_ROWS` rows in the form "transposed" or "packed"."""
    if form == "packed" and isinstance(weight, nn.Parameter) and can_pack(weight.dtype):
        return packed_product(x, weight, bias)
    return transposed_product(x, weight, bias)


def transposed_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `F.linear` of 1 to `MOST_ROWS` rows as (W x^T)^T over a good number of rows. The copy at the end is small
    beside the weight, and a strided result would send the next product down a slow path."""
    flat = x.reshape(-1, x.shape[-1])
    rows = flat.shape[0]
    if padding := _PADDED[rows] - rows:
        flat = F.pad(flat, (0, 0, 0, padding))
    out = F.linear(weight, flat)  # [N, rows]
    out = (out[:, :rows] if padding else out).t().contiguous()
    if bias is not None:
        out += bias
    return out.view(*x.shape[:-1], -1)


# per weight its place and version when it was copied, values of it, and the copy; released with the weight
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()


@cache
def can_pack(dtype: torch.dtype) -> bool:
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(8, 8, dtype=dtype), 8)
        torch.ops.mkldnn._linear_pointwise(torch.ones(2, 8, dtype=dtype), weight, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return True


def packed_product(x: Tensor, weight: nn.Parameter, bias: Tensor | None = None) -> Tensor:
    """Return `F.linear` by oneDNN with a copy of the weight in its own order, renewed when the weight's memory or
    version counter changes (see also `forget_changed`). A row's bits do not depend on the number of rows. The error may
    be 2.3 times that of `F.linear`."""
    known, place = _copies.get(weight), (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    if known is None or known[0] != place:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_FOR)
        known = _copies[weight] = place, _few_values(weight), packed
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), known[2], bias, "none", [], "")


def forget_changed(weights: Iterable[Tensor]) -> None:
    """Drop copies of weights whose values have changed by writes through `.data`, as adapters merge; a few are compared."""
    for weight in weights:
        known = _copies.get(weight)
        if known is not None and not torch.equal(known[1], _few_values(weight)):
            del _copies[weight]


def _few_values(weight: Tensor) -> Tensor:
    return weight.detach().flatten()[:: max(weight.numel() // _COMPARED, 1)].clone()


@contextmanager
def pinned_form(form: str) -> Iterator[None]:
    """Compute small products of this thread in one of `FORMS`, or in the "measured" form, which needs no copies. The
    environment variable MMSPEC_SMALL_LINEAR does the same for a whole process."""
    token = _pinned.set(_checked("form", form))
    try:
        yield
    finally:
        _pinned.reset(token)


def set_form() -> str:
    return _pinned.get() or _of_environment()


def forms_in_words() -> str:
    if (form := set_form()) != MEASURED:
        return f"Products of 2 to {MOST_ROWS} rows are set to the form {form!r}."
    if not _chosen:
        return ""
    rows = sorted({product[3] for product in _chosen})
    by_rows = {n: [form for product, form in _chosen.items() if product[3] == n] for n in rows}
    counts = ", ".join(f"{n} rows {forms.count('transposed')} of {len(forms)}" for n, forms in by_rows.items())
    return (
        f"Products of few rows, sizes of weights for which exchanged operands were faster than F.linear: {counts}; "
        f"{VARIABLE}=linear keeps F.linear."
    )


def measured_so_far() -> int:
    return len(_chosen)


def _checked(name: str, form: str) -> str:
    if form not in (MEASURED, *FORMS):
        raise ValueError(f"{name}: expected one of {', '.join((MEASURED, *FORMS))}, got {form!r}; use one of these")
    return form


@cache
def _of_environment() -> str:
    return _checked(VARIABLE, os.environ.get(VARIABLE, MEASURED))


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    """Return whether both are ordinary tensors of a CPU: no quantised, sharded, sparse, fake or meta tensors."""
    return (
        type(x) is Tensor
        and type(weight) in (nn.Parameter, Tensor)
        and x.dtype == weight.dtype
        and x.dtype in DTYPES
        and x.is_cpu
        and weight.is_cpu
        and weight.dim() == 2
        and weight.layout is torch.strided
    )


def in_eager_inference() -> bool:
    """Return whether products run as they are called: no gradients, autocast, function modes, tracing or compilation."""
    return not (
        torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_function_stack()
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
    )


def _fastest(product: Product, weights: Sequence[Tensor]) -> str:
    """Time all forms, each on a piece of the weights that no other form has just read, and return the lowest minimum."""
    x = torch.ones(product.rows, product.in_features, dtype=product.dtype, device="cpu")  # draws no random numbers
    height = max(_PIECE // product.in_features, 1)
    pieces = [
        piece for weight in weights for piece in weight.detach().split(height) if len(piece) == min(height, len(weight))
    ]
    pieces = pieces[:: max(len(pieces) // _PIECES, 1)]
    computed: dict[str, Callable] = {"linear": F.linear, "transposed": transposed_product}
    seconds = dict.fromkeys(computed, float("inf"))
    for turn in range(max(2, -(-_SAMPLES * len(computed) // len(pieces)))):
        for number, piece in enumerate(pieces):
            form = _WITHOUT_COPIES[(number + turn) % len(computed)]
            began = perf_counter()
            computed[form](x, piece)
            seconds[form] = min(seconds[form], perf_counter() - began)
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _MARGIN * seconds["linear"] else "linear"
