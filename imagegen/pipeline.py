"""One call from prompts to pictures or videos, for every model of codes and every way to decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.goodput import Goodput
from mmspec.core.keys import Keys
from mmspec.core.loop import DecodingRun, Drafter, check_drafter
from mmspec.core.rules.base import Rule, UnsupportedCombination
from mmspec.core.rules.by_name import resolve
from mmspec.imagegen.any_order import AnyOrderDecoding
from mmspec.imagegen.base_pipeline import AUTO, BasePipeline, ImageOutput, auto_controller
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.target import FilterOrder, Guidance, ImageTarget, Listener, Warp
from mmspec.io.validation import LARGEST_SCALE, number, whole


class ImagePipeline(BasePipeline):
    """Generates images, or videos where the model's geometry has several frames, with one `ImageModel`.

    guidance_scale, top_k: the defaults of the model's published sampler.
    """

    guidance_scale, top_k = 1.0, 0

    def __init__(self, model: ImageModel):
        self.model = model

    @property
    def automatic(self) -> Goodput:
        """What `decoding="auto"` decodes with: learns as the pipeline's requests run."""
        return auto_controller(self)

    @torch.no_grad()
    def __call__(
        self,
        prompts: object,
        *,
        decoding: Drafter | Literal["auto"] | None = None,
        rule: str | Rule | None = None,
        guidance_scale: float | Guidance | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        filter_order: FilterOrder = "top_k_first",
        seed: int | Sequence[int] | None = None,
        pixels: bool = True,
        listener: Listener | None = None,
    ) -> ImageOutput:
        """One image or video per prompt.

        prompts: what the model takes: class labels, texts, or its own inputs.
        decoding: None decodes plainly through the same loop; else a drafter such as `SJD(window=32)`. "auto" drafts windows
        as long as pays by measured time, and nothing where nothing pays; which values a seed gives may then differ from run
        to run.
        rule: a rule's name or a Rule; None for "exact". Relaxed rules must be named. A decoding in an order of its own
        (`AnyOrderDecoding`: row parallel, multi-scale) judges by its own rule and takes no other.
        guidance_scale: a number or a `Guidance` schedule; None for the model's default.   temperature: 0 is greedy.
        top_k: 0 for all values, None for the model's default.   top_p: 1 for all.   filter_order: which of the two is first;
        "top_k_first" as in transformers, "top_p_first" as in LANTERN's public code.
        seed: an int, one int per row, or None to draw one from torch's global generator.
        pixels: False leaves the codes undecoded.   listener(row, filled): progress, after every round.
        Returns an `ImageOutput`. Exact with exact rules: every image and video has the law of plain decoding, and at
        temperature 0 is the same. Raises ValueError for unsupported combinations.
        """
        how = dict(decoding=decoding, rule=rule, guidance_scale=guidance_scale, temperature=temperature, top_k=top_k,
                   top_p=top_p, filter_order=filter_order, seed=seed, listener=listener)  # fmt: skip
        return self.generate(prompts, pixels, **how)

    def start(
        self,
        prompts: object,
        *,
        decoding: Drafter | Literal["auto"] | None = None,
        rule: str | Rule | None = None,
        guidance_scale: float | Guidance | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        filter_order: FilterOrder = "top_k_first",
        seed: int | Sequence[int] | None = None,
        listener: Listener | None = None,
    ) -> DecodingRun:
        """A request that has not run yet: call its `step()` until it returns False. Arguments as in the call."""
        scale = self.guidance_scale if guidance_scale is None else guidance_scale
        guidance = scale if isinstance(scale, Guidance) else Guidance(number("guidance_scale", scale, 0, LARGEST_SCALE))
        most = self.top_k if top_k is None else whole("top_k", top_k)
        warp = Warp(number("temperature", temperature, 0), most, number("top_p", top_p, 0, 1), filter_order)
        decoding = self.automatic if decoding == AUTO else decoding
        check_drafter("decoding", decoding)
        non_raster = isinstance(decoding, AnyOrderDecoding)
        if non_raster and rule is not None:
            raise UnsupportedCombination(f"rule: expected it left out, decoding {decoding.name!r} is relaxed and judges by its own rule, "
                         f"got {getattr(rule, 'name', rule)!r}; drop it")  # fmt: skip
        if isinstance(getattr(decoding, "drafter", None), AnyOrderDecoding):
            raise UnsupportedCombination(f"decoding: expected a controller over drafts in raster order, got {decoding.name!r}; use what it "
                         "wraps alone")  # fmt: skip
        condition = self.model.prepare(prompts)
        make = decoding.target if non_raster else ImageTarget
        target = make(self.model, condition, guidance=guidance, warp=warp, listener=listener)
        keys = Keys.of(seed, target.batch, target.device)
        judge = decoding.rule(self.model) if non_raster else resolve(rule or "exact", greedy=target.greedy)
        return DecodingRun(target, decoding, judge, keys)

    def tokens(self, target: ImageTarget) -> Tensor:
        """The codes int64 [B, frames * rows * cols] in raster order."""
        return target.values[:, self.model.geometry.code_index.to(target.device)]
