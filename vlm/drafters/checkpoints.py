"""Loading of drafters: saved here, or published by other projects; importing it registers every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmspec.io.pretrained import CONFIG, folder_of
from mmspec.io.readers import naming, open_tensors, read_json
from mmspec.vlm.drafters import specvlm  # noqa: F401  registers its kind; none is published
from mmspec.vlm.drafters.base.trained_drafter import PretrainedDrafter
from mmspec.vlm.drafters.dflash import load_dflash
from mmspec.vlm.drafters.dflash2 import load_dflash2
from mmspec.vlm.drafters.dspark import load_dspark
from mmspec.vlm.drafters.eagle import load_eagle
from mmspec.vlm.drafters.eagle3.published import load_eagle3
from mmspec.vlm.drafters.flash.drafter import load_flash
from mmspec.vlm.drafters.gemma4.drafter import load_gemma4
from mmspec.vlm.drafters.hydra import load_hydra
from mmspec.vlm.drafters.medusa import load_medusa
from mmspec.vlm.drafters.msd import load_msd
from mmspec.vlm.drafters.mtp.published import load_mtp
from mmspec.vlm.drafters.peagle import load_peagle
from mmspec.vlm.drafters.specdecpp import load_specdecpp
from mmspec.vlm.drafters.vispec import load_vispec
from mmspec.vlm.hf_model import unwrapped

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
    """The drafter in a folder, or in a hub repository (the only case that uses the network): saved here, published with a
    config that names its kind, or the MTP layer of the target's own checkpoint.

    target: the model it will draft for, which checks sizes now and gives the drafter its device and dtype; an MTP layer
        needs it.
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
    tensors = {}
    for path in files:
        with open_tensors(path) as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys() if wanted(name)}
    return tensors


def _behind(model: nn.Module) -> Callable[[str], bool]:
    """Tensors that an MTP layer may have: all others of a checkpoint need not be read."""
    from mmspec.vlm.drafters.mtp.published import is_mtp_tensor

    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    return lambda name: is_mtp_tensor(name, layers)


# kind -> the reader of its published checkpoints (state, config, target)
_LOADERS = {
    "dflash": load_dflash,
    "dflash2": load_dflash2,
    "dspark": load_dspark,
    "eagle": load_eagle,
    "eagle2": load_eagle,
    "eagle3": load_eagle3,
    "flash": load_flash,
    "gemma4_assistant": load_gemma4,
    "hydra": load_hydra,
    "medusa": load_medusa,
    "msd": load_msd,
    "mtp": load_mtp,
    "peagle": load_peagle,
    "specdecpp": load_specdecpp,
    "vispec": load_vispec,
}


def drafter_from_state_dict(
    kind: str, sd: Mapping[str, Tensor], config: Mapping[str, Any], target: nn.Module | None = None
) -> Any:
    """The drafter a published checkpoint holds, in float32 and eval mode.

    kind: "dflash", "dflash2", "dspark", "eagle" or "eagle2", "eagle3", "vispec", "msd", "flash", "gemma4_assistant",
        "hydra", "medusa", "mtp", "peagle" or "specdecpp".
    sd: tensors under the published names, of any size.   config: fields of the published config file.
    target: the model it will draft for, which checks sizes now and gives the drafter its device and dtype.
    Raises ValueError for an unknown kind, missing or unknown keys, and sizes that fit neither the config nor the target.
    """
    if kind not in _LOADERS:
        raise ValueError(f"kind: expected one of {', '.join(_LOADERS)}, got {kind!r}")
    target = None if target is None else unwrapped(target)
    drafter = _LOADERS[kind](dict(sd), dict(config), target)
    drafter = drafter.eval().requires_grad_(False)
    return drafter if target is None else drafter.fitted(target)
