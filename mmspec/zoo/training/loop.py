"""Training of the zoo's models: a plan, progress bars, prefetched steps, and the card of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mmspec.io.files import locked, write_json_atomic
from mmspec.io.readers import read_json
from mmspec.training.checkpoint import load_state
from mmspec.training.loop import LossFn, train_steps
from mmspec.training.run_state import STATE, RunState
from mmspec.training.schedule import Schedule
from mmspec.zoo.files.registry import command_for


def autocast(device: torch.device | str) -> AbstractContextManager[object]:
    """bf16 autocast on a GPU. On a CPU float32: for models of the zoo's size bf16 takes twice as long there."""
    kind = torch.device(device).type
    return nullcontext() if kind == "cpu" else torch.autocast(kind, torch.bfloat16)


def progress_bars() -> Progress:
    """Bars whose tasks carry a `note`, as `note_of` writes it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )


def note_of(figures: Mapping[str, float]) -> str:
    """The figures of a step in one line."""
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())


Batch, Model = TypeVar("Batch"), TypeVar("Model", bound=nn.Module)


def prefetched(make: Callable[[int], Batch], steps: int, workers: int) -> Callable[[int], Batch]:
    """`make`, a pure function of a step below `steps`, as a function that is called for one step after the other.

    workers: processes that compute batches ahead, which pays where a GPU would wait for them. They are forked, so that
    `make` may be any function that touches no GPU. 0 computes a batch when it is needed.
    """
    return _Prefetched(make, steps, workers) if workers else make


class _Prefetched(Generic[Batch]):
    def __init__(self, make: Callable[[int], Batch], steps: int, workers: int):
        self.steps, self.workers = _Steps(make), workers
        self.count, self.next = steps, -1
        self.source: Iterator[Batch] = iter(())

    def __call__(self, step: int) -> Batch:
        if step != self.next:
            order = range(step, self.count)
            self.source = iter(DataLoader(self.steps, batch_size=None, sampler=order, num_workers=self.workers,
                                          multiprocessing_context="fork"))  # fmt: skip
        self.next = step + 1
        return next(self.source)


class _Steps(Dataset, Generic[Batch]):
    def __init__(self, make: Callable[[int], Batch]):
        self.make = make

    def __getitem__(self, step: int) -> Batch:
        return self.make(step)


@dataclass(frozen=True, slots=True)
class TrainingPlan(Schedule):
    """A schedule, and how often a training run writes its state and its log."""

    weight_decay: float = 0.05
    save_every_s: float = 180.0
    log_every: int = 20


class ZooRecipe:
    """Base of recipes, the dataclasses of all settings that decide a model: how it is trained and what its card says.

    name: of the model in the zoo.   seed: of the first weights and of all draws.   steps, lr, again, warmup, weight_decay,
    muon, log_every: as in `TrainingPlan`; at most half of the steps are warm-up.   data: what it is trained on, in words.
    """

    __slots__ = ()
    name: str
    steps: int
    lr: float
    seed: int
    data: ClassVar[str]
    builds: ClassVar[str | None] = None  # as in `write_card`
    again: ClassVar[int] = 0
    warmup: ClassVar[int] = 100
    weight_decay: ClassVar[float] = 0.02
    muon: ClassVar[float] = 0.0
    log_every: ClassVar[int] = 20

    @property
    def folder(self) -> str:
        """Of the state, in the work folder."""
        return self.name.replace("/", "_")

    def plan(self) -> TrainingPlan:
        """The schedule for the training loop."""
        return TrainingPlan(self.steps, self.lr, warmup=min(self.warmup, self.steps // 2), weight_decay=self.weight_decay,
                            again=self.again, muon=self.muon, log_every=self.log_every)  # fmt: skip

    def seeds(self) -> dict[str, Any]:
        """The seeds of the world that it is trained on, for the card."""
        return {}

    def expect(self, holds: bool, what: str) -> None:
        """Raises ValueError, "expected `what`", unless it holds."""
        if not holds:
            raise ValueError(f"{type(self).__name__}: expected {what}, got {self}; change them")

    def draws(self, step: int) -> torch.Generator:
        """The source of a step's random numbers."""
        return torch.Generator().manual_seed((self.seed << 32) + step)

    def fraction(self, step: int, share: float = 1.0) -> float:
        """How much of a `share` of the run lies behind a step; at the step `again` a second run starts at 0."""
        first, last = (self.again, self.steps) if step >= self.again else (0, self.again)
        return (step - first) / (share * (last - first))

    def train(self, module: nn.Module, loss_of: LossFn, folder: Path, resume: bool = True) -> dict[str, float]:
        """`train` by the plan."""
        return train(module, loss_of, self.plan(), folder, self.name, resume)

    def trained(
        self, make: Callable[[], Model], loss: Callable[[Model, int], tuple[Tensor, dict[str, float]]], folder: Path,
        resume: bool = True, device: str = "cpu",
    ) -> tuple[Model, dict[str, float]]:  # fmt: skip
        """A new model, trained on `loss(model, step)` and frozen, and the means of its last logged steps."""
        torch.manual_seed(self.seed)
        model = make().to(device).train()
        figures = self.train(model, lambda step: loss(model, step), folder, resume)
        return model.eval().requires_grad_(False), figures

    def card(
        self, out: Path, model: nn.Module, figures: Mapping[str, float], measured: Mapping[str, Mapping[str, float]],
        **facts: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Write the card of a model that this recipe has trained; returns it.

        Args:
            out: Folder of the card.
            model: The model as it is read back.
            figures: Of the training.
            measured: Figures of the model by the name that the card has for them, rounded here.
            facts: More that decided the model, behind seeds and steps.
        """
        measured = {name: rounded(values) for name, values in measured.items()}
        return write_card(out, self.name, model, self.data, builds=self.builds, **self.seeds(), model_seed=self.seed,
                          steps=self.steps, **facts, training=rounded(figures), **measured)  # fmt: skip


def train(
    module: nn.Module, loss_of: LossFn, plan: TrainingPlan, folder: Path, title: str, resume: bool = True
) -> dict[str, float]:
    """Minimise `loss_of(step)` over the trainable parameters of `module`; returns the means of the last logged steps.

    `loss_of` must be a pure function of the step and the parameters, so that a resumed run continues exactly.
    The state lies in `folder/state.safetensors`, the log in `folder/log.jsonl`.
    Raises ValueError where another process trains in `folder`, and Stopped where SIGINT or SIGTERM came, once the running
    step is done and its state written.
    """
    optimizer = plan.optimizer(module)
    with locked(folder), progress_bars() as progress:
        state = RunState(folder, module, plan.save_every_s)
        first = state.begin(optimizer, resume)
        bar = progress.add_task(title, total=plan.steps, completed=first, note="")
        figures = train_steps(
            module, loss_of, plan, optimizer, state, first, log_every=plan.log_every,
            on_step=lambda step, figures: progress.update(bar, completed=step, note=note_of(figures)),
        )  # fmt: skip
    return {name: value for name, value in figures.items() if name not in ("step", "seconds")}


def start_over(*folders: Path) -> None:
    """Removes the states in these folders: a build of several stages that is stopped in the first must not go on with what
    an older build left for the others."""
    for folder in folders:
        with locked(folder):
            (folder / STATE).unlink(missing_ok=True)


def write_card(out: Path, name: str, model: nn.Module, data: str, *, builds: str | None = None, **facts: Any) -> dict:
    """Write `card.json` into `out`, by rename; returns the card.

    data: what the model was trained on, in words.   builds: the zoo's name that `mmspec zoo build` makes it by, where it is
    not `name`.   facts: everything else, in order.
    """
    kind = type(model)
    card = {
        "name": name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "licence": "Apache-2.0",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": data,
        **facts,
        "command": command_for(builds or name),
    }
    write_json_atomic(out / "card.json", card)
    return card


def load_or_train(
    folder: Path, resume: bool, load: Callable[[], nn.Module], train_part: Callable[[], tuple[nn.Module, dict]]
) -> tuple[nn.Module, dict]:
    """A part that several builds share and its held-out accuracy: of a finished training in `folder`, or of a new one."""
    finished = folder / "accuracy.json"
    if resume and finished.exists():
        module = load()
        load_state(folder / STATE, module)
        return module, read_json(finished)
    finished.unlink(missing_ok=True)  # of an older part: the new training may be stopped on the way
    module, accuracy = train_part()
    write_json_atomic(finished, accuracy)
    return module, accuracy


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures of a training to four decimals."""
    return {name: round(value, 4) for name, value in figures.items()}
