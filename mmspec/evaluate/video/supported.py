"""What is supported of videos: models, routers and decodings of codes, the law of their output and how that is tested, as
records."""

from __future__ import annotations

import math

from mmspec.core.rules.resolve import resolve
from mmspec.evaluate.video.kinds import BLOCKS, CODES
from mmspec.evaluate.video.routers import router_of
from mmspec.video.routing.learned import Advantage, AdvantageConfig, Learned
from mmspec.video.routing.router import TargetAlone
from mmspec.video.routing.thresholds import Threshold

_NOTHING = "every block against its model from nothing, whatever is accepted; wrong caches that show"
_BITS = "equality with the target alone, bit for bit"
_SCORES = "verdicts on scores that are given; a setting that is the target alone, bit for bit"
_BUDGET = "blocks counted for every budget and length; a budget of all blocks is the target alone"
_PAIRS = "pairs that are given, and noise; a gain that is the target alone"
_CODES = "enumeration of small grids over time, chi-square of the joint law"


def _law(rule: object) -> str:
    return "exact" if rule.exact else "relaxed"


def _rows() -> list[tuple[str, str, str, object, str]]:
    """(kind, decoding, options of `mmspec video` or the router in Python, what says whether it is exact, how it is tested)."""
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
        (BLOCKS, "SDVG, nothing stands", "--decoding sdvg --threshold inf", Threshold(math.inf), _BITS),
        *(
            (BLOCKS, name, f"--decoding sdvg --router {text}", router_of(text), tested)
            for name, (text, tested) in texts.items()
        ),
        (BLOCKS, "learned gain", "Learned(model)", Learned(Advantage(AdvantageConfig())), _PAIRS),
        (CODES, "plain", "--decoding ar", exact, _CODES),
        (CODES, "SJD", "--decoding sjd", exact, _CODES),
        (CODES, "SCD", "--decoding scd", exact, _CODES),
    ]


def router_records() -> list[dict]:
    """One record per kind of model and decoding."""
    return [
        {"videos of": kind, "decoding": decoding, "asked by": asked, "law": _law(rule), "tested by": tested}
        for kind, decoding, asked, rule, tested in _rows()
    ]


_FROM_NOTHING = "drafted and redrawn blocks against diffusers' own passes"
_WAN = "published numbers of the causal cache; films of the model written out; random checkpoints under the published names"


def video_model_records() -> list[dict]:
    """One record per family of models that draw blocks: its class, what it keeps of the blocks before, how it is tested."""
    rows = [
        ("Self-Forcing, CausVid", "WanVideo(.., Cached())", "a cache that grows, or a window with sinks", _WAN),
        (
            "LongLive's context",
            "WanVideo(.., Cached(12, 3, recache=True))",
            "the same, read again under a new prompt",
            _WAN,
        ),
        ("Krea Realtime", "WanVideo(.., Rebuilt(3, vae))", "a few latents, read anew for every block", _WAN),
        ("AnyFlow FAR", "AnyFlowVideo", "diffusers' cache of chunks", _FROM_NOTHING),
        ("SkyReels-V2, diffusion forcing", "SkyReelsVideo", "a window of latents in every pass", _FROM_NOTHING),
        ("Helios", "HeliosVideo", "a history of three grains in every pass", _FROM_NOTHING),
        (
            "Helios in stages, distilled",
            "HeliosVideo(.., steps=(2, 2, 2))",
            "a history of three grains in every pass",
            _FROM_NOTHING,
        ),
    ]
    return [{"video model": name, "class": made, "keeps": keeps, "tested by": by} for name, made, keeps, by in rows]
