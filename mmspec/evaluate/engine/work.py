"""A sweep from a plan to its records: draw the missing samples, then score the samples without scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmspec.evaluate.base.prompt import EvaluationPrompt, set_digest
from mmspec.evaluate.base.provenance import environment
from mmspec.evaluate.engine.judges import Judges
from mmspec.evaluate.engine.plan import SweepPlan, cell_groups
from mmspec.evaluate.engine.prompt_sets import picture_files, prompts_for
from mmspec.evaluate.engine.records import record_key
from mmspec.evaluate.engine.registry import domain_of
from mmspec.evaluate.engine.shards import Records, read_shards, run_name
from mmspec.evaluate.engine.suite import CellGroup
from mmspec.evaluate.engine.task_runners import ProgressCallback, TaskRunner, run_local
from mmspec.evaluate.engine.worker import DrawTask, ScoreTask, Task, run_identity
from mmspec.io.interrupts import Stopped
from mmspec.run.decoding_options import check_choice

Engine = Literal["local", "ray"]
ENGINES = ("local", "ray")
TOGETHER = 32  # samples per scoring task
Name = tuple[str, str]


@dataclass(slots=True)
class SweepWork:
    """The prompts, judges and groups of cells of a plan."""

    plan: SweepPlan
    groups: list[CellGroup]
    prompts: dict[Name, list[EvaluationPrompt]]  # by (domain, model)
    digests: dict[Name, list[str]]  # of these prompts, in the same order
    judges: dict[Name, Judges]  # by (domain, model)

    @classmethod
    def of(cls, plan: SweepPlan) -> SweepWork:
        """Prepare a plan without opening a model."""
        groups = cell_groups(plan)
        prompts = {group.name: prompts_for(plan, domain_of(group.domain), group.model) for group in groups}
        digests = {name: [prompt.digest() for prompt in of_group] for name, of_group in prompts.items()}
        judges = {name: Judges(plan, domain_of(name[0]), name[1]) for name in prompts}
        return cls(plan, groups, prompts, digests, judges)

    def header(self, workers: int) -> dict[str, Any]:
        """Return the header of shards: versions, machine, seeds, prompt sets and judges."""
        sets = {
            model: {"set": self.plan.prompts, "count": len(hashes), "hash": set_digest(hashes)}
            for (_, model), hashes in self.digests.items()
        }
        judged = {model: judge.row() for (_, model), judge in self.judges.items()}
        own = {
            "seed": self.plan.seed,
            "samples": self.plan.samples,
            "threads": self.plan.threads,
            "workers": workers,
            "part": list(self.plan.part),
            "device": self.plan.device,
            "dtype": self.plan.dtype,
        }
        return environment(**own, prompts=sets, judges=judged)

    def known(self) -> Records:
        return read_shards(self.plan.folder, run_name(run_identity(self.plan)))

    def draws(self, known: Records) -> list[Task]:
        """Return the tasks of this plan's part that have a sample to draw."""
        at, of = self.plan.part
        return [task for task in self._all()[at - 1 :: of] if any(key not in known.samples for key in self._keys(task))]

    def missing(self, known: Records) -> int:
        """Return the number of samples of the whole plan, all parts included, that are not drawn yet."""
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
        request = {"prompt": self.prompts[group.name][task.prompt].key, "digest": task.digest, "sample": task.sample}
        return (record_key({"cell": group.key(method), **request}) for method in group.methods)

    def scorings(self, known: Records) -> list[Task]:
        """Return the tasks that score samples with an output, or extract the features of real pictures."""
        tasks: list[Task] = []
        at, of = self.plan.part
        for name, judge in self.judges.items():
            cells = {group.key(method) for group in self.groups if group.name == name for method in group.methods}
            prompt_keys = {prompt.key for prompt in self.prompts[name]}
            keys = [
                key
                for key, sample in sorted(known.samples.items())
                if sample["cell"] in cells
                and sample["prompt"] in prompt_keys
                and sample["failed"] is None
                and sample["shown"] is not None
                and (key, judge.hash) not in known.scores
            ]
            tasks += [ScoreTask(*name, tuple(part)) for part in _parts(keys)]
            if judge.shows == "picture":
                unread = self._unread(name, judge, known)
                tasks += [ScoreTask(*name, tuple(part), is_real=True) for part in _parts(unread)]
        return tasks[at - 1 :: of]

    def expected_tasks(self, known: Records) -> int:
        """Return the number of tasks of this part in both stages, if every draw succeeds."""
        unscored = dict.fromkeys(self.prompts, 0)
        for task in self._all():
            name = self.groups[task.group].name
            for key in self._keys(task):
                sample = known.samples.get(key, {"failed": None, "shown": {}})
                has_output = sample["failed"] is None and sample["shown"] is not None
                unscored[name] += has_output and (key, self.judges[name].hash) not in known.scores
        tasks = sum(-(-count // TOGETHER) for count in unscored.values())
        for name, judge in self.judges.items():
            if judge.shows == "picture":
                tasks += -(-len(self._unread(name, judge, known)) // TOGETHER)
        at, of = self.plan.part
        return len(self.draws(known)) + len(range(at - 1, tasks, of))

    def _unread(self, name: Name, judge: Judges, known: Records) -> list[str]:
        return [key for key in self._real(name) if (name[1], key, judge.extractor.hash) not in known.real]

    def _real(self, name: Name) -> list[str]:
        if self.plan.reference is not None:
            return [file.name for file in picture_files(self.plan.reference)]
        return [prompt.key for prompt in self.prompts[name] if prompt.real is not None]


def run_work(
    work: SweepWork,
    *,
    workers: int = 1,
    engine: Engine = "local",
    on_task: ProgressCallback = lambda text: None,
    on_stage: Callable[[str, int], None] = lambda text, tasks: None,
) -> Records:
    """Draw and score the missing samples of a sweep with processes or actors, and return all records of the run. The
    same call continues after a kill: it skips samples that a shard already has. Several processes and machines may work
    on parts of a plan, in one folder or in folders that are merged by copying.

    `on_task` gets the description of every finished task, `on_stage` the name of a stage and the number of its tasks.
    An interrupt after a sample was stored raises `Stopped`."""
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
        count = len(work.known().samples)
        if count:
            raise Stopped(f"{count} samples are kept in {work.plan.folder}") from error
        raise
    return known


def check_engine(engine: str, workers: int) -> TaskRunner:
    """Return the function that runs tasks."""
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
