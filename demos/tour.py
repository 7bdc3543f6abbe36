"""A quick tour of the zoo in a minute on two CPU cores: text, pictures of codes, pictures of vectors, and a proof.

    python demos/tour.py

The figures hold for these small models only.
"""

import mmspec
from mmspec.certify.enumeration import contrasted_tables, inexactness
from mmspec.core import chain, resolve
from mmspec.imagegen import SCD, HeadSampling, ScheduledSteps
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene


def main() -> None:
    print("1. A caption: the same words in fewer passes")
    model, processor = mmspec.zoo.load("vlm")
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe this picture in detail."}]}
    ]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=render(sample_scene(EVAL_SEEDS[0])), text=text, return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=96)
    with mmspec.enable(model, drafter=mmspec.zoo.load("vlm/msd")) as handle:
        drafted = model.generate(**inputs, max_new_tokens=96)
    new = drafted[0, inputs["input_ids"].shape[1] :]
    print("  ", processor.decode(new, skip_special_tokens=True).strip())
    passes = handle.summary().target_passes
    print(f"   identical to transformers: {drafted.equal(plain)}; {len(new)} tokens in {passes} passes")

    print("2. Sampled: another text for every seed, from the distribution of plain decoding")
    for seed in (0, 1):
        out = mmspec.generate(
            model,
            drafter=mmspec.zoo.load("vlm/eagle"),
            do_sample=True,
            seed=seed,
            max_new_tokens=24,
            return_dict=True,
            **inputs,
        )
        new = out.sequences[0, inputs["input_ids"].shape[1] :]
        print(f"   seed {seed}: {processor.decode(new, skip_special_tokens=True).strip()}")

    print("3. A picture of codes: no trained drafter, an exact rule and a relaxed rule")
    pipe = mmspec.zoo.load("t2i")
    for rule in ("exact", "gsd:group=14"):
        out = pipe("a red circle", decoding=SCD(window=16), rule=rule, seed=0)
        codes, passes = out.tokens.shape[1], out.stats.target_passes
        print(f"   {rule}: {codes} codes in {passes} passes, exact: {out.stats.exact}")

    print("4. A picture of vectors: speculation over the denoising steps of the model's head")
    pipe = mmspec.zoo.load("mar")
    for name, decoding in (("plain", None), ("speculated", ScheduledSteps(head_sampling=HeadSampling(8)))):
        request = pipe.start([3], decoding=decoding, seed=0)
        print(f"   {name}: exact {request.run().exact}, {request.target.head_calls} calls of the head")

    print("5. The proof: every draft and every decision of a rule, enumerated")
    p, q = contrasted_tables("random", size=3, depth=3, seed=0)
    for name in ("token", "block"):
        off = inexactness(resolve(name, greedy=False), chain(3), p, q)
        print(f"   {name}: {off:.0e} from the target's distribution")


if __name__ == "__main__":
    main()
