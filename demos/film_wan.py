"""Generate a video with causal Wan, block by block: a small model drafts blocks, and the large model regenerates some.

    python demos/film_wan.py --model wan-14b --draft wan-1.3b "a red fox runs through the snow"
    python demos/film_wan.py --zoo

The folders are written by `BlockVideoPipeline.save_pretrained`; docs/video.md shows how to convert the published files.
The decoding is relaxed: an accepted block is the small model's. A router chooses the blocks to regenerate: `Threshold`
needs a reward model, `Strided` regenerates blocks at even distances.
"""

from pathlib import Path

from weights import options, source

import mmspec
from mmspec.io.video_files import write_video
from mmspec.video import SDVG, BlockVideoPipeline, Strided

NEEDS = "a causal Wan folder written by BlockVideoPipeline.save_pretrained, and its smaller draft with --draft"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("prompt", nargs="?", default="a red circle moves to the right")
    parser.add_argument("--draft", metavar="FOLDER", help="a smaller pipeline of the same latents")
    parser.add_argument("--redrawn", type=int, default=3, help="blocks of the large model, the first block included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="wan.gif")
    args = parser.parse_args()

    if args.zoo:
        pipe, drafter = mmspec.zoo.load("video"), mmspec.zoo.load("video/draft")
    else:
        pipe = BlockVideoPipeline.from_pretrained(source(args, NEEDS))
        if args.draft is None:
            raise SystemExit("expected a smaller model, got none; name its folder with --draft FOLDER")
        drafter = BlockVideoPipeline.from_pretrained(args.draft)

    def finished(row: int, block: int, frames: object) -> None:
        print(f"block {block + 1} of {pipe.blocks} is finished")

    decoding = SDVG(drafter, router=Strided(args.redrawn))
    out = pipe([args.prompt], decoding=decoding, seed=args.seed, listener=finished)
    write_video(out.videos[0], Path(args.out), 8)
    print(f"{out.stats.rule}: {out.stats.target_blocks} blocks of the large model, written: {args.out}")


if __name__ == "__main__":
    main()
