"""Extractors from one line of text, as the command line takes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmspec.evaluate.quality.features import FeatureExtractor

FORMS = "zoo, inception=FILE, open_clip=MODEL@FILE or clip=FOLDER"


def extractor_of(text: str) -> FeatureExtractor:
    """ "zoo": the zoo's CLIP.   inception=FILE: Inception v3.   open_clip=MODEL@FILE.   clip=FOLDER: of transformers.

    Weights are safetensors of the user's; nothing is fetched.   Raises ValueError for another form, and where there are none.
    """
    name, _, rest = text.partition("=")
    if text == "zoo":
        from mmspec.evaluate.extractors.zoo_clip import ZooClip

        return ZooClip()
    if name == "inception" and rest:
        from mmspec.evaluate.extractors.inception import Inception

        return Inception(Path(rest))
    if name == "open_clip" and "@" in rest:
        from mmspec.evaluate.extractors.clips import OpenClip

        model, _, file = rest.partition("@")
        return OpenClip(model, Path(file))
    if name == "clip" and rest:
        from mmspec.evaluate.extractors.clips import TransformersClip

        return TransformersClip(Path(rest))
    raise ValueError(f"--extractor: expected {FORMS}, got {text!r}, write one of these")
