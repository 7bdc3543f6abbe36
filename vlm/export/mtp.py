"""MTP layers as a folder of the `speculators` library, whose `stitch-mtp` copies them into the checkpoint for vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from mmspec.vlm.drafters.mtp.published import SPECULATORS
from mmspec.vlm.export.folder import ExportOptions, Form, speculators_config

if TYPE_CHECKING:
    from mmspec.vlm.drafters.mtp import Mtp

MODEL_TYPES = ("qwen3", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # the library has the layers of these types
TOKENS = 3  # the default length of a draft, as the library trains


def mtp_speculators(drafter: Mtp, options: ExportOptions) -> Form:
    """Return an MTP layer as the `speculators` library saves it, for the target that it was trained for. Its config is
    the whole text config of the target, since the library builds the target's own layer class. vLLM reads MTP layers
    from the target's checkpoint: `speculators stitch-mtp` copies this folder's layer there. `Mtp.save_for` writes the
    checkpoint's names instead, which the library's converter reads."""
    own, text = drafter.config, dict(options.verifier.text_config)
    if own.states_first or not own.normed:
        raise ValueError(
            "states_first, normed: expected a layer that reads embeddings and then the states behind the final "
            f"norm, got {own.states_first} and {own.normed}; the speculators library has no other"
        )
    if text.get("model_type") not in MODEL_TYPES:
        raise ValueError(
            f"verifier: expected a text model of type {', '.join(MODEL_TYPES)}, got {text.get('model_type')!r}; "
            "the speculators library has no MTP layer of that class"
        )
    for name in ("hidden_size", "vocab_size"):
        if text.get(name) != (width := getattr(own, name)):
            raise ValueError(
                f"verifier: expected {name} {width} as in the drafter, got {text.get(name)}; name the target "
                "whose layer this is"
            )
    text.pop("_name_or_path", None)
    config = speculators_config("mtp", "MTPDraftModel", own.vocab_size, text, TOKENS, options)
    del config["draft_vocab_size"]  # the library's config derives it from the layer's and refuses the field
    return config | {"num_nextn_predict_layers": 1}, _tensors(drafter)


def _tensors(drafter: Mtp) -> dict[str, Tensor]:
    """Return the tensors under the names of the library, with experts stacked as in the model."""
    theirs = {ours: name for name, ours in SPECULATORS.items()}
    state = drafter.state_dict().items()
    return {f"mtp_layers.0.{theirs.get(name, name.removeprefix('decoder.layers.0.'))}": value for name, value in state}
