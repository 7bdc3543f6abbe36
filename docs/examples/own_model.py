import mmspec

model, processor = mmspec.zoo.load("vlm")  # or any supported model of transformers and its processor
inputs = processor(text="USER: Tell me a story. ASSISTANT:", return_tensors="pt")

with mmspec.enable(model, drafter="auto") as handle:  # the available drafters, as long as they are faster
    model.generate(**inputs, max_new_tokens=48)
print(handle.summary())
