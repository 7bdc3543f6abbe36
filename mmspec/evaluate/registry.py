"""Which domains can be benched, each in a folder of its own; a new one is a folder and a line here."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from mmspec.evaluate.engine.config import BenchConfig, check_choice

if TYPE_CHECKING:
    from mmspec.evaluate.engine.domain import Domain, Sweep

DOMAINS = {
    "vlm": "mmspec.evaluate.vlm",
    "image": "mmspec.evaluate.image",
    "continuous": "mmspec.evaluate.continuous",
    "video": "mmspec.evaluate.video",
}
# benches of the machine and not of a domain: what stands there has ABOUT, `run` and `shown`
MACHINE = {"kernels": "mmspec.evaluate.machine.kernel_bench", "gpu": "mmspec.evaluate.machine.gpu_bench"}


def config_of(name: str) -> type[BenchConfig]:
    """What a bench of this domain can be asked for. Imports no models, so that the command line can list it."""
    return import_module(f"{_folder(name)}.config").CONFIG


def domain_of(name: str) -> Domain:
    """All that the engine needs of this domain."""
    return import_module(f"{_folder(name)}.domain").DOMAIN


def machine_bench(name: str) -> ModuleType:
    """The module of a bench of the machine."""
    return import_module(MACHINE[name])


def sweep_of(name: str) -> Sweep:
    """What this domain gives to sweeps."""
    return import_module(f"{_folder(name)}.sweep").SWEEP


def _folder(name: str) -> str:
    check_choice("domain", name, DOMAINS)
    return DOMAINS[name]
