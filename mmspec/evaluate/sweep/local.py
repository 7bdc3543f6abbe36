"""Tasks of a sweep on this machine: in this process, or in several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from mmspec.evaluate.engine.machine import threads
from mmspec.evaluate.sweep.plan import Plan
from mmspec.evaluate.sweep.worker import Task, Worker

Told = Callable[[str], None]


class TaskRunner(Protocol):
    """Does tasks in any order, each by some worker with a shard of its own. What comes out does not depend on how many
    workers there are, nor on which of them does what."""

    def __call__(
        self, plan: Plan, header: Mapping[str, Any], tasks: Sequence[Task], workers: int, told: Told
    ) -> None: ...


def run_local(plan: Plan, header: Mapping[str, Any], tasks: Sequence[Task], workers: int, told: Told) -> None:
    """A `TaskRunner`: one worker in this process, several in processes of their own."""
    if workers == 1:
        worker = Worker(plan, header)
        for task in tasks:
            with threads(plan.threads):
                told(worker(task))
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # spawned, since a fork of a process that has used torch's threads may hang
    pool = ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), _begin, (plan, dict(header)))
    try:
        for text in pool.map(_do, tasks):
            told(text)
    finally:
        # whatever ended the loop, nothing new is begun, and what has begun is kept
        pool.shutdown(cancel_futures=True)


_worker: list[Worker] = []  # of a spawned process


def _begin(plan: Plan, header: dict[str, Any]) -> None:
    """Ctrl-C is for the process that gives out the tasks, whose end, however it comes, ends this one."""
    import signal
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(plan.threads)
    _worker.append(Worker(plan, header))


def _end_with_parent() -> None:
    import os
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    wait([parent_process().sentinel])
    os._exit(1)


def _do(task: Task) -> str:
    return _worker[0](task)
