"""The judges of a model's samples: a feature extractor by name, and scorers of single samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.records import encode_row
from mmspec.evaluate.quality.features import ExtractedFeatures, FeatureExtractor, Scorer, clip_scores
from mmspec.evaluate.quality.metrics import need_torchmetrics
from mmspec.evaluate.quality.rewards import reward_scorer_of

EXTRACTOR_FORMS = "zoo, inception=FILE, open_clip=MODEL@FILE or clip=FOLDER"


def extractor_of(text: str) -> FeatureExtractor:
    """Return the feature extractor of a text. "zoo" is the zoo's CLIP, "inception=FILE" Inception v3,
    "open_clip=MODEL@FILE" a model of open_clip, and "clip=FOLDER" a CLIP of transformers. Weights are the user's
    safetensors; nothing is downloaded."""
    name, _, rest = text.partition("=")
    if text == "zoo":
        from mmspec.evaluate.quality.clip import ZooClip

        return ZooClip()
    if name == "inception" and rest:
        from mmspec.evaluate.quality.inception import Inception

        return Inception(Path(rest))
    if name == "open_clip" and "@" in rest:
        from mmspec.evaluate.quality.clip import OpenClip

        model, _, file = rest.partition("@")
        return OpenClip(model, Path(file))
    if name == "clip" and rest:
        from mmspec.evaluate.quality.clip import TransformersClip

        return TransformersClip(Path(rest))
    raise ValueError(f"--extractor: expected {EXTRACTOR_FORMS}, got {text!r}, write one of these")


CLIP_SCORE = "clip_score"


class Judges:
    """The extractor of a plan, for domains with pictures or videos, and the domain's own scorers; both are opened on
    first use."""

    def __init__(self, plan: SweepPlan, domain: Domain, model: str):
        self.shows, self._plan, self._domain, self._model = domain.shows, plan, domain, model

    @cached_property
    def extractor(self) -> FeatureExtractor | None:
        """Return the feature extractor; None in a domain of texts."""
        if self.shows == "text":
            return None
        if self.shows == "picture":
            need_torchmetrics()  # before anything is drawn
        return extractor_of(self._plan.extractor)

    @cached_property
    def scorers(self) -> list[Scorer]:
        own = list(self._domain.scorers(self._model))
        return [*own, reward_scorer_of(self._plan.reward)] if self._plan.reward and self.shows != "text" else own

    @cached_property
    def hash(self) -> str:
        """Return a hash of all that decides a score."""
        parts = [] if self.extractor is None else [self.extractor.hash]
        return hashlib.sha256("/".join([*parts, *(scorer.hash for scorer in self.scorers)]).encode()).hexdigest()[:16]

    def row(self) -> dict[str, Any]:
        """Return the description of the judges for a header."""
        named = {"scorers": {scorer.name: scorer.about for scorer in self.scorers}, "hash": self.hash}
        if self.extractor is None:
            return named
        return {
            "extractor": self.extractor.name,
            "extractor_hash": self.extractor.hash,
            "dim": self.extractor.dim,
            **named,
        }

    def scores(self, outputs: Sequence[Any], prompts: Sequence[EvaluationPrompt]) -> list[dict[str, Any]]:
        """Return the entries of the records of samples: their figures, and the features of pictures."""
        columns = {scorer.name: scorer(outputs, prompts) for scorer in self.scorers}
        entries: list[dict[str, Any]] = [{} for _ in outputs]
        if self.shows == "picture":
            entries, read = self.pictures(outputs)
            columns |= self._clip(read.features, [prompt.text for prompt in prompts])
        elif self.shows == "film":
            columns |= self._of_films(outputs, prompts)
        for place, entry in enumerate(entries):
            values = {name: float(column[place]) for name, column in columns.items()}
            entry["figures"] = {name: value if np.isfinite(value) else None for name, value in values.items()}
        return entries

    def pictures(self, images: Sequence[Image.Image]) -> tuple[list[dict[str, Any]], ExtractedFeatures]:
        """Return the features of every picture, and its classes where the extractor has a classifier."""
        read = self.extractor.images(images)
        entries = [{"features": encode_row(row)} for row in read.features]
        if read.probabilities is not None:
            for entry, row in zip(entries, read.probabilities, strict=True):
                entry["probabilities"] = encode_row(row)
        return entries, read

    def _clip(self, features: np.ndarray, texts: Sequence[str]) -> dict[str, np.ndarray]:
        encoded = self.extractor.texts(texts)
        return {} if encoded is None else {CLIP_SCORE: clip_scores(features, encoded)}

    def _of_films(self, films: Sequence[np.ndarray], prompts: Sequence[EvaluationPrompt]) -> dict[str, np.ndarray]:
        """Return the mean CLIP score over frames."""
        columns = []
        for film, prompt in zip(films, prompts, strict=True):
            read = self.extractor.images([Image.fromarray(frame) for frame in film])
            columns.append(self._clip(read.features, [prompt.text] * len(film)))
        if not columns or not columns[0]:
            return {}
        return {CLIP_SCORE: np.array([column[CLIP_SCORE].mean() for column in columns])}
