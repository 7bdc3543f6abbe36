"""Training of the zoo's models: plan, progress bars, prefetched batches, and the model card."""

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
    """Return bf16 autocast on a GPU, and float32 on a CPU, where bf16 takes twice as long for small models."""
    kind = torch.device(device).type
    return nullcontext() if kind == "cpu" else torch.autocast(kind, torch.bfloat16)


def progress_bars() -> Progress:
    """Return progress bars whose tasks have a `note`; see `note_of`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )


def note_of(figures: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())


Batch, Model = TypeVar("Batch"), TypeVar("Model", bound=nn.Module)


def prefetched(make: Callable[[int], Batch], steps: int, workers: int) -> Callable[[int], Batch]:
    """Compute batches of consecutive steps ahead in worker processes, 0 for none, which is faster where a GPU would
    wait. `make` is a pure function of the step. It must not use a GPU, since the workers are forked."""
    return _Prefetched(make, steps, workers) if workers else make


class _Prefetched(Generic[Batch]):
    def __init__(self, make: Callable[[int], Batch], steps: int, workers: int):
        self.steps, self.workers = _Steps(make), workers
        self.count, self.next = steps, -1
        self.source: Iterator[Batch] = iter(())

    def __call__(self, step: int) -> Batch:
        if step != self.next:
            order = range(step, self.count)
            self.source = iter(
                DataLoader(
                    self.steps, batch_size=None, sampler=order, num_workers=self.workers, multiprocessing_context="fork"
                )
            )
        self.next = step + 1
        return next(self.source)


class _Steps(Dataset, Generic[Batch]):
    def __init__(self, make: Callable[[int], Batch]):
        self.make = make

    def __getitem__(self, step: int) -> Batch:
        return self.make(step)


@dataclass(frozen=True, slots=True)
class TrainingPlan(Schedule):
    weight_decay: float = 0.05
    save_every_s: float = 180.0  # seconds between saves of the state
    log_every: int = 20  # steps between two lines of the log


class ZooRecipe:
    """Base of recipes: dataclasses of all settings of a training, from which the card is written too."""

    __slots__ = ()
    name: str  # in the zoo
    steps: int
    lr: float
    seed: int  # of the initial weights and of all random numbers
    data: ClassVar[str]  # in words
    builds: ClassVar[str | None] = None  # as in `write_card`
    again: ClassVar[int] = 0
    warmup: ClassVar[int] = 100  # at most half of the steps
    weight_decay: ClassVar[float] = 0.02
    muon: ClassVar[float] = 0.0
    log_every: ClassVar[int] = 20

    @property
    def folder(self) -> str:
        """The folder of the training state below the work folder."""
        return self.name.replace("/", "_")

    def plan(self) -> TrainingPlan:
        return TrainingPlan(
            self.steps,
            self.lr,
            warmup=min(self.warmup, self.steps // 2),
            weight_decay=self.weight_decay,
            again=self.again,
            muon=self.muon,
            log_every=self.log_every,
        )

    def seeds(self) -> dict[str, Any]:
        return {}

    def expect(self, holds: bool, condition: str) -> None:
        """Refuse the settings with the error "expected `condition`" unless it holds."""
        if not holds:
            raise ValueError(f"{type(self).__name__}: expected {condition}, got {self}; change them")

    def draws(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed << 32) + step)

    def fraction(self, step: int, share: float = 1.0) -> float:
        """Return the progress at a step, in units of a `share` of the run; at step `again` a second run starts at 0."""
        first, last = (self.again, self.steps) if step >= self.again else (0, self.again)
        return (step - first) / (share * (last - first))

    def train(self, module: nn.Module, loss_of: LossFn, folder: Path, resume: bool = True) -> dict[str, float]:
        return train(module, loss_of, self.plan(), folder, self.name, resume)

    def trained(
        self,
        make: Callable[[], Model],
        loss: Callable[[Model, int], tuple[Tensor, dict[str, float]]],
        folder: Path,
        resume: bool = True,
        device: str = "cpu",
    ) -> tuple[Model, dict[str, float]]:
        """Train a new model with `train`; return it frozen, with the means of its last logged steps."""
        torch.manual_seed(self.seed)
        model = make().to(device).train()
        figures = self.train(model, lambda step: loss(model, step), folder, resume)
        return model.eval().requires_grad_(False), figures

    def card(
        self,
        out: Path,
        model: nn.Module,
        figures: Mapping[str, float],
        measured: Mapping[str, Mapping[str, float]],
        **facts: Any,
    ) -> dict[str, Any]:
        """Write the card of a model, as read back, with figures of its training and rounded `measured` figures."""
        measured = {name: rounded(values) for name, values in measured.items()}
        return write_card(
            out,
            self.name,
            model,
            self.data,
            builds=self.builds,
            **self.seeds(),
            model_seed=self.seed,
            steps=self.steps,
            **facts,
            training=rounded(figures),
            **measured,
        )


def train(
    module: nn.Module, loss_of: LossFn, plan: TrainingPlan, folder: Path, title: str, resume: bool = True
) -> dict[str, float]:
    """Minimise a loss over the trainable parameters; return the means of the last logged steps. The loss has to be a
    pure function of the step and the parameters, so that a resumed run continues exactly. `folder` has
    state.safetensors and log.jsonl. SIGINT or SIGTERM ends the running step, saves its state and raises Stopped."""
    optimizer = plan.optimizer(module)
    with locked(folder), progress_bars() as progress:
        state = RunState(folder, module, plan.save_every_s)
        first = state.begin(optimizer, resume)
        bar = progress.add_task(title, total=plan.steps, completed=first, note="")
        figures = train_steps(
            module,
            loss_of,
            plan,
            optimizer,
            state,
            first,
            log_every=plan.log_every,
            on_step=lambda step, figures: progress.update(bar, completed=step, note=note_of(figures)),
        )
    return {name: value for name, value in figures.items() if name not in ("step", "seconds")}


def start_over(*folders: Path) -> None:
    """Delete the training states in these folders, so that no stage of a build resumes the state of an earlier build."""
    for folder in folders:
        with locked(folder):
            (folder / STATE).unlink(missing_ok=True)


def write_card(out: Path, name: str, model: nn.Module, data: str, *, builds: str | None = None, **facts: Any) -> dict:
    """Write `card.json` atomically, with `facts` last in their order; `builds` is the name for `mmspec zoo build`, None
    for `name`."""
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
    """Load a part that several builds share from a finished training in `folder`, or train it; return it and its
    accuracy."""
    finished = folder / "accuracy.json"
    if resume and finished.exists():
        module = load()
        load_state(folder / STATE, module)
        return module, read_json(finished)
    finished.unlink(missing_ok=True)  # of an earlier part, since the new training may be stopped before its end
    module, accuracy = train_part()
    write_json_atomic(finished, accuracy)
    return module, accuracy


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Return figures rounded to four decimals."""
    return {name: round(value, 4) for name, value in figures.items()}
