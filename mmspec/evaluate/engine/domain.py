"""The description of a domain for benches and sweeps, and the failures of a finished bench."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mmspec.evaluate.base.media import Shows
from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.config import BenchConfig
from mmspec.evaluate.engine.rows import Results
from mmspec.evaluate.engine.runs import Runner, Sampler
from mmspec.evaluate.engine.suite import Method, Setting, Suite

if TYPE_CHECKING:
    from mmspec.evaluate.engine.resume_log import BenchLog
    from mmspec.evaluate.quality.features import Scorer


@dataclass(frozen=True, slots=True)
class TimedSetting:
    config: BenchConfig
    resources: Any
    setting: Setting
    methods: Sequence[Method]
    cases: Sequence[Any]  # the model inputs
    results: Results  # by method, case and repeat


class QualityReference(Protocol):
    """Plain decoding's output in a setting, to which the output of every method is compared; `row` holds its figures."""

    row: dict

    def judge(self, method: Method) -> dict:
        """Return the figures of a method's output, including `exact` and the target passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOverrides:
    """Sampling settings of a sweep; None leaves the domain's default, and settings of other domains are ignored."""

    guidance: float | None = None  # of pictures
    top_k: int | None = None  # of pictures
    num_iter: int | None = None  # steps over a picture of a masked model
    new_tokens: int | None = None  # the longest answer
    blocks: int | None = None  # of a video

    def with_defaults(self, **defaults: Any) -> dict[str, Any]:
        return {name: value if getattr(self, name) is None else getattr(self, name) for name, value in defaults.items()}


class Domain(ABC):
    """The base of a domain; its folder has one instance, `DOMAIN`. Abstract methods have to be defined."""

    name: str  # the command, `mmspec bench NAME`
    config: type[BenchConfig]  # the options of the command
    suites: Mapping[str, Suite]
    output: str  # The output that exact rows must give, for errors, such as "tokens of transformers".
    shows: Shows = "text"
    quality: Mapping[str, str] = {}  # the fields that a timed row copies from the judged row, by their names there
    models: Sequence[str] = ()  # of the zoo, for sweeps
    temperatures: tuple[float, ...] = (1.0,)  # of a sweep

    @abstractmethod
    def open(self, model: str, config: Any = None) -> Any:
        """Return the resources of a model of the zoo or a folder, in the precision of its files or of the bench; a
        sweep has no config."""

    @abstractmethod
    def sampler(self, method: Any, resources: Any, setting: Any) -> Sampler:
        """Return a function of (case, seed) that runs a method and returns its cost and its output, an item per row. A
        missing part is a ValueError, a missing package an ImportError."""

    def runner(self, method: Any, resources: Any, setting: Any) -> Runner:
        """Return a function of (case, seed) that runs a method and returns its cost, for benches."""
        sample = self.sampler(method, resources, setting)
        return lambda case, seed: sample(case, seed)[0]

    # benches

    def resources(self, config: Any) -> Any:
        """Return the resources of a bench, on its device and in its precision."""
        resources = self.open(getattr(config, "model", ""), config)
        resources.place(config.placement)
        return resources

    @abstractmethod
    def cases(self, resources: Any, setting: Any) -> Sequence[Any]:
        """Return the model inputs of a setting."""

    @abstractmethod
    def certainty(self, timed: TimedSetting) -> dict:
        """Return the row fields that all rows of a setting share, such as the certainty of the target."""

    @abstractmethod
    def environment(self, config: Any, resources: Any) -> dict:
        """Return the domain's entries of `env`."""

    @abstractmethod
    def describe(self, row: Mapping[str, Any]) -> str:
        """Return the setting of a row in words."""

    @abstractmethod
    def page(self, result: dict) -> Any:
        """Return the tables of a bench file."""

    @abstractmethod
    def panels(self, result: dict) -> list[Any]:
        """Return the curves of a bench file; a suite without a plot is a ValueError."""

    def complete(self, timed: TimedSetting, rows: Mapping[str, dict]) -> None:
        """Add the domain's own fields to the rows of a setting, given by method key."""
        return

    def reference(self, config: Any, resources: Any, setting: Any) -> QualityReference | None:
        """Return the reference of a judged setting; None in a domain that judges nothing."""
        return None

    def extras(self, config: Any, resources: Any, log: BenchLog) -> dict:
        """Return the entries of the bench file beside the rows."""
        return {}

    def may_fail(self, row: dict) -> bool:
        """Return whether a failure of this row is expected and not an error of the bench."""
        return False

    def united(self, config: Any, rows: Sequence[dict]) -> list[dict]:
        """Return rows over several settings together, computed from the rows of each."""
        return []

    # sweeps

    def defaults(self, model: str) -> Sequence[tuple[str, str]]:
        """Return the default (decoding, rule) pairs of a sweep, plain decoding first; "" is a decoding's own rule."""
        return [("ar", "")]

    def method(self, model: str, decoding: str, rule: str) -> Method:
        method = self.row(decoding)
        if method is None:
            raise ValueError(
                f"--decoding: expected a row of the benches of {self.name}, got {decoding!r}, name another"
            )
        return method

    def row(self, key: str, fits: Callable[[Any], bool] = lambda row: True) -> Any:
        """Return the bench row with this key; None if no row fits."""
        rows = (row for suite in self.suites.values() for row in suite.methods)
        return next((row for row in rows if row.key == key and fits(row)), None)

    def setting(self, model: str, temperature: float, wishes: SamplingOverrides) -> Setting:
        """Return the setting of a sweep, with batches of 1."""
        return Setting(batch=1, temperature=temperature, prompts=1, seed=0)

    def drawing(self, setting: Any) -> dict[str, Any]:
        """Return all fields of a setting that decide outputs, in plain JSON."""
        return setting.name()

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        """Return the zoo's own prompts of a model."""
        return []

    def case(self, resources: Any, setting: Any, prompt: EvaluationPrompt) -> Any:
        """Return the input of the samplers for a prompt; a prompt that the model cannot answer is a ValueError."""
        return prompt

    def scorers(self, model: str) -> list[Scorer]:
        """Return the scorers of single samples for prompts about the zoo's world."""
        return []


def bench_failures(domain: Domain, result: dict) -> list[str]:
    """Return a sentence per wrong row of a finished bench. A row is wrong if it is exact and its greedy output differs
    by more than ties, or if it failed unexpectedly."""
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
