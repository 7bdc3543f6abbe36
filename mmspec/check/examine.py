from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch

from mmspec import zoo
from mmspec.check.comparison import best_drafter, compare, picture_tokens, sample_prompt
from mmspec.check.drafters import drafter_fits
from mmspec.check.memory import memory_of, room_of
from mmspec.check.pipelines import check_pipeline, decodings_for
from mmspec.check.report import CheckReport, Finding
from mmspec.check.skeleton import BY_SIZE, Skeleton, layer_groups, named_groups, pictures_of, read_config, sketch_model
from mmspec.check.source import ModelSource, find_model
from mmspec.check.trials import features_of, pass_seconds, proofs_of, trees_of
from mmspec.imagegen.adapters.registry import supported as image_families
from mmspec.io.checkpoints import load_model, load_part
from mmspec.kernels.small_linear import forms_in_words
from mmspec.methods import methods
from mmspec.run.model_kinds import CODES
from mmspec.run.supported import greedy_table
from mmspec.vlm.architectures import Parts, parts_of, supported
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.memory_budget import budget_sentence, bytes_of
from mmspec.vlm.memory_needs import in_units

_UNTRIED = "shown when the weights are there"
_SPENT = 20.0  # seconds that trials may take
STEPS = ("reading the config", "loading the weights", "proving the class", "trying features", "comparing")
OnStep = Callable[[str], None]


def check(
    spec: str,  # a folder, a config file, "zoo:NAME", or a hub id
    *,
    drafter: str | None = None,  # text of the drafter to compare; None for the best available
    fetch: bool = False,  # a hub id that is not in the cache; nothing else uses the network
    load: bool = True,  # the weights if they exist; False reads the config alone
    tokens: int = 32,  # of the comparison
    device: str = "auto",  # "cpu", "cuda", "cuda:N", or "auto" for an available GPU and else the CPU
    memory: str | None = None,  # budget such as "8GB", for which the report names the longest drafts; None for none
    row: int = 4096,  # tokens of a row within that budget, half of them generated
    on_step: OnStep | None = None,  # called with each of `STEPS` when it begins
) -> CheckReport:
    """Report on a model, with its weights or from its config alone. A budget that holds no row is refused."""
    began = perf_counter()
    budget = None if memory is None else bytes_of(memory)
    source = find_model(spec, fetch)
    if budget is not None and source.index:
        raise ValueError(f"memory: expected a model of transformers, got the pipeline {spec}; leave it out")
    progress = on_step or (lambda step: None)
    report = (
        check_pipeline(source)
        if source.index
        else _check_model(source, drafter, load, tokens, device, None if budget is None else (budget, row), progress)
    )
    if source.note:
        report.notes.insert(0, source.note)
    report.seconds = perf_counter() - began
    return report


def _check_model(
    source: ModelSource,
    drafter: str | None,
    load: bool,
    tokens: int,
    device: str,
    budget: tuple[int, int] | None,
    on_step: OnStep,
) -> CheckReport:
    """Return the report on a model of transformers; `budget` is the bytes, and the tokens of a row."""
    config = read_config(source.file or source.folder) if source.file else zoo.load(source.zoo)[0].config
    skeleton = sketch_model(config, source.spec)
    family = next((family for family in image_families() if family.name == skeleton.class_name), None)
    report = _from_config(skeleton, source)
    if budget is not None and skeleton.parts is not None:
        report.notes.append(budget_sentence(skeleton.parts, report.memory, budget[1], budget[0]))
    if family is not None:
        text = f"its text is refused: {report.reason}" if report.supported is False else "its text is supported too"
        report.kind, report.supported = "image", True
        report.reason = f"mmspec image draws with this class (tested: {family.tested}); {text}"
        report.drafters, report.features = decodings_for("image", CODES), []
        report.next_commands = [f'mmspec image "PROMPT" --model {_shown(source)}']
        return report
    if not (load and source.has_weights) or (skeleton.parts is None and report.supported is False):
        return report
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    room = room_of(place)
    if room is not None and report.memory.weights > room:
        report.notes.append(
            f"The weights take {in_units(report.memory.weights)}, and there is room for {in_units(room)} on "
            f"{place}; they are not loaded."
        )
        return report
    on_step(STEPS[1])
    model, processor = _loaded(source, skeleton, place, report)
    report.loaded = True
    parts = parts_of(model)
    if skeleton.parts is not None and report.memory.dtype != str(parts.dtype).removeprefix("torch."):
        report.memory = memory_of(skeleton, parts.dtype)
    _try_out(report, parts, processor, source, drafter, tokens, on_step)
    return report


def _from_config(skeleton: Skeleton, source: ModelSource) -> CheckReport:
    parts, pictures = skeleton.parts, pictures_of(skeleton)
    is_supported, reason = _expected(skeleton)
    dtype = getattr(skeleton.config, "dtype", None) or getattr(skeleton.config.get_text_config(), "dtype", None)
    dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
    report = CheckReport(
        source.spec, "text and pictures" if pictures else "text", skeleton.class_name, is_supported, reason
    )
    report.layers = named_groups(skeleton.config) if parts is None else layer_groups(parts.plan)
    report.pictures, report.memory = pictures, memory_of(skeleton, dtype)
    if parts is not None:
        report.drafters = drafter_fits(parts, source)
    if parts is None or is_supported is False:
        report.next_commands = [f"mmspec supported {skeleton.class_name}"]
        return report
    names = ("strict", "sessions") if parts.plan.stateful else ("strict", "capture", "sessions")
    report.features = [trees_of(parts) if is_supported else Finding("trees", None, _UNTRIED)]
    report.features += [Finding(name, None, _UNTRIED) for name in names]
    if parts.plan.stateful:
        report.features.insert(2, Finding("capture", False, "expected layers of attention, got layers with states"))
    to_fetch = source.is_repository and not source.has_weights
    report.next_commands = [f"hf download {source.name}" if to_fetch else f"mmspec check {_shown(source)}"]
    return report


def _expected(skeleton: Skeleton) -> tuple[bool | None, str]:
    """Return whether a class is supported, as far as its parts and the suite's table tell, and the reason."""
    if skeleton.parts is None:
        return False, _plain(skeleton.refusal)
    if skeleton.parts.trusted:
        tested = next(family.tested for family in supported() if family.name == skeleton.class_name)
        return True, f"the suite tests this class whole: {tested}"
    record = greedy_table()["classes"].get(skeleton.class_name, {})
    outcome = record.get("outcomes", {}).get("default", "")
    if "same" in outcome:
        return True, "the suite finds the tokens of transformers.generate; it proves itself again at its first use"
    if outcome:
        return False, _plain(record.get("reasons", {}).get("default") or f"the suite finds it {outcome}")
    return None, "a class that the suite does not know: it has to prove itself at its first use"


def _plain(reason: str) -> str:
    """Return a refusal without its argument's name."""
    return reason.removeprefix("model: ")


def _loaded(source: ModelSource, skeleton: Skeleton, place: str, report: CheckReport) -> tuple[Any, Any]:
    """Return the model with its weights on a device, and its processor or None."""
    if source.zoo:
        model, processor = zoo.load(source.zoo)
        return model.to(place), processor
    from transformers import AutoProcessor

    model = load_model(type(skeleton.model), source.folder).to(place)
    processor = None
    with suppress(ValueError):
        processor = load_part(AutoProcessor, source.folder)
    if processor is None:
        report.notes.append("There is no processor or tokenizer beside the model that transformers can read.")
    return model, processor


def _try_out(
    report: CheckReport,
    parts: Parts,
    processor: Any,
    source: ModelSource,
    drafter: str | None,
    tokens: int,
    on_step: OnStep,
) -> None:
    on_step(STEPS[2])
    began = perf_counter()
    inputs, words = sample_prompt(parts, processor, source.zoo)
    count = picture_tokens(parts, inputs)
    if count and parts.tokens_per_image is None and report.pictures.startswith(BY_SIZE):
        report.pictures = f"{count} tokens for the picture of the trial; {report.pictures.partition('; ')[2]}"
    single = pass_seconds(parts)
    total = inputs["input_ids"].shape[1] + tokens
    report.proofs = proofs_of(parts, inputs, total, _SPENT, single)
    failed = next((proof for proof in report.proofs if proof.holds is False), None)
    if failed is not None:
        report.supported, report.reason, report.drafters, report.features = False, failed.detail, [], []
        report.next_commands = [f"mmspec supported {report.class_name}"]
        return
    report.supported = True
    if not parts.trusted:
        report.reason = "it has proven itself now, on these weights"
    left = _SPENT - (perf_counter() - began)
    on_step(STEPS[3])
    report.features = features_of(parts, inputs, processor, left, single)
    left = _SPENT - (perf_counter() - began)
    count = max(4, min(tokens, int(left / (3 * single)))) if single else tokens
    if count < tokens:
        report.notes.append(f"The comparison has {count} tokens instead of {tokens}, to end in time.")
    on_step(STEPS[4])
    chosen = best_drafter(parts.model) if drafter is None else drafter_from_text(drafter, parts.model)
    try:
        report.comparison = compare(parts.model, inputs, words, chosen, count)
    except ValueError as error:
        report.notes.append(f"The comparison was refused: {error}")
    if words := forms_in_words():
        report.notes.insert(0, words)
    report.next_commands = _next(report, source, drafter)


def _next(report: CheckReport, source: ModelSource, drafter: str | None) -> list[str]:
    """Return the next commands: use the model, and train or fetch a drafter where no trained drafter is available."""
    model = _shown(source)
    if report.kind == "text":
        use = f"mmspec bench vlm --suite real --model {model}"
    else:
        use = f"mmspec caption PICTURE --model {model}" + (f" --drafter {shlex.quote(drafter)}" if drafter else "")
    if any(fit.here and (fit.parameters or "/" in fit.name) for fit in report.drafters):
        return [use]
    fetchable = next((fit for fit in report.drafters if fit.fits and not fit.here and "/" in fit.name), None)
    if fetchable is not None:
        return [use, f"hf download {fetchable.name}"]
    known = methods("vlm", "drafter")
    kind = next(method.name for method in known if report.kind in method.facts.get("recommended_for", ()))
    return [use, f"mmspec train vlm-drafter --target {model} --kind {kind} --data FILE --out FOLDER"]


def _shown(source: ModelSource) -> str:
    """Return the model as an option of the other commands."""
    return source.zoo or shlex.quote(source.spec)
