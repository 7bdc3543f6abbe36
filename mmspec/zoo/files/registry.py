"""Names of the embedded models and their loaders; a loader imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from mmspec.zoo.files.fetched import FETCHED, fetched_folder

WEIGHTS = Path(__file__).parents[1] / "weights"


def load_vlm(folder: Path) -> tuple[Any, Any]:
    """The LLaVA model (fp32, eval mode) and processor stored in `folder`."""
    import torch
    from transformers import LlavaForConditionalGeneration, LlavaProcessor

    from mmspec.io.checkpoints import load_model, load_part
    from mmspec.vlm import offer

    model = load_model(LlavaForConditionalGeneration, folder, dtype=torch.float32)
    offer(model, draft_for_vlm)
    return model, load_part(LlavaProcessor, folder)


def draft_for_vlm() -> Any:
    """What `drafter="auto"` drafts with for the zoo's VLM: the drafter that gains most there, in chains as long as the
    controller asks for."""
    return load("vlm/dspark")


def load_small(folder: Path) -> tuple[Any, Any]:
    """The narrow LLaVA model (fp32, eval mode) and processor stored in `folder`; its tower is that of "vlm"."""
    from transformers import LlavaProcessor

    from mmspec.io.checkpoints import load_part
    from mmspec.zoo.files.vlm import load_with_tower

    return load_with_tower(folder, WEIGHTS / "vlm"), load_part(LlavaProcessor, folder)


def load_vlm_drafter(folder: Path) -> Any:
    """The trained drafter stored in `folder` (fp32, eval mode), drafting in the shapes that pay for the zoo's VLM on a CPU:
    its passes cost little more than their overhead, so long chains beat trees there, FLASH drafts four tokens a pass and
    DFlash and DSpark their whole block."""
    from mmspec.core.drafting.shapes import Chain
    from mmspec.core.length import FixedLength
    from mmspec.vlm.drafters.checkpoints import load_drafter

    drafter = load_drafter(folder)
    if drafter.kind in ("dflash", "dspark"):
        return drafter
    if drafter.kind == "flash":
        return drafter.with_block(4).with_shape(Chain(FixedLength(8)))
    return drafter.with_shape(Chain(FixedLength(11)), sampled=Chain(FixedLength(7)))


def load_fetched(name: str, dtype: Any = None) -> tuple[Any, Any]:
    """The text model of a name in `FETCHED` (eval mode) and its tokenizer.

    Args:
        name: The model, whose folder is there.
        dtype: Of the weights; float32 where it is None.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mmspec.io.checkpoints import load_model, load_part
    from mmspec.vlm import offer

    folder = folder_of(name)
    # not `.to(dtype)`, which rounds the rotary frequencies too
    model = load_model(AutoModelForCausalLM, folder, dtype=torch.float32 if dtype is None else dtype)
    drafters = (f"{name}/{kind}" for kind in FETCHED[name].drafters)
    if drafter := next((one for one in drafters if _has_weights(folder_of(one))), None):
        offer(model, lambda: drafts_for_fetched(drafter))
    return model, load_part(AutoTokenizer, folder)


def drafts_for_fetched(name: str) -> tuple[Any, ...]:
    """The drafters that `drafter="auto"` chooses among for a fetched model: prompt lookup, the trained drafter, and both in
    one tree. A pass over many rows costs little more than over one there, so the controller may draft trees.

    Args:
        name: The trained drafter.
    """
    from mmspec.core.drafting.shapes import DynamicTree, StaticTree
    from mmspec.vlm import drafters

    trained = load(name)
    tree = trained.with_shape(DynamicTree(nodes=32, depth=7, width=4), StaticTree())
    return drafters.PromptLookup(longest=15), tree, drafters.Merged(trained)


def load_fetched_drafter(folder: Path) -> Any:
    """The trained drafter stored in `folder` (fp32, eval mode), which drafts chains: a step costs a twentieth of a pass."""
    from mmspec.core.drafting.shapes import Chain
    from mmspec.core.length import FixedLength
    from mmspec.vlm.drafters.checkpoints import load_drafter

    return load_drafter(folder).with_shape(Chain(FixedLength(4)))


def load_hybrid(folder: Path) -> tuple[Any, Any]:
    """The hybrid model (fp32, eval mode) and processor stored in `folder`."""
    from mmspec.vlm import offer
    from mmspec.zoo.files.vlm import read_hybrid

    model, processor = read_hybrid(folder)
    if _has_weights(folder_of("vlm/hybrid/dflash")):
        offer(model, lambda: load("vlm/hybrid/dflash"))
    return model, processor


def load_hybrid_mtp(folder: Path) -> Any:
    """The MTP layer stored in `folder` (fp32, eval mode), one of the class that "vlm/hybrid" is of."""
    from mmspec.core.drafting.shapes import Chain
    from mmspec.core.length import FixedLength
    from mmspec.vlm.drafters.checkpoints import load_drafter

    drafter = load_drafter(folder, target=load("vlm/hybrid")[0])
    return drafter.with_shape(Chain(FixedLength(7)))


def load_smol(folder: Path) -> tuple[Any, Any]:
    """The captioner whose projector is stored in `folder` and its processor, over the fetched text model (fp32, eval mode)."""
    from mmspec.zoo.files.smol import read_captioner

    return read_captioner(folder, folder_with_weights("vlm"), load("smollm2"))


def load_smol_drafter(folder: Path) -> Any:
    """The trained drafter stored in `folder` (fp32, eval mode). A step costs a sixth of a pass over 49,152 words, so chains
    are short."""
    from mmspec.core.drafting.shapes import Chain
    from mmspec.core.length import FixedLength
    from mmspec.vlm.drafters.checkpoints import load_drafter

    drafter = load_drafter(folder)
    return drafter if drafter.kind == "dspark" else drafter.with_shape(Chain(FixedLength(4)))


def load_video_tokens(folder: Path) -> Any:
    """The pipeline of video codes stored in `folder`, with the tokenizer of "t2i" for its frames and the caption encoder of
    "video" (fp32, eval mode)."""
    from mmspec.zoo.files.video import read_video_codes

    return read_video_codes(folder, folder_with_weights("t2i") / "vq", folder_with_weights("video"))


def _loader(place: str, *shared: str) -> Callable[[Path], Any]:
    """A loader that calls the function at `place`, MODULE:NAME, with the folder and those of the shared models."""
    module, _, name = place.partition(":")

    def load_folder(folder: Path) -> Any:
        read = attrgetter(name)(import_module(f"mmspec.{module}"))
        return read(folder, *(folder_with_weights(other) for other in shared))

    return load_folder


_WITH_TOKENIZER = _loader("zoo.files.image:read_with_shared_tokenizer", "t2i")
_VIDEO = _loader("zoo.files.video:read_video", "video/vae", "video")
_MAR = _loader("zoo.files.continuous:read_mar", "kl", "t2i")
_CAR = _loader("zoo.files.continuous:read_car", "kl")
_BLOCKS = ("dflash", "dflash_vision", "dspark")
DRAFTERS = ("eagle", "eagle_text", "msd", "vispec", "flash", "specvlm", "eagle3", *_BLOCKS)  # of "vlm"
HYBRID_DRAFTERS = ("dflash", "mtp")  # of "vlm/hybrid"
SMOL_DRAFTERS = ("msd", "vispec", "dspark")  # of "vlm/smol"
FETCHED_DRAFTERS = {
    f"{name}/{kind}": title for name, model in FETCHED.items() for kind, title in model.drafters.items()
}
LOADERS: dict[str, Callable[[Path], Any]] = {
    "vlm": load_vlm,
    "vlm/small": load_small,
    **{f"vlm/{name}": load_vlm_drafter for name in DRAFTERS},
    "vlm/specdecpp": _loader("vlm.drafters.checkpoints:load_drafter"),
    "vlm/hybrid": load_hybrid,
    "vlm/hybrid/dflash": load_vlm_drafter,
    "vlm/hybrid/mtp": load_hybrid_mtp,
    "vlm/smol": load_smol,
    **{f"vlm/smol/{name}": load_smol_drafter for name in SMOL_DRAFTERS},
    "t2i": _loader("zoo.files.image:read_pipeline"),
    "c2i": _WITH_TOKENIZER,
    "t2i/low": _WITH_TOKENIZER,
    "t2i/eagle": _loader("imagegen:load_drafter"),
    "t2i/upsampler": _loader("imagegen:LatentUpsampler.from_pretrained"),
    "video/tokens": load_video_tokens,
    "video/vae": _loader("zoo.files.video:read_video_vae"),
    "video": _VIDEO,
    "video/draft": _VIDEO,
    "video/reward": _loader("zoo.files.video:read_reward", "video"),
    "kl": _loader("zoo.files.continuous:read_kl"),
    "mar": _MAR,
    "mar/draft": _MAR,
    "car": _CAR,
    "car/draft": _CAR,
    "clip": _loader("zoo.files.scorers:load_clip"),
    "image_judge": _loader("zoo.files.scorers:load_detector"),
    **dict.fromkeys(FETCHED_DRAFTERS, load_fetched_drafter),
}

# that no weights ship for: `names` lists them once they are built
UNSHIPPED = (
    "vlm/eagle_text", "vlm/eagle3", "vlm/dflash", "vlm/dflash_vision", "vlm/specdecpp", "car/draft", "vlm/smol",
    *(f"vlm/smol/{name}" for name in SMOL_DRAFTERS),
)  # fmt: skip
# whose weights transformers reads; importing it takes longer than drawing a picture
_OF_TRANSFORMERS = ("vlm", "vlm/small", "vlm/hybrid", "vlm/hybrid/mtp", "vlm/smol")


def names() -> list[str]:
    """The names that `load` accepts now: all that ship, and of the others those that were built or fetched."""
    shipped = [name for name in LOADERS if name not in UNSHIPPED or _has_weights(folder_of(name))]
    return shipped + [name for name in FETCHED if _has_weights(folder_of(name))]


def folder_of(name: str) -> Path:
    """Where the weights of `name` lie: "vlm/small" in `weights/vlm_small`, a fetched model in the user's cache folder."""
    if name in FETCHED:
        return fetched_folder(name)
    if name not in LOADERS:
        known = ", ".join((*LOADERS, *FETCHED))
        raise ValueError(f"expected one of {known}, got {name!r}, pick a name from mmspec.zoo.names()")
    return WEIGHTS / name.replace("/", "_")


def folder_with_weights(name: str) -> Path:
    """`folder_of`.   Raises ValueError, which says how to get them, where the weights are missing."""
    folder = folder_of(name)
    if not _has_weights(folder):
        raise ValueError(f"expected weights in {folder}, got none, run `{command_for(name)}`")
    return folder


def command_for(name: str) -> str:
    """The command that brings the weights of a name."""
    if name in FETCHED:
        return f"mmspec zoo fetch {name}"
    return f"mmspec zoo build {name}"


def _has_weights(folder: Path) -> bool:
    return any(folder.rglob("*.safetensors"))


def load(name: str, *, dtype: Any = None, progress: bool = False) -> Any:
    """Load an embedded or a fetched model: "vlm" -> (model, processor), "smollm2" -> (model, tokenizer).

    Args:
        name: A name of `names()`.
        dtype: A `torch.dtype` for the weights of a fetched model, which are float32 otherwise; embedded ones are float32.
        progress: Let transformers draw its bars on stderr while it reads weights; what the caller has set for other loads
            stays.

    Raises:
        ValueError: The name is unknown, the weights are missing, or a dtype is passed for an embedded model.
    """
    folder = folder_with_weights(name)
    if dtype is not None and name not in FETCHED:
        raise ValueError(f"dtype: expected none for {name!r}, got {dtype}; convert the loaded model with `.to`")
    with _without_bars() if name in (*_OF_TRANSFORMERS, *FETCHED) and not progress else nullcontext():
        return load_fetched(name, dtype) if name in FETCHED else LOADERS[name](folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws no bars inside; whether it draws any elsewhere is the caller's setting, which is not touched."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
