"""What a domain gives to sweeps: grids of models, decodings and rules whose output is kept and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mmspec.evaluate.engine.method import Method
from mmspec.evaluate.engine.prompt import Prompt
from mmspec.evaluate.engine.runs import Sampler
from mmspec.evaluate.engine.setting import Setting

if TYPE_CHECKING:
    from mmspec.evaluate.quality.features import Scorer

Shows = Literal["text", "picture", "film"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How values are drawn where a sweep says so; None as the domain has it. A domain takes those that mean something to it.

    guidance, top_k: of pictures.   num_iter: steps over a picture of a masked model.   new_tokens: the longest answer.
    blocks: of a film.
    """

    guidance: float | None = None
    top_k: int | None = None
    num_iter: int | None = None
    new_tokens: int | None = None
    blocks: int | None = None

    def given(self, **defaults: Any) -> dict[str, Any]:
        """These wishes by name, with a domain's own values for those that nobody has."""
        return {name: value if getattr(self, name) is None else getattr(self, name) for name, value in defaults.items()}


@dataclass(frozen=True, slots=True)
class Sweep:
    """A domain in sweeps, as the file `sweep.py` of its folder ties it.

    models: of the zoo, by name.   shows: what is made.   temperatures: where none is named.
    defaults: (decoding, rule) pairs of a model where none is named, the plain one first; "" for a decoding's own rule.
    method: of (model, decoding, rule); raises ValueError where the model has no such decoding.
    setting: of (model, temperature, wishes), a batch of one.   open: a model and what belongs to it.
    prompts: of (model, count, seed), the zoo's own.   case: of (resources, setting, prompt), what samplers take; raises
    ValueError for what the model cannot be asked.   sampler: as a domain's `runner`, but keeps what was made, one piece a row.

    What not every domain has. said: of a setting, all of it that decides outputs, in plain JSON.   scorers: of a model, what
    judges single samples where the zoo's world is asked about.
    """

    models: Sequence[str]
    shows: Shows
    temperatures: tuple[float, ...]
    defaults: Callable[[str], Sequence[tuple[str, str]]]
    method: Callable[[str, str, str], Method]
    setting: Callable[[str, float, Wishes], Setting]
    open: Callable[[str], Any]
    prompts: Callable[[str, int, int], list[Prompt]]
    case: Callable[[Any, Any, Prompt], Any]
    sampler: Callable[[Any, Any, Any], Sampler]
    said: Callable[[Any], dict[str, Any]] = lambda setting: setting.name()
    scorers: Callable[[str], list[Scorer]] = lambda model: []
