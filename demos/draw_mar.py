"""Draw with MAR, whose tokens are vectors: speculate over the steps of its head, and draft with a smaller model.

    python demos/draw_mar.py --zoo
    python demos/draw_mar.py --model mar-large --draft mar-base 207 360

`mar-large` and `mar-base` are folders with transformer/ and vae/, which `mmspec convert FILE FOLDER --kind mar` writes
from the published files. 207 and 360 are classes of ImageNet.
"""

from time import perf_counter

from weights import options, source

import mmspec
from mmspec.imagegen import CSpD, HeadSampling, MARPipeline, ScheduledSteps

NEEDS = "a MAR folder written by mmspec convert"


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
        "head walk": ScheduledSteps(head_sampling=HeadSampling(8)),  # exact, without a second model
        "drafted": drafter and CSpD(drafter, window="patch", gamma=8),  # relaxed, as published
    }
    for name, decoding in ways.items():
        if decoding is None and name != "plain":
            continue
        began = perf_counter()
        # instead of pipe(), since the request counts the calls of the head
        request = pipe.start(args.labels, decoding=decoding, seed=args.seed)
        stats = request.run()
        print(
            f"{name}: {stats.target_passes} passes and {request.target.head_calls} calls of the head, "
            f"{perf_counter() - began:.2f} s, exact: {stats.exact}"
        )
    videos = pipe.to_videos(pipe.tokens(request.target), request.target.errors)
    for number, (picture,) in enumerate(videos):
        picture.save(f"{args.out}-{number}.png")
        print(f"written: {args.out}-{number}.png")


if __name__ == "__main__":
    main()
