"""Draw the strips of pictures of the pages, or those named: `python docs/_site/pictures.py images videos`. The same
prompts and seeds are decoded plainly and with drafts. Each strip is a file of docs/figures. The models are the zoo's,
the seeds are fixed, and the labels say the counted passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import mmspec
from mmspec import imagegen, video

FOLDER = Path(__file__).parents[1] / "figures"
SIDE, GAP, LABEL, SEED = 192, 6, 24, 0
PROMPTS = {
    "images": ["a large red star on a navy background", "a blue circle", "a green square", "a yellow triangle"],
    "continuous": ["a large red star on a navy background", "a blue circle", "a green square", "a yellow triangle"],
    "videos": ["a red circle moves to the right"],
}
FRAMES, BLOCKS = (0, 20, 40, 60, 80), 7  # of a video


def strip(rows: Sequence[tuple[str, Sequence[Image.Image]]]) -> Image.Image:
    """Return rows of pictures, each row below its label."""
    across = max(len(pictures) for _, pictures in rows)
    size = (across * (SIDE + GAP) - GAP, len(rows) * (SIDE + LABEL + GAP) - GAP)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for row, (label, pictures) in enumerate(rows):
        top = row * (SIDE + LABEL + GAP)
        pen.text((0, top + 3), label, fill="black", font=font)
        for column, picture in enumerate(pictures):
            scaled = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            sheet.paste(scaled, (column * (SIDE + GAP), top + LABEL))
    return sheet


def drawn(pipe: Callable, name: str, decoding: object, **settings: object) -> tuple[list[Image.Image], float]:
    """Return the pictures of a domain's prompts, each drawn alone, and the mean number of passes."""
    outputs = [pipe(prompt, decoding=decoding, seed=SEED, **settings) for prompt in PROMPTS[name]]
    passes = [out.stats.target_passes for out in outputs]
    return [out.images[0] for out in outputs], sum(passes) / len(passes)


def image_rows(
    name: str, pipe: Callable, decodings: dict[str, object], **settings: object
) -> list[tuple[str, list[Image.Image]]]:
    rows = []
    for label, decoding in decodings.items():
        pictures, passes = drawn(pipe, name, decoding, **settings)
        rows.append((f"{label}: {passes:.0f} passes per picture", pictures))
    return rows


def images() -> Image.Image:
    decodings = {"plain decoding": None, "drafted, exact (SCD, window 32)": imagegen.SCD(window=32)}
    return strip(image_rows("images", mmspec.zoo.load("t2i"), decodings))


def continuous() -> Image.Image:
    drafter = mmspec.zoo.load("mar/draft")
    decodings = {
        "plain decoding": None,
        "drafted, relaxed (CSpD, patches of 8)": imagegen.CSpD(drafter, window="patch", gamma=8),
    }
    return strip(image_rows("continuous", mmspec.zoo.load("mar"), decodings, num_iter=64))


def videos() -> Image.Image:
    pipe, drafter = mmspec.zoo.load("video"), mmspec.zoo.load("video/draft")
    router = video.SDVG(drafter, mmspec.zoo.load("video/reward"), threshold=0.6)
    rows = []
    for label, decoding in {"target alone": None, "drafted, relaxed (SDVG)": router}.items():
        out = pipe(PROMPTS["videos"], decoding=decoding, seed=SEED)
        frames = [Image.fromarray(out.videos[0][number]) for number in FRAMES]
        rows.append((f"{label}: the large model draws {sum(out.stats.target_blocks)} of {BLOCKS} blocks", frames))
    return strip(rows)


STRIPS = {"images": images, "continuous": continuous, "videos": videos}


def main(names: Sequence[str]) -> None:
    for name in names or STRIPS:
        file = FOLDER / f"strip_{name}.webp"
        STRIPS[name]().save(file, quality=85, method=6)
        print(file.name, file.stat().st_size // 1000, "kB")


if __name__ == "__main__":
    main(sys.argv[1:])
