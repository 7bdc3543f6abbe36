"""Names of the embedded models and their loaders; a loader imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

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


def load_acceptance_head(folder: Path) -> Any:
    """The acceptance head stored in `folder` (fp32, eval mode)."""
    from mmspec.vlm.drafters.checkpoints import load_drafter

    return load_drafter(folder)


def load_clip(folder: Path) -> Any:
    """The picture CLIP stored in `folder` (fp32, eval mode)."""
    from mmspec.zoo.files.scorers import load_clip

    return load_clip(folder)


def load_detector(folder: Path) -> Any:
    """The reader of pictures stored in `folder` (fp32, eval mode)."""
    from mmspec.zoo.files.scorers import load_detector

    return load_detector(folder)


def load_t2i(folder: Path) -> Any:
    """The text-to-image pipeline stored in `folder` (fp32, eval mode)."""
    from mmspec.zoo.files.image import read_pipeline

    return read_pipeline(folder)


def load_with_t2i_tokenizer(folder: Path) -> Any:
    """The pipeline of the transformer stored in `folder`, with tokenizer and caption encoder of "t2i"."""
    from mmspec.zoo.files.image import read_with_shared_tokenizer

    return read_with_shared_tokenizer(folder, WEIGHTS / "t2i")


def load_image_drafter(folder: Path) -> Any:
    """The image EAGLE stored in `folder` (fp32, eval mode)."""
    from mmspec.imagegen import load_drafter

    return load_drafter(folder)


def load_upsampler(folder: Path) -> Any:
    """The upsampler of codes stored in `folder` (fp32, eval mode)."""
    from mmspec.imagegen import LatentUpsampler

    return LatentUpsampler.from_pretrained(folder)


def load_video_tokens(folder: Path) -> Any:
    """The pipeline of video codes stored in `folder`, with the tokenizer of "t2i" for its frames and the caption encoder of
    "video" (fp32, eval mode)."""
    from mmspec.zoo.files.video import read_video_codes

    return read_video_codes(folder, folder_with_weights("t2i") / "vq", folder_with_weights("video"))


def load_video_vae(folder: Path) -> Any:
    """The causal video autoencoder stored in `folder`, streaming (fp32, eval mode)."""
    from mmspec.zoo.files.video import read_video_vae

    return read_video_vae(folder)


def load_video(folder: Path) -> Any:
    """The pipeline of the transformer in `folder`, with the autoencoder of "video/vae" and the encoder of "video" (fp32)."""
    from mmspec.zoo.files.video import read_video

    return read_video(folder, folder_with_weights("video/vae"), folder_with_weights("video"))


def load_video_reward(folder: Path) -> Any:
    """The reward of frames stored in `folder`, which reads prompts with the caption encoder of "video" (fp32, eval mode)."""
    from mmspec.zoo.files.video import read_reward

    return read_reward(folder, folder_with_weights("video"))


def load_kl(folder: Path) -> Any:
    """The KL autoencoder stored in `folder` (fp32, eval mode)."""
    from mmspec.zoo.files.continuous import read_kl

    return read_kl(folder)


def load_mar(folder: Path) -> Any:
    """The masked model stored in `folder`, with the autoencoder of "kl" and the caption encoder of "t2i" (fp32, eval mode)."""
    from mmspec.zoo.files.continuous import read_mar

    return read_mar(folder, folder_with_weights("kl"), folder_with_weights("t2i"))


def load_car(folder: Path) -> Any:
    """The causal model stored in `folder`, with the autoencoder of "kl" (fp32, eval mode)."""
    from mmspec.zoo.files.continuous import read_car

    return read_car(folder, folder_with_weights("kl"))


_BLOCKS = ("dflash", "dflash_vision", "dspark")
DRAFTERS = ("eagle", "eagle_text", "msd", "vispec", "flash", "specvlm", "eagle3", *_BLOCKS)  # of "vlm"
HYBRID_DRAFTERS = ("dflash", "mtp")  # of "vlm/hybrid"
LOADERS: dict[str, Callable[[Path], Any]] = {
    "vlm": load_vlm,
    "vlm/small": load_small,
    **{f"vlm/{name}": load_vlm_drafter for name in DRAFTERS},
    "vlm/specdecpp": load_acceptance_head,
    "vlm/hybrid": load_hybrid,
    "vlm/hybrid/dflash": load_vlm_drafter,
    "vlm/hybrid/mtp": load_hybrid_mtp,
    "t2i": load_t2i,
    "c2i": load_with_t2i_tokenizer,
    "t2i/low": load_with_t2i_tokenizer,
    "t2i/eagle": load_image_drafter,
    "t2i/upsampler": load_upsampler,
    "video/tokens": load_video_tokens,
    "video/vae": load_video_vae,
    "video": load_video,
    "video/draft": load_video,
    "video/reward": load_video_reward,
    "kl": load_kl,
    "mar": load_mar,
    "mar/draft": load_mar,
    "car": load_car,
    "car/draft": load_car,
    "clip": load_clip,
    "image_judge": load_detector,
}

# that no weights ship for: `names` lists them once they are built
UNSHIPPED = ("vlm/eagle_text", "vlm/eagle3", "vlm/dflash", "vlm/dflash_vision", "vlm/specdecpp", "car/draft")
# whose weights transformers reads; importing it takes longer than drawing a picture
_OF_TRANSFORMERS = ("vlm", "vlm/small", "vlm/hybrid", "vlm/hybrid/mtp")


def names() -> list[str]:
    """Names `load` accepts: all that ship, and of the others those that were built."""
    return [name for name in LOADERS if name not in UNSHIPPED or _has_weights(folder_of(name))]


def folder_of(name: str) -> Path:
    """Where the weights of `name` lie: "vlm" in `weights/vlm`, "vlm/small" in `weights/vlm_small`."""
    if name not in LOADERS:
        raise ValueError(f"expected one of {', '.join(LOADERS)}, got {name!r}, pick a name from mmspec.zoo.names()")
    return WEIGHTS / name.replace("/", "_")


def folder_with_weights(name: str) -> Path:
    """`folder_of`.   Raises ValueError, which says how to build them, where the weights are missing."""
    folder = folder_of(name)
    if not _has_weights(folder):
        raise ValueError(f"expected weights in {folder}, got none, run `mmspec zoo build {name}`")
    return folder


def _has_weights(folder: Path) -> bool:
    return any(folder.rglob("*.safetensors"))


def load(name: str, *, progress: bool = False) -> Any:
    """Load an embedded model: "vlm" -> (model, processor).

    progress: let transformers draw its bars on stderr while it reads weights; what the caller has set for other loads stays.
    Raises ValueError for an unknown name or where the weights are missing.
    """
    folder = folder_with_weights(name)
    with _without_bars() if name in _OF_TRANSFORMERS and not progress else nullcontext():
        return LOADERS[name](folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws no bars inside; whether it draws any elsewhere is the caller's setting, which is not touched."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
