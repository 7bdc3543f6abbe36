"""Record requests of all four domains through the public API, and compare two recordings: the guard of a refactoring.

    python -m tests.recorded before.json                        # on the old code
    python -m tests.recorded after.json --against before.json   # on the new code, on the same machine

Each request keeps its values' digest, the target's passes and the accepted counts. Greedy and sampled outputs are functions of
the seed, so a change that only moves code leaves every entry as it was. Another processor may round differently: compare
recordings of one machine. `--only TEXT` runs the requests whose name contains the text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

import mmspec
from mmspec import imagegen, video
from mmspec.kernels.small_linear import pinned_form

Request = Callable[[], Any]  # runs and returns an object with `stats` and an output

_CAPTIONS = ("Describe this picture in detail.", "How many objects are there?", "What is on the left?")
_PICTURES = ("a large red star on a navy background", "a small blue circle and a green square on a white background")
_MOTIONS = ("a red circle moves to the right", "a blue star goes up")
_TRAINED = ("eagle", "msd", "vispec", "flash", "specvlm", "dspark")


@cache
def part(name: str) -> Any:
    """A zoo model, loaded once."""
    return mmspec.zoo.load(name)


def scene(seed: int) -> Image.Image:
    """A picture of coloured shapes, 96 x 96 pixels, drawn from a seed."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 60, (96, 96, 3), dtype=np.uint8))
    pen = ImageDraw.Draw(image)
    for shape in (pen.ellipse, pen.rectangle, pen.ellipse):
        left, top = rng.integers(0, 66, 2).tolist()
        shape((left, top, left + 28, top + 28), fill=tuple(rng.integers(80, 256, 3).tolist()))
    return image


def caption(model: str, drafter: Any, batch: int, **settings: Any) -> Any:
    """A batch of captions with up to 48 tokens."""
    target, processor = part(model)
    texts = [
        processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for text in _CAPTIONS[:batch]
    ]
    images = [[scene(row)] for row in range(batch)]
    inputs = processor(images=images, text=texts, return_tensors="pt", padding=True)
    return mmspec.generate(target, drafter=drafter, max_new_tokens=48, return_dict=True, seed=3, **settings, **inputs)


def sentences(drafter: Any) -> Any:
    """A batch of ragged prompts without pictures."""
    target, processor = part("vlm")
    tokenizer = processor.tokenizer
    inputs = tokenizer(["a red star", "how many blue circles are there in the"], return_tensors="pt", padding=True)
    return mmspec.generate(target, drafter=drafter, max_new_tokens=24, return_dict=True, seed=3, **inputs)


def captions() -> Iterator[tuple[str, Request]]:
    drafters: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "lookup": lambda: mmspec.drafters.PromptLookup(),
        "recycling": lambda: mmspec.drafters.TokenRecycling(),
        "small": lambda: mmspec.drafters.SmallModel(part("vlm/small")[0]),
        **{name: lambda name=name: part(f"vlm/{name}") for name in _TRAINED},
    }
    ways = {"greedy": {}, "sampled": {"do_sample": True, "temperature": 1.0}}
    for name, make in drafters.items():
        for way, settings in ways.items():
            for batch in (1, 3):
                yield f"vlm {name} {way} {batch}", lambda m=make, b=batch, s=settings: caption("vlm", m(), b, **s)
    for name in ("none", "dflash", "mtp"):
        for way, settings in ways.items():
            make = (lambda: None) if name == "none" else (lambda name=name: part(f"vlm/hybrid/{name}"))
            yield f"vlm hybrid {name} {way}", lambda m=make, s=settings: caption("vlm/hybrid", m(), 2, **s)
    sampled = ways["sampled"]
    for rule in ("recursive", "traversal", "token"):
        of = "small" if rule == "token" else "eagle"
        yield f"vlm {of} {rule}", lambda r=rule, o=of: caption("vlm", drafters[o](), 2, rule=r, **sampled)
    yield "vlm msd top-p", lambda: caption("vlm", part("vlm/msd"), 2, top_p=0.8, repetition_penalty=1.2, **sampled)
    yield "vlm lookup top-k", lambda: caption("vlm", drafters["lookup"](), 2, top_k=5, **sampled)
    for length in (2, 8):
        for way, settings in ways.items():
            lookup = lambda n=length: mmspec.drafters.PromptLookup(longest=n)  # noqa: E731
            yield f"vlm lookup longest {length} {way}", lambda m=lookup, s=settings: caption("vlm", m(), 2, **s)
    yield "vlm no pictures", lambda: sentences(part("vlm/eagle"))
    yield "vlm dspark strict", lambda: caption("vlm", part("vlm/dspark"), 1, strict=True)


def nearest_codes() -> torch.Tensor:
    """int64 [K, K - 1], the other codes of the codebook in order of distance."""
    codes = part("t2i").model.codebook().float()
    return torch.cdist(codes, codes).fill_diagonal_(torch.inf).argsort(stable=True, dim=1)[:, :-1]


def picture(decoding: Any, rule: Any, guidance: float) -> Any:
    """A batch of two pictures."""
    return part("t2i")(list(_PICTURES), decoding=decoding, rule=rule, guidance_scale=guidance, seed=5)


def images() -> Iterator[tuple[str, Request]]:
    sjd, scd = imagegen.SJD, imagegen.SCD
    tree = imagegen.Proactive(3, 4)
    decodings: dict[str, tuple[Callable[[], Any], Any]] = {
        "none": (lambda: None, None),
        "sjd": (lambda: sjd(16), None),
        "sjd-up": (lambda: sjd(16, init="up"), None),
        "sjd-tree": (lambda: sjd(16, tree=tree), None),
        "scd-gumbel": (lambda: scd(32), None),
        "scd-maximal": (lambda: scd(32, coupling="maximal"), None),
        "scd-tree": (lambda: scd(32, tree=tree), None),
        "row-drafts": (lambda: imagegen.RowDrafts(scd(32), 8), None),
        "eagle": (lambda: part("t2i/eagle"), None),
        "lantern": (lambda: sjd(32), lambda: imagegen.Lantern(nearest_codes(), 64, 0.1)),
        "lantern++": (lambda: scd(32), lambda: imagegen.LanternPlus(nearest_codes(), 16, 3.0)),
        "gsd": (lambda: scd(32), lambda: imagegen.GSD(14)),
        "coolsd": (lambda: sjd(32), lambda: imagegen.CoolSD(1.5)),
        "run-joint": (lambda: sjd(32), lambda: imagegen.RunJoint(0.8)),
        "zipar": (lambda: imagegen.ZipAR(8), None),
        "pjd": (lambda: imagegen.PJD(8, 8), None),
    }
    for name, (make, rule) in decodings.items():
        for guidance in (1.0, 4.0) if name in ("none", "scd-gumbel", "eagle", "zipar") else (1.0,):
            yield f"image {name} {guidance:g}", lambda m=make, r=rule, g=guidance: picture(m(), r and r(), g)
    for window in (4, 8, 64):
        for coupling in ("gumbel", "maximal"):
            make = lambda w=window, c=coupling: scd(w, coupling=c)  # noqa: E731
            yield f"image scd-{coupling}-{window}", lambda m=make: picture(m(), None, 1.0)
    yield "image greedy scd", lambda: part("t2i")(list(_PICTURES), decoding=scd(32), temperature=0.0, seed=5)
    yield "image c2i scd", lambda: part("c2i")([3, 40, 12], decoding=scd(16), top_k=50, seed=5)
    yield "image video tokens", lambda: part("video/tokens")([_MOTIONS[0]], decoding=scd(64, init="frame"), seed=5)


def continuous() -> Iterator[tuple[str, Request]]:
    walk, cspd = imagegen.HeadSampling, imagegen.CSpD
    decodings: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "head": lambda: imagegen.ScheduledSteps(head_sampling=walk(8)),
        "annealed": lambda: imagegen.ScheduledSteps(head_sampling=walk(8, imagegen.Annealing(50, 5))),
        "checkerboard": lambda: imagegen.ScheduledSteps(reconstruct=1),
        "lazy": lambda: imagegen.ScheduledSteps(lazy=imagegen.Lazy(5, 9, tokens=0.1)),
        **{
            f"cspd-{window}-{gamma}": lambda w=window, g=gamma: cspd(part("mar/draft"), w, g)
            for window in ("patch", "truncate")
            for gamma in (4, 16)
        },
        "cspd-tolerance-0": lambda: cspd(part("mar/draft"), "truncate", 8, tolerance=0.0),
        "cspd-stack": lambda: cspd(part("mar/draft"), "patch", 8, head_sampling=walk(8), reconstruct=1),
    }
    for name, make in decodings.items():
        yield f"continuous {name} classes", lambda m=make: part("mar")([3, 40], decoding=m(), seed=5)
    for name in ("none", "head", "cspd-patch-4"):
        yield (
            f"continuous {name} prompts",
            lambda m=decodings[name]: part("mar")(list(_PICTURES), decoding=m(), guidance_scale=3.0, seed=5),
        )
    yield "continuous causal none", lambda: part("car")([3, 40], seed=5)
    yield "continuous causal head", lambda: part("car")([3, 40], head_sampling=walk(8), seed=5)
    yield "continuous causal cool", lambda: part("car")([7], temperature=0.9, guidance_scale=2.0, seed=5)


def videos() -> Iterator[tuple[str, Request]]:
    def sdvg(**settings: Any) -> Any:
        return video.SDVG(part("video/draft"), part("video/reward"), **settings)

    decodings: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "never": lambda: sdvg(threshold=float("inf")),
        "always": lambda: sdvg(threshold=-float("inf")),
        "eager": lambda: sdvg(threshold=0.5, sync="eager"),
        "rebuilt": lambda: sdvg(threshold=0.5, sync=video.Rebuilt()),
        "mean": lambda: sdvg(threshold=0.5, reduction="mean"),
        "optimistic": lambda: sdvg(threshold=0.5, optimistic=True),
        "relative": lambda: sdvg(router=video.Relative(0.05)),
        "strided": lambda: sdvg(router=video.Strided(3)),
        "random": lambda: sdvg(router=video.Random(3)),
        "hybrid": lambda: sdvg(router=video.Hybrid(2, video.Threshold(0.5))),
        **{f"threshold-{least:g}": lambda least=least: sdvg(threshold=least) for least in (0.4, 0.45, 0.5, 0.55)},
    }
    for name, make in decodings.items():
        yield f"video {name}", lambda m=make: part("video")(list(_MOTIONS), decoding=m(), blocks=5, seed=5)
    switched = dict(switch={2: "a red circle goes left"}, blocks=4, seed=[7, 8])
    for name in ("none", "threshold-0.5", "strided"):
        yield (
            f"video {name} switched",
            lambda m=decodings[name]: part("video")(list(_MOTIONS), decoding=m(), **switched),
        )


def requests() -> dict[str, Request]:
    """All requests by name."""
    return {name: run for domain in (captions, images, continuous, videos) for name, run in domain()}


def entry(output: Any) -> dict[str, Any]:
    """What must not change of a request: its passes, accepted counts, emitted values, rule, and digests of its output."""
    stats = output.stats
    arrays = {
        name: getattr(output, name)
        for name in ("sequences", "tokens", "videos", "latents")
        if getattr(output, name, None) is not None
    }
    return {
        "passes": stats.target_passes,
        "drafter_passes": stats.drafter_passes,
        "accepted": stats.accepted,
        "emitted": stats.emitted,
        "exact": stats.exact,
        **{name: digest(value) for name, value in arrays.items()},
    }


def digest(value: Any) -> str:
    """The first 16 hexadecimal digits of the digest of tensors, arrays and pictures, nested in lists."""
    if isinstance(value, list | tuple):
        return sha256("".join(digest(one) for one in value).encode()).hexdigest()[:16]
    array = np.ascontiguousarray(value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value))
    return sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()[:16]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A line for each request that has changed, and for each that only one of two recordings holds."""
    lines = [f"{name}: only in one recording" for name in sorted(set(before) ^ set(after))]
    for name in sorted(set(before) & set(after)):
        changed = [field for field in before[name] if before[name][field] != after[name].get(field)]
        if changed:
            lines.append(f"{name}: {', '.join(changed)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {}
    for name, run in requests().items():
        if options.only in name:
            record[name] = json.loads(json.dumps(entry(run())))
            print(name, record[name]["passes"], flush=True)
    options.file.write_text(json.dumps(record, indent=1) + "\n")
    if options.against is None:
        return 0
    earlier = json.loads(options.against.read_text())
    found = differences({name: one for name, one in earlier.items() if options.only in name}, record)
    print("\n".join(found) or f"{len(record)} requests are identical")
    return bool(found)


if __name__ == "__main__":
    with pinned_form("transposed"):  # bits must not depend on times
        raise SystemExit(main())
