import mmspec
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene

model, processor = mmspec.zoo.load("vlm")  # LlavaForConditionalGeneration and its processor
drafter = mmspec.zoo.load("vlm/dspark")

picture = render(sample_scene(EVAL_SEEDS[0]))  # or mmspec.io.images.open_image("picture.png")
question = [{"type": "image", "image": picture}, {"type": "text", "text": "Describe this picture in detail."}]
inputs = processor.apply_chat_template(
    [{"role": "user", "content": question}],
    add_generation_prompt=True,
    tokenize=True,
    return_dict=True,
    return_tensors="pt",
)

plain = model.generate(**inputs, max_new_tokens=128)
out = mmspec.generate(model, drafter=drafter, max_new_tokens=128, return_dict=True, **inputs)

print(processor.batch_decode(out.sequences, skip_special_tokens=True)[0])
print("identical:", out.sequences.equal(plain), "in", out.stats.target_passes, "passes,", out.stats.exact)
