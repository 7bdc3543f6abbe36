"""The plan of a sweep: every model under every decoding and rule, as data that travels to other processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mmspec import zoo
from mmspec.evaluate.base.provenance import files_digest
from mmspec.evaluate.engine.domain import Domain, SamplingOverrides
from mmspec.evaluate.engine.registry import DOMAINS, domain_of
from mmspec.evaluate.engine.suite import CellGroup, Method
from mmspec.run.decoding_options import PLAIN
from mmspec.run.placement import AUTO, Placement, placement_of

DEFAULT_MODELS = ("vlm", "t2i", "car", "mar", "video")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    folder: Path
    # of the zoo, or DOMAIN=FOLDER; by default the models of DEFAULT_MODELS that the zoo has
    models: tuple[str, ...] = ()
    decodings: tuple[str, ...] = ()  # by default those of each domain; plain decoding is always added
    rules: tuple[str, ...] = ()  # by default each decoding's own
    temperatures: tuple[float, ...] = ()  # by default those of each domain
    prompts: str = "zoo"  # the prompt set, see `prompt_sets`
    pictures: Path | None = None  # the folder of the prompt set's pictures, if it has any
    count: int = 32
    samples: int = 1  # of every prompt and method, each with its own seed
    seed: int = 0
    extractor: str = "zoo"  # see `judges.extractor_of`
    reward: str = ""  # see `rewards.reward_scorer_of`; "" for none
    reference: Path | None = None  # a folder of real pictures for comparison; None for those of the prompt set
    # of torch in every worker; None leaves `torch.set_num_threads` and OMP_NUM_THREADS in force
    threads: int | None = None
    device: str = AUTO  # "auto" becomes the name of an available device
    dtype: str = AUTO  # "auto" is the precision of the models' files
    part: tuple[int, int] = (1, 1)  # (k, n), the k-th of n parts of the work, for n machines
    wishes: SamplingOverrides = field(default_factory=SamplingOverrides)  # they replace the domains' own

    def __post_init__(self) -> None:
        for name in ("models", "decodings", "rules"):  # a text is a single item
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        object.__setattr__(self, "device", placement_of(self.device, self.dtype).device)
        if self.threads is None:
            object.__setattr__(self, "threads", torch.get_num_threads())
        if not self.models:
            there = zoo.names()
            object.__setattr__(self, "models", tuple(model for model in DEFAULT_MODELS if model in there))
        for name, least, most in (
            ("count", 1, 1 << 20),
            ("samples", 1, 1 << 16),
            ("seed", 0, 9999),
            ("threads", 1, 1024),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"--{name}: expected {least} to {most}, got {getattr(self, name)}, change it")
        if any(not 0 <= temperature < float("inf") for temperature in self.temperatures):
            raise ValueError(f"--temperature: expected numbers of at least 0, got {self.temperatures}, change them")
        at, of = self.part
        if not 1 <= at <= of:
            raise ValueError(f"--part: expected K/N with 1 <= K <= N, got {at}/{of}, correct it")

    @property
    def placement(self) -> Placement:
        return Placement(self.device, self.dtype)


def cell_groups(plan: SweepPlan) -> list[CellGroup]:
    """Return the groups of cells of a plan. An unknown model, or a decoding or rule that no model has, is a ValueError."""
    groups = [group for text in plan.models for group in _of_model(plan, *domain_of_model(text))]
    _check_known(plan, groups)
    return groups


def domain_of_model(text: str) -> tuple[str, str]:
    """Return the (domain, model) of a name in the zoo or DOMAIN=FOLDER."""
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
    methods = [
        method for method in (_method(own, model, *pair) for pair in _pairs(plan, own, model)) if method is not None
    ]
    of_folder = {} if model in own.models else {"weights": files_digest([Path(model)])}
    for temperature in plan.temperatures or own.temperatures:
        setting = own.setting(model, temperature, plan.wishes)
        serving = tuple(
            {(method.key, method.rule): method for method in methods if method.serves(temperature)}.values()
        )
        yield CellGroup(domain, model, setting, serving, {**own.drawing(setting), **of_folder}, own.shows)


def _pairs(plan: SweepPlan, domain: Domain, model: str) -> list[tuple[str, str]]:
    if not plan.decodings and not plan.rules:
        return list(domain.defaults(model))
    own = tuple(dict.fromkeys(decoding for decoding, _ in domain.defaults(model)))
    named = [decoding for decoding in plan.decodings or own if decoding != PLAIN]
    return [(PLAIN, ""), *((decoding, rule) for decoding in named for rule in plan.rules or ("",))]


def _method(domain: Domain, model: str, decoding: str, rule: str) -> Method | None:
    try:
        return domain.method(model, decoding, rule)
    except ValueError:
        return None


def _check_known(plan: SweepPlan, groups: list[CellGroup]) -> None:
    """Check that a model has every decoding and rule of the plan; the error is the domain's own."""
    have = {method.key for group in groups for method in group.methods}
    rules = {method.rule for group in groups for method in group.methods}
    first = groups[0]
    for decoding in plan.decodings:
        if decoding not in have:
            domain_of(first.domain).method(first.model, decoding, "")
            raise ValueError(
                f"--decoding: expected a decoding that fits one of the named rules, got {decoding!r}, name others"
            )
    for rule in plan.rules:
        if rule not in rules and rule not in ("", "exact"):
            for group in groups:
                for decoding in plan.decodings or (PLAIN,):
                    domain_of(group.domain).method(group.model, decoding, rule)
            raise ValueError(f"--rule: expected a rule of one of the models, got {rule!r}, correct it")
