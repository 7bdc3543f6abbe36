"""A sweep from a plan to its records: what is missing is drawn, then what is not scored is scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.plan import SweepPlan, cell_groups
from mmspec.evaluate.engine.prompt import EvaluationPrompt, set_digest
from mmspec.evaluate.engine.provenance import environment
from mmspec.evaluate.engine.records import record_key
from mmspec.evaluate.engine.shards import Records, read_shards, run_name
from mmspec.evaluate.engine.suite import CellGroup
from mmspec.evaluate.engine.task_runners import ProgressCallback, TaskRunner, run_local
from mmspec.evaluate.engine.worker import DrawTask, ScoreTask, Task, run_identity
from mmspec.evaluate.prompt_sets import picture_files, prompts_for
from mmspec.evaluate.quality.judges import Judges
from mmspec.evaluate.registry import domain_of
from mmspec.io.interrupts import Stopped

Engine = Literal["local", "ray"]
ENGINES = ("local", "ray")
TOGETHER = 32  # samples that are scored at once
Name = tuple[str, str]


@dataclass(slots=True)
class SweepWork:
    """A plan as it stands. digests: of the prompts of every model, in their order."""

    plan: SweepPlan
    groups: list[CellGroup]
    prompts: dict[Name, list[EvaluationPrompt]]
    digests: dict[Name, list[str]]
    judges: dict[Name, Judges]

    @classmethod
    def of(cls, plan: SweepPlan) -> SweepWork:
        """Opens no model.   Raises ValueError for what cannot be run."""
        made = cell_groups(plan)
        prompts = {one.name: prompts_for(plan, domain_of(one.domain), one.model) for one in made}
        digests = {name: [one.digest() for one in found] for name, found in prompts.items()}
        judges = {name: Judges(plan, domain_of(name[0]), name[1]) for name in prompts}
        return cls(plan, made, prompts, digests, judges)

    def header(self, workers: int) -> dict[str, Any]:
        """What shards say once: versions, machine, seeds, prompt sets, and who judges."""
        sets = {
            model: {"set": self.plan.prompts, "count": len(found), "hash": set_digest(found)}
            for (_, model), found in self.digests.items()
        }
        judged = {model: judge.row() for (_, model), judge in self.judges.items()}
        own = {"seed": self.plan.seed, "samples": self.plan.samples, "threads": self.plan.threads, "workers": workers,
               "part": list(self.plan.part)}  # fmt: skip
        return environment(**own, prompts=sets, judges=judged)

    def known(self) -> Records:
        return read_shards(self.plan.folder, run_name(run_identity(self.plan)))

    def draws(self, known: Records) -> list[Task]:
        """Prompts of which some method has no sample yet; those of this plan's part."""
        at, of = self.plan.part
        return [task for task in self._all()[at - 1 :: of] if any(key not in known.samples for key in self._keys(task))]

    def missing(self, known: Records) -> int:
        """Samples of the whole plan, other parts' too, that nobody has drawn yet."""
        return sum(key not in known.samples for task in self._all() for key in self._keys(task))

    def _all(self) -> list[DrawTask]:
        return [
            DrawTask(number, place, self.digests[group.name][place], sample)
            for number, group in enumerate(self.groups)
            for sample in range(self.plan.samples)
            for place in range(len(self.prompts[group.name]))
        ]

    def _keys(self, task: DrawTask) -> Iterator[str]:
        group = self.groups[task.group]
        asked = {"prompt": self.prompts[group.name][task.prompt].key, "digest": task.digest, "sample": task.sample}
        return (record_key({"cell": group.key(method), **asked}) for method in group.methods)

    def scorings(self, known: Records) -> list[Task]:
        """Samples that show something and are not scored, and real pictures whose features are not known."""
        found: list[Task] = []
        at, of = self.plan.part
        for name, judge in self.judges.items():
            cells = {group.key(method) for group in self.groups if group.name == name for method in group.methods}
            asked = {one.key for one in self.prompts[name]}
            keys = [
                key
                for key, one in sorted(known.samples.items())
                if one["cell"] in cells and one["prompt"] in asked and one["failed"] is None and one["shown"] is not None
                and (key, judge.hash) not in known.scores
            ]  # fmt: skip
            found += [ScoreTask(*name, tuple(part)) for part in _parts(keys)]
            if judge.shows == "picture":
                real = [key for key in self._real(name) if (name[1], key, judge.extractor.hash) not in known.real]
                found += [ScoreTask(*name, tuple(part), is_real=True) for part in _parts(real)]
        return found[at - 1 :: of]

    def _real(self, name: Name) -> list[str]:
        if self.plan.reference is not None:
            return [file.name for file in picture_files(self.plan.reference)]
        return [one.key for one in self.prompts[name] if one.real is not None]


def run_work(
    work: SweepWork,
    *,
    workers: int = 1,
    engine: Engine = "local",
    on_task: ProgressCallback = lambda text: None,
    on_stage: Callable[[str, int], None] = lambda text, tasks: None,
) -> Records:
    """Draws and scores what is missing; the records of the run, those it had among them.

    The same call goes on after a kill: what has a line in a shard is not made again. Several processes and machines may work
    on parts of a plan in one folder, or in folders whose shards and media are copied together.
    workers: processes or actors.   on_task: told of every finished task.   on_stage: told of a stage and its tasks.
    Raises ValueError for what cannot be run, and Stopped where an interrupt came after something was kept.
    """
    runner = check_engine(engine, workers)
    work.plan.folder.mkdir(parents=True, exist_ok=True)
    header, known = work.header(workers), work.known()
    try:
        for stage in (work.draws, work.scorings):
            tasks = stage(known)
            on_stage(stage.__name__, len(tasks))
            if tasks:
                runner(work.plan, header, tasks, workers, on_task)
                known = work.known()
    except KeyboardInterrupt as error:
        kept = len(work.known().samples)
        if kept:
            raise Stopped(f"{kept} samples are kept in {work.plan.folder}") from error
        raise
    return known


def check_engine(engine: str, workers: int) -> TaskRunner:
    """What does tasks.   Raises ValueError for an unknown engine, one that is not installed, and no worker."""
    check_choice("--engine", engine, ENGINES)
    if workers < 1:
        raise ValueError(f"--workers: expected at least 1, got {workers}, change it")
    if engine == "local":
        return run_local
    from mmspec.evaluate.engine.task_runners import need_ray, run_on_ray

    need_ray()
    return run_on_ray


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[first : first + TOGETHER] for first in range(0, len(keys), TOGETHER))
