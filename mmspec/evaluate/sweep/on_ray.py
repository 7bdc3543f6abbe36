"""Tasks of a sweep as a Ray Data job, on one machine or a cluster whose nodes share the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mmspec.evaluate.sweep.local import Told
from mmspec.evaluate.sweep.plan import Plan
from mmspec.evaluate.sweep.worker import Task, Worker


def need_ray() -> Any:
    """ray.   Raises ValueError where it is not installed."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError('--engine ray: expected ray, got none, pip install "mmspec[scale]"') from error
    return ray


def run_on_ray(plan: Plan, header: Mapping[str, Any], tasks: Sequence[Task], workers: int, told: Told) -> None:
    """A `TaskRunner`: the numbers of the tasks are a Ray data set, mapped by `workers` actors. Shards, and not pictures, are
    what workers hand on: rows that come back hold a sentence each."""
    ray = need_ray()
    own = not ray.is_initialized()
    if own:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        numbers = ray.data.from_items(
            [{"task": number} for number in range(len(tasks))], override_num_blocks=len(tasks)
        )
        done = numbers.map_batches(
            _Actor,
            fn_constructor_args=(plan, dict(header), list(tasks)),
            batch_size=1,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(tasks))),
        )
        for row in done.iter_rows():
            told(str(row["text"]))
    finally:
        if own:
            ray.shutdown()


class _Actor:
    """A worker as Ray Data calls it."""

    def __init__(self, plan: Plan, header: dict[str, Any], tasks: list[Task]):
        torch.set_num_threads(plan.threads)
        self.worker, self.tasks = Worker(plan, header), tasks

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"text": np.array([self.worker(self.tasks[int(number)]) for number in batch["task"]])}
