"""The settings of `mmspec bench vlm`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mmspec.evaluate.engine.config import BenchConfig, option
from mmspec.evaluate.engine.suite import Method, Setting
from mmspec.run.decoding_options import check_choice

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.requests import VlmTask
    from mmspec.run.vlm_models import VlmResources


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmSetting(Setting):
    task: VlmTask
    limit: int  # the longest answer in tokens

    def name(self) -> dict:
        return {"task": self.task.name, "batch": self.batch, "temperature": self.temperature}

    def row(self) -> dict:
        count = {"pictures": self.task.pictures, "prompts": self.cases * self.batch}
        return {**self.name(), **count, "limit": self.limit, "natural_end": self.task.natural}


@dataclass(frozen=True, kw_only=True)
class VlmBenchConfig(BenchConfig):
    """The settings of `mmspec bench vlm`; None takes the value of the suite."""

    about: ClassVar[str] = (
        "Models for pictures and text or for text alone: transformers, plain, and every drafter, paired and interleaved."
    )
    baselines: ClassVar[dict[str, str]] = {"hf": "hf", "ar": "plain"}

    suite: str = option(
        "methods",
        "real, methods, drafters, pictures, blocks, hybrid, lengths, strict, captured, categories or families.",
    )
    model: str | None = option(
        None, "smollm2, vlm, vlm/hybrid, a folder or a hub id; as the suite has it when left out.", shown="NAME|PATH|ID"
    )
    prompts: int | None = option(None, "Held-out prompts of every task.", least=1)
    task_names: tuple[str, ...] | None = option(
        None, "Tasks of the suite, such as chat,story; all when left out.", flag="--tasks", shown="NAME,NAME"
    )
    new_tokens: int | None = option(None, "Longest answer in tokens.", least=1)
    saved: tuple[tuple[str, str], ...] = option(
        (), "A saved drafter to compare too; may be repeated.", flag="--drafter-path", shown="NAME=FOLDER"
    )  # (name, folder) of saved drafters

    def __post_init__(self) -> None:
        keys = [method.key for method in self.known()]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"--drafter-path: expected names that no row has yet, got {', '.join(twice)}, rename")
        for name in self.task_names or ():
            check_choice("--tasks", name, [task.name for task in self.plan().tasks_of(self.model or "")])
        for task in self.chosen():
            if self.prompts and task.most and self.prompts > task.most:
                raise ValueError(f"--prompts: expected 1 to {task.most} of a task, got {self.prompts}, change it")
        super().__post_init__()

    def short_name(self, name: str) -> str:
        from mmspec.run.vlm_models import short_name

        return short_name(name)

    def known(self) -> tuple[Method, ...]:
        return self.plan().rows(self.saved, self.model or "")

    def serving(self, setting: VlmSetting) -> list[Method]:
        """Return the methods of a setting; narrowed suites run most methods on single greedy requests only."""
        served = [
            method for method in super().serving(setting) if setting.batch <= (method.largest_batch or setting.batch)
        ]
        if self.methods is not None or not self.plan().narrowed or (setting.batch, setting.temperature) == (1, 0):
            return served
        return [method for method in served if method.widely]

    def chosen(self) -> list[VlmTask]:
        """Return the chosen tasks, in the order of the suite."""
        tasks = self.plan().tasks_of(self.model or "")
        return [task for task in tasks if self.task_names is None or task.name in self.task_names]

    def settings(self) -> Iterator[VlmSetting]:
        for task, batch, temperature in product(self.chosen(), self.batches, self.temperatures):
            shared = {
                "seed": self.seed,
                "prompts": self.prompts * task.times,
                "limit": self.new_tokens or task.new_tokens,
            }
            yield VlmSetting(batch=batch, temperature=temperature, task=task, **shared)

    def check(self, resources: VlmResources) -> None:
        if not resources.takes_pictures and any(task.pictures for task in self.chosen()):
            raise ValueError(
                f"--suite: expected a suite without pictures for {resources.name}, got {self.suite!r}, take real or families"
            )
        for folder in self.folders():
            resources.drafter(str(folder))

    def folders(self) -> list[Path]:
        return [Path(folder) for _, folder in self.saved]


CONFIG = VlmBenchConfig
