"""Image models of vectors in sweeps: decodings by name, classes of the world, real pictures of them."""

from __future__ import annotations

from dataclasses import fields, replace

from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.decodings import DECODINGS, RULES, ContinuousDecodingOverrides, decoding_of
from mmspec.evaluate.continuous.methods import ContinuousMethod, PipelineArguments
from mmspec.evaluate.continuous.resources import ContinuousResources, open_continuous
from mmspec.evaluate.continuous.runner import sampler
from mmspec.evaluate.continuous.suites import SUITES
from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.domain import SamplingOverrides, Sweep
from mmspec.evaluate.engine.prompt import EvaluationPrompt, MethodText, method_title
from mmspec.evaluate.image.resources import GenerationRequest
from mmspec.evaluate.image.sweep import ObjectsDrawn, class_prompts
from mmspec.evaluate.model_kinds import CAUSAL, CONTINUOUS_MODELS, MASKED, continuous_kind, in_zoo

GUIDANCE, STEPS = 2.0, 64
TITLES = {"ar": "plain", "head": "head", "small": "small causal", "cspd": "CSpD", "stack": "CSpD stack"}
_CAUSAL = (
    ("ar", ""),
    ("head:window=8", ""),
    ("small:gamma=2", ""),
    ("small:gamma=4", ""),
    ("small:gamma=4", "reflection"),
)
_MASKED = (
    ("ar", ""),
    ("head:window=8", ""),
    *((f"cspd:window=patch,gamma={gamma}", "") for gamma in (4, 8, 16)),
    ("cspd:gamma=8,tolerance=1", ""),
)


def defaults(model: str) -> list[tuple[str, str]]:
    """Plain decoding and the decodings of its kind; those with a drafter where the zoo has one."""
    pairs = _CAUSAL if continuous_kind(model) == CAUSAL else _MASKED
    return [one for one in pairs if one[0].partition(":")[0] not in ("small", "cspd") or in_zoo(f"{model}/draft")]


def method(model: str, decoding: str, rule: str) -> ContinuousMethod:
    """A decoding of `mmspec image` with its settings, "small:gamma=4", or a row of the benches by its key."""
    kind, spec, rule = continuous_kind(model), MethodText.read(decoding, "--decoding"), "" if rule == "exact" else rule
    rows = (one for suite in SUITES.values() for one in suite.methods if one.key == decoding and one.kind in ("", kind))
    found = next(rows, None)
    if found is not None and not rule and decoding not in DECODINGS:
        return found
    known = [name for name, choice in DECODINGS.items() if kind in choice.kinds]
    check_choice("--decoding", spec.name, known, f" for {model}")
    kinds = {one.name: str for one in fields(ContinuousDecodingOverrides)} | {"gamma": int, "tolerance": float}
    wishes = ContinuousDecodingOverrides(**spec.values("--decoding", **kinds))
    if rule and "rule" not in DECODINGS[spec.name].takes:
        raise ValueError(f"--rule: expected none for --decoding {spec.name}, which judges by its own, got {rule!r}, leave it "
                         "out")  # fmt: skip
    if rule:
        check_choice("--rule", rule, RULES, " for vectors")
    wishes = replace(wishes, rule=rule or wishes.rule)

    def make(resources: ContinuousResources) -> PipelineArguments:
        return decoding_of(spec.name, resources, wishes)

    return ContinuousMethod(
        decoding, method_title(decoding, rule, TITLES), rule or "exact", make=make, gamma=wishes.gamma
    )


def setting(model: str, temperature: float, wishes: SamplingOverrides) -> ContinuousSetting:
    drawn = wishes.given(guidance=GUIDANCE if model in CONTINUOUS_MODELS else None, num_iter=STEPS)
    if continuous_kind(model) != MASKED:
        drawn["num_iter"] = 0
    return ContinuousSetting(batch=1, temperature=temperature, prompts=1, seed=0, model=model, **drawn)


def prompts(model: str, count: int, seed: int) -> list[EvaluationPrompt]:
    return class_prompts(count, seed)


def case(
    resources: ContinuousResources, setting: ContinuousSetting, prompt: EvaluationPrompt
) -> list[GenerationRequest]:
    """A label where the prompt has one or names one, else its text for a model that reads captions."""
    if prompt.label is not None:
        return [GenerationRequest(resources.labels([str(prompt.label)])[0], prompt.text)]
    return [GenerationRequest(resources.given([prompt.text])[0], prompt.text)]


SWEEP = Sweep(
    models=tuple(CONTINUOUS_MODELS),
    shows="picture",
    temperatures=(1.0,),
    defaults=defaults,
    method=method,
    setting=setting,
    open=open_continuous,
    prompts=prompts,
    case=case,
    sampler=sampler,
    scorers=lambda model: [ObjectsDrawn()] if model in CONTINUOUS_MODELS else [],
)
