"""Settings of a bench: dataclass fields that become command-line options. Imports no models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mmspec.evaluate.engine.suite import Setting, Suite
from mmspec.run.decoding_options import check_choice
from mmspec.run.placement import AUTO, DEVICE_HELP, DTYPE_HELP, Placement, placement_of

if TYPE_CHECKING:
    from mmspec.evaluate.engine.suite import Method

INFINITE = float("inf")


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",  # where it differs from the field's name
    shown: str | None = None,  # the placeholder of the value in `--help`
    least: float = 0,
    most: float = INFINITE,
) -> Any:
    """Declare a field of a config; `least` and `most` bound a number, and each number of a tuple."""
    return field(default=default, metadata={"help": help, "flag": flag, "shown": shown, "least": least, "most": most})


def flag_of(config: Any, name: str) -> str:
    return config.__dataclass_fields__[name].metadata["flag"] or f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The settings of a bench; None takes the value of the suite. A value that is out of range or names nothing is an
    error."""

    about: ClassVar[str]  # for `--help`
    # Names in row fields of the methods that all are timed against. Greedy exact rows must give the output of the
    # first.
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
    device: str = option(AUTO, DEVICE_HELP, shown="NAME")
    dtype: str = option(AUTO, DTYPE_HELP, shown="NAME")

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", placement_of(self.device, self.dtype).device)
        suite = self.plan()
        if self.methods is not None:
            object.__setattr__(self, "methods", tuple(map(self.short_name, self.methods)))
        for each in fields(self):
            if (
                getattr(self, each.name) is None
                and hasattr(suite, each.name)
                and each.name not in ("batches", "methods")
            ):
                object.__setattr__(self, each.name, getattr(suite, each.name))
        if self.batches is None:
            object.__setattr__(self, "batches", tuple(dict.fromkeys(min(n, self.prompts) for n in suite.batches)))
        for each in fields(self):
            _check_range(self, each)
        if not self.batches or max(self.batches) > self.prompts:
            raise ValueError(f"--batch: expected 1 to {self.prompts} (the prompts), got {self.batches}, change one")
        for name in self.methods or ():
            if not any(method.named(name) for method in self.known()):
                keys = ", ".join(dict.fromkeys(method.family or method.key for method in self.known()))
                raise ValueError(f"--methods: expected some of {keys}, got {name!r}, pick from these")

    @property
    def placement(self) -> Placement:
        return Placement(self.device, self.dtype)

    def short_name(self, name: str) -> str:
        """Return the key that rows use for a method named by --methods."""
        return name

    def plan(self) -> Suite:
        """Return the chosen suite, from `suites.py` beside the config."""
        folder = type(self).__module__.rpartition(".")[0]
        suites = import_module(f"{folder}.suites").SUITES
        check_choice("--suite", self.suite, suites)
        return suites[self.suite]

    def known(self) -> tuple[Method, ...]:
        """Return the methods of the suite whose weights the zoo has, baselines first."""
        return self.plan().methods

    def settings(self) -> Iterator[Setting]:
        """Yield the settings that are timed."""
        for batch in self.batches:
            for temperature in self.temperatures:
                yield Setting(batch=batch, temperature=temperature, prompts=self.prompts, seed=self.seed)

    def judged(self) -> Iterator[Setting]:
        """Yield the settings in which the quality of every method's output is measured."""
        return iter(())

    def check(self, resources: Any) -> None:
        """Check the config against the loaded resources."""

    def folders(self) -> list[Path]:
        """Return folders whose files affect the figures too."""
        return []

    @property
    def rows(self) -> tuple[Method, ...]:
        """Return the chosen methods, and always the methods that they are compared with."""
        known = self.known()
        if self.methods is None:
            return known
        chosen = [entry for entry in known if any(entry.named(name) for name in self.methods)]
        always = {*self.baselines.values(), *(entry.like for entry in chosen)}
        return tuple(entry for entry in known if entry in chosen or entry.key in always)

    def serving(self, setting: Setting) -> list[Method]:
        return [method for method in self.rows if method.serves(setting.temperature)]

    def timed_requests(self, setting: Setting) -> int:
        """Return the number of requests that time a setting, with one warm-up of every method."""
        return len(self.serving(setting)) * (setting.cases * self.repeats + 1)

    def requests(self) -> int:
        """Return the number of timed requests and judged rows, for a progress bar."""
        return sum(map(self.timed_requests, self.settings())) + sum(len(self.serving(row)) for row in self.judged())

    def parts(self) -> int:
        """Return the number of timed settings and judged rows, for a log."""
        return len(list(self.settings())) + sum(len(self.serving(row)) for row in self.judged())


def _check_range(config: BenchConfig, one: Field) -> None:
    """Check the numbers of a field against the range of its option; a list must not be empty."""
    value = getattr(config, one.name)
    several = isinstance(value, tuple) and "str" not in str(one.type)
    if not several and (isinstance(value, str | bool) or not isinstance(value, int | float)):
        return
    least, most = one.metadata["least"], one.metadata["most"]
    values = value if several else (value,)
    if not values or not all(least <= number <= most and number < INFINITE for number in values):
        between = f"{least} to {most}" if most < INFINITE else f"at least {least}"
        raise ValueError(f"{flag_of(config, one.name)}: expected {between}, got {value}, change it")
