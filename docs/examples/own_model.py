import mmspec

model, processor = mmspec.zoo.load("vlm")  # or any supported model of transformers and its processor
inputs = processor(text="USER: Repeat: a red circle, a blue star and a green square. ASSISTANT:", return_tensors="pt")

with mmspec.enable(model, drafter="lookup") as handle:  # or a drafter that was trained for the model
    model.generate(**inputs, max_new_tokens=48)
print(handle.summary())
