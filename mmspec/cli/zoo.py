"""`mmspec zoo`: the embedded models, what is known about them, and how to build them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.console import BadOption, check_writable, quiet_transformers, reports_errors, save_json, screen
from mmspec.cli.options import Json
from mmspec.zoo.files.registry import DRAFTERS, HYBRID_DRAFTERS

app = typer.Typer(help="The small models that ship with mmspec.", no_args_is_help=True)

_WHAT = {
    "vlm": "captions and answers about pictures of the world (LLaVA)",
    "vlm/small": "a narrower captioner that drafts for vlm (LLaVA)",
    "vlm/eagle": "EAGLE-2 drafter for vlm, pictures fused like text",
    "vlm/eagle_text": "EAGLE-2 drafter for vlm that sees no pictures",
    "vlm/msd": "MSD drafter for vlm",
    "vlm/vispec": "ViSpec drafter for vlm",
    "vlm/flash": "FLASH drafter for vlm",
    "vlm/specvlm": "SpecVLM drafter for vlm",
    "vlm/eagle3": "EAGLE-3 drafter for vlm",
    "vlm/dflash": "DFlash drafter for vlm, a block of tokens a pass",
    "vlm/dflash_vision": "DFlash drafter for vlm that reads a picture in 16 rows",
    "vlm/dspark": "DSpark drafter for vlm: blocks over pictures in 16 rows, every token drawn behind those before it",
    "vlm/hybrid": "captions, answers and transcribed documents; gated delta and full attention layers (Qwen3.5)",
    "vlm/hybrid/dflash": "DFlash drafter for vlm/hybrid",
    "vlm/hybrid/mtp": "MTP layer for vlm/hybrid",
    "vlm/specdecpp": "SpecDec++ head that ends the drafts of vlm/eagle",
    "t2i": "64x64 pictures from prompts, 256 codes (LlamaGen)",
    "c2i": "64x64 pictures from 64 classes, 256 codes (LlamaGen)",
    "t2i/low": "32x32 pictures from prompts, 64 codes: what MuLo-SD drafts with (LlamaGen)",
    "t2i/eagle": "EAGLE drafter for t2i",
    "t2i/upsampler": "codes of 32x32 pictures into those of 64x64 ones, for MuLo-SD",
    "video/tokens": "8 frames of 32x32 pixels from prompts of motion, 64 codes each (LlamaGen)",
    "video/vae": "videos of 64x64 pixels as 8x8 cells of 8 channels every four frames, and back, frame by frame (Wan VAE)",
    "video": "64x64 videos from prompts of motion, block by block (block-causal Wan)",
    "video/draft": "a smaller video model that drafts for it",
    "video/reward": "scores frames on what of a prompt is in them",
    "kl": "64x64 pictures as 8x8 cells of 16 continuous channels, and back (KL autoencoder)",
    "mar": "64x64 pictures from 64 classes or prompts, 64 continuous tokens in any order (MAR)",
    "mar/draft": "a smaller mar that drafts for it",
    "car": "64x64 pictures from 64 classes, 64 continuous tokens in raster order",
    "car/draft": "a smaller car that drafts for it",
    "clip": "features of 64x64 pictures and their prompts (open_clip)",
    "image_judge": "finds the objects of 64x64 pictures",
}


@app.command("list")
@reports_errors
def list_models(json: Json = None) -> None:
    """Names, sizes and measured figures of the embedded models."""
    check_writable(json)
    from rich.table import Table

    from mmspec import zoo

    records = [_describe(name) for name in zoo.names()]
    save_json(json, records)
    table = Table(title="zoo", title_justify="left")
    for head in ("name", "what", "parameters", "on disk", "card", "here"):
        table.add_column(head, justify="right" if head in ("parameters", "on disk") else "left")
    for one in records:
        size = "-" if one["parameters"] is None else f"{one['parameters']:,}"
        known = ", ".join(f"{name} {value}" for name, value in one["figures"].items()) or "-"
        disk = f"{one['megabytes']} MB" if one["available"] else "-"
        here = "yes" if one["available"] else f"no: mmspec zoo build {one['name']}"
        table.add_row(one["name"], one["what"], size, disk, known, here)
    screen().print(table)


def _describe(name: str) -> dict:
    from mmspec.zoo.files.registry import folder_of

    folder = folder_of(name)
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    card = _card(folder)
    figures = next((part for part in map(card.get, ("evaluation", "training")) if part and isinstance(part, dict)), {})
    return {
        "name": name,
        "what": _WHAT.get(name, card.get("class", "-")),
        "parameters": card.get("parameters"),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
        "figures": {key: value for key, value in figures.items() if isinstance(value, int | float)},
        "available": any(path.suffix == ".safetensors" for path in files),
        "folder": str(folder),
    }


def _card(folder: Path) -> dict:
    from mmspec.io.readers import read_json

    path = folder / "card.json"
    return read_json(path) if path.is_file() else {}


@app.command()
@reports_errors
def build_detector(
    name: Annotated[str, typer.Argument(help="A name from `mmspec zoo list`.")],
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="Go on from the last checkpoint or not.")] = True,
    out: Annotated[Path | None, typer.Option(help="Where the weights go; by default into the package.")] = None,
    work: Annotated[Path, typer.Option(help="Checkpoints and logs.")] = Path("mmspec-zoo"),
    device: Annotated[str, typer.Option(help="cpu or a GPU such as cuda.")] = "cpu",
) -> None:
    """Train an embedded model from nothing: one to two hours on two CPU cores, minutes on a GPU."""
    if name not in _BUILDERS:
        raise BadOption(f"NAME: expected one of {', '.join(_BUILDERS)}, got {name!r}, see `mmspec zoo list`")
    import torch

    from mmspec.zoo.files.registry import folder_of

    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        raise BadOption(f"--device: expected cpu or an available cuda device, got {device!r}, use --device cpu")
    quiet_transformers()
    work.mkdir(parents=True, exist_ok=True)
    target = out or folder_of(name)
    card = _BUILDERS[name](target, work, resume, device)
    out_console = screen()
    out_console.print(f"{name}: written to {target}", markup=False, soft_wrap=True)
    for key, value in (card.get("evaluation") or card.get("training") or {}).items():
        out_console.print(f"  {key}: {value}", markup=False, soft_wrap=True)


def _build_vlm(name: str) -> Callable[[Path, Path, bool, str], dict]:
    def build(out: Path, work: Path, resume: bool, device: str) -> dict:
        from mmspec.evaluate.vlm.quality import evaluate_vlm
        from mmspec.zoo.training.vlm.build_vlm import VlmRecipe, small_recipe
        from mmspec.zoo.training.vlm.build_vlm import build as train

        def measure(*pair: Any) -> dict[str, float]:
            return evaluate_vlm(*pair).as_dict()

        recipe = VlmRecipe() if name == "vlm" else small_recipe()
        return train(out, work, recipe, resume=resume, device=device, measure=measure)

    return build


def _build_drafter(name: str) -> Callable[[Path, Path, bool, str], dict]:
    def build(out: Path, work: Path, resume: bool, device: str) -> dict:
        from mmspec import zoo
        from mmspec.zoo.training.vlm.build_drafter import RECIPES
        from mmspec.zoo.training.vlm.build_drafter import build as train

        recipe = RECIPES[name]
        return train(out, work, zoo.load(recipe.target), name, recipe, resume=resume, device=device)

    return build


def _build_hybrid(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.evaluate.vlm.quality import evaluate_hybrid

    return build_detector(out, work, resume=resume, device=device, measure=evaluate_hybrid)


def _build_head(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec import zoo

    return build_detector(out, work, zoo.load("vlm"), zoo.load("vlm/eagle"), device=device)


def _build_clip(out: Path, work: Path, resume: bool, device: str) -> dict:

    return build_detector(out, work, resume=resume, device=device)


def _build_judge(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.zoo.training.image.build_scorers import build_detector

    return build_detector(out, work, resume=resume, device=device)


def _build_t2i(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.zoo.training.image.build_llamagen import build_t2i

    return build_t2i(out, work, resume=resume, device=device)


def _build_with_shared_tokenizer(name: str) -> Callable[[Path, Path, bool, str], dict]:
    def build(out: Path, work: Path, resume: bool, device: str) -> dict:
        from mmspec.zoo.files.registry import folder_of
        from mmspec.zoo.training.image.build_llamagen import build_with_shared_tokenizer, c2i_recipe, low_recipe

        recipe = c2i_recipe() if name == "c2i" else low_recipe()
        return build_with_shared_tokenizer(out, work, folder_of("t2i"), recipe, resume=resume, device=device)

    return build


def _build_image_eagle(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec import zoo

    return build_detector(out, work, zoo.load("t2i"), resume=resume)


def _build_upsampler(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.zoo.files.registry import folder_of

    return build_detector(out, work, folder_of("t2i") / "vq", resume=resume)


def _build_video_tokens(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.zoo.files.registry import folder_with_weights

    vq, whole = folder_with_weights("t2i") / "vq", folder_with_weights("video")
    return build_detector(out, work, vq, whole, resume=resume, device=device)


def _build_video_vae(out: Path, work: Path, resume: bool, device: str) -> dict:

    return build_detector(out, work, resume=resume, device=device)


def _build_video(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.zoo.files.registry import folder_with_weights

    return build_detector(out, work, folder_with_weights("video/vae"), resume=resume, device=device)


def _build_video_draft(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec.zoo.files.registry import folder_with_weights

    vae, whole = folder_with_weights("video/vae"), folder_with_weights("video")
    return build_detector(out, work, vae, whole, resume=resume, device=device)


def _build_video_reward(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec import zoo

    return build_detector(out, work, zoo.load("video"), zoo.load("video/draft"), resume=resume, device=device)


def _build_kl(out: Path, work: Path, resume: bool, device: str) -> dict:
    from mmspec import zoo

    return build_detector(out, work, zoo.load("image_judge"), resume=resume, device=device)


def _build_mar(name: str) -> Callable[[Path, Path, bool, str], dict]:
    def build(out: Path, work: Path, resume: bool, device: str) -> dict:
        from mmspec import zoo
        from mmspec.zoo.files.registry import folder_with_weights
        from mmspec.zoo.training.continuous.build_mar import build as train
        from mmspec.zoo.training.continuous.build_mar import draft_recipe, target_recipe

        recipe, judge = target_recipe() if name == "mar" else draft_recipe(), zoo.load("image_judge")
        kl, whole = folder_with_weights("kl"), folder_with_weights("t2i")
        return train(out, work, kl, whole, judge, recipe, resume=resume, device=device)

    return build


def _build_car(name: str) -> Callable[[Path, Path, bool, str], dict]:
    def build(out: Path, work: Path, resume: bool, device: str) -> dict:
        from mmspec import zoo
        from mmspec.zoo.files.registry import folder_with_weights
        from mmspec.zoo.training.continuous.build_car import build as train
        from mmspec.zoo.training.continuous.build_car import draft_recipe, target_recipe

        recipe, judge = target_recipe() if name == "car" else draft_recipe(), zoo.load("image_judge")
        return train(out, work, folder_with_weights("kl"), judge, recipe, resume=resume, device=device)

    return build


_BUILDERS: dict[str, Callable[[Path, Path, bool, str], dict]] = {
    "vlm": _build_vlm("vlm"),
    "vlm/small": _build_vlm("vlm/small"),
    **{f"vlm/{name}": _build_drafter(f"vlm/{name}") for name in DRAFTERS},
    "vlm/hybrid": _build_hybrid,
    **{f"vlm/hybrid/{name}": _build_drafter(f"vlm/hybrid/{name}") for name in HYBRID_DRAFTERS},
    "vlm/specdecpp": _build_head,
    "t2i": _build_t2i,
    "c2i": _build_with_shared_tokenizer("c2i"),
    "t2i/low": _build_with_shared_tokenizer("t2i/low"),
    "t2i/eagle": _build_image_eagle,
    "t2i/upsampler": _build_upsampler,
    "video/tokens": _build_video_tokens,
    "video/vae": _build_video_vae,
    "video": _build_video,
    "video/draft": _build_video_draft,
    "video/reward": _build_video_reward,
    "kl": _build_kl,
    **{name: _build_mar(name) for name in ("mar", "mar/draft")},
    **{name: _build_car(name) for name in ("car", "car/draft")},
    "clip": _build_clip,
    "image_judge": _build_judge,
}
