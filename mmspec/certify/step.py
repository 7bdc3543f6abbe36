"""An accept step on plain arrays: how it is named and loaded, its input and its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor

Arrays = Literal["torch", "numpy"]
ARGUMENTS = ("tokens", "q", "p", "uniforms", "parents", "q_uncut", "top_k")


class StepFailed(ValueError):
    """The step under test cannot be called, raised, or returned something else than it should."""


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """The input of a step: R rounds with N drafted tokens over V values each.

    Attributes:
        tokens: int64 [R, N].
        q: float64 [R, N, V], the distribution each token was drawn from (one-hot for a picked token).
        p: float64 [R, N + 1, V], the target's distribution before any drafted token and after each.
        q_uncut: float64 [R, N, V], q before its cut to top_k values.
        top_k: The number of values that the cut keeps, V without a cut.
        parents: The parent of each token, counted from 1; 0 for the last committed token. A chain has 0, 1, 2, ...
    """

    tokens: Tensor
    q: Tensor
    p: Tensor
    q_uncut: Tensor
    top_k: int
    parents: tuple[int, ...]

    def rows(self, index: Tensor) -> StepQuestion:
        """Return the rows `index`."""
        return replace(self, **{name: getattr(self, name)[index] for name in ("tokens", "q", "p", "q_uncut")})

    def beside(self, other: StepQuestion) -> StepQuestion:
        """Return these rows followed by those of `other`."""
        both = {
            f.name: torch.cat((getattr(self, f.name), getattr(other, f.name)))
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **both)


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answer of a step.

    Attributes:
        node: int64 [R], the number of accepted tokens of a chain, or the deepest accepted token of a tree, counted from
            1; 0 for none.
        value: int64 [R], the next token.
        kept: int64 [R], the token that its state ends with, which should be `node`.
    """

    node: Tensor
    value: Tensor
    kept: Tensor

    def codes(self, nodes: int, size: int) -> Tensor:
        """Encode each answer as a number, int64 [R]."""
        return (self.node * size + self.value) * nodes + self.kept

    @staticmethod
    def of_codes(codes: Tensor, nodes: int, size: int) -> StepAnswer:
        """Decode the answers of `codes`."""
        rest = codes // nodes
        return StepAnswer(rest // size, rest % size, codes % nodes)


class AcceptStep:
    """An accept step of another project, called with the arguments in `ARGUMENTS` that its signature names. It returns
    a `StepAnswer`'s fields, the last optional, in arrays of either kind or lists. `fresh` instantiates a class."""

    def __init__(self, function: Callable, arrays: Arrays = "torch"):
        if not callable(function):
            raise StepFailed(f"step: expected a callable, got {type(function).__name__}; name a function or a class")
        self.made, self.arrays = function, arrays
        self.function = self._instance()
        self.names = self._arguments()

    def fresh(self) -> AcceptStep:
        """Return the same step without memory of earlier calls if it is a class, else the step itself."""
        return AcceptStep(self.made, self.arrays) if inspect.isclass(self.made) else self

    @property
    def draws(self) -> bool:
        return "uniforms" not in self.names

    def __call__(self, question: StepQuestion, uniforms: Tensor | None) -> StepAnswer:
        """Call the step; `uniforms` is float64 [R, N + 1] in [0, 1), or None for a step that draws its own."""
        inputs = {
            "tokens": question.tokens,
            "q": question.q,
            "p": question.p,
            "uniforms": uniforms,
            "q_uncut": question.q_uncut,
            "parents": torch.tensor(question.parents),
        }
        arguments = {name: self._array(value) for name, value in inputs.items() if name in self.names}
        if "top_k" in self.names:
            arguments["top_k"] = question.top_k
        try:
            answer = self.function(**arguments)
        except ImportError as error:
            raise StepFailed(
                f"step: expected its imports to be installed, got {type(error).__name__} ({error}); install the package"
            ) from error
        except (Exception, SystemExit) as error:
            rows, length = question.tokens.shape
            raise StepFailed(
                f"step: expected accepted counts and next tokens, got {type(error).__name__} ({error}); call it "
                f"with {rows} rows of {length} tokens to see why"
            ) from error
        return _read_answer(answer, question)

    def _instance(self) -> Callable:
        if not inspect.isclass(self.made):
            return self.made
        try:
            return self.made()
        except Exception as error:
            raise StepFailed(
                f"step: expected a class that is made without arguments, got {type(error).__name__} ({error}); "
                "name a function that makes an instance and calls it"
            ) from error

    def _arguments(self) -> set[str]:
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError) as error:
            raise StepFailed("step: expected a callable with a signature, got none; wrap it in a function") from error
        named = {x.name for x in parameters if x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)}
        needed = {x.name for x in parameters if x.name in named and x.default is x.empty}
        positional = {x.name for x in parameters if x.kind is x.POSITIONAL_ONLY}
        if needed - set(ARGUMENTS) or positional or "tokens" not in named:
            raise StepFailed(
                f"step: expected arguments among {', '.join(ARGUMENTS)}, tokens at least, got "
                f"{', '.join(sorted(named)) or 'none'}; wrap it in a function of these"
            )
        return named & set(ARGUMENTS)

    def _array(self, value: Tensor) -> object:
        # a copy, since a step may work in place
        return value.clone().numpy() if self.arrays == "numpy" else value.clone()


def _read_answer(answer: object, question: StepQuestion) -> StepAnswer:
    rows, nodes, size = len(question.tokens), len(question.parents), question.p.shape[-1]
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        got = f"{len(answer)} things" if isinstance(answer, tuple | list) else type(answer).__name__
        raise StepFailed(
            f"step: expected (accepted, next token) or (accepted, next token, kept), got {got}; return these"
        )
    accepted = _integers("accepted", answer[0], rows, nodes + 1)
    value = _integers("next token", answer[1], rows, size)
    state = _integers("kept", answer[2], rows, nodes + 1) if len(answer) == 3 else accepted
    return StepAnswer(accepted, value, state)


def _integers(name: str, value: object, rows: int, limit: int) -> Tensor:
    try:
        numbers = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise StepFailed(
            f"{name}: expected {rows} whole numbers, got {type(value).__name__}; return an array"
        ) from error
    if numbers.shape != (rows,) or numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise StepFailed(
            f"{name}: expected int [{rows}], got {numbers.dtype} {list(numbers.shape)}; return one number a row"
        )
    numbers = numbers.long()
    if rows and not 0 <= int(numbers.min()) <= int(numbers.max()) < limit:
        raise StepFailed(
            f"{name}: expected numbers from 0 to {limit - 1}, got {int(numbers.min())} to "
            f"{int(numbers.max())}; see docs/certify.md for the protocol"
        )
    return numbers


def load_step(spec: str) -> Callable:
    """Import the step that MODULE:CALLABLE names. Importing a module runs its code."""
    module, colon, name = spec.partition(":")
    if not colon or not module or not name:
        raise StepFailed(f"step: expected MODULE:CALLABLE, got {spec!r}; write for example my_engine.accept:step")
    try:
        loaded = import_module(module)
    except (Exception, SystemExit) as error:
        raise StepFailed(
            f"step: expected a module that can be imported, got {module!r} ({type(error).__name__}: {error}); "
            "start in its folder, or install it"
        ) from error
    try:
        step = attrgetter(name)(loaded)
    except (Exception, SystemExit) as error:
        raise StepFailed(
            f"step: expected a name in {module}, got {name!r} ({type(error).__name__}: {error}); correct it"
        ) from error
    if not callable(step) and not hasattr(step, "certificate"):
        raise StepFailed(f"step: expected a callable, got {name!r}, which is {type(step).__name__}; name a function")
    return step
