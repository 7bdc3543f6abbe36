import torch
from drafter import LastSeen, Unigram

import mmspec

model, processor = mmspec.zoo.load("vlm")
inputs = processor(text="USER: Tell me a story. ASSISTANT:", return_tensors="pt")
plain = model.generate(**inputs, max_new_tokens=48)

out = mmspec.generate(model, drafter=LastSeen(4), max_new_tokens=48, return_dict=True, **inputs)
print("identical:", out.sequences.equal(plain), "tokens a pass:", round(out.stats.accept_length, 2))

size = model.config.get_text_config().vocab_size
scores = torch.bincount(plain[0], minlength=size).add(0.01).log()  # how often each token came
sampled = dict(do_sample=True, seed=0, max_new_tokens=48, return_dict=True)
out = mmspec.generate(model, drafter=Unigram(scores), **sampled, **inputs)
print("exact:", out.stats.exact, "tokens a pass:", round(out.stats.accept_length, 2))
