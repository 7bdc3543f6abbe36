"""What a domain gives the engine for benches and for sweeps, and what is wrong with a finished bench."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mmspec.evaluate.engine.config import BenchConfig
from mmspec.evaluate.engine.media import Shows
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.engine.rows import Results
from mmspec.evaluate.engine.runs import Runner, Sampler
from mmspec.evaluate.engine.suite import Method, Setting

if TYPE_CHECKING:
    from mmspec.evaluate.engine.resume_log import BenchLog
    from mmspec.evaluate.quality.features import Scorer
    from mmspec.evaluate.report.bench_page import Page
    from mmspec.evaluate.report.plots import Panel


@dataclass(slots=True)
class Resources:
    """Base of a domain's resources, which add their model and a `name` for tables."""

    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` returned when `name` was asked for first."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


@dataclass(frozen=True, slots=True)
class TimedSetting:
    """One setting as it was timed.   cases: model inputs.   results: attempts by method, case and repeat."""

    config: BenchConfig
    resources: Any
    setting: Setting
    methods: Sequence[Method]
    cases: Sequence[Any]
    results: Results


class QualityReference(Protocol):
    """Plain decoding's output in one setting, which every method's is held against.   row: the setting's own figures."""

    row: dict

    def judge(self, method: Method) -> dict:
        """The figures of a method's output, `exact` and the passes it took among them."""


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain as its folder ties it.

    name: in `mmspec bench NAME`.   config: what can be asked for.   output: what exact rows have in common with which
    baseline, for errors: "tokens of transformers".
    resources: the model and what belongs to it, with a `name` for tables.   cases: model inputs of a setting.
    runner: how a method runs a case; raises ValueError or ImportError where its parts are missing.
    certainty: how sure the target was, and what else rows of a setting share.   environment: what `env` says beside the
    machine.   describe: a setting's or a row's fields in words.   page: what tables show of a bench file.
    panels: its curves; raises ValueError where its suite has none.

    What not every domain has. complete: adds its own fields to the rows of a setting, by key.   reference: of a setting
    that is judged.   quality: fields a timed row takes over from the judged one, and what they are called there.
    shows: what it generates.
    extras: entries of the file beside the rows.   may_fail: rows whose failure is no fault of ours.
    united: rows over several settings together, from the rows of each.
    """

    name: str
    config: type[BenchConfig]
    output: str
    resources: Callable[[Any], Any]
    cases: Callable[[Any, Any], Sequence[Any]]
    runner: Callable[[Any, Any, Any], Runner]
    certainty: Callable[[TimedSetting], dict]
    environment: Callable[[Any, Any], dict]
    describe: Callable[[Mapping[str, Any]], str]
    page: Callable[[dict], Page]
    panels: Callable[[dict], list[Panel]]
    complete: Callable[[TimedSetting, Mapping[str, dict]], None] = lambda timed, rows: None
    reference: Callable[[Any, Any, Any], QualityReference] | None = None
    quality: Mapping[str, str] = field(default_factory=dict)
    shows: Shows = "text"
    extras: Callable[[Any, Any, BenchLog], dict] = lambda config, resources, log: {}
    may_fail: Callable[[dict], bool] = lambda row: False
    united: Callable[[Any, Sequence[dict]], list[dict]] = lambda config, rows: []


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOverrides:
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
    setting: Callable[[str, float, SamplingOverrides], Setting]
    open: Callable[[str], Any]
    prompts: Callable[[str, int, int], list[EvaluationPrompt]]
    case: Callable[[Any, Any, EvaluationPrompt], Any]
    sampler: Callable[[Any, Any, Any], Sampler]
    said: Callable[[Any], dict[str, Any]] = lambda setting: setting.name()
    scorers: Callable[[str], list[Scorer]] = lambda model: []


def bench_failures(domain: Domain, result: dict) -> list[str]:
    """A sentence per exact row whose greedy output is another, but for ties, and per failure that is ours."""
    wrong = []
    for row in result["rows"]:
        where = f"{row['method']} ({domain.describe(row)})"
        same, _, of = (row.get("identical") or "0/0").partition("/")
        if row["exact"] and int(same) + row.get("ties", 0) != int(of):
            apart = "" if row.get("margin") is None else f"; the margin at the first difference is {row['margin']:.2g}"
            wrong.append(f"{where}: expected the {domain.output}, got them in {same} of {of} requests{apart}")
        if row["failed"] and not domain.may_fail(row):
            wrong.append(f"{where}: {row['failed']}")
    return wrong
