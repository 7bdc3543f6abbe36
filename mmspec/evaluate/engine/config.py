"""What a bench can be asked for: fields that the command line makes options of. Imports no models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mmspec.evaluate.engine.suite import Setting, Suite

if TYPE_CHECKING:
    from mmspec.evaluate.engine.suite import Method

INFINITE = float("inf")


def option(
    default: Any, help: str, *, flag: str = "", shown: str | None = None, least: float = 0, most: float = INFINITE
) -> Any:
    """A field of a config.   flag: where it is not the field's name.   shown: what `--help` shows as the value.
    least, most: of a number, or of every number of a tuple."""
    return field(default=default, metadata={"help": help, "flag": flag, "shown": shown, "least": least, "most": most})


def flag_of(config: Any, name: str) -> str:
    """The option of a config's field."""
    return config.__dataclass_fields__[name].metadata["flag"] or f"--{name.replace('_', '-')}"


def check_choice(option: str, value: object, known: Iterable[str], purpose: str = "") -> None:
    """Raises ValueError for a value that is none of the known ones.   purpose: of these, such as " for vectors"."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"{option}: expected one of {', '.join(known)}{purpose}, got {value!r}, pick one of these")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to run; None takes what the suite says. Raises ValueError for what cannot be run.

    methods: keys or families of the suite's rows, None for all.   threads: torch's, for every method alike; None for
    those that the caller's `torch.set_num_threads` or OMP_NUM_THREADS gives.
    about: what the bench is, for `--help`.   baselines: the methods all others are timed against, by the name that row
    fields call them by; the exact rows must give the first one's output when greedy.
    """

    about: ClassVar[str]
    baselines: ClassVar[dict[str, str]] = {"ar": "ar"}

    suite: str
    prompts: int | None = option(None, "Held-out prompts.", least=1)
    batches: tuple[int, ...] | None = option(None, "Batch sizes.", flag="--batch", shown="N,N", least=1)
    temperatures: tuple[float, ...] | None = option(None, "Temperatures.", flag="--temperature", shown="T,T")
    methods: tuple[str, ...] | None = option(
        None, "Rows or families of rows to run; all when left out.", shown="KEY,KEY"
    )
    repeats: int = option(1, "Timed runs of every method on every prompt.", least=1, most=1000)
    seed: int = option(0, "Which held-out prompts, and the seed of sampled rows.", most=9999)
    threads: int | None = option(
        None, "Threads torch computes with; as torch is set when left out.", least=1, most=1024
    )

    def __post_init__(self) -> None:
        suite = self.plan()
        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(map(self.short_name, self.methods)))
        for one in fields(self):
            if getattr(self, one.name) is None and hasattr(suite, one.name) and one.name not in ("batches", "methods"):
                object.__setattr__(self, one.name, getattr(suite, one.name))
        if self.batches is None:
            object.__setattr__(self, "batches", tuple(dict.fromkeys(min(n, self.prompts) for n in suite.batches)))
        for one in fields(self):
            _check_range(self, one)
        if not self.batches or max(self.batches) > self.prompts:
            raise ValueError(f"--batch: expected 1 to {self.prompts} (the prompts), got {self.batches}, change one")
        for name in self.methods or ():
            if not any(method.named(name) for method in self.known()):
                keys = ", ".join(dict.fromkeys(method.family or method.key for method in self.known()))
                raise ValueError(f"--methods: expected some of {keys}, got {name!r}, pick from these")

    def short_name(self, name: str) -> str:
        """What rows call the method that --methods names."""
        return name

    def plan(self) -> Suite:
        """The suite asked for, of those in `suites.py` beside the config."""
        folder = type(self).__module__.rpartition(".")[0]
        suites = import_module(f"{folder}.suites").SUITES
        check_choice("--suite", self.suite, suites)
        return suites[self.suite]

    def known(self) -> tuple[Method, ...]:
        """The suite's methods that the zoo has something for, baselines first."""
        return self.plan().methods

    def settings(self) -> Iterator[Setting]:
        """The settings that are timed."""
        for batch in self.batches:
            for temperature in self.temperatures:
                yield Setting(batch=batch, temperature=temperature, prompts=self.prompts, seed=self.seed)

    def judged(self) -> Iterator[Setting]:
        """The settings in which the quality of every method's output is measured."""
        return iter(())

    def check(self, resources: Any) -> None:
        """Raises ValueError for what cannot be had of these resources."""

    def folders(self) -> list[Path]:
        """Folders whose files decide figures too."""
        return []

    @property
    def rows(self) -> tuple[Method, ...]:
        """The methods asked for, always with those that ratios are taken against."""
        known = self.known()
        if self.methods is None:
            return known
        asked = [one for one in known if any(one.named(name) for name in self.methods)]
        always = {*self.baselines.values(), *(one.like for one in asked)}
        return tuple(one for one in known if one in asked or one.key in always)

    def serving(self, setting: Setting) -> list[Method]:
        """The methods that exist in a setting."""
        return [method for method in self.rows if method.serves(setting.temperature)]

    def timed_requests(self, setting: Setting) -> int:
        """Requests that time a setting, one warm-up of every method among them."""
        return len(self.serving(setting)) * (setting.cases * self.repeats + 1)

    def requests(self) -> int:
        """Timed requests and judged rows in all: what a progress bar counts."""
        return sum(map(self.timed_requests, self.settings())) + sum(len(self.serving(one)) for one in self.judged())

    def parts(self) -> int:
        """Timed settings and judged rows in all: what a log counts."""
        return len(list(self.settings())) + sum(len(self.serving(one)) for one in self.judged())


def _check_range(config: BenchConfig, one: Field) -> None:
    """Raises ValueError for numbers outside what their option allows; lists of numbers must hold some."""
    value = getattr(config, one.name)
    several = isinstance(value, tuple) and "str" not in str(one.type)
    if not several and (isinstance(value, str | bool) or not isinstance(value, int | float)):
        return
    least, most = one.metadata["least"], one.metadata["most"]
    values = value if several else (value,)
    if not values or not all(least <= number <= most and number < INFINITE for number in values):
        between = f"{least} to {most}" if most < INFINITE else f"at least {least}"
        raise ValueError(f"{flag_of(config, one.name)}: expected {between}, got {value}, change it")
