"""The files of the user's MODEL: a folder, a config alone, a model of the zoo, or a hub repository in the cache."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmspec.io.checkpoints import weight_files
from mmspec.io.loading import abbreviated
from mmspec.io.pretrained import CONFIG, ZOO
from mmspec.io.readers import read_json
from mmspec.run.model_kinds import MODEL_INDEX
from mmspec.zoo.files.registry import command_for, has_weights
from mmspec.zoo.files.registry import folder_of as zoo_folder
from mmspec.zoo.files.table import MODELS

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FETCHED = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The place of a model's files."""

    spec: str  # as the user wrote it
    folder: Path  # of its files, or of the config alone
    config: dict[str, Any]  # the fields of config.json, {} for a pipeline without that file
    file: Path | None  # the config file, None for a pipeline without that file
    name: str  # the hub id if it is known, the name in the zoo, else the folder
    zoo: str = ""  # name in the zoo, "" for other models
    is_repository: bool = False  # it was named by its hub id
    has_weights: bool = False  # safetensors files lie beside the config
    note: str = ""  # a sentence about its files

    @property
    def index(self) -> dict[str, Any]:
        """The fields of model_index.json, {} for a folder without a pipeline."""
        path = self.folder / MODEL_INDEX
        return read_json(path) if self.file is None and path.is_file() else {}


def find_model(spec: str, fetch: bool = False) -> ModelSource:
    """Find a model's files: "zoo:NAME" or a name of the zoo, a folder, a config file, or a hub id. Only `fetch` uses
    the network, and only for a hub id that is not in the cache."""
    path = Path(spec)
    if name := _zoo_name(spec):
        return _of_folder(spec, zoo_folder(name), name=name, zoo=name)
    if path.is_file():
        return _of_file(spec, path)
    if path.is_dir():
        return _of_folder(spec, path, name=str(path.resolve()))
    if not _HUB_ID.fullmatch(spec):
        raise ValueError(
            f"MODEL: expected a folder, a config file, zoo:NAME or a hub id 'owner/name', got {spec!r}, which "
            "is none of these; check the path"
        )
    return replace(_of_folder(spec, _hub_folder(spec, fetch), name=spec), is_repository=True)


def _zoo_name(spec: str) -> str:
    name = spec.removeprefix(ZOO)
    named = spec != name or (not Path(spec).exists() and name in (*MODELS, "zoo"))
    if not named:
        return ""
    name = "vlm" if name == "zoo" else name
    if name not in MODELS:
        raise ValueError(f"MODEL: expected zoo: and one of {', '.join(MODELS)}, got {spec!r}; see `mmspec zoo list`")
    if not has_weights(name):
        raise ValueError(f"MODEL: expected weights of the zoo's {name}, got none yet; run `{command_for(name)}`")
    return name


def _of_file(spec: str, path: Path) -> ModelSource:
    config = read_json(path)
    if path.suffix != ".json" or not ("model_type" in config or config.get("architectures")):
        raise ValueError(
            f"{path}: expected the config of a model, with its model_type, got none; name a folder or its {CONFIG}"
        )
    return ModelSource(spec, path.parent, config, path, str(path.resolve().parent), note="Only the config was named.")


def _of_folder(spec: str, folder: Path, *, name: str, zoo: str = "") -> ModelSource:
    file = folder / CONFIG
    if (folder / MODEL_INDEX).is_file():
        return ModelSource(spec, folder, {}, None, name, zoo, has_weights=any(folder.rglob("*.safetensors")))
    if not file.is_file():
        if zoo:  # composed of other models of the zoo
            return ModelSource(spec, folder, {}, None, name, zoo, has_weights=True)
        there = ", ".join(sorted(file.name for file in folder.iterdir())[:4]) or "nothing"
        raise ValueError(
            f"{folder}: expected {CONFIG} of a model or {MODEL_INDEX} of a pipeline, got {there}; name the folder that has it"
        )
    config = read_json(file)
    _check_model(spec, config)
    files = weight_files(folder)
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{folder}: expected {len(files)} files of weights, got no {abbreviated(missing)}; fetch them")
    pickles = [] if files else [path.name for pattern in _PICKLES for path in folder.glob(pattern)]
    note = f"Its weights are pickles ({pickles[0]}), which are never loaded; use a safetensors copy." if pickles else ""
    if not files and not note:
        note = "There are no weights beside the config."
    return ModelSource(spec, folder, config, file, name, zoo, has_weights=bool(files), note=note)


def _check_model(spec: str, config: dict[str, Any]) -> None:
    """Refuse the folder of a drafter or of a part, which no request decodes with."""
    from mmspec.vlm.drafters.checkpoints import published_kind

    kind = config.get("kind") or published_kind(config, None)
    if isinstance(kind, str):
        raise ValueError(
            f"MODEL: expected a model, got the drafter {spec!r} of kind {kind}; check its target, with --drafter {spec}"
        )
    if "model_type" not in config and not config.get("architectures"):
        raise ValueError(
            f"MODEL: expected the config of a model, with its model_type, got {spec!r} with fields "
            f"{', '.join(list(config)[:4]) or 'of nothing'}; name a model's folder"
        )


def _hub_folder(repo: str, fetch: bool) -> Path:
    from huggingface_hub import constants, snapshot_download

    how = {"allow_patterns": list(_FETCHED)} if fetch else {"local_files_only": True}
    try:
        return Path(snapshot_download(repo, **how))
    except Exception as error:  # the hub's errors have no common base but Exception
        if not fetch:
            raise ValueError(
                f"MODEL: expected a hub id in the cache, got {repo!r}, which is not in {constants.HF_HUB_CACHE}; nothing is "
                f"fetched unasked: add --fetch, or run `hf download {repo}`"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"MODEL: expected a repository that can be fetched, got {repo!r} ({reason}); check the id, the "
            "network and your access"
        ) from error
