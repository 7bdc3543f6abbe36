"""What a domain gives the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mmspec.evaluate.engine.config import BenchConfig
from mmspec.evaluate.engine.method import Method
from mmspec.evaluate.engine.rows import Results
from mmspec.evaluate.engine.runs import Runner
from mmspec.evaluate.engine.setting import Setting

if TYPE_CHECKING:
    from mmspec.evaluate.engine.log import BenchLog
    from mmspec.evaluate.pages.page import Page
    from mmspec.evaluate.pages.plots import Panel


@dataclass(frozen=True, slots=True)
class Timed:
    """One setting as it was timed.   cases: model inputs.   results: attempts by method, case and repeat."""

    config: BenchConfig
    resources: Any
    setting: Setting
    methods: Sequence[Method]
    cases: Sequence[Any]
    results: Results


class Reference(Protocol):
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
    extras: entries of the file beside the rows.   may_fail: rows whose failure is no fault of ours.
    """

    name: str
    config: type[BenchConfig]
    output: str
    resources: Callable[[Any], Any]
    cases: Callable[[Any, Any], Sequence[Any]]
    runner: Callable[[Any, Any, Any], Runner]
    certainty: Callable[[Timed], dict]
    environment: Callable[[Any, Any], dict]
    describe: Callable[[Mapping[str, Any]], str]
    page: Callable[[dict], Page]
    panels: Callable[[dict], list[Panel]]
    complete: Callable[[Timed, Mapping[str, dict]], None] = lambda timed, rows: None
    reference: Callable[[Any, Any, Any], Reference] | None = None
    quality: Mapping[str, str] = field(default_factory=dict)
    extras: Callable[[Any, Any, BenchLog], dict] = lambda config, resources, log: {}
    may_fail: Callable[[dict], bool] = lambda row: False
