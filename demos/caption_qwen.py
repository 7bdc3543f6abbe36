"""Ask Qwen2.5-VL about pictures, with drafting enabled in one line and disabled again.

    python demos/caption_qwen.py --zoo
    python demos/caption_qwen.py --model Qwen2.5-VL-7B-Instruct --image left.jpg right.jpg

The calls stay those of transformers. As long as drafting is faster, `drafter="auto"` drafts with n-grams of the prompt
and the answer, or with a trained drafter registered with `mmspec.vlm.offer`. The zoo has no Qwen2.5-VL; `--zoo` runs
its small LLaVA instead, which describes one picture at a time.
"""

import torch
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
from weights import options, source

import mmspec
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.images import open_image
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene

NEEDS = "Qwen2.5-VL as transformers saves it (Qwen/Qwen2.5-VL-7B-Instruct, 17 GB)"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--image", nargs="+", help="PNG, JPEG or WebP; scenes of the zoo's world if left out")
    parser.add_argument("--prompt", help="a detailed description of the last picture if left out")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    args = parser.parse_args()

    if args.zoo:
        model, processor = mmspec.zoo.load("vlm")
    else:
        where, local = source(args, NEEDS), not args.hub
        model = load_model(Qwen2_5_VLForConditionalGeneration, where, local=local)
        processor = load_part(AutoProcessor, where, local=local)

    scenes = [render(sample_scene(EVAL_SEEDS[number])) for number in range(1 if args.zoo else 2)]
    pictures = [open_image(path) for path in args.image] if args.image else scenes
    prompt = args.prompt or f"Describe {'this' if len(pictures) == 1 else 'the last'} picture in detail."
    content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(images=pictures, text=[text], return_tensors="pt").to(model.device, model.dtype)

    plain = model.generate(**inputs, max_new_tokens=args.tokens, do_sample=False)
    with mmspec.enable(model, drafter="auto") as handle:
        fast = model.generate(**inputs, max_new_tokens=args.tokens, do_sample=False)

    print(processor.batch_decode(fast[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)[0].strip())
    print(handle.summary())
    print("identical:", torch.equal(plain, fast))


if __name__ == "__main__":
    main()
