"""Products of few rows: every form against float64, what keeps `F.linear`, and the choice of a form."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmspec.kernels import small_linear as products
from mmspec.kernels.small_linear import FORMS, MOST_ROWS, form_of, pinned_form, small_linear

ODD = (1, 7, 64, 127)
SIZES = [(n, k) for n in ODD for k in ODD] + [(49152, 7), (49152, 64), (7, 49152), (64, 49152)]
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 47, 63, 64, 65)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def rms(error: Tensor) -> float:
    return error.double().square().mean().sqrt().item()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_a_form_rounds_like_linear(form: str, n: int, k: int):
    weight, bias = nn.Parameter(torch.randn(n, k)), torch.randn(n)
    ours, theirs, exact = [], [], []
    for rows in ROWS if n * k < 10**5 else (1, 2, 3, 7, 8, 33, 65):
        x = torch.randn(rows, k)
        exact.append((x.double() @ weight.double().T + bias.double()).flatten())
        ours.append(small_linear(x, weight, bias, form=form).flatten())
        theirs.append(F.linear(x, weight, bias).flatten())
        assert small_linear(x, weight, form=form).is_contiguous()
    exact, limit = torch.cat(exact), torch.finfo(torch.float32).eps
    allowed = 2 * max(rms(torch.cat(theirs) - exact), limit * rms(exact))
    assert rms(torch.cat(ours) - exact) <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [2, 3, 8, 33])
def test_a_form_rounds_like_linear_in_half_precision(dtype: torch.dtype, rows: int):
    x, weight = torch.randn(rows, 127).to(dtype), torch.randn(64, 127).to(dtype)
    exact = x.double() @ weight.double().T
    ours, theirs = small_linear(x, weight, form="transposed"), F.linear(x, weight)
    assert ours.dtype == dtype
    assert rms(ours - exact) <= 2 * rms(theirs - exact)


def test_axes_before_the_last_are_kept():
    x, weight, bias = torch.randn(2, 3, 5, 7), torch.randn(4, 7), torch.randn(4)
    out = small_linear(x, weight, bias, form="transposed")
    assert out.shape == (2, 3, 5, 4)
    torch.testing.assert_close(out, F.linear(x, weight, bias))
    strided = torch.randn(7, 6).t()
    torch.testing.assert_close(small_linear(strided, weight, form="transposed"), F.linear(strided, weight))


class Counted(TorchFunctionMode):
    """Counts the calls of `F.linear`."""

    calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += function is F.linear
        return function(*args, **(kwargs or {}))


def bits(x: Tensor) -> str:
    return sha256(x.contiguous().numpy().tobytes()).hexdigest()


def uses_linear(monkeypatch: pytest.MonkeyPatch, x: Tensor, weight: Tensor) -> bool:
    """Whether a forced transposed product is not run."""
    ran = []
    monkeypatch.setattr(products, "transposed_product", lambda x, *rest: ran.append(x) or F.linear(x, *rest))
    small_linear(x, weight, form="transposed")
    return not ran


def test_few_rows_take_the_form(monkeypatch: pytest.MonkeyPatch):
    weight = torch.randn(9, 5)
    kept = [rows for rows in range(MOST_ROWS + 3) if uses_linear(monkeypatch, torch.randn(rows, 5), weight)]
    assert kept == [0, 1, MOST_ROWS + 1, MOST_ROWS + 2]


def test_what_is_no_plain_product_keeps_linear(monkeypatch: pytest.MonkeyPatch):
    x, weight = torch.randn(4, 5), torch.randn(9, 5)
    assert not uses_linear(monkeypatch, x, weight)
    assert not uses_linear(monkeypatch, x, nn.Parameter(weight))
    assert uses_linear(monkeypatch, x.to("meta"), weight.to("meta"))
    assert uses_linear(monkeypatch, x.double(), weight.double())
    with torch.enable_grad():
        assert uses_linear(monkeypatch, x, nn.Parameter(weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert uses_linear(monkeypatch, x, weight)
    with Counted() as mode:
        assert uses_linear(monkeypatch, x, weight)
    assert mode.calls == 1

    class Wrapped(Tensor):
        pass

    assert uses_linear(monkeypatch, x, weight.as_subclass(Wrapped))
    with pytest.raises(RuntimeError):  # the error of F.linear for operands of two dtypes
        small_linear(x, weight.bfloat16(), form="transposed")


@pytest.mark.filterwarnings("ignore")
def test_a_traced_function_holds_linear():
    weight = torch.randn(9, 5)
    with pinned_form("transposed"):
        traced = torch.jit.trace(lambda x: small_linear(x, weight), torch.randn(4, 5), check_trace=False)
    assert "linear" in str(traced.graph)
    torch.testing.assert_close(traced(torch.randn(70, 5)).shape, torch.Size([70, 9]))


def test_a_form_is_measured_once_without_random_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "_chosen", {})
    weight, state, measured = torch.randn(512, 64), torch.get_rng_state(), []
    fastest = products._fastest
    monkeypatch.setattr(products, "_fastest", lambda *given: measured.append(given) or fastest(*given))
    with pinned_form("measured"):
        forms = [form_of(weight, rows) for rows in (3, 4, 4, 3)]
    assert len(measured) == 1  # three rows are computed as four
    assert set(forms) < set(FORMS) and len(set(forms)) == 1
    assert list(products._chosen.values()) == forms[:1]
    assert torch.equal(torch.get_rng_state(), state)


def test_the_lowest_minimum_decides(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]

    def slow(seconds: float):
        def product(x: Tensor, weight: Tensor) -> None:
            now[0] += seconds

        return product

    monkeypatch.setattr(products, "perf_counter", lambda: now[0])
    product = products.Product(torch.float32, 512, 64, 4, 1)
    for linear, transposed, best in ((3.0, 2.0, "transposed"), (2.0, 3.0, "linear"), (2.0, 1.95, "linear")):
        monkeypatch.setattr(products.F, "linear", slow(linear))
        monkeypatch.setattr(products, "transposed_product", slow(transposed))
        assert products._fastest(product, [torch.empty(512, 64)]) == best


def test_a_sentence_tells_the_forms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "_chosen", {})
    assert products.forms_in_words() == "Products of 2 to 64 rows are set to the form 'transposed'."
    with pinned_form("measured"):
        assert not products.forms_in_words()
        products._chosen |= {(torch.float32, 9, 5, 4, 1): "linear", (torch.float32, 5, 9, 4, 1): "transposed"}
        assert "than F.linear: 4 rows 1 of 2; MMSPEC_SMALL_LINEAR=linear keeps F.linear." in products.forms_in_words()


needs_packing = pytest.mark.skipif(
    not products.can_pack(torch.float32), reason="this build of torch has no packed form"
)


@needs_packing
def test_rows_of_a_packed_product_do_not_depend_on_their_number():
    x, weight = torch.randn(9, 64), nn.Parameter(torch.randn(128, 64))
    whole = small_linear(x, weight, form="packed")
    for rows in range(2, 9):
        assert torch.equal(small_linear(x[:rows], weight, form="packed"), whole[:rows])


@needs_packing
def test_a_packed_copy_follows_its_weight():
    x, weight = torch.randn(4, 64), nn.Parameter(torch.randn(128, 64))

    def check() -> None:
        torch.testing.assert_close(small_linear(x, weight, form="packed"), F.linear(x, weight), rtol=1e-4, atol=1e-4)

    check()
    weight.mul_(2)
    check()
    weight.data = torch.randn(128, 64)
    check()
    weight.data += torch.randn(128, 1) @ torch.randn(1, 64)  # as an adapter merges, which no version counter shows
    products.forget_changed([weight])
    check()


@needs_packing
def test_a_packed_copy_is_released_with_its_weight():
    before = len(products._copies)
    weight = nn.Parameter(torch.randn(128, 64))
    small_linear(torch.randn(4, 64), weight, form="packed")
    assert len(products._copies) == before + 1
    del weight
    assert len(products._copies) == before


def test_small_weights_are_not_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "_fastest", lambda *given: pytest.fail("measured"))
    with pinned_form("measured"):
        assert form_of(torch.randn(8, 8), 4) == "linear"


def test_unknown_forms_are_refused():
    with pytest.raises(
        ValueError, match="form: expected one of measured, linear, transposed, packed, got 'fast'; use one of these"
    ):
        with pinned_form("fast"):
            pass


SCRIPT = """
import hashlib, torch
from mmspec.kernels.small_linear import small_linear
torch.manual_seed(0)
torch.set_num_threads(THREADS)
with torch.no_grad():
    x, weight = torch.randn(6, 576), torch.randn(1536, 576)
    print(hashlib.sha256(small_linear(x, weight).numpy().tobytes()).hexdigest())
"""


def run(form: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"MMSPEC_SMALL_LINEAR": form}
    script = SCRIPT.replace("THREADS", str(torch.get_num_threads()))  # a product's bits may depend on it
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


def test_processes_with_a_pinned_form_agree():
    torch.manual_seed(0)
    x, weight = torch.randn(6, 576), torch.randn(1536, 576)
    digests = {form: run(form).stdout.strip() for form in FORMS}
    for form, digest in digests.items():
        assert digest == bits(small_linear(x, weight, form=form))


def test_an_unknown_form_in_the_environment_is_refused():
    failed = run("fast")
    assert failed.returncode
    assert "MMSPEC_SMALL_LINEAR: expected one of measured, linear, transposed, packed, got 'fast'" in failed.stderr
