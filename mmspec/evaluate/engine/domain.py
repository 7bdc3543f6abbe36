"""The description of a domain, which benches and sweeps ask, and what is wrong with a finished bench."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mmspec.core.pipeline_parts import read_part
from mmspec.evaluate.engine.config import BenchConfig
from mmspec.evaluate.engine.media import Shows
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.engine.rows import Results
from mmspec.evaluate.engine.runs import Runner, Sampler
from mmspec.evaluate.engine.suite import Method, Setting, Suite

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
        """The value that `make` returned when `name` was asked for first."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


@dataclass(slots=True)
class PipelineResources(Resources):
    """Resources whose model is that of a pipeline. A subclass defines `own_part`, the parts that it has itself."""

    pipeline: Any

    @property
    def model(self) -> Any:
        """The pipeline's model."""
        return self.pipeline.model

    def part(self, name: str, source: str | None = None) -> Any:
        """A part of a method, see `MethodParts`.   source: where a text says that it is saved.

        Raises ValueError where there is none.
        """
        return self.own_part(name) if source is None else read_part(self.pipeline, name, source)

    def fitted(self, part: Any) -> Any:
        """Return a part on the device and in the precision of the model; parts that cannot move stay as they are."""
        if hasattr(part, "fitted"):
            return part.fitted(self.pipeline)
        if not hasattr(part, "to"):
            return part
        return part.to(device=self.model.device, dtype=getattr(self.model, "dtype", None))


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
        """The overrides as a dict; unset ones take the domain's defaults."""
        return {name: value if getattr(self, name) is None else getattr(self, name) for name, value in defaults.items()}


class Domain(ABC):
    """Base of a domain; its folder has one instance, `DOMAIN`. Methods without a body have to be defined.

    Attributes:
        name: The command, `mmspec bench NAME`.
        config: The options of the command.
        suites: The suites of benches by name.
        output: The output that exact rows must give, for errors, such as "tokens of transformers".
        shows: The kind of output.
        quality: Fields that a timed row takes over from the judged row, by their names there.
        models: The models of the zoo that sweeps run, by name.
        temperatures: Those of a sweep that names none.
    """

    name: str
    config: type[BenchConfig]
    suites: Mapping[str, Suite]
    output: str
    shows: Shows = "text"
    quality: Mapping[str, str] = {}
    models: Sequence[str] = ()
    temperatures: tuple[float, ...] = (1.0,)

    @abstractmethod
    def open(self, model: str, config: Any = None) -> Any:
        """The resources of a model of the zoo or of a folder.   config: that of a bench; None in a sweep."""

    @abstractmethod
    def sampler(self, method: Any, resources: Any, setting: Any) -> Sampler:
        """How a method runs a case: a function of (case, seed) that returns its cost and its output, an item a row.

        Raises ValueError or ImportError where parts of the method are missing.
        """

    def runner(self, method: Any, resources: Any, setting: Any) -> Runner:
        """As `sampler`, for benches, which look at the cost alone."""
        sample = self.sampler(method, resources, setting)
        return lambda case, seed: sample(case, seed)[0]

    # benches

    def resources(self, config: Any) -> Any:
        """The resources of a bench."""
        return self.open(getattr(config, "model", ""), config)

    @abstractmethod
    def cases(self, resources: Any, setting: Any) -> Sequence[Any]:
        """The model inputs of a setting."""

    @abstractmethod
    def certainty(self, timed: TimedSetting) -> dict:
        """Row fields that all rows of a setting share, such as the certainty of the target."""

    @abstractmethod
    def environment(self, config: Any, resources: Any) -> dict:
        """The entries of `env` beside those of the machine."""

    @abstractmethod
    def describe(self, row: Mapping[str, Any]) -> str:
        """The setting of a row in words."""

    @abstractmethod
    def page(self, result: dict) -> Page:
        """The tables of a bench file."""

    @abstractmethod
    def panels(self, result: dict) -> list[Panel]:
        """The curves of a bench file.   Raises ValueError for a suite without a plot."""

    def complete(self, timed: TimedSetting, rows: Mapping[str, dict]) -> None:
        """Add the domain's own fields to the rows of a setting, which are given by key."""
        return

    def reference(self, config: Any, resources: Any, setting: Any) -> QualityReference | None:
        """The reference of a judged setting; None in a domain that judges nothing."""
        return None

    def extras(self, config: Any, resources: Any, log: BenchLog) -> dict:
        """Entries of the file beside the rows."""
        return {}

    def may_fail(self, row: dict) -> bool:
        """Whether a failure of this row is no fault of ours."""
        return False

    def united(self, config: Any, rows: Sequence[dict]) -> list[dict]:
        """Rows over several settings together, from the rows of each."""
        return []

    # sweeps

    def defaults(self, model: str) -> Sequence[tuple[str, str]]:
        """The (decoding, rule) pairs of a sweep that names none, plain decoding first; "" is a decoding's own rule."""
        return [("ar", "")]

    def method(self, model: str, decoding: str, rule: str) -> Method:
        """The method of a decoding and a rule.   Raises ValueError where the model has no such decoding."""
        found = self.row(decoding)
        if found is None:
            raise ValueError(
                f"--decoding: expected a row of the benches of {self.name}, got {decoding!r}, name another"
            )
        return found

    def row(self, key: str, fits: Callable[[Any], bool] = lambda row: True) -> Any:
        """The row of the benches with this key; None where there is none that fits."""
        rows = (row for suite in self.suites.values() for row in suite.methods)
        return next((row for row in rows if row.key == key and fits(row)), None)

    def setting(self, model: str, temperature: float, wishes: SamplingOverrides) -> Setting:
        """The setting of a sweep: batches of 1."""
        return Setting(batch=1, temperature=temperature, prompts=1, seed=0)

    def drawing(self, setting: Any) -> dict[str, Any]:
        """All fields of a setting that decide outputs, in plain JSON."""
        return setting.name()

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        """The zoo's own prompts of a model."""
        return []

    def case(self, resources: Any, setting: Any, prompt: EvaluationPrompt) -> Any:
        """The input that samplers take of a prompt.   Raises ValueError for what the model cannot be asked."""
        return prompt

    def scorers(self, model: str) -> list[Scorer]:
        """The scorers of single samples where the zoo's world is asked about."""
        return []


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
