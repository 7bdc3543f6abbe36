"""The suites of `mmspec bench vlm` as data: which methods meet which tasks, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mmspec import zoo
from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.core.length import ConfidenceStop
from mmspec.evaluate.altered import HEAD, Change, blocks, both, chained, judged, paying, shaped, skipping, whole_layer
from mmspec.evaluate.shelf import DRAFTERS, title_of
from mmspec.evaluate.tasks import ALBUMS, CAPTIONS, ENDLESS, ONE_WORD, QUESTIONS, Task
from mmspec.evaluate.vlm_methods import GREEDY, PEER, PLAIN, SAMPLED, Method

LONGEST = 12
FIXED = (1, 2, 3, 4, 5, 7, 9, LONGEST)  # chain lengths the controller is held against
TRAINED = ("eagle", "eagle_text", "msd", "vispec", "flash", "specvlm", "eagle3", "hydra", "medusa")
_HF, _AR = Method(PEER, "transformers", "transformers"), Method(PLAIN, "mmspec plain", point=0)
_COMMON = ("method", "law", "passes", "accept length", "seconds", "x plain (10-90 %)", "x transformers (10-90 %)")
_COSTS = ("prefill ms", "step ms", "round ms", "rows")


@dataclass(frozen=True, slots=True)
class Suite:
    """about: what meets what, for tables.   methods: rows of their own.   each: the rows of one drafter, from its name and
    title.   drafters: of those rows.

    prompts, batches, temperatures: unless asked for otherwise.   columns: of report.COLUMNS, in order.
    measured: drafters are also timed alone, see `drafter_costs`.   reference: the drafter others are compared with.
    plot: (row field of the x axis, row fields drawn against it).
    """

    about: str
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...] = ()
    each: Callable[[str, str], tuple[Method, ...]] = lambda name, title: ()
    drafters: tuple[str, ...] = ()
    prompts: int = 30
    batches: tuple[int, ...] = (1, 4)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    columns: tuple[str, ...] = _COMMON
    measured: bool = False
    reference: str = ""
    plot: tuple[str, tuple[str, ...]] | None = None

    def rows(self, saved: Iterable[tuple[str, str]] = ()) -> tuple[Method, ...]:
        """All methods, those of drafters saved in folders, (name, folder), among them; baselines come first.

        A drafter that the zoo does not know has no rows; one it knows and has no weights of gets failed ones.
        """
        there = {None, "", *zoo.names()}
        known = [name for name in self.drafters if DRAFTERS[name].part in there]
        made = [method for name in known for method in self.each(name, title_of(name))]
        for name, folder in saved:
            like_the_zoo = [(method, both(chained(7), method.change)) for method in self.each(name, name)]
            made += [replace(method, drafter=folder, change=change) for method, change in like_the_zoo]
        own = [method for method in self.methods if {method.part, DRAFTERS[method.drafter].part} <= there]
        return (_HF, _AR, *made, *own)


def _as_it_is(name: str, title: str) -> tuple[Method, ...]:
    return (Method(name, title, drafter=name, rivals=name),)


def _chained_blocks(count: int) -> Change:
    return both(chained(8), blocks(count))


def _block_rows(name: str, title: str) -> tuple[Method, ...]:
    return tuple(
        Method(
            f"{name}-{count}",
            f"{title}, {count} a pass",
            drafter=name,
            change=both(chained(8), blocks(count)),
            point=count,
        )
        for count in range(1, 6)
    )


def _length_rows(name: str, title: str) -> tuple[Method, ...]:
    shared = {"drafter": name, "rivals": name}
    fixed = [
        Method(f"{name}-{length}", f"{title}, chain of {length}", change=chained(length), point=length, **shared)
        for length in FIXED
    ]
    return (*fixed, _goodput(name, title))


def _goodput(name: str, title: str) -> Method:
    """The controller over chains as long as the longest fixed one."""
    change = both(chained(LONGEST), paying)
    return Method(f"{name}-goodput", f"{title}, goodput", drafter=name, change=change, rivals=name, controlled=True)


_EAGLE = "eagle"
_UNTRAINED = (
    Method("lookup", "prompt lookup", drafter="lookup"),
    Method("recycling", "Token Recycling", drafter="recycling"),
    Method("small", "small model chain", drafter="small"),
)
_ENGINE = (
    Method("hf-lookup", "transformers prompt lookup", "transformers", options={"prompt_lookup_num_tokens": 10}),
    Method(
        "hf-assisted",
        "transformers assisted",
        "transformers",
        options={"assistant_model": lambda shelf: shelf.zoo_part("vlm/small")[0]},
    ),
    Method("eagle", "EAGLE dynamic tree", drafter=_EAGLE, change=shaped(DynamicTree())),
    Method("eagle-static", "EAGLE static tree", drafter=_EAGLE, change=shaped(StaticTree()), at=GREEDY),
    Method("eagle-chain", "EAGLE chain", drafter=_EAGLE, change=chained(7), at=GREEDY),
    *(
        Method(
            f"eagle-{rule}",
            f"EAGLE sampled tree, {title}",
            drafter=_EAGLE,
            change=shaped(StaticTree()),
            rule=rule,
            at=SAMPLED,
        )
        for rule, title in (("traversal", "traversal"), ("recursive", "recursive"), ("match", "target-match"))
    ),
    Method("eagle-block", "EAGLE sampled chain, block", drafter=_EAGLE, change=chained(7), rule="block", at=SAMPLED),
    *_UNTRAINED,
)
_SHAPED = (
    Method("eagle-tree", "EAGLE dynamic tree", drafter=_EAGLE, change=shaped(DynamicTree())),
    Method(
        "eagle-confidence", "EAGLE, confidence stop", drafter=_EAGLE, change=chained(ConfidenceStop(longest=LONGEST))
    ),
    Method("eagle-specdecpp", "EAGLE, SpecDec++", drafter=_EAGLE, change=judged(LONGEST), part=HEAD),
    Method("msd-viskip", "MSD, ViSkip", drafter="msd", change=skipping),
    _goodput(_EAGLE, "EAGLE"),
    _goodput("msd", "MSD"),
    *_as_it_is("random", "untrained EAGLE"),
    _goodput("random", "untrained EAGLE"),
)

SUITES: dict[str, Suite] = {
    "methods": Suite(
        "rules, shapes and drafters without training, on texts that never end",
        (ENDLESS,),
        _ENGINE,
        columns=(*_COMMON, "ms a round: draft + target + verify + other", "verify share", "identical"),
    ),
    "drafters": Suite(
        "every trained drafter, captions and questions",
        (CAPTIONS, QUESTIONS),
        _SHAPED,
        _as_it_is,
        TRAINED,
        columns=(*_COMMON, "drafter passes a token", *_COSTS, "parameters", "training s", "identical"),
        measured=True,
        reference="eagle_text",
    ),
    "pictures": Suite(
        "drafters on prompts of 1, 4, 8 and 16 pictures",
        ALBUMS,
        (Method("msd-whole", "MSD, whole layer over the prompt", drafter="msd", change=whole_layer),),
        _as_it_is,
        drafters=TRAINED,
        prompts=9,
        batches=(1,),
        temperatures=(0.0,),
        columns=(*_COMMON, *_COSTS, "cost of MSD's", "accept length of MSD's", "identical"),
        measured=True,
        reference="msd",
        plot=("pictures", ("accept_length", "drafter_cost_ms", "speedup_vs_ar")),
    ),
    "blocks": Suite(
        "several tokens a drafter pass",
        (CAPTIONS, QUESTIONS),
        each=_block_rows,
        drafters=("flash",),
        batches=(1,),
        columns=(*_COMMON, "drafter passes a token", "step ms", "round ms", "identical"),
        measured=True,
        plot=("point", ("accept_length", "drafter_passes_per_token", "speedup_vs_ar")),
    ),
    "lengths": Suite(
        "the goodput controller against every fixed length",
        (CAPTIONS, QUESTIONS, ONE_WORD),
        each=_length_rows,
        drafters=("eagle", "weak", "random"),
        prompts=12,
        columns=(*_COMMON, "best fixed", "x best fixed (10-90 %)", "identical"),
        plot=("point", ("accept_length", "speedup_vs_ar")),
    ),
}


def suite_of(name: str) -> Suite:
    """The suite called `name`.   Raises ValueError for an unknown name."""
    if name not in SUITES:
        raise ValueError(f"--suite: expected one of {', '.join(SUITES)}, got {name!r}, pick one of these")
    return SUITES[name]
