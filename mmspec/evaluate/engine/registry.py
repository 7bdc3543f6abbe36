"""The domains with benches, each in its own folder; a domain is added by a folder and a line here."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from mmspec.evaluate.engine.config import BenchConfig
from mmspec.methods import MethodInfo
from mmspec.methods.text import split
from mmspec.run.decoding_options import check_choice

if TYPE_CHECKING:
    from mmspec.evaluate.engine.domain import Domain
    from mmspec.evaluate.engine.suite import Suite

DOMAINS = {
    "vlm": "mmspec.evaluate.vlm",
    "image": "mmspec.evaluate.image",
    "continuous": "mmspec.evaluate.continuous",
    "video": "mmspec.evaluate.video",
}
# benches of the machine instead of a domain: modules with ABOUT, `run` and `shown`
MACHINE = {"kernels": "mmspec.evaluate.machine.kernel_bench", "gpu": "mmspec.evaluate.machine.gpu_bench"}


def config_of(name: str) -> type[BenchConfig]:
    """Return the settings of a domain's bench. Imports no models, so that the command line can list it."""
    return import_module(f"{_folder(name)}.config").CONFIG


def domain_of(name: str) -> Domain:
    return import_module(f"{_folder(name)}.domain").DOMAIN


def machine_bench(name: str) -> ModuleType:
    return import_module(MACHINE[name])


def _folder(name: str) -> str:
    check_choice("domain", name, DOMAINS)
    return DOMAINS[name]


def benches_of(method: MethodInfo) -> dict[str, list[str]]:
    """Return the suites that have rows of a method (a drafter, a decoding, a rule or another), by domain."""
    suites_by_domain = {}
    for domain in method.domains:
        suites = import_module(f"{_folder(domain)}.suites").SUITES
        if suite_names := [name for name, suite in suites.items() if method.name in _names_in(suite)]:
            suites_by_domain[domain] = suite_names
    return suites_by_domain


def _names_in(suite: Suite) -> set[str]:
    """Return the methods that the rows of a suite name, including those of zoo models such as "vlm/msd"."""
    texts = {
        text for row in suite.methods for field in ("decoding", "drafter", "rule") if (text := getattr(row, field, ""))
    }
    texts |= {row.key.rpartition("-")[0] for row in suite.methods}
    names = {split(text)[0] for text in (*texts, *getattr(suite, "drafters", ())) if text}
    return names | {name.rpartition("-")[2].partition("_")[0] for name in names}
