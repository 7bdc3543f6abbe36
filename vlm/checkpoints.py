"""Loading drafters by folder or hub id, our own and those that others publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.pretrained import CONFIG, folder_of
from mmspec.core.readers import naming, open_tensors, read_json
from mmspec.vlm.drafters import kinds  # noqa: F401  registers every kind
from mmspec.vlm.drafters.pretrained import PretrainedDrafter
from mmspec.vlm.drafters.published import drafter_from_state_dict
from mmspec.vlm.unwrapping import unwrapped

_ARCHITECTURES = {
    "DFlashDraftModel": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "DSparkDraftModel": "dspark",
    "Qwen3DSparkModel": "dspark",
    "Eagle3Speculator": "eagle3",
    "PEagleSpeculator": "peagle",
    "Gemma4AssistantForCausalLM": "gemma4_assistant",
    "Gemma4UnifiedAssistantForCausalLM": "gemma4_assistant",
}
_SPECULATORS = ("dflash", "dflash2", "dspark", "eagle3", "peagle")


def load_drafter(path_or_repo: str | Path, target: nn.Module | None = None) -> PretrainedDrafter:
    """The drafter in a folder, or in a hub repository named by its id (the only case that uses the network): one saved here,
    a published one that its config names (DFlash, DFlash2, DSpark, a Gemma 4 or Muse Glimmer assistant, EAGLE-3 and P-EAGLE
    of `speculators`), or the MTP layer of the target's own checkpoint.

    target: the model it will draft for, adapters around it or not; when given, sizes are checked now instead of at the
        first request, and the drafter takes its device and dtype. An MTP layer cannot do without.
    Raises ValueError when the folder holds no drafter or the drafter does not fit the target.
    """
    folder = folder_of(path_or_repo)
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    kind = None if "kind" in config else published_kind(config, target)
    if kind is not None:
        wanted = (lambda name: True) if kind != "mtp" else _behind(unwrapped(target))
        with naming(folder):
            return drafter_from_state_dict(kind, tensors_of(folder, wanted), config, target)
    drafter = PretrainedDrafter.from_pretrained(folder)
    return drafter if target is None else drafter.fitted(target)


def published_kind(config: Mapping[str, Any], target: nn.Module | None) -> str | None:
    """The kind of drafter that a published config is of, as `drafter_from_state_dict` names it; None where it does not tell.

    A config of the target's own class is that of its checkpoint, in which an MTP layer may be.
    """
    if (config.get("dflash_config") or {}).get("projector_type") == "dspark":
        return "dspark"
    if config.get("speculators_model_type") in _SPECULATORS:
        return config["speculators_model_type"]
    named = config.get("architectures") or []
    kind = next((_ARCHITECTURES[name] for name in named if name in _ARCHITECTURES), None)
    if kind is None and target is not None and type(unwrapped(target)).__name__ in named:
        return "mtp"
    return kind


def tensors_of(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors files whose names are wanted.   Raises ValueError without such files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: expected safetensors files beside {CONFIG}, got none; fetch them")
    found = {}
    for path in files:
        with open_tensors(path) as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if wanted(name)}
    return found


def _behind(model: nn.Module) -> Callable[[str], bool]:
    """Tensors that an MTP layer may have: all others of a checkpoint need not be read."""
    from mmspec.vlm.drafters.mtp.published import is_of_mtp

    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    return lambda name: is_of_mtp(name, layers)
