"""A model of continuous tokens, its drafter, and decodings from text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec import zoo
from mmspec.methods import methods, names
from mmspec.methods.text import joined, split
from mmspec.run.decoding_options import check_choice, decoding_call, refuse_options
from mmspec.run.model_kinds import CONTINUOUS_MODELS, MASKED, continuous_kind, in_zoo
from mmspec.run.resources import PictureResources, checked_captions, labels_of
from mmspec.zoo.world.image import class_names

if TYPE_CHECKING:
    from mmspec.imagegen.continuous.head_sampling.head import Head

PipelineArguments = dict[str, Any]


@dataclass(slots=True)
class ContinuousResources(PictureResources):
    """A model of continuous tokens, a `MARPipeline` or a `ContinuousARPipeline`, and its drafter."""

    kind: str  # "masked" or "causal"
    name: str  # in tables
    zoo: str = ""  # its name in the zoo, "" for a folder
    draft: str | None = None  # the folder of the drafter, None for the zoo's own
    num_sampling_steps: str | None = None  # denoising steps of the heads, None for the model's own number

    def own_part(self, name: str) -> Any:
        """Return "draft", the smaller pipeline, or "head", the head with the chosen steps."""
        return self.head if name == "head" else self.drafter()

    @property
    def transformer(self) -> Any:
        return self.pipeline.model.transformer

    @property
    def total(self) -> int:
        """Return the tokens of an image, L."""
        return self.transformer.config.tokens

    @property
    def classes(self) -> int:
        return self.transformer.config.class_num

    @property
    def head(self) -> Head:
        """Return the head with the chosen number of steps."""
        return self.transformer.head(self.num_sampling_steps)

    @property
    def head_steps(self) -> int:
        """Return the denoising steps of a token, T."""
        return self.head.steps

    @property
    def pixels(self) -> bool:
        """Return whether the model can decode tokens to pixels."""
        return self.pipeline.model.no_pixels is None

    def pipeline_prompts(self, prompts: Sequence[str]) -> list[int] | list[str]:
        """Return prompts as the pipeline takes them: labels, or texts where the model reads captions and no label fits."""
        try:
            return self.labels(prompts)
        except ValueError:
            if getattr(self.pipeline.model, "captions", None) is None:
                raise
        return checked_captions(self.pipeline.model, prompts)

    def labels(self, prompts: Sequence[str]) -> list[int]:
        """Return the labels of numbers or the zoo's names."""
        return labels_of(prompts, self.classes, class_names() if self.classes == len(class_names()) else ())

    def drafter(self) -> Any:
        """Return the smaller pipeline."""
        return self.once("drafter", lambda: self.fitted(self._drafter()))

    def _drafter(self) -> Any:
        if self.draft is not None:
            if continuous_kind(self.draft, "--draft") != self.kind:
                raise ValueError(
                    f"--draft: expected a {self.kind} model, got {self.draft!r}, name a model of the target's kind"
                )
            return pipeline_of(self.draft, "--draft")
        if not self.zoo:
            raise ValueError(f"--draft: expected the folder of a smaller model for {self.name}, got none, name one")
        return zoo_pipeline(f"{self.zoo}/draft", "--draft")

    def check_judged(self) -> None:
        """Check that the zoo's scorers can judge the model's images."""
        if not self.pixels:
            raise ValueError(
                f"--model: expected an autoencoder for judged pictures, got {self.name} without an autoencoder, "
                "save it beside the model"
            )
        if self.classes != len(class_names()):
            raise ValueError(
                f"--model: expected the zoo's {len(class_names())} classes, which its CLIP reads, got "
                f"{self.classes}, take a suite that times requests"
            )


def zoo_pipeline(name: str, option: str = "--model") -> Any:
    if not in_zoo(name):
        raise ValueError(
            f"{option}: expected weights of the zoo's {name}, got none yet, name a folder with a pipeline or "
            f"run `mmspec zoo build {name}`"
        )
    return zoo.load(name)


def pipeline_of(model: str, option: str = "--model") -> Any:
    """Load a pipeline from the zoo or from a folder."""
    if model in CONTINUOUS_MODELS:
        return zoo_pipeline(model)
    if continuous_kind(model, option) == MASKED:
        from mmspec.imagegen.continuous.mar.pipeline import MARPipeline

        return MARPipeline.from_pretrained(model)
    from mmspec.imagegen.continuous.causal.pipeline import ContinuousARPipeline

    return ContinuousARPipeline.from_pretrained(model)


def open_continuous(model: str, draft: str | None = None, num_sampling_steps: str | None = None) -> ContinuousResources:
    """Open a model of the zoo or of a folder; its drafter is loaded on first use."""
    zoo_name = model if model in CONTINUOUS_MODELS else ""
    name = f"zoo {model}" if zoo_name else model
    resources = ContinuousResources(
        pipeline_of(model), continuous_kind(model), name, zoo_name, draft, num_sampling_steps
    )
    _ = resources.head  # raises for an unsupported number of steps
    return resources


def decoding_names(kind: str | None = None) -> tuple[str, ...]:
    """Return the decodings of a kind of model, "masked" or "causal"; None for all."""
    return names("continuous", "decoding", models=kind)


def rule_names() -> tuple[str, ...]:
    """Return the rules for drafted vectors that can replace a decoding's own."""
    return tuple(name for name in names("continuous", "rule") if name != "exact")


def split_rule(text: str, rule: str | None) -> tuple[str, str | None]:
    """Split the setting "rule" off a decoding; `rule` is that of an option. Return the decoding without it, and the
    rule of its drafts, None for its own."""
    name, written, weights = split(text, "--decoding")
    method = next((method for method in methods("continuous", "decoding") if method.name == name), None)
    if method is None or "rule" not in method.facts:
        if method is not None and rule is not None:
            refuse_options(name, {"rule": rule}, [setting.name for setting in method.settings])
        return text, None
    rule = rule or written.pop("rule", None)
    if rule is not None:
        check_choice("--rule", rule, rule_names())
    return joined(name, written, weights), rule or method.facts["rule"]


def decoding_of(
    text: str, resources: ContinuousResources, options: Mapping[str, Any] | None = None
) -> PipelineArguments:
    """Return the arguments of the pipeline for a decoding; an option of None was left out."""
    settings = dict(options or {})
    text, rule = split_rule(text, settings.pop("rule", None))
    purpose = f" for {resources.name}, a {resources.kind} model of vectors"
    decoding = decoding_call(text, "continuous", resources.kind, settings, purpose).make(resources)
    return {name: value for name, value in (("decoding", decoding), ("rule", rule)) if value is not None}
