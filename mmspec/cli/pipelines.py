"""The pipelines of `mmspec image` and `mmspec video`: opened with their options, and checked for words they do not know."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, refusing, say, spinner
from mmspec.cli.options import PIPELINE, check_left_out, check_range, refuse_unreadable
from mmspec.io.unknown_words import tokenizer_of, unknown_words
from mmspec.io.validation import LARGEST_SCALE

if TYPE_CHECKING:
    from mmspec.methods import Domain
    from mmspec.run.continuous_models import ContinuousResources
    from mmspec.run.image_models import ImageResources
    from mmspec.run.placement import Placement

# prompts that the zoo's models draw as asked
IMAGE_EXAMPLE = "a large red star on a navy background"
VIDEO_EXAMPLE = "a red circle moves to the right"
DRAFTS = ("window", "coupling", "init", "drafter", "upsampler")
# defaults of the options that only models of discrete tokens have
DISCRETE = {"coupling": None, "init": None, "drafter": None, "upsampler": None, "top_k": None, "top_p": 1.0,
            "filter_order": "top_k_first"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """A pipeline and the arguments of its calls."""

    resources: ImageResources | ContinuousResources
    arguments: dict[str, Any]  # of every call
    total: int  # values of a picture
    stride: int  # values of a row
    passes: int  # of plain decoding
    settings: dict[str, Any]  # of sampling, for the record


def open_discrete(
    model: str,
    decoding: str,
    options: dict[str, Any],
    load: Callable[[str], ImageResources],
    domain: Domain,
    placement: Placement,
) -> OpenedPipeline:
    """Open a model of discrete tokens with the decoding of a text; `domain` is "image" or "video". `options` are the
    settings of drafts and of sampling, by the name of the option."""
    from mmspec.run.image_models import decoding_of

    window = options["window"]
    if window is not None and not (window.isascii() and window.isdigit()):
        raise BadOption(f"--window: expected a number of values, got {window!r}, write for example 16")
    with spinner("loading the model"):
        with refusing():
            chosen = decoding_of(decoding, {name: options.get(name) for name in DRAFTS}, domain)
        resources = load(model)
        resources.place(placement)
        with refusing():
            drafts, usual = chosen.make(resources)
            rule = resources.rule(options["rule"] or usual)
    pipe, geometry = resources.pipeline, resources.pipeline.model.geometry
    drawn = {name: options[name] for name in ("temperature", "top_k", "top_p", "filter_order")}
    arguments = {"decoding": drafts, "rule": rule, "guidance_scale": options["guidance"], **drawn}
    own = {"guidance": pipe.guidance_scale, "top_k": pipe.top_k}
    shown = {
        name: own.get(name) if value is None else value
        for name, value in {"guidance": options["guidance"], **drawn}.items()
    }
    return OpenedPipeline(resources, arguments, geometry.total, geometry.stride, geometry.total, shown)


def open_continuous(model: str, decoding: str, options: dict[str, Any], placement: Placement) -> OpenedPipeline:
    others = {name: None if options[name] == usual else options[name] for name, usual in DISCRETE.items()}
    check_left_out(others, f"a model of discrete tokens, got {model!r}, whose tokens are continuous")
    check_range(0, LARGEST_SCALE, temperature=options["temperature"])
    with spinner("loading the model"):
        from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
        from mmspec.run.continuous_models import decoding_of
        from mmspec.run.continuous_models import open_continuous as open_resources
        from mmspec.run.decoding_options import check_needs
        from mmspec.run.model_kinds import MASKED

        with refuse_unreadable(model, PIPELINE):
            resources = open_resources(model, options["draft"])
        resources.place(placement)
        with refusing():
            if options["draft"] is not None:
                check_needs("draft", decoding, "continuous", resources.kind)
            settings = {name: options[name] for name in ("window", "gamma", "tolerance", "rule")}
            arguments = decoding_of(decoding, resources, settings)
            if not resources.pixels:
                raise BadOption(
                    f"--model: expected an autoencoder beside the model in {model}, got none, save it there"
                )
    pipe, total, guidance = resources.pipeline, resources.total, options["guidance"]
    drawn: dict[str, Any] = {"temperature": options["temperature"]}
    passes, steps = total, options["num_iter"]
    if resources.kind == MASKED:
        drawn["num_iter"] = steps = pipe.num_iter if steps is None else steps
        passes = len(cosine_steps(total, steps))
    elif steps is not None:
        raise BadOption(f"--num-iter: expected a masked model, got {model!r}, leave it out")
    shown = {"guidance": pipe.guidance_scale if guidance is None else guidance, **drawn}
    arguments |= {"guidance_scale": guidance, **drawn}
    return OpenedPipeline(resources, arguments, total, math.isqrt(total), passes, shown)


def warn_of_unknown_words(pipeline: Any, prompts: Iterable[Any], example: str) -> None:
    """Warn on stderr of words, not labels, that a pipeline's tokenizer does not know; `example` works, "" for none."""
    tokenizer = tokenizer_of(pipeline)
    words = unknown_words(tokenizer, [text for text in prompts if isinstance(text, str)])
    if words:
        advice = f'; a prompt that works: "{example}"' if example else ""
        listed = ", ".join(map(repr, words))
        say(
            f"Warning: the model does not know {listed} and draws the rest of the prompt{advice}", "yellow", stderr=True
        )
