"""A decoding of codes as text asks for it: the drafts, and the rule that a relaxed one brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmspec.core.loop import Drafter
from mmspec.evaluate.decoding_options import decoding_call
from mmspec.evaluate.image.resources import ImageResources
from mmspec.evaluate.model_kinds import CODES
from mmspec.imagegen.request import AUTO
from mmspec.methods import Domain, MethodCall, find, methods, names, parse
from mmspec.methods.settings import nearest
from mmspec.methods.text import joined, split

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
