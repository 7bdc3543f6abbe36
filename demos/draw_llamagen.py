"""Draw with LlamaGen: with plain, exact and relaxed decoding, side by side.

    python demos/draw_llamagen.py --zoo
    python demos/draw_llamagen.py --model llamagen-t2i "a photo of a red fox in the snow"

`llamagen-t2i` is a folder with transformer/ and vq/, which `mmspec convert FILE FOLDER --kind llamagen` writes from the
published files, and with text_encoder/ and tokenizer/ of flan-t5-xl.
"""

from time import perf_counter

from PIL import Image
from weights import options, source

import mmspec
from mmspec.imagegen import GSD, SCD, LlamaGenPipeline

NEEDS = "a LlamaGen folder written by mmspec convert"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("prompt", nargs="?", default="a large red star on a navy background")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="llamagen.png", help="plain, exact and relaxed, from left to right")
    args = parser.parse_args()

    pipe = mmspec.zoo.load("t2i") if args.zoo else LlamaGenPipeline.from_pretrained(source(args, NEEDS))

    ways = {
        "plain": {},
        "exact": dict(decoding=SCD(window=16)),  # the distribution of plain decoding, in fewer passes
        "relaxed": dict(decoding=SCD(window=16), rule=GSD(group=14)),  # fewer still, from another distribution
    }
    pictures = []
    for name, how in ways.items():
        began = perf_counter()
        out = pipe(args.prompt, seed=args.seed, **how)
        pictures += out.images
        print(
            f"{name}: {out.tokens.shape[1]} codes in {out.stats.target_passes} passes, {perf_counter() - began:.2f} s, "
            f"rule {out.stats.rule}, exact: {out.stats.exact}"
        )

    side = pictures[0].width
    sheet = Image.new("RGB", (side * len(pictures), pictures[0].height))
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (side * number, 0))
    sheet.save(args.out)
    print("written:", args.out)


if __name__ == "__main__":
    main()
