"""Training of the zoo's models: a plan, progress bars, prefetched steps, and the card of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mmspec.io.files import locked, write_json_atomic
from mmspec.io.readers import read_json
from mmspec.training.checkpoint import load_state
from mmspec.training.loop import LossFn, train_steps
from mmspec.training.run_state import STATE, RunState
from mmspec.training.schedule import Schedule
from mmspec.zoo.files.training_sets import Tensors, cached_tensors


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


def cached_set(
    title: str, folder: Path, stem: str, mark: str, count: int, make: Callable[[int, int], Tensors], *, chunk: int,
    batch: int = 64,
) -> Tensors:  # fmt: skip
    """`cached_tensors` with a progress bar.   mark: `fingerprint` of the models that the members come from."""
    with progress_bars() as progress:
        bar = progress.add_task(title, total=count, note="")
        return cached_tensors(folder, stem, mark, count, make, chunk=chunk, batch=batch,
                              on_members=lambda size: progress.update(bar, advance=size))  # fmt: skip


Batch = TypeVar("Batch")


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
class TrainingPlan:
    """Steps and optimizer settings of one training run."""

    steps: int
    lr: float
    warmup: int = 100
    final_lr: float = 0.02  # share of `lr` left at the last step
    weight_decay: float = 0.05
    clip: float = 1.0
    save_every_s: float = 180.0
    log_every: int = 20
    again: int = 0  # as in `Schedule`
    muon: float = 0.0  # as in `Schedule`

    def __post_init__(self) -> None:
        self.schedule()

    def schedule(self) -> Schedule:
        """Optimizer, warm-up and cosine as drafters are trained.   Raises ValueError for settings out of range."""
        return Schedule(
            self.steps, self.lr, self.warmup, final_lr=self.final_lr, weight_decay=self.weight_decay, clip=self.clip,
            again=self.again, muon=self.muon,
        )  # fmt: skip


class ZooRecipe:
    """Base of recipes, the dataclasses of all settings that decide a model: its schedule and its random numbers.

    name: of the model in the zoo.   seed: of the first weights and of all draws.   steps, lr, again, warmup, weight_decay: as
    in `TrainingPlan`; at most half of the steps are warm-up.
    """

    __slots__ = ()
    name: str
    steps: int
    lr: float
    seed: int
    again: ClassVar[int] = 0
    warmup: ClassVar[int] = 100
    weight_decay: ClassVar[float] = 0.02

    @property
    def folder(self) -> str:
        """Of the state, in the work folder."""
        return self.name.replace("/", "_")

    def plan(self) -> TrainingPlan:
        """The schedule for the training loop."""
        return TrainingPlan(self.steps, self.lr, warmup=min(self.warmup, self.steps // 2), weight_decay=self.weight_decay,
                            again=self.again)  # fmt: skip

    def draws(self, step: int) -> torch.Generator:
        """The source of a step's random numbers."""
        return torch.Generator().manual_seed((self.seed << 32) + step)

    def fraction(self, step: int, share: float = 1.0) -> float:
        """How much of a `share` of the run lies behind a step; at the step `again` a second run starts at 0."""
        first, last = (self.again, self.steps) if step >= self.again else (0, self.again)
        return (step - first) / (share * (last - first))


def train(
    module: nn.Module, loss_of: LossFn, plan: TrainingPlan, folder: Path, title: str, resume: bool = True,
    on_save: Callable[[int], object] = lambda step: None,
) -> dict[str, float]:  # fmt: skip
    """Minimise `loss_of(step)` over the trainable parameters of `module`; returns the means of the last logged steps.

    `loss_of` must be a pure function of the step and the parameters, so that a resumed run continues exactly.
    The state lies in `folder/state.safetensors`, the log in `folder/log.jsonl`; `on_save` is told the steps they stand at.
    Raises ValueError where another process trains in `folder`, and Stopped where SIGINT or SIGTERM came, once the running
    step is done and its state written.
    """
    schedule = plan.schedule()
    optimizer = schedule.optimizer(module)
    with locked(folder), progress_bars() as progress:
        state = RunState(folder, module, plan.save_every_s)
        first = state.begin(optimizer, resume)
        bar = progress.add_task(title, total=plan.steps, completed=first, note="")
        figures = train_steps(
            module,
            loss_of,
            schedule,
            optimizer,
            state,
            first,
            log_every=plan.log_every,
            on_step=lambda step, figures: progress.update(bar, completed=step, note=note_of(figures)),
            on_save=on_save,
        )
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
        "command": f"mmspec zoo build {builds or name}",
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
