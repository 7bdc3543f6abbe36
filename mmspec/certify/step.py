"""An accept step of plain arrays: how it is named and loaded, what it is asked, and what it answers."""

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
    """The step under test cannot be called, raised, or answered with something else than it should."""


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """R rounds to judge, each with N drafted tokens over V values.

    tokens: int64 [R, N].   q: float64 [R, N, V], the law each token was drawn from (one-hot where it was just picked).
    p: float64 [R, N + 1, V], the target's law before any drafted token and after each.
    q_uncut: float64 [R, N, V], q before it was cut to its top_k values and scaled up.   top_k: V where nothing was cut.
    parents: the parent of each token, counted from 1; 0 for what was committed last. A chain has 0, 1, 2, ...
    """

    tokens: Tensor
    q: Tensor
    p: Tensor
    q_uncut: Tensor
    top_k: int
    parents: tuple[int, ...]

    def rows(self, index: Tensor) -> StepQuestion:
        """Some of the rows."""
        return replace(self, **{name: getattr(self, name)[index] for name in ("tokens", "q", "p", "q_uncut")})

    def beside(self, other: StepQuestion) -> StepQuestion:
        """These rows and then the other's."""
        both = {f.name: torch.cat((getattr(self, f.name), getattr(other, f.name)))
                for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}  # fmt: skip
        return replace(self, **both)


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """node: int64 [R], accepted tokens of a chain; on a tree the deepest accepted token, counted from 1; 0 for none.
    value: int64 [R], the token that follows.   kept: int64 [R], the token its state ends with, which should be `node`.
    """

    node: Tensor
    value: Tensor
    kept: Tensor

    def codes(self, nodes: int, size: int) -> Tensor:
        """One number for each answer, int64 [R]."""
        return (self.node * size + self.value) * nodes + self.kept

    @staticmethod
    def of_codes(codes: Tensor, nodes: int, size: int) -> StepAnswer:
        """The answers that `codes` numbered."""
        rest = codes // nodes
        return StepAnswer(rest // size, rest % size, codes % nodes)


class AcceptStep:
    """Calls somebody's accept step with those of the arguments `ARGUMENTS` that its signature names.

    function: returns accepted counts and next tokens, and if it likes what its state keeps; see `StepAnswer`. A class is
    made anew by `fresh`, without arguments.   arrays: what it is given; it may return either, or lists.
    Raises StepFailed for a callable that cannot be asked.
    """

    def __init__(self, function: Callable, arrays: Arrays = "torch"):
        if not callable(function):
            raise StepFailed(f"step: expected a callable, got {type(function).__name__}; name a function or a class")
        self.made, self.arrays = function, arrays
        self.function = self._instance()
        self.names = self._arguments()

    def fresh(self) -> AcceptStep:
        """The same step without memory of earlier calls, as far as it is a class; else itself."""
        return AcceptStep(self.made, self.arrays) if inspect.isclass(self.made) else self

    @property
    def draws(self) -> bool:
        """It draws its own random numbers."""
        return "uniforms" not in self.names

    def __call__(self, question: StepQuestion, uniforms: Tensor | None) -> StepAnswer:
        """uniforms: float64 [R, N + 1] in [0, 1), or None for a step that draws its own."""
        asked = {"tokens": question.tokens, "q": question.q, "p": question.p, "uniforms": uniforms,
                 "q_uncut": question.q_uncut, "parents": torch.tensor(question.parents)}  # fmt: skip
        given = {name: self._array(value) for name, value in asked.items() if name in self.names}
        if "top_k" in self.names:
            given["top_k"] = question.top_k
        try:
            answer = self.function(**given)
        except ImportError as error:
            raise StepFailed(
                f"step: expected what it is made of, got {type(error).__name__} ({error}); install it"
            ) from error
        except (Exception, SystemExit) as error:
            rows, length = question.tokens.shape
            raise StepFailed(f"step: expected accepted counts and next tokens, got {type(error).__name__} ({error}); call it "
                             f"with {rows} rows of {length} tokens to see why") from error  # fmt: skip
        return _read_answer(answer, question)

    def _instance(self) -> Callable:
        if not inspect.isclass(self.made):
            return self.made
        try:
            return self.made()
        except Exception as error:
            raise StepFailed(f"step: expected a class that is made without arguments, got {type(error).__name__} ({error}); "
                             "name a function that makes it and calls it") from error  # fmt: skip

    def _arguments(self) -> set[str]:
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError) as error:
            raise StepFailed("step: expected a callable with a signature, got none; wrap it in a function") from error
        named = {one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
        needed = {one.name for one in parameters if one.name in named and one.default is one.empty}
        positional = {one.name for one in parameters if one.kind is one.POSITIONAL_ONLY}
        if needed - set(ARGUMENTS) or positional or "tokens" not in named:
            raise StepFailed(f"step: expected arguments among {', '.join(ARGUMENTS)}, tokens at least, got "
                             f"{', '.join(sorted(named)) or 'none'}; wrap it in a function of these")  # fmt: skip
        return named & set(ARGUMENTS)

    def _array(self, value: Tensor) -> object:
        # a step may work in place: what it is given is its own
        return value.clone().numpy() if self.arrays == "numpy" else value.clone()


def _read_answer(answer: object, question: StepQuestion) -> StepAnswer:
    """The answer as tensors.   Raises StepFailed for other shapes, kinds of numbers, or numbers out of range."""
    rows, nodes, size = len(question.tokens), len(question.parents), question.p.shape[-1]
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        got = f"{len(answer)} things" if isinstance(answer, tuple | list) else type(answer).__name__
        raise StepFailed(
            f"step: expected (accepted, next token) or (accepted, next token, kept), got {got}; return these"
        )
    accepted = _integers("accepted", answer[0], rows, nodes + 1)
    value = _integers("next token", answer[1], rows, size)
    kept = _integers("kept", answer[2], rows, nodes + 1) if len(answer) == 3 else accepted
    return StepAnswer(accepted, value, kept)


def _integers(name: str, value: object, rows: int, limit: int) -> Tensor:
    try:
        found = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise StepFailed(
            f"{name}: expected {rows} whole numbers, got {type(value).__name__}; return an array"
        ) from error
    if found.shape != (rows,) or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise StepFailed(
            f"{name}: expected int [{rows}], got {found.dtype} {list(found.shape)}; return one number a row"
        )
    found = found.long()
    if rows and not 0 <= int(found.min()) <= int(found.max()) < limit:
        raise StepFailed(f"{name}: expected numbers from 0 to {limit - 1}, got {int(found.min())} to {int(found.max())}; "
                         "return what the protocol says")  # fmt: skip
    return found


def load_step(spec: str) -> Callable:
    """What MODULE:CALLABLE names. Importing a module runs its code.

    Raises StepFailed where there is no such module or nothing of that name in it, and where its code raises.
    """
    module, colon, name = spec.partition(":")
    if not colon or not module or not name:
        raise StepFailed(f"step: expected MODULE:CALLABLE, got {spec!r}; write for example my_engine.accept:step")
    try:
        found = import_module(module)
    except (Exception, SystemExit) as error:
        raise StepFailed(f"step: expected a module that can be imported, got {module!r} ({type(error).__name__}: {error}); "
                         "start where it lies, or install it") from error  # fmt: skip
    try:
        step = attrgetter(name)(found)
    except (Exception, SystemExit) as error:
        raise StepFailed(f"step: expected a name in {module}, got {name!r} ({type(error).__name__}: {error}); correct "
                         "it") from error  # fmt: skip
    if not callable(step) and not hasattr(step, "certificate"):
        raise StepFailed(f"step: expected a callable, got {name!r}, which is {type(step).__name__}; name a function")
    return step
