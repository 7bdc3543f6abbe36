"""Decodings of block videos and their routers by text, as the command line takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmspec.evaluate.decoding_options import decoding_call
from mmspec.evaluate.model_kinds import BLOCKS
from mmspec.evaluate.video.resources import VideoResources
from mmspec.methods import MethodCall, names, parse
from mmspec.video.routing.routers import Router

PLAIN, ALONE = "ar", "draft"


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A pipeline and the arguments that say how it draws."""

    pipeline: Any
    arguments: dict[str, Any]


def pipeline_call(call: MethodCall, resources: VideoResources, router: Router | None = None) -> PipelineCall:
    """The pipeline and its arguments for a decoding.

    Args:
        call: The decoding.
        resources: The model, its drafter and its reward.
        router: A router in the place of the settings' own; None for that.

    Raises:
        ValueError: A setting is refused, or there is no drafter or reward.
    """
    if call.method.name == ALONE and call.weights is None:
        return PipelineCall(resources.alone(), {})
    if isinstance(named := call.settings.get("router"), str):
        parse(named, "video", "router", "--router")
    if router is not None:
        call = replace(call, settings={**call.settings, "router": router})
    made = call.make(resources if resources.codes is None else resources.codes)
    return PipelineCall(resources.pipeline, {} if call.method.name == PLAIN else {"decoding": made})


def decoding_names() -> tuple[str, ...]:
    """The decodings of models of blocks."""
    return names("video", "decoding", models=BLOCKS)


def router_of(text: str) -> Router:
    """The router that a text asks for, such as "strided:budget=3" or "hybrid:run=3,least=0.2".

    Raises:
        ValueError: A name, a setting or a value is unknown, or a setting is missing.
    """
    return parse(text, "video", "router", "--router").make()


def decoding_of(text: str, resources: VideoResources, options: Mapping[str, Any] | None = None) -> PipelineCall:
    """The pipeline and its arguments for a decoding.

    Args:
        text: The decoding with its settings.
        resources: The model, its drafter and its reward.
        options: Settings from options of the command line by name; None is an option that was left out.

    Raises:
        ValueError: A name, a setting or a value is unknown or refused, or there is no drafter or reward.
    """
    purpose = f" for {resources.name}, a model of blocks"
    call = decoding_call(text, "video", BLOCKS, options, purpose)
    return pipeline_call(call, resources)
