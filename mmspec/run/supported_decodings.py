"""The supported decodings of continuous and video models, with their exactness and tests, as records."""

from __future__ import annotations

import math

from mmspec.core.round.rules.by_name import resolve
from mmspec.imagegen.continuous.cspd.acceptance import Relaxation
from mmspec.imagegen.continuous.cspd.rules import OwnWithin, TrajectoryRatio
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.masked_decoding import OwnDraw
from mmspec.imagegen.continuous.schedules.feature_cache import Lazy
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing
from mmspec.imagegen.request import AUTO
from mmspec.methods import methods
from mmspec.run.model_kinds import BLOCKS, CAUSAL, CODES, CONTINUOUS_PIPELINES, MASKED
from mmspec.run.video_models import router_of
from mmspec.video.routing.learned import Advantage, AdvantageConfig, Learned
from mmspec.video.routing.routers import TargetAlone, Threshold

_PUBLIC = "the published code's numbers, step by step"
_RATIO = "the published code's numbers; the ratio by the densities of both walks"
_BITS = "equality with plain decoding, bit for bit"
_HEAD = "densities and quadrature of one step, chi-square of whole walks, wrong walks that show"
_SCHEDULE = "settings that change nothing are plain decoding; what is spared is counted"
_BY_HAND = "partial passes written out token by token, wrong caches that show"
_CAUSAL = "the model without a cache, token after token"
_SHARED = "the law of tokens under shared noise, wrong rules that show"


def _law(rule: object) -> str:
    return "exact" if rule.exact else "relaxed"


def _continuous_rows() -> list[tuple[str, str, str, object, str]]:
    """Return (kind, decoding, options of `mmspec image` or arguments in Python, object with `exact`, tests)."""
    gaussians = [(rule, resolve(rule, greedy=False)) for rule in ("gaussian_block", "reflection")]
    return [
        (MASKED, "plain", "--decoding ar", OwnDraw(), _PUBLIC),
        (MASKED, "head time", "--decoding head", ScheduledSteps(head_sampling=HeadSampling(8)), _HEAD),
        (MASKED, "CSpD", "--decoding cspd", TrajectoryRatio(Relaxation()), _RATIO),
        (MASKED, "CSpD, own draws", "--decoding cspd --tolerance 0", OwnWithin(0.0), _BITS),
        (
            MASKED,
            "CSpD, own draws",
            "--decoding cspd --tolerance 1",
            OwnWithin(1.0),
            "verdicts on windows made by hand",
        ),
        (
            MASKED,
            "annealed heads (DiSA)",
            "HeadSampling(annealing=Annealing())",
            ScheduledSteps(head_sampling=HeadSampling(1, Annealing())),
            _SCHEDULE,
        ),
        (MASKED, "checkerboard (GtR)", "ScheduledSteps(reconstruct=1)", ScheduledSteps(reconstruct=1), _SCHEDULE),
        (MASKED, "cached null branch (LazyMAR)", "ScheduledSteps(lazy=Lazy())", ScheduledSteps(lazy=Lazy()), _SCHEDULE),
        (
            MASKED,
            "cached tokens (LazyMAR)",
            "ScheduledSteps(lazy=Lazy(tokens=0.1))",
            ScheduledSteps(lazy=Lazy(tokens=0.1)),
            _BY_HAND,
        ),
        (CAUSAL, "plain", "--decoding ar", resolve("exact", greedy=False), _CAUSAL),
        (CAUSAL, "head time", "--decoding head", HeadSampling(8), _HEAD),
        *((CAUSAL, "small model", f"--decoding small --rule {name}", rule, _SHARED) for name, rule in gaussians),
    ]


def continuous_records() -> list[dict]:
    named = {kind: name for name, kind in CONTINUOUS_PIPELINES.items()}
    heads = ("model of vectors", "decoding", "asked by", "law", "tested by")
    rows = [(named[kind], name, text, _law(rule), tested) for kind, name, text, rule, tested in _continuous_rows()]
    return [dict(zip(heads, row, strict=True)) for row in rows]


_NOTHING = "every block against its model from nothing, whatever is accepted; wrong caches that show"
_ALONE_BITS = "equality with the target alone, bit for bit"
_SCORES = "verdicts on scores that are given; a setting that is the target alone, bit for bit"
_BUDGET = "blocks counted for every budget and length; a budget of all blocks is the target alone"
_PAIRS = "pairs that are given, and noise; a gain that is the target alone"
_TESTED_CODES = "enumeration of small grids over time, chi-square of the joint law"


def _video_rows() -> list[tuple[str, str, str, object, str]]:
    """Return (kind, decoding, options of `mmspec video` or the router in Python, object with `exact`, tests)."""
    texts = {
        "relative to the first block": ("relative:margin=0.1", _SCORES),
        "evenly spaced (StrideAR)": ("strided:budget=3", _BUDGET),
        "at random": ("random:budget=3", _BUDGET),
        "runs and a threshold": ("hybrid:run=2,least=0.5", _SCORES),
        "tried out": ("explore:rate=0.5", _SCORES),
    }
    exact = resolve("exact", greedy=False)
    return [
        (BLOCKS, "target alone", "--decoding ar", TargetAlone(), _NOTHING),
        (BLOCKS, "SDVG", "--decoding sdvg --threshold 0.5", Threshold(0.5), _SCORES),
        (BLOCKS, "SDVG, nothing stands", "--decoding sdvg --threshold inf", Threshold(math.inf), _ALONE_BITS),
        *(
            (BLOCKS, name, f"--decoding sdvg --router {text}", router_of(text), tested)
            for name, (text, tested) in texts.items()
        ),
        (BLOCKS, "learned gain", "Learned(model)", Learned(Advantage(AdvantageConfig())), _PAIRS),
        *(
            (CODES, method.title, f"--decoding {method.name}", exact, _TESTED_CODES)
            for method in methods("video", "decoding", exact=True, models=CODES)
            if not method.needs and method.name != AUTO
        ),
    ]


def router_records() -> list[dict]:
    return [
        {"videos of": kind, "decoding": decoding, "asked by": option, "law": _law(rule), "tested by": tested}
        for kind, decoding, option, rule, tested in _video_rows()
    ]


_FROM_NOTHING = "drafted and redrawn blocks against diffusers' own passes"
_WAN = "published numbers of the causal cache; films of the model written out; random checkpoints under the published names"


def video_model_records() -> list[dict]:
    """Return a record per family of models of blocks: its class, its memory of earlier blocks, and its tests."""
    history = "a history of three grains in every pass"
    rows = [
        ("Self-Forcing, CausVid", "WanVideo(.., Cached())", "a cache that grows, or a window with sinks", _WAN),
        ("LongLive's context", "WanVideo(.., Cached(12, 3, recache=True))", "the same, read again under a new prompt", _WAN),
        ("Krea Realtime", "WanVideo(.., Rebuilt(3, vae))", "a few latents, read anew for every block", _WAN),
        ("AnyFlow FAR", "AnyFlowVideo", "diffusers' cache of chunks", _FROM_NOTHING),
        ("SkyReels-V2, diffusion forcing", "SkyReelsVideo", "a window of latents in every pass", _FROM_NOTHING),
        ("Helios", "HeliosVideo", history, _FROM_NOTHING),
        ("Helios in stages, distilled", "HeliosVideo(.., steps=(2, 2, 2))", history, _FROM_NOTHING),
    ]  # fmt: skip
    return [
        {"video model": name, "class": name_of_class, "keeps": keeps, "tested by": by}
        for name, name_of_class, keeps, by in rows
    ]
