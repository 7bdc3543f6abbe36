"""Draw with MAR, whose tokens are vectors: speculation over the steps of its head, and drafts of a smaller model.

    python demos/draw_mar.py --zoo
    python demos/draw_mar.py --model mar-large --draft mar-base 207 360

`mar-large` and `mar-base` are folders with transformer/ and vae/, which `python -m mmspec.imagegen.continuous.convert`
writes from the published files. 207 and 360 are classes of ImageNet.
"""

from time import perf_counter

from weights import options, source

import mmspec
from mmspec.imagegen import CSpD, HeadWalk, MARPipeline, ScheduledSteps

NEEDS = "a folder of MAR as its convert command writes it"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("labels", nargs="*", type=int, default=[3, 40])
    parser.add_argument("--draft", metavar="FOLDER", help="a smaller MAR of the same autoencoder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="mar", help="pictures are OUT-0.png, OUT-1.png, ...")
    args = parser.parse_args()

    if args.zoo:
        pipe, drafter = mmspec.zoo.load("mar"), mmspec.zoo.load("mar/draft")
    else:
        pipe = MARPipeline.from_pretrained(source(args, NEEDS))
        drafter = MARPipeline.from_pretrained(args.draft) if args.draft else None

    ways = {
        "plain": None,
        "head walk": ScheduledSteps(walk=HeadWalk(8)),  # exact, and no second model
        "drafted": drafter and CSpD(drafter, window="patch", gamma=8),  # relaxed, as published
    }
    for name, decoding in ways.items():
        if decoding is None and name != "plain":
            continue
        began = perf_counter()
        out = pipe(args.labels, decoding=decoding, seed=args.seed)
        print(f"{name}: {out.stats.target_passes} passes, {perf_counter() - began:.2f} s, exact: {out.stats.exact}")
    for number, picture in enumerate(out.images):
        picture.save(f"{args.out}-{number}.png")
        print(f"written: {args.out}-{number}.png")


if __name__ == "__main__":
    main()
