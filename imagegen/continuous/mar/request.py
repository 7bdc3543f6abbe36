from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling, Noise
from mmspec.imagegen.continuous.masked_decoding import MaskedDecoding, PlainSteps
from mmspec.imagegen.continuous.masked_target import Schedule, TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps
from mmspec.imagegen.request import AUTO, PipelineRequest, derived
from mmspec.io.validation import LARGEST_SCALE, number
from mmspec.methods import Domain


@dataclass(frozen=True, kw_only=True)
class MARRequest(PipelineRequest):
    """The settings of a request to a `MARPipeline`.

    Args:
        decoding: A decoding, or its text, "cspd:gamma=8@FOLDER" with the folder of the smaller pipeline (`mmspec
            methods` lists them). None is plain decoding: the target alone, several tokens per pass. So is "auto",
            because decodings that save passes of masked models are relaxed and need to be named.
        rule: None for the decoding's own; "exact" is the rule of plain decoding.
        guidance_scale: The scale s, see `TokenGuidance`; at 1 only the conditional branch runs. None for the pipeline's
            default.
        guidance_schedule: "linear" or "constant"; None for the pipeline's default.
        temperature: The factor on the noise of every denoising step; 0 leaves the initial noise alone.
        num_iter: The passes over the image; None for the pipeline's default.
        num_sampling_steps: The steps of the diffusion head, see `kept_timesteps`; None for the model's own.
        order: int64 [B, L], a permutation of the positions per row, consumed from its end; None to draw it from the
            seed.
        noise: None to draw it from the seed, see `GivenNoise`.
    """

    domain: ClassVar[Domain] = "continuous"

    decoding: MaskedDecoding | HeadSampling | str | None = None
    guidance_scale: float | TokenGuidance | None = None
    guidance_schedule: Schedule | None = None
    temperature: float = 1.0
    num_iter: int | None = None
    num_sampling_steps: str | int | None = None
    order: Tensor | None = None
    noise: Noise | None = None
    steps: tuple[GenerationStep, ...] = derived()

    def resolved(self, pipe: Any, prompts: object) -> Self:
        model, guidance = pipe.model, self.guidance_scale
        decoding = None if self.decoding == AUTO else pipe.decoding(self.decoding, self.num_sampling_steps)
        decoding = PlainSteps() if decoding is None else decoding
        if isinstance(decoding, HeadSampling):
            decoding = ScheduledSteps(head_sampling=decoding)
        if not isinstance(decoding, MaskedDecoding):
            raise ValueError(
                f"decoding: expected None, 'auto' or a decoding of masked tokens, got {decoding!r}; leave it "
                "out or give such a decoding"
            )
        temperature = number("temperature", self.temperature, 0, LARGEST_SCALE)
        if not isinstance(guidance, TokenGuidance):
            scale = number("guidance_scale", pipe.guidance_scale if guidance is None else guidance, 0, LARGEST_SCALE)
            guidance = TokenGuidance(scale, self.guidance_schedule or pipe.guidance_schedule)
        elif self.guidance_schedule is not None:
            raise ValueError(
                f"guidance_schedule: expected None beside a TokenGuidance, got "
                f"{self.guidance_schedule!r}; set the schedule of the TokenGuidance"
            )
        steps = decoding.steps(model.total, pipe.num_iter if self.num_iter is None else self.num_iter)
        labels = model.prepare(prompts)
        return self.with_rows(
            labels,
            len(labels),
            model.device,
            decoding=decoding,
            temperature=temperature,
            guidance_scale=guidance,
            steps=steps,
        )
