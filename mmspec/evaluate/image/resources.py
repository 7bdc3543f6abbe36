"""An image pipeline, the parts of methods that the zoo has for it, and decodings as text asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec import zoo
from mmspec.core.loop import Drafter
from mmspec.core.rules.base import Rule
from mmspec.evaluate.decoding_options import decoding_call
from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.model_kinds import CODES, IMAGE_MODELS
from mmspec.evaluate.pictures import PictureResources, checked_captions, labels_of
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.imagegen.request import AUTO
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.readers import read_json
from mmspec.methods import Domain, MethodCall, find, methods, names, parse
from mmspec.methods.settings import nearest
from mmspec.methods.text import joined, split
from mmspec.zoo.world.image import class_names


@dataclass(slots=True)
class ImageResources(PictureResources):
    """name: what tables call the model.   zoo: its name in the zoo, "" for a model from a folder."""

    name: str
    zoo: str = ""

    def given(self, prompts: Sequence[str]) -> list[str] | list[int]:
        """What the pipeline takes of prompts in words: labels where the model draws classes, else the words.

        Raises ValueError for a class that does not exist, and for words of which the model knows none.
        """
        if self.draws_texts:
            return checked_captions(self.pipeline.model, prompts)
        classes = self.pipeline.model.transformer.config.num_classes
        return labels_of(prompts, classes, class_names() if self.zoo else ())

    @property
    def draws_texts(self) -> bool:
        """Whether the model draws what words say, and not classes."""
        config = getattr(getattr(self.pipeline.model, "transformer", None), "config", None)
        return getattr(config, "model_type", None) != "c2i"

    def own_part(self, name: str) -> Any:
        """A part that the zoo has for its model: "eagle", "low"...   Raises ValueError where there is none."""
        if not self.zoo:
            raise ValueError(
                f"expected a model of the zoo, which {name!r} belongs to, got {self.name}, decode otherwise"
            )
        return self.once(f"part {name}", lambda: self.fitted(zoo.load(f"{self.zoo}/{name}")))

    def rule(self, text: str | None) -> str | Rule | None:
        """The rule of "name" or "name:setting=value,...", made once; None of None."""
        if text is None:
            return None
        return self.once(f"rule {text}", lambda: parse(text, "image", "rule", "--rule").make(self))


def zoo_resources(name: str = "t2i") -> ImageResources:
    """The zoo's text-to-image model, or its class-to-image model.   Raises ValueError for another name."""
    check_choice("--model", name, IMAGE_MODELS)
    return ImageResources(zoo.load(name), f"zoo {name}", name)


def folder_resources(folder: Path) -> ImageResources:
    """The pipeline saved in `folder`: LlamaGen as `save_pretrained` wrote it, or an image model of transformers.

    Raises ValueError where it holds neither.
    """
    from mmspec.imagegen.adapters.registry import supported
    from mmspec.imagegen.components import CONFIG

    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    asked = config.get("architectures") or []
    if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
        raise ValueError(f"{folder / CONFIG}: expected architectures as a list of names, got {asked!r:.60}; correct it")
    named = [family.name for family in supported() if family.name in asked]
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
    """What options call what the zoo calls `name`: "eagle" of "t2i/eagle"; any other name as it is."""
    return _SHORT.get(name, name)


def decoding_names(domain: Domain = "image") -> tuple[str, ...]:
    """What can be asked for: the decodings, and the relaxed rules, which judge Jacobi drafts where nothing else is said."""
    decodings = names(domain, "decoding", models=CODES)
    return (*decodings, *(one for one in names(domain, "rule", exact=False) if one not in decodings))


def judged_drafts() -> tuple[str, ...]:
    """The decodings whose drafts a relaxed rule can judge; the first where none is named."""
    return tuple(one.name for one in methods("image", "decoding") if one.facts.get("judged"))


@dataclass(frozen=True, slots=True)
class ImageDecoding:
    """A decoding with its settings.

    Attributes:
        drafts: What drafts.
        rule: The relaxed rule that was asked for by its name; None where the drafts' own or another holds.
    """

    drafts: MethodCall
    rule: MethodCall | None = None

    @property
    def title(self) -> str:
        """What tables call it."""
        return self.drafts.title if self.rule is None else self.rule.title

    @property
    def about(self) -> str:
        """What it does and whether it is exact, in a line."""
        return about(self.drafts if self.rule is None else self.rule)

    def make(self, resources: ImageResources) -> tuple[Drafter | None, str | None]:
        """The drafter, None for plain decoding, and the text of its rule, None for the drafter's own.

        Raises:
            ValueError: A setting is refused, or the weights it needs are not at hand.
        """
        if self.drafts.method.name == AUTO:
            return resources.pipeline.automatic, None
        return self.drafts.make(resources), None if self.rule is None else str(self.rule)


def about(call: MethodCall) -> str:
    """What a method does and whether it is exact."""
    return f"{call.method.about}; {'exact' if call.method.exact else 'relaxed'}"


def decoding_of(text: str, options: Mapping[str, Any] | None = None, domain: Domain = "image") -> ImageDecoding:
    """The decoding that a text asks for.

    Args:
        text: A decoding with its settings, or a relaxed rule with its own and those of its drafts.
        options: Settings from options of the command line by name; None is one that was left out. "drafter" names whose
            drafts a relaxed rule judges.
        domain: "image", or "video" for videos of codes.

    Raises:
        ValueError: A name, a setting or a value is unknown.
    """
    given = {name: short_name(str(value)) for name, value in (options or {}).items() if value is not None}
    name, written, weights = split(short_name(text), "--decoding")
    if name not in names(domain, "decoding", models=CODES) and _is_relaxed_rule(name, domain):
        return _relaxed(name, written, given, domain)
    if name not in decoding_names(domain):
        known = decoding_names(domain)
        raise ValueError(f"--decoding: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    return ImageDecoding(decoding_call(joined(name, written, weights), domain, CODES, given))


def _is_relaxed_rule(name: str, domain: Domain) -> bool:
    return any(name in (one.name, *one.aliases) for one in methods(domain, "rule", exact=False))


def _relaxed(name: str, written: dict[str, str], given: dict[str, str], domain: Domain) -> ImageDecoding:
    """A relaxed rule over drafts."""
    rule = find(name, domain, "rule")
    own = {one.name for one in rule.settings}
    known = judged_drafts()
    drafter = given.pop("drafter", written.pop("drafter", known[0]))
    if drafter not in known:
        raise ValueError(f"--drafter: expected one of {', '.join(known)}, got {drafter!r}{nearest(drafter, known)}")
    others = {key: value for key, value in written.items() if key not in own} | given
    if drafter == "eagle" and others:
        option, value = next(iter(others.items()))
        raise ValueError(f"--{option}: expected options that --drafter eagle takes (none of its own), got {value!r}, leave it "
                         "out")  # fmt: skip
    mine = {key: value for key, value in written.items() if key in own}
    drafts = parse(joined(drafter, others), domain, "decoding", models=CODES)
    return ImageDecoding(drafts, parse(joined(rule.name, mine), domain, "rule"))
