"""A worker of a sweep: draws samples, scores them, and appends the records to its own shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmspec.evaluate.base.media import load_output, store_output
from mmspec.evaluate.base.prompt import EvaluationPrompt, request_fields
from mmspec.evaluate.base.provenance import fingerprint
from mmspec.evaluate.engine.judges import Judges
from mmspec.evaluate.engine.plan import SweepPlan, cell_groups
from mmspec.evaluate.engine.prompt_sets import picture_files, prompts_for
from mmspec.evaluate.engine.records import record_key, request_seed, sample_record
from mmspec.evaluate.engine.registry import domain_of
from mmspec.evaluate.engine.runs import Failure, Turns
from mmspec.evaluate.engine.shards import Records, Shard, read_shards, run_name
from mmspec.evaluate.engine.suite import CellGroup
from mmspec.io.images import open_image
from mmspec.run.placement import AUTO, weights_of
from mmspec.run.resources import Resources


@dataclass(frozen=True, slots=True)
class DrawTask:
    """A prompt that all methods of a group draw in turn, so that slow drifts of the machine affect them alike."""

    group: int  # its number
    prompt: int  # its number
    digest: str  # of the prompt
    sample: int  # its number


@dataclass(frozen=True, slots=True)
class ScoreTask:
    """Samples of a model that are scored together."""

    domain: str
    model: str
    keys: tuple[str, ...]  # of samples; for real pictures the keys of prompts, or names of files in the plan's folder
    is_real: bool = False  # extract the features of real pictures instead of scoring samples


Task = DrawTask | ScoreTask


def run_identity(plan: SweepPlan) -> dict[str, Any]:
    """Return the fields that all records of a run share. A kind of device and a precision that a command names are
    among them, since they change both seconds and outputs."""
    kind = plan.device.partition(":")[0]
    named = {"device": kind if kind != "cpu" else AUTO, "dtype": plan.dtype}
    return {"code": fingerprint(), "seed": plan.seed, **{name: entry for name, entry in named.items() if entry != AUTO}}


class Worker:
    """Runs tasks, skipping samples that the run's folder already has. Models, prompts and judges are opened by the
    first task that needs them, and cached. `header` is that of the worker's shard, see `Shard`."""

    def __init__(self, plan: SweepPlan, header: Mapping[str, Any]):
        self.plan, self.groups, own = plan, cell_groups(plan), run_identity(plan)
        self.known: Records = read_shards(plan.folder, run_name(own))
        self.shard = Shard(plan.folder, own, header)
        self._opened = Resources()

    def __call__(self, task: Task) -> str:
        """Run a task and return its description."""
        if isinstance(task, DrawTask):
            return self._draw(task)
        return self._real(task) if task.is_real else self._score(task)

    def _draw(self, task: DrawTask) -> str:
        group, domain = self.groups[task.group], domain_of(self.groups[task.group].domain)
        prompt, resources = self._prompts(*group.name)[task.prompt], self._resources(group)
        seed = request_seed(self.plan.seed, prompt.key, task.sample)
        fields = request_fields(prompt, task.digest, task.prompt, task.sample, seed)
        requests = {group.key(method): {**group.fields(method), **fields} for method in group.methods}
        missing = [cell for cell, request in requests.items() if record_key(request) not in self.known.samples]
        samples: Iterable[tuple[str, Any]]
        try:
            case = domain.case(resources, group.setting, prompt)
            samples = self._turns(task.group).round(case, seed, task.prompt + task.sample, missing)
        except ValueError as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            samples = ((cell, Failure(reason)) for cell in missing)
        for cell, sample in samples:
            self._keep(requests[cell], sample)
        return f"{group.model}, T = {group.setting.temperature:g}, {prompt.key}"

    def _keep(self, request: Mapping[str, Any], sample: Any) -> None:
        """Write a sample, a (run, output) pair or a failure, to the shard."""
        run, output = (sample, None) if isinstance(sample, Failure) else sample
        name, shows = record_key(request), request["shows"]
        shown = store_output(self.plan.folder, name, output[0], shows) if output else None
        record = sample_record(request, run, shown)
        self.shard.add([record])
        self.known.samples[record["key"]] = record

    def _turns(self, number: int) -> Turns:
        """Return the methods of a group; each is built when it is first needed."""
        group = self.groups[number]
        return self._opened.once(
            ("turns", number),
            lambda: Turns(
                {
                    group.key(method): partial(
                        domain_of(group.domain).sampler, method, self._resources(group), group.setting
                    )
                    for method in group.methods
                }
            ),
        )

    def _score(self, task: ScoreTask) -> str:
        judges, domain = self._judges(task.domain, task.model), domain_of(task.domain)
        prompts = {prompt.key: prompt for prompt in self._prompts(task.domain, task.model)}
        samples = [self._sample_of(key) for key in task.keys]
        outputs = [load_output(self.plan.folder, sample["shown"], domain.shows) for sample in samples]
        entries = judges.scores(outputs, [prompts[sample["prompt"]] for sample in samples])
        lines = zip(task.keys, entries, strict=True)
        self.shard.add([{"kind": "score", "key": key, "by": judges.hash, **entry} for key, entry in lines])
        return f"{task.model}: scores of {len(task.keys)} samples"

    def _sample_of(self, key: str) -> dict:
        if key not in self.known.samples:  # another worker has drawn it since this worker started
            self.known = read_shards(self.plan.folder, self.shard.run)
        return self.known.samples[key]

    def _real(self, task: ScoreTask) -> str:
        judges = self._judges(task.domain, task.model)
        if self.plan.reference is not None:
            files = {file.name: file for file in picture_files(self.plan.reference)}
            pictures = [open_image(files[key]) for key in task.keys]
        else:
            prompts = {prompt.key: prompt for prompt in self._prompts(task.domain, task.model)}
            pictures = [prompts[key].real() for key in task.keys]
        entries, _ = judges.pictures(pictures)
        lines = zip(task.keys, entries, strict=True)
        self.shard.add(
            [
                {"kind": "real", "model": task.model, "key": key, "by": judges.extractor.hash, **entry}
                for key, entry in lines
            ]
        )
        return f"{task.model}: features of {len(task.keys)} real pictures"

    def _resources(self, group: CellGroup) -> Any:
        def make() -> Any:
            opened = domain_of(group.domain).open(group.model)
            opened.place(self.plan.placement)
            self.shard.add([{"kind": "model", "model": group.model, "name": opened.name, **weights_of(opened)}])
            return opened

        return self._opened.once(("resources", group.name), make)

    def _prompts(self, domain: str, model: str) -> list[EvaluationPrompt]:
        return self._opened.once(("prompts", domain, model), lambda: prompts_for(self.plan, domain_of(domain), model))

    def _judges(self, domain: str, model: str) -> Judges:
        return self._opened.once(("judges", domain, model), lambda: Judges(self.plan, domain_of(domain), model))
