"""What a sweep runs: every model under every decoding and rule, as data that travels to other processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mmspec import zoo
from mmspec.evaluate.engine.domain import Domain, SamplingOverrides
from mmspec.evaluate.engine.provenance import files_digest
from mmspec.evaluate.engine.suite import PLAIN, CellGroup, Method
from mmspec.evaluate.registry import DOMAINS, domain_of

DEFAULT_MODELS = ("vlm", "t2i", "car", "mar", "video")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """folder: of the run.   models: of the zoo, or DOMAIN=FOLDER; all that the zoo has of DEFAULT_MODELS where none is named.
    decodings, rules, temperatures: a domain's own where none is named; plain decoding is always among them.
    prompts: a prompt set, see `prompt_sets`.   pictures: the folder of its pictures, where it has some.   count: prompts.
    samples: of every prompt and method, each of its own seed.   extractor: see `extractors.by_name`.
    reward: see `extractors.rewards`, "" for none.
    reference: folder of real pictures that drawn ones are held against, None for those of the prompt set.
    threads: torch's, in every worker; None for those that the caller's `torch.set_num_threads` or OMP_NUM_THREADS gives.
    part: (k, n), the k-th of n parts of the work, for n machines.
    """

    folder: Path
    models: tuple[str, ...] = ()
    decodings: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    prompts: str = "zoo"
    pictures: Path | None = None
    count: int = 32
    samples: int = 1
    seed: int = 0
    extractor: str = "zoo"
    reward: str = ""
    reference: Path | None = None
    threads: int | None = None
    part: tuple[int, int] = (1, 1)
    wishes: SamplingOverrides = field(default_factory=SamplingOverrides)

    def __post_init__(self) -> None:
        if self.threads is None:
            object.__setattr__(self, "threads", torch.get_num_threads())
        if not self.models:
            there = zoo.names()
            object.__setattr__(self, "models", tuple(one for one in DEFAULT_MODELS if one in there))
        for name, least, most in (
            ("count", 1, 1 << 20),
            ("samples", 1, 1 << 16),
            ("seed", 0, 9999),
            ("threads", 1, 1024),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"--{name}: expected {least} to {most}, got {getattr(self, name)}, change it")
        if any(not 0 <= one < float("inf") for one in self.temperatures):
            raise ValueError(f"--temperature: expected numbers of at least 0, got {self.temperatures}, change them")
        at, of = self.part
        if not 1 <= at <= of:
            raise ValueError(f"--part: expected K/N with 1 <= K <= N, got {at}/{of}, correct it")


def cell_groups(plan: SweepPlan) -> list[CellGroup]:
    """The grid.   Raises ValueError for models that do not exist, and for a decoding or a rule that none of them has."""
    found = [one for text in plan.models for one in _of_model(plan, *domain_of_model(text))]
    _check_known(plan, found)
    return found


def domain_of_model(text: str) -> tuple[str, str]:
    """(domain, model) of a name in the zoo or DOMAIN=FOLDER.   Raises ValueError for others."""
    domain, sign, folder = text.partition("=")
    if sign and domain in DOMAINS and Path(folder).is_dir():
        return domain, folder
    for name in DOMAINS:
        if text in domain_of(name).models:
            return name, text
    known = ", ".join(model for name in DOMAINS for model in domain_of(name).models)
    raise ValueError(
        f"--model: expected one of {known}, or {'|'.join(DOMAINS)}=FOLDER with a saved model, got {text!r}, correct it"
    )


def _of_model(plan: SweepPlan, domain: str, model: str) -> Iterator[CellGroup]:
    own = domain_of(domain)
    methods = [one for one in (_method(own, model, *pair) for pair in _pairs(plan, own, model)) if one is not None]
    of_folder = {} if model in own.models else {"weights": files_digest([Path(model)])}
    for temperature in plan.temperatures or own.temperatures:
        setting = own.setting(model, temperature, plan.wishes)
        serving = tuple({(one.key, one.rule): one for one in methods if one.serves(temperature)}.values())
        yield CellGroup(domain, model, setting, serving, {**own.drawing(setting), **of_folder}, own.shows)


def _pairs(plan: SweepPlan, domain: Domain, model: str) -> list[tuple[str, str]]:
    if not plan.decodings and not plan.rules:
        return list(domain.defaults(model))
    own = tuple(dict.fromkeys(decoding for decoding, _ in domain.defaults(model)))
    named = [one for one in plan.decodings or own if one != PLAIN]
    return [(PLAIN, ""), *((decoding, rule) for decoding in named for rule in plan.rules or ("",))]


def _method(domain: Domain, model: str, decoding: str, rule: str) -> Method | None:
    try:
        return domain.method(model, decoding, rule)
    except ValueError:
        return None


def _check_known(plan: SweepPlan, found: list[CellGroup]) -> None:
    """Raises ValueError, the domain's own, for a decoding or a rule of the plan that no model has."""
    have = {method.key for group in found for method in group.methods}
    rules = {method.rule for group in found for method in group.methods}
    first = found[0]
    for decoding in plan.decodings:
        if decoding not in have:
            domain_of(first.domain).method(first.model, decoding, "")
            raise ValueError(
                f"--decoding: expected one that goes with a rule that was named, got {decoding!r}, name others"
            )
    for rule in plan.rules:
        if rule not in rules and rule not in ("", "exact"):
            for group in found:
                for decoding in plan.decodings or (PLAIN,):
                    domain_of(group.domain).method(group.model, decoding, rule)
            raise ValueError(f"--rule: expected one that a model has, got {rule!r}, correct it")
