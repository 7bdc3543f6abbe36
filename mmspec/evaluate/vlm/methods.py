"""Methods and suites of `mmspec bench vlm` as data, and the changes of a row to its drafter: shape, length, reading."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from mmspec import zoo
from mmspec.core.drafting.shapes import Chain, Shape
from mmspec.core.length.controls import FixedLength, LengthControl
from mmspec.evaluate.engine.suite import Method, Suite
from mmspec.evaluate.vlm.requests import VlmTask
from mmspec.run.vlm_models import VlmResources, drafter_specs, takes_pictures

PEER, PLAIN = "hf", "plain"
HEAD = "vlm/specdecpp"  # an acceptance head of the zoo, trained for vlm/eagle
DrafterChange = Callable[[Any], Any]


def both(first: DrafterChange, second: DrafterChange | None) -> DrafterChange:
    """Return a change that applies two changes in order."""
    return first if second is None else lambda drafter: second(first(drafter))


def shaped(shape: Shape) -> DrafterChange:
    return lambda drafter: drafter.with_shape(shape)


def chained(length: int | LengthControl) -> DrafterChange:
    return shaped(Chain(FixedLength(length) if isinstance(length, int) else length))


def blocks(count: int) -> DrafterChange:
    """Return a change that drafts `count` tokens per pass."""
    return lambda drafter: drafter.with_block(count)


def whole_layer(drafter: Any) -> Any:
    """Read prompts with the whole layer, as published code does; ours computes keys and values only. For drafters whose
    layer attends from its residual, such as MSD on LLaVA."""
    other = copy.copy(drafter)
    other._modules = dict(drafter._modules)
    layer = copy.copy(drafter.layer)
    layer.remember = lambda attend, rotary, cache: layer(attend, attend, rotary, cache, None)
    other.layer = layer
    return other


def with_goodput(drafter: Any) -> Any:
    """Choose the draft length by measured costs, down to no draft."""
    from mmspec.core.length.goodput import Goodput

    return Goodput(drafter)


def with_lookup(drafter: Any) -> Any:
    """Merge prompt lookup and the drafter into a single tree."""
    from mmspec.vlm.drafters.merged import Merged

    return Merged(drafter)


def with_vision_skip(drafter: Any) -> Any:
    """Draft nothing where the next token depends on the pictures."""
    from mmspec.vlm.drafters.viskip import VisionSkip

    return VisionSkip(drafter)


def with_acceptance_head(longest: int) -> DrafterChange:
    """Return a change that ends chains by the zoo's acceptance head of the drafter."""

    def change(drafter: Any) -> Any:
        from mmspec.vlm.drafters.specdecpp import AcceptanceStop

        return chained(AcceptanceStop(zoo.load(HEAD), longest=longest))(drafter)

    return change


@dataclass(frozen=True, slots=True)
class VlmMethod(Method):
    shown: ClassVar[tuple[str, ...]] = ("drafter", "point", "controlled")

    engine: Literal["transformers", "mmspec"] = "mmspec"  # the library whose loop decodes
    drafter: str = "none"  # a name in `drafter_specs`, or a folder
    change: DrafterChange | None = None  # of this row to the drafter
    # arguments of transformers' `generate`; a callable is called with the resources
    options: Mapping[str, object] = field(default_factory=dict)
    point: int | None = None  # the position in plots, such as the row's fixed length
    rivals: str = ""  # a name shared by rows that a controlled row is compared with
    controlled: bool = False  # the row chooses its lengths by measured costs
    strict: bool = False  # passes over drafts are bit-identical to passes over single tokens
    captured: bool = False  # rounds run without the host
    widely: bool = False  # the row runs in all settings of narrowed suites, see `VlmSuite.narrowed`
    largest_batch: int | None = None  # that the engine supports; None for any

    def build_drafter(self, resources: VlmResources) -> object:
        """Return the drafter of the row with its change applied; None for plain decoding."""
        drafter = resources.drafter(self.drafter)
        return drafter if self.change is None else self.change(drafter)


COMMON = ("method", "output", "passes", "accept length", "seconds", "x plain (10-90 %)", "x transformers (10-90 %)")
_HF = VlmMethod(PEER, "transformers", engine="transformers", widely=True)
_AR = VlmMethod(PLAIN, "mmspec plain", point=0, widely=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmSuite(Suite):
    tasks: tuple[VlmTask, ...]
    methods: tuple[VlmMethod, ...] = ()  # rows that do not depend on a drafter list
    # from a drafter's name and title to its rows
    each: Callable[[str, str], tuple[VlmMethod, ...]] = lambda name, title: ()
    drafters: tuple[str, ...] = ()  # of these rows
    columns: tuple[str, ...] = COMMON
    prompts: int = 30
    batches: tuple[int, ...] = (1, 4)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    measured: bool = False  # time drafters alone as well, see `drafter_costs`
    reference: str = ""  # the drafter that others are compared with
    model: str = "vlm"  # the default model of all rows
    plot: tuple[str, tuple[str, ...]] | None = None  # row field of the x axis, row fields drawn against it
    united: str = ""  # the name of the rows over all tasks together; "" for none
    narrowed: bool = False  # beyond batch 1 and greedy, run only methods with `widely`, unless methods are named
    curve: bool = False  # measure the cost of passes over several tokens
    alone: bool = False  # compare the rows of greedy batches with the same prompts decoded alone

    def tasks_of(self, model: str) -> tuple[VlmTask, ...]:
        """Return the tasks of a model, "" for the suite's own: where the suite has tasks with and without pictures,
        those of the model's kind."""
        model = model or self.model
        known = [task for task in self.tasks if task.only in ("", model)]
        if len({task.pictures > 0 for task in known}) > 1:
            shown = takes_pictures(model)
            known = [task for task in known if (task.pictures > 0) == shown]
        return tuple(known)

    def rows(self, saved: Iterable[tuple[str, str]] = (), model: str = "") -> tuple[VlmMethod, ...]:
        """Return all methods in the order of the tables, baselines first, including those of saved drafters (name,
        folder). The model is "" for the suite's own. A drafter that the zoo does not know, or of another model, has no
        rows. A drafter whose weights are missing gets failed rows."""
        there, fits = {"", *zoo.names()}, ("", model or self.model)
        known = {name: spec for name, spec in drafter_specs().items() if spec.target in fits}
        rows = [method for name in self.drafters if name in known for method in self.each(name, known[name].title)]
        for name, folder in saved:
            like_the_zoo = [(method, both(chained(7), method.change)) for method in self.each(name, name)]
            rows += [replace(method, drafter=folder, change=change) for method, change in like_the_zoo]
        own = [method for method in self.methods if method.part in there and method.drafter in known]
        return (_HF, _AR, *rows, *own)
