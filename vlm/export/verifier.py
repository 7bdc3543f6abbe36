"""The target that an exported drafter names: its config, and the tensors of its checkpoint that go into the files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.io.checkpoints import load_model
from mmspec.io.pretrained import CONFIG, folder_of
from mmspec.io.readers import naming, read_json
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.checkpoints import tensors_of
from mmspec.vlm.drafters.eagle3.published import embedding_rows
from mmspec.vlm.hf_model import unwrapped

_LONGEST = 131072  # positions for a target whose config has no limit


class Verifier:
    """The target of an exported drafter, which engines load beside it.

    Attributes:
        name: A folder or a hub id, as the engine will look it up.
        config: The fields of its config file.
        model: The loaded model; None where tensors are read from the folder.
    """

    def __init__(self, name: str, config: Mapping[str, Any], model: nn.Module | None = None):
        self.name, self.config, self.model = name, config, model

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the target in a folder or a hub repository; its weights are loaded only when needed."""
        folder = folder_of(name)
        config = read_json(folder / CONFIG)
        if not config.get("architectures"):
            raise ValueError(
                f"verifier: expected a config that names its class under architectures, got none in {folder}; "
                "give the folder of the whole target"
            )
        return cls(name, config)

    @classmethod
    def of_model(cls, model: nn.Module, name: str) -> Self:
        """Return a loaded target that engines look up under `name`."""
        model = unwrapped(model)
        return cls(name, {**model.config.to_dict(), "architectures": [type(model).__name__]}, model)

    @property
    def architectures(self) -> list[str]:
        """The names of its class."""
        return list(self.config["architectures"])

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The fields of its text decoder."""
        return self.config.get("text_config") or self.config

    @property
    def max_position_embeddings(self) -> int:
        """The longest context."""
        return self.text_config.get("max_position_embeddings") or _LONGEST

    @cached_property
    def embedding(self) -> Tensor:
        """The embedding of each token, float [V, H]; some classes scale the rows of their table."""
        if self.model is None and self._embeds_rows:
            return self._tensor("embed_tokens.weight")
        model = load_model(self._class, folder_of(self.name)) if self.model is None else self.model
        return embedding_rows(take_apart(model))

    @property
    def _class(self) -> type[PreTrainedModel]:
        cls = getattr(transformers, self.architectures[0], None)
        if cls is None:
            raise ValueError(
                f"verifier: expected a class of transformers, got {self.architectures[0]!r}; give the loaded "
                "model with Verifier.of_model"
            )
        return cls

    @property
    def _embeds_rows(self) -> bool:
        with torch.device("meta"):
            model = self._class(self._class.config_class.from_dict(dict(self.config)))
        return type(model.get_input_embeddings()) is nn.Embedding

    @cached_property
    def head(self) -> Tensor:
        """The rows of its head, float [V, H]."""
        if self.model is not None:
            return take_apart(self.model).head.weight.detach()
        tied = self.config.get("tie_word_embeddings", self.text_config.get("tie_word_embeddings", False))
        return self._tensor("embed_tokens.weight" if tied else "lm_head.weight")

    def _tensor(self, ending: str) -> Tensor:
        folder = folder_of(self.name)
        with naming(folder):
            tensors = tensors_of(folder, lambda name: name.endswith(ending))
        if len(tensors) != 1:
            raise ValueError(
                f"verifier: expected one tensor named {ending} in {folder}, got {sorted(tensors)}; give the "
                "loaded model with Verifier.of_model"
            )
        return next(iter(tensors.values()))
