"""Caption a picture with LLaVA-1.5-7B, plainly and drafted: the same words in fewer forward passes.

    python demos/caption_llava.py --zoo
    python demos/caption_llava.py --model llava-1.5-7b-hf --image photo.jpg
    python demos/caption_llava.py --model llava-1.5-7b-hf --image photo.jpg --drafter my-drafter

`my-drafter` is a folder that `mmspec train vlm-drafter --target llava-1.5-7b-hf ...` writes. Without a drafter, the
draft tokens are copied from the prompt and the answer so far. This costs nothing but seldom helps on short answers.
"""

from time import perf_counter

from transformers import LlavaForConditionalGeneration, LlavaProcessor
from weights import options, source

import mmspec
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.images import open_image
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene

NEEDS = "LLaVA-1.5-7B as transformers saves it (llava-hf/llava-1.5-7b-hf, 14 GB)"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--image", help="PNG, JPEG or WebP; a scene of the zoo's world when left out")
    parser.add_argument("--drafter", metavar="FOLDER", help="a drafter trained for the model")
    parser.add_argument("--prompt", default="Describe this picture in detail.")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    args = parser.parse_args()

    if args.zoo:
        (model, processor), drafter = mmspec.zoo.load("vlm"), mmspec.zoo.load("vlm/eagle")
    else:
        where, local = source(args, NEEDS), not args.hub
        model = load_model(LlavaForConditionalGeneration, where, local=local)
        processor = load_part(LlavaProcessor, where, local=local)
        drafter = mmspec.drafters.PromptLookup()
        if args.drafter:
            drafter = mmspec.vlm.load_drafter(args.drafter, target=model)

    picture = open_image(args.image) if args.image else render(sample_scene(EVAL_SEEDS[0]))
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": args.prompt}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=picture, text=text, return_tensors="pt").to(model.device, model.dtype)

    mmspec.generate(
        model, drafter=drafter, max_new_tokens=8, **inputs
    )  # warm-up: the first forward passes of a process are slow

    texts = {}
    for name, drafts in (("plain", None), ("drafted", drafter)):
        began = perf_counter()
        out = mmspec.generate(model, drafter=drafts, max_new_tokens=args.tokens, return_dict=True, **inputs)
        seconds, new = perf_counter() - began, out.sequences[0, inputs["input_ids"].shape[1] :]
        texts[name] = processor.decode(new, skip_special_tokens=True).strip()
        print(f"{name}: {len(new)} tokens in {out.stats.target_passes} forward passes, {seconds:.2f} s")
    print(texts["drafted"])
    print("identical:", texts["plain"] == texts["drafted"])


if __name__ == "__main__":
    main()
