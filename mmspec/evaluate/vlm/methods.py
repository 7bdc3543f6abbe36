"""Methods and suites of `mmspec bench vlm` as data, and what a row changes about its drafter: shape, length, reading."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from mmspec import zoo
from mmspec.core.drafting.shapes import Chain, Shape
from mmspec.core.length import FixedLength, LengthControl
from mmspec.evaluate.engine.suite import Method, Suite
from mmspec.evaluate.vlm.requests import VlmTask
from mmspec.evaluate.vlm.resources import VlmResources, drafter_specs

PEER, PLAIN = "hf", "plain"
HEAD = "vlm/specdecpp"  # an acceptance head of the zoo, made for vlm/eagle
DrafterChange = Callable[[Any], Any]


def both(first: DrafterChange, second: DrafterChange | None) -> DrafterChange:
    """One change after another."""
    return first if second is None else lambda drafter: second(first(drafter))


def shaped(shape: Shape) -> DrafterChange:
    """Drafts in this shape."""
    return lambda drafter: drafter.with_shape(shape)


def chained(length: int | LengthControl) -> DrafterChange:
    """Drafts chains of a fixed or controlled length."""
    return shaped(Chain(FixedLength(length) if isinstance(length, int) else length))


def blocks(count: int) -> DrafterChange:
    """Drafts `count` tokens a pass."""
    return lambda drafter: drafter.with_block(count)


def whole_layer(drafter: Any) -> Any:
    """Reads prompts with the whole layer, as public code does, where ours computes keys and values alone.

    For drafters whose layer attends from its residual, such as MSD on LLaVA.
    """
    other = copy.copy(drafter)
    other._modules = dict(drafter._modules)
    layer = copy.copy(drafter.layer)
    layer.remember = lambda attend, rotary, cache: layer(attend, attend, rotary, cache, None)
    other.layer = layer
    return other


def with_goodput(drafter: Any) -> Any:
    """Drafts as many tokens as pay by measured costs, none where none pay."""
    from mmspec.core.goodput import Goodput

    return Goodput(drafter)


def with_lookup(drafter: Any) -> Any:
    """Prompt lookup beside the drafter in one tree."""
    from mmspec.vlm.drafters.merged import Merged

    return Merged(drafter)


def with_vision_skip(drafter: Any) -> Any:
    """Drafts nothing where the next token leans on the pictures."""
    from mmspec.vlm.drafters.viskip import VisionSkip

    return VisionSkip(drafter)


def with_acceptance_head(longest: int) -> DrafterChange:
    """Drafts chains that end on the word of the acceptance head the zoo has for the drafter."""

    def change(drafter: Any) -> Any:
        from mmspec.vlm.drafters.specdecpp import AcceptanceStop

        return chained(AcceptanceStop(zoo.load(HEAD), longest=longest))(drafter)

    return change


@dataclass(frozen=True, slots=True)
class VlmMethod(Method):
    """engine: whose loop decodes.   drafter: a name in `drafter_specs` or a folder.   change: what this row changes about the
    drafter.   options: for transformers' generate; a callable is given the resources.
    point: where plots put the row, such as its fixed length.   controlled: its lengths follow measured costs; compared with
    the other rows of the same `rivals`.
    strict: passes over drafts give the bits of single ones.   captured: rounds run without the host.
    widely: runs in every setting of suites that leave out others, see `VlmSuite.narrowed`.
    largest_batch: the engine refuses larger ones; None for any.
    """

    shown: ClassVar[tuple[str, ...]] = ("drafter", "point", "controlled")

    engine: Literal["transformers", "mmspec"] = "mmspec"
    drafter: str = "none"
    change: DrafterChange | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    point: int | None = None
    rivals: str = ""
    controlled: bool = False
    strict: bool = False
    captured: bool = False
    widely: bool = False
    largest_batch: int | None = None

    def build_drafter(self, resources: VlmResources) -> object:
        """The drafter of the row, changed; None for plain decoding.   Raises ValueError where its weights are missing."""
        drafter = resources.drafter(self.drafter)
        return drafter if self.change is None else self.change(drafter)


COMMON = ("method", "output", "passes", "accept length", "seconds", "x plain (10-90 %)", "x transformers (10-90 %)")
_HF = VlmMethod(PEER, "transformers", engine="transformers", widely=True)
_AR = VlmMethod(PLAIN, "mmspec plain", point=0, widely=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmSuite(Suite):
    """methods: rows of their own.   each: the rows of one drafter, from its name and title.   drafters: of those rows.
    measured: drafters are also timed alone, see `drafter_costs`.   reference: the drafter others are compared with.
    plot: (row field of the x axis, row fields drawn against it).   model: that all rows decode unless another is named.
    united: the name of the rows over all tasks together; "" for none.   narrowed: beyond batch 1 and greedy, only methods
    with `widely` run unless methods are named.   curve: the cost of passes over several rows is measured.
    alone: rows of greedy batches are compared with the same prompts alone.
    """

    tasks: tuple[VlmTask, ...]
    methods: tuple[VlmMethod, ...] = ()
    each: Callable[[str, str], tuple[VlmMethod, ...]] = lambda name, title: ()
    drafters: tuple[str, ...] = ()
    columns: tuple[str, ...] = COMMON
    prompts: int = 30
    batches: tuple[int, ...] = (1, 4)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    measured: bool = False
    reference: str = ""
    model: str = "vlm"
    plot: tuple[str, tuple[str, ...]] | None = None
    united: str = ""
    narrowed: bool = False
    curve: bool = False
    alone: bool = False

    def rows(self, saved: Iterable[tuple[str, str]] = (), model: str = "") -> tuple[VlmMethod, ...]:
        """All methods, those of drafters saved in folders among them; baselines come first.

        A drafter that the zoo does not know has no rows, nor has a drafter of another model; a drafter that the zoo knows
        and has no weights of gets failed rows.

        Args:
            saved: (name, folder) of saved drafters.
            model: The model that is decoded, "" for the suite's own.

        Returns:
            The methods in the order of the tables.
        """
        there, fits = {"", *zoo.names()}, ("", model or self.model)
        known = {name: one for name, one in drafter_specs().items() if one.target in fits}
        made = [method for name in self.drafters if name in known for method in self.each(name, known[name].title)]
        for name, folder in saved:
            like_the_zoo = [(method, both(chained(7), method.change)) for method in self.each(name, name)]
            made += [replace(method, drafter=folder, change=change) for method, change in like_the_zoo]
        own = [method for method in self.methods if method.part in there and method.drafter in known]
        return (_HF, _AR, *made, *own)
