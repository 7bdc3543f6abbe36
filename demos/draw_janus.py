"""Draw with Janus-Pro, a transformers model that reads and draws: fewer forward passes, the same distribution.

    python demos/draw_janus.py --zoo
    python demos/draw_janus.py --model Janus-Pro-7B "a photo of a red fox in the snow"

`pipeline_for` supports Emu3, Chameleon/Anole and GLM-Image in the same way. The zoo has no Janus; `--zoo` runs its
small LlamaGen instead.
"""

from time import perf_counter

from transformers import AutoProcessor, JanusForConditionalGeneration
from weights import options, source

import mmspec
from mmspec.imagegen import SCD, pipeline_for
from mmspec.io.checkpoints import load_model, load_part

NEEDS = "Janus-Pro as transformers saves it (deepseek-community/Janus-Pro-7B, 15 GB)"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("prompt", nargs="?", default="a large red star on a navy background")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="janus.png")
    args = parser.parse_args()

    if args.zoo:
        pipe = mmspec.zoo.load("t2i")
    else:
        where, local = source(args, NEEDS), not args.hub
        model = load_model(JanusForConditionalGeneration, where, local=local)
        pipe = pipeline_for(model, load_part(AutoProcessor, where, local=local))

    for name, decoding in (("plain", None), ("drafted", SCD(window=16))):
        began = perf_counter()
        out = pipe(args.prompt, decoding=decoding, seed=args.seed)
        print(
            f"{name}: {out.tokens.shape[1]} codes in {out.stats.target_passes} passes, {perf_counter() - began:.2f} s"
        )
    out.images[0].save(args.out)
    print("exact:", out.stats.exact, "written:", args.out)


if __name__ == "__main__":
    main()
