"""A model of continuous tokens, the smaller one that drafts, and decodings as text asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec import zoo
from mmspec.evaluate.decoding_options import decoding_call, refuse_options
from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.model_kinds import CONTINUOUS_MODELS, MASKED, continuous_kind, in_zoo
from mmspec.evaluate.pictures import PictureResources, checked_captions, labels_of
from mmspec.methods import methods, names
from mmspec.methods.text import joined, split
from mmspec.zoo.world.image import class_names

if TYPE_CHECKING:
    from mmspec.imagegen.continuous.head_sampling.head import Head

PipelineArguments = dict[str, Any]


@dataclass(slots=True)
class ContinuousResources(PictureResources):
    """pipeline: a `MARPipeline` or a `ContinuousARPipeline`.   kind: "masked" or "causal".   name: what tables call it.
    zoo: its name in the zoo, "" for a folder.   draft: folder of the drafter, None for the zoo's own.
    num_sampling_steps: of the heads, None for the model's own many.
    """

    kind: str
    name: str
    zoo: str = ""
    draft: str | None = None
    num_sampling_steps: str | None = None

    def own_part(self, name: str) -> Any:
        """ "draft", the smaller pipeline, or "head", the head as requests have it.   Raises ValueError without a drafter."""
        return self.head if name == "head" else self.drafter()

    @property
    def transformer(self) -> Any:
        return self.pipeline.model.transformer

    @property
    def total(self) -> int:
        """L, tokens of an image."""
        return self.transformer.config.tokens

    @property
    def classes(self) -> int:
        return self.transformer.config.class_num

    @property
    def head(self) -> Head:
        """The head as requests have it."""
        return self.transformer.head(self.num_sampling_steps)

    @property
    def head_steps(self) -> int:
        """T, denoising steps of a token."""
        return self.head.steps

    @property
    def pixels(self) -> bool:
        """Whether tokens can be decoded."""
        return self.pipeline.model.no_pixels is None

    def given(self, prompts: Sequence[str]) -> list[int] | list[str]:
        """Labels from numbers or the zoo's names; texts where the model reads captions and one of them is no label.

        Raises ValueError for a class that does not exist, and for words of which the model knows none.
        """
        try:
            return self.labels(prompts)
        except ValueError:
            if getattr(self.pipeline.model, "captions", None) is None:
                raise
        return checked_captions(self.pipeline.model, prompts)

    def labels(self, prompts: Sequence[str]) -> list[int]:
        """Labels from numbers or the zoo's names.   Raises ValueError for a class that does not exist."""
        return labels_of(prompts, self.classes, class_names() if self.classes == len(class_names()) else ())

    def drafter(self) -> Any:
        """The smaller pipeline.   Raises ValueError where there is none, and for one of another kind."""
        return self.once("drafter", lambda: self.fitted(self._drafter()))

    def _drafter(self) -> Any:
        if self.draft is not None:
            if continuous_kind(self.draft, "--draft") != self.kind:
                raise ValueError(
                    f"--draft: expected a {self.kind} model, got {self.draft!r}, take one of the target's kind"
                )
            return pipeline_of(self.draft, "--draft")
        if not self.zoo:
            raise ValueError(f"--draft: expected the folder of a smaller model for {self.name}, got none, name one")
        return zoo_pipeline(f"{self.zoo}/draft", "--draft")

    def check_judged(self) -> None:
        """Raises ValueError for a model whose pictures the zoo's scorers cannot read."""
        if not self.pixels:
            raise ValueError(f"--model: expected an autoencoder for pictures that are judged, got {self.name} without one, "
                             "save it beside the model")  # fmt: skip
        if self.classes != len(class_names()):
            raise ValueError(f"--model: expected the zoo's {len(class_names())} classes, which its CLIP reads, got "
                             f"{self.classes}, take a suite that times requests")  # fmt: skip


def zoo_pipeline(name: str, option: str = "--model") -> Any:
    """The zoo's pipeline of that name.   Raises ValueError where it has no weights."""
    if not in_zoo(name):
        raise ValueError(f"{option}: expected weights of the zoo's {name}, got none yet, name a folder with a pipeline or "
                         f"run `mmspec zoo build {name}`")  # fmt: skip
    return zoo.load(name)


def pipeline_of(model: str, option: str = "--model") -> Any:
    """The pipeline of the zoo, or that saved in a folder.   Raises ValueError where there is none."""
    if model in CONTINUOUS_MODELS:
        return zoo_pipeline(model)
    if continuous_kind(model, option) == MASKED:
        from mmspec.imagegen.continuous.mar.pipeline import MARPipeline

        return MARPipeline.from_pretrained(model)
    from mmspec.imagegen.continuous.causal.pipeline import ContinuousARPipeline

    return ContinuousARPipeline.from_pretrained(model)


def open_continuous(model: str, draft: str | None = None, num_sampling_steps: str | None = None) -> ContinuousResources:
    """A model of the zoo or of a folder; its drafter is loaded on first use.

    Raises ValueError where there is none, and for a number of steps its head does not have.
    """
    zoo_name = model if model in CONTINUOUS_MODELS else ""
    name = f"zoo {model}" if zoo_name else model
    made = ContinuousResources(pipeline_of(model), continuous_kind(model), name, zoo_name, draft, num_sampling_steps)
    _ = made.head  # refuses steps
    return made


def decoding_names(kind: str | None = None) -> tuple[str, ...]:
    """The decodings of a kind of models, "masked" or "causal"; None for all."""
    return names("continuous", "decoding", models=kind)


def rule_names() -> tuple[str, ...]:
    """The rules of drafted vectors that can be named in the place of a decoding's own."""
    return tuple(name for name in names("continuous", "rule") if name != "exact")


def split_rule(text: str, rule: str | None) -> tuple[str, str | None]:
    """A decoding without its setting "rule", and the rule of its drafts, None for its own.

    Args:
        text: A decoding with its settings.
        rule: The rule from an option; None where it was left out.

    Raises:
        ValueError: The rule is unknown, or the decoding takes none.
    """
    name, written, weights = split(text, "--decoding")
    found = next((one for one in methods("continuous", "decoding") if one.name == name), None)
    if found is None or "rule" not in found.facts:
        if found is not None and rule is not None:
            refuse_options(name, {"rule": rule}, [one.name for one in found.settings])
        return text, None
    rule = rule or written.pop("rule", None)
    if rule is not None:
        check_choice("--rule", rule, rule_names())
    return joined(name, written, weights), rule or found.facts["rule"]


def decoding_of(
    text: str, resources: ContinuousResources, options: Mapping[str, Any] | None = None
) -> PipelineArguments:
    """Arguments of the pipeline for a decoding.

    Args:
        text: The decoding with its settings.
        resources: The model and its drafter.
        options: Settings from options of the command line by name, and "rule"; None is one that was left out.

    Raises:
        ValueError: A name, a setting or a value is unknown or refused, or there is no drafter.
    """
    given = dict(options or {})
    text, rule = split_rule(text, given.pop("rule", None))
    purpose = f" for {resources.name}, a {resources.kind} model of vectors"
    made = decoding_call(text, "continuous", resources.kind, given, purpose).make(resources)
    return {name: value for name, value in (("decoding", made), ("rule", rule)) if value is not None}
