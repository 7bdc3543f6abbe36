"""An image pipeline, the parts that the zoo has for its methods, and decodings from text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec import zoo
from mmspec.core.round.loop import Drafter
from mmspec.core.round.rules.base import Rule
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.imagegen.request import AUTO
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.readers import read_json
from mmspec.methods import Domain, MethodCall, find, methods, names, parse
from mmspec.methods.settings import nearest
from mmspec.methods.text import joined, split
from mmspec.run.decoding_options import check_choice, decoding_call
from mmspec.run.model_kinds import CODES, IMAGE_MODELS
from mmspec.run.resources import PictureResources, checked_captions, labels_of
from mmspec.zoo.world.image import class_names


@dataclass(slots=True)
class ImageResources(PictureResources):
    """An image pipeline and the parts of the zoo that belong to it."""

    name: str  # in tables
    zoo: str = ""  # its name in the zoo, "" for a model from a folder

    def pipeline_prompts(self, prompts: Sequence[str]) -> list[str] | list[int]:
        """Return prompts as the pipeline takes them: labels where the model draws classes, else texts."""
        if self.draws_texts:
            return checked_captions(self.pipeline.model, prompts)
        classes = self.pipeline.model.transformer.config.num_classes
        return labels_of(prompts, classes, class_names() if self.zoo else ())

    @property
    def draws_texts(self) -> bool:
        config = getattr(getattr(self.pipeline.model, "transformer", None), "config", None)
        return getattr(config, "model_type", None) != "c2i"

    def own_part(self, name: str) -> Any:
        """Return a part that the zoo has for its model, such as "eagle" or "low"."""
        if not self.zoo:
            raise ValueError(
                f"expected a model of the zoo, which {name!r} belongs to, got {self.name}, choose another decoding"
            )
        return self.once(f"part {name}", lambda: self.fitted(zoo.load(f"{self.zoo}/{name}")))

    def rule(self, text: str | None) -> str | Rule | None:
        """Return the rule of "name" or "name:setting=value,...", built once; None for None."""
        if text is None:
            return None
        return self.once(f"rule {text}", lambda: parse(text, "image", "rule", "--rule").make(self))


def zoo_resources(name: str = "t2i") -> ImageResources:
    """Open the zoo's text-to-image or class-to-image model."""
    check_choice("--model", name, IMAGE_MODELS)
    return ImageResources(zoo.load(name), f"zoo {name}", name)


def folder_resources(folder: Path) -> ImageResources:
    """Open a pipeline saved in a folder: LlamaGen from `save_pretrained`, or an image model of transformers."""
    from mmspec.imagegen.adapters.registry import supported
    from mmspec.imagegen.components import CONFIG

    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ValueError(
            f"{folder / CONFIG}: expected architectures as a list of names, got {architectures!r:.60}; correct it"
        )
    named = [family.name for family in supported() if family.name in architectures]
    pipeline = _transformers(folder, named[0]) if named else _llamagen(folder)
    return ImageResources(pipeline, str(folder))


def _llamagen(folder: Path) -> ImagePipeline:
    from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline

    return LlamaGenPipeline.from_pretrained(folder)


def _transformers(folder: Path, name: str) -> ImagePipeline:
    import transformers

    from mmspec.imagegen import pipeline_for

    model = load_model(getattr(transformers, name), folder)
    try:
        processor = load_part(transformers.AutoProcessor, folder)
    except ValueError as error:
        raise ValueError(
            f"--model: expected a processor beside the model in {folder}, got none ({error}), save it"
        ) from error
    return pipeline_for(model, processor)


_SHORT = {"t2i/eagle": "eagle", "t2i/upsampler": "learned"}


def short_name(name: str) -> str:
    """Return the name that options use for a name of the zoo, such as "eagle" for "t2i/eagle"; others are unchanged."""
    return _SHORT.get(name, name)


def decoding_names(domain: Domain = "image") -> tuple[str, ...]:
    """Return the decodings, followed by the relaxed rules, which judge Jacobi drafts by default."""
    decodings = names(domain, "decoding", models=CODES)
    return (*decodings, *(name for name in names(domain, "rule", exact=False) if name not in decodings))


def judged_drafts() -> tuple[str, ...]:
    """Return the decodings whose drafts a relaxed rule can judge; the first is the default."""
    return tuple(method.name for method in methods("image", "decoding") if method.facts.get("judged"))


@dataclass(frozen=True, slots=True)
class ImageDecoding:
    """A decoding with its settings."""

    drafts: MethodCall
    rule: MethodCall | None = None  # the relaxed rule that was named; None for the drafter's own or another rule

    @property
    def title(self) -> str:
        return self.drafts.title if self.rule is None else self.rule.title

    @property
    def about(self) -> str:
        return about(self.drafts if self.rule is None else self.rule)

    def make(self, resources: ImageResources) -> tuple[Drafter | None, str | None]:
        """Return the drafter (None for plain decoding) and the text of its rule (None for the drafter's own)."""
        if self.drafts.method.name == AUTO:
            return resources.pipeline.automatic, None
        return self.drafts.make(resources), None if self.rule is None else str(self.rule)


def about(call: MethodCall) -> str:
    """Return a line on a method and whether it is exact."""
    return f"{call.method.about}; {'exact' if call.method.exact else 'relaxed'}"


def decoding_of(text: str, options: Mapping[str, Any] | None = None, domain: Domain = "image") -> ImageDecoding:
    """Return the decoding of a text: a decoding with its settings, or a relaxed rule with its own settings and those of
    its drafts. An option of None was left out; "drafter" names the drafts that a relaxed rule judges. The domain
    "video" is for videos of codes."""
    settings = {name: short_name(str(value)) for name, value in (options or {}).items() if value is not None}
    name, written, weights = split(short_name(text), "--decoding")
    if name not in names(domain, "decoding", models=CODES) and _is_relaxed_rule(name, domain):
        return _relaxed(name, written, settings, domain)
    if name not in decoding_names(domain):
        known = decoding_names(domain)
        raise ValueError(f"--decoding: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    return ImageDecoding(decoding_call(joined(name, written, weights), domain, CODES, settings))


def _is_relaxed_rule(name: str, domain: Domain) -> bool:
    return any(name in (method.name, *method.aliases) for method in methods(domain, "rule", exact=False))


def _relaxed(name: str, written: dict[str, str], settings: dict[str, str], domain: Domain) -> ImageDecoding:
    rule = find(name, domain, "rule")
    own = {setting.name for setting in rule.settings}
    known = judged_drafts()
    drafter = settings.pop("drafter", written.pop("drafter", known[0]))
    if drafter not in known:
        raise ValueError(f"--drafter: expected one of {', '.join(known)}, got {drafter!r}{nearest(drafter, known)}")
    others = {key: value for key, value in written.items() if key not in own} | settings
    if drafter == "eagle" and others:
        option, value = next(iter(others.items()))
        raise ValueError(
            f"--{option}: expected options that --drafter eagle takes (none of its own), got {value!r}, leave it out"
        )
    mine = {key: value for key, value in written.items() if key in own}
    drafts = parse(joined(drafter, others), domain, "decoding", models=CODES)
    return ImageDecoding(drafts, parse(joined(rule.name, mine), domain, "rule"))
