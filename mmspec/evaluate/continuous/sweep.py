"""Image models of vectors in sweeps: decodings by name, classes of the world, real pictures of them."""

from __future__ import annotations

from mmspec.evaluate.continuous.config import ContinuousSetting
from mmspec.evaluate.continuous.decodings import decoding_names, rule_names, split_rule
from mmspec.evaluate.continuous.methods import ContinuousMethod
from mmspec.evaluate.continuous.resources import ContinuousResources, open_continuous
from mmspec.evaluate.continuous.runner import sampler
from mmspec.evaluate.continuous.suites import SUITES
from mmspec.evaluate.decoding_options import decoding_call
from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.domain import SamplingOverrides, Sweep
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.image.resources import GenerationRequest
from mmspec.evaluate.image.sweep import ObjectsDrawn, class_prompts
from mmspec.evaluate.model_kinds import CAUSAL, CONTINUOUS_MODELS, MASKED, continuous_kind, in_zoo
from mmspec.methods import parse

GUIDANCE, STEPS = 2.0, 64
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
    drafted = in_zoo(f"{model}/draft")
    return [one for one in pairs if drafted or not parse(one[0], "continuous", "decoding").method.needs]


def method(model: str, decoding: str, rule: str) -> ContinuousMethod:
    """A decoding of `mmspec image` with its settings, "small:gamma=4", or a row of the benches by its key."""
    kind, rule = continuous_kind(model), "" if rule == "exact" else rule
    rows = (one for suite in SUITES.values() for one in suite.methods if one.key == decoding and one.kind in ("", kind))
    found = next(rows, None)
    if found is not None and not rule and decoding not in decoding_names():
        return found
    text, own = split_rule(decoding, None)
    call = decoding_call(text, "continuous", kind, purpose=f" for {model}, a {kind} model of vectors")
    if rule and own is None:
        raise ValueError(f"--rule: expected none for --decoding {call.method.name}, which judges by its own, got {rule!r}, "
                         "leave it out")  # fmt: skip
    if rule:
        check_choice("--rule", rule, rule_names(), " for vectors")
    title = f"{call.title} + {parse(rule, kind='rule').title}" if rule else call.title
    return ContinuousMethod(decoding, title, rule or "exact", decoding=decoding, gamma=call.settings.get("gamma"))


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
