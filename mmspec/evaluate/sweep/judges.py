"""What judges the samples of one model: an extractor of features for pictures and films, and figures of single samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from mmspec.evaluate.engine.prompt import Prompt
from mmspec.evaluate.engine.sweep import Sweep
from mmspec.evaluate.extractors.by_name import extractor_of
from mmspec.evaluate.extractors.rewards import reward_of
from mmspec.evaluate.quality.features import FeatureExtractor, Read, Scorer, clip_scores
from mmspec.evaluate.sweep.plan import Plan
from mmspec.evaluate.sweep.records import packed

CLIP_SCORE = "clip_score"


class Judges:
    """The extractor of a plan, where what a domain makes can be seen, and the domain's own scorers.   Raises ValueError, when
    they are first needed, where their weights are missing."""

    def __init__(self, plan: Plan, sweep: Sweep, model: str):
        self.shows, self._plan, self._sweep, self._model = sweep.shows, plan, sweep, model

    @cached_property
    def extractor(self) -> FeatureExtractor | None:
        """Opened when it is asked for first."""
        return None if self.shows == "text" else extractor_of(self._plan.extractor)

    @cached_property
    def scorers(self) -> list[Scorer]:
        own = list(self._sweep.scorers(self._model))
        return [*own, reward_of(self._plan.reward)] if self._plan.reward and self.shows != "text" else own

    @cached_property
    def hash(self) -> str:
        """Of all that decides a score."""
        parts = [] if self.extractor is None else [self.extractor.hash]
        return hashlib.sha256("/".join([*parts, *(one.hash for one in self.scorers)]).encode()).hexdigest()[:16]

    def row(self) -> dict[str, Any]:
        """What a header says of them."""
        named = {"scorers": {one.name: one.about for one in self.scorers}, "hash": self.hash}
        if self.extractor is None:
            return named
        return {
            "extractor": self.extractor.name,
            "extractor_hash": self.extractor.hash,
            "dim": self.extractor.dim,
            **named,
        }

    def scores(self, made: Sequence[Any], prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """Entries of the records of samples: their figures, and of pictures their features."""
        columns = {one.name: one(made, prompts) for one in self.scorers}
        entries: list[dict[str, Any]] = [{} for _ in made]
        if self.shows == "picture":
            entries, read = self.pictures(made)
            columns |= self._clip(read.features, [one.text for one in prompts])
        elif self.shows == "film":
            columns |= self._of_films(made, prompts)
        for place, entry in enumerate(entries):
            values = {name: float(column[place]) for name, column in columns.items()}
            entry["figures"] = {name: value if np.isfinite(value) else None for name, value in values.items()}
        return entries

    def pictures(self, images: Sequence[Image.Image]) -> tuple[list[dict[str, Any]], Read]:
        """Features, and classes where the extractor tells some, of every picture."""
        read = self.extractor.images(images)
        entries = [{"features": packed(row)} for row in read.features]
        if read.probabilities is not None:
            for entry, row in zip(entries, read.probabilities, strict=True):
                entry["probabilities"] = packed(row)
        return entries, read

    def _clip(self, features: np.ndarray, texts: Sequence[str]) -> dict[str, np.ndarray]:
        said = self.extractor.texts(texts)
        return {} if said is None else {CLIP_SCORE: clip_scores(features, said)}

    def _of_films(self, films: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> dict[str, np.ndarray]:
        """The mean over frames."""
        found = []
        for film, prompt in zip(films, prompts, strict=True):
            read = self.extractor.images([Image.fromarray(frame) for frame in film])
            found.append(self._clip(read.features, [prompt.text] * len(film)))
        if not found or not found[0]:
            return {}
        return {CLIP_SCORE: np.array([one[CLIP_SCORE].mean() for one in found])}
