"""The executors of a sweep's tasks: this process, worker processes, or actors of a Ray Data job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from mmspec.evaluate.base.provenance import threads
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.worker import Task, Worker
from mmspec.methods.modules import import_methods, imported

ProgressCallback = Callable[[str], None]


class TaskRunner(Protocol):
    """Runs tasks in any order; each worker has its own shard. The results do not depend on the number of workers, nor
    on how tasks are distributed."""

    def __call__(
        self, plan: SweepPlan, header: Mapping[str, Any], tasks: Sequence[Task], workers: int, on_task: ProgressCallback
    ) -> None: ...


def run_local(
    plan: SweepPlan, header: Mapping[str, Any], tasks: Sequence[Task], workers: int, on_task: ProgressCallback
) -> None:
    """Run tasks in this process, or in worker processes for several workers."""
    if workers == 1:
        worker = Worker(plan, header)
        for task in tasks:
            with threads(plan.threads):
                on_task(worker(task))
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # spawned, since a fork of a process that has used torch's threads may hang
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), get_context("spawn"), _begin_worker, (plan, dict(header), imported())
    )
    try:
        for text in pool.map(_run_task, tasks):
            on_task(text)
    finally:
        # whatever ended the loop, no new task starts, and running tasks are stored
        pool.shutdown(cancel_futures=True)


_worker: list[Worker] = []  # the worker of a spawned process


def _begin_worker(plan: SweepPlan, header: dict[str, Any], modules: Sequence[str]) -> None:
    """Set up a worker process that ignores Ctrl-C and ends with its parent process."""
    import signal
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(plan.threads)
    for name in modules:
        import_methods(name)
    _worker.append(Worker(plan, header))


def _end_with_parent() -> None:
    import os
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    wait([parent_process().sentinel])
    os._exit(1)


def _run_task(task: Task) -> str:
    return _worker[0](task)


def need_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError('--engine ray: expected ray, got none, pip install "mmspec[scale]"') from error
    return ray


def run_on_ray(
    plan: SweepPlan, header: Mapping[str, Any], tasks: Sequence[Task], workers: int, on_task: ProgressCallback
) -> None:
    """Run tasks with `workers` actors that map a Ray data set of task numbers. Workers write outputs to their shards;
    the rows that they return hold a sentence each."""
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
            fn_constructor_args=(plan, dict(header), list(tasks), imported()),
            batch_size=1,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(tasks))),
        )
        for row in done.iter_rows():
            on_task(str(row["text"]))
    finally:
        if own:
            ray.shutdown()


class _Actor:
    """A worker as Ray Data calls it."""

    def __init__(self, plan: SweepPlan, header: dict[str, Any], tasks: list[Task], modules: Sequence[str]):
        torch.set_num_threads(plan.threads)
        for name in modules:
            import_methods(name)
        self.worker, self.tasks = Worker(plan, header), tasks

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"text": np.array([self.worker(self.tasks[int(number)]) for number in batch["task"]])}
