"""`mmspec image` with models of continuous tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, refusing, waiting
from mmspec.cli.drawing import Opened
from mmspec.cli.models import reading
from mmspec.cli.options import check_scale

if TYPE_CHECKING:
    from mmspec.evaluate.continuous.resources import ContinuousResources

CODES = ("coupling", "init", "drafter", "upsampler")  # options that only models of codes have
FILTERS = {"top_k": None, "top_p": 1.0, "filter_order": "top_k_first"}  # what they are where they are left out


def open_vectors(model: str, decoding: str, wishes: dict[str, Any], settings: dict[str, Any]) -> Opened:
    """The pipeline and its arguments. settings: as for models of codes; vectors have no filters."""
    _check(model, wishes, settings)
    check_scale("--temperature", settings["temperature"])
    with waiting("loading the model"):
        from mmspec.evaluate.continuous.decodings import Wishes, decoding_of
        from mmspec.evaluate.continuous.kinds import MASKED
        from mmspec.evaluate.continuous.resources import open_continuous

        with reading(model, "a folder with a saved pipeline"):
            resources = open_continuous(model, wishes["draft"])
        with refusing():
            asked = Wishes(**{name: wishes[name] for name in ("window", "gamma", "tolerance", "rule")})
            if wishes["draft"] is not None and decoding not in ("cspd", "small"):
                raise BadOption(f"--draft: expected options that --decoding {decoding} takes, got {wishes['draft']!r}, leave "
                                "it out")  # fmt: skip
            how = decoding_of(decoding, resources, asked)
            if not resources.pixels:
                raise BadOption(
                    f"--model: expected an autoencoder beside the model in {model}, got none, save it there"
                )
    drawn = {"guidance_scale": settings["guidance_scale"], "temperature": settings["temperature"]}
    masked = resources.kind == MASKED
    steps = wishes["num_iter"]
    if masked:
        drawn["num_iter"] = steps = resources.pipeline.num_iter if steps is None else steps
    elif steps is not None:
        raise BadOption(f"--num-iter: expected a masked model, got {model!r}, leave it out")
    scale = resources.pipeline.guidance_scale if settings["guidance_scale"] is None else settings["guidance_scale"]
    said = {"guidance": scale, "temperature": settings["temperature"]} | ({"num_iter": steps} if masked else {})
    return Opened(resources.pipeline, resources.name, resources.given, how | drawn,
                  resources.total, math.isqrt(resources.total), _passes(resources, steps), said)  # fmt: skip


def _check(model: str, wishes: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuses what does not apply to vectors."""
    for name, value in (*((one, wishes[one]) for one in CODES), *((one, settings[one]) for one in FILTERS)):
        if value != FILTERS.get(name):
            flag = f"--{name.replace('_', '-')}"
            raise BadOption(
                f"{flag}: expected a model of codes, got {model!r}, whose tokens are vectors, leave {flag} out"
            )


def _passes(resources: ContinuousResources, steps: int | None) -> int:
    """Of plain decoding."""
    if steps is None:
        return resources.total
    from mmspec.imagegen.continuous.mar.order import cosine_steps

    return len(cosine_steps(resources.total, steps))
