"""Which models of continuous tokens there are, told from a name or a folder. Imports no models."""

from __future__ import annotations

from pathlib import Path

from mmspec import zoo

MASKED, CAUSAL = "masked", "causal"
ZOO_MODELS = {"mar": MASKED, "car": CAUSAL}
PIPELINES = {"MARPipeline": MASKED, "ContinuousARPipeline": CAUSAL}
INDEX = "model_index.json"


def kind_of_folder(folder: Path) -> str | None:
    """The kind of the pipeline saved in `folder`, None where it is no model of continuous tokens.

    Raises ValueError for a damaged index.
    """
    from mmspec.core.readers import read_json

    if not (folder / INDEX).is_file():
        return None
    index = read_json(folder / INDEX)
    name = index.get("_class_name") if isinstance(index, dict) else None
    return PIPELINES.get(name) if isinstance(name, str) else None


def kind_of(model: str, option: str = "--model") -> str:
    """The kind of a model of the zoo or of a folder.   Raises ValueError for anything else."""
    if model in ZOO_MODELS:
        return ZOO_MODELS[model]
    kind = kind_of_folder(Path(model)) if Path(model).is_dir() else None
    if kind is None:
        known, kinds = ", ".join(ZOO_MODELS), " or ".join(PIPELINES)
        raise ValueError(
            f"{option}: expected one of {known} or a folder with a saved {kinds}, got {model!r}, correct it"
        )
    return kind


def in_zoo(name: str) -> bool:
    """Whether the zoo has weights of "mar", "mar/draft"..."""
    return name in zoo.names()


def is_continuous(model: str) -> bool:
    """Whether tokens of this model of the zoo, or of this folder, are vectors."""
    return model in ZOO_MODELS or (Path(model).is_dir() and kind_of_folder(Path(model)) is not None)
