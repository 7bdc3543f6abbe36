from drafter import LastSeen

import mmspec

model, processor = mmspec.zoo.load("vlm")
inputs = processor(text="USER: Tell me a story. ASSISTANT:", return_tensors="pt")
plain = model.generate(**inputs, max_new_tokens=48)

for chosen in (LastSeen(length=4), "last_seen:length=4"):  # the object and its text form
    out = mmspec.generate(model, drafter=chosen, max_new_tokens=48, return_dict=True, **inputs)
    print("identical:", out.sequences.equal(plain), "tokens a pass:", round(out.stats.accept_length, 2))

sampled = dict(do_sample=True, seed=0, max_new_tokens=48, return_dict=True)
out = mmspec.generate(model, drafter="unigram:length=2", **sampled, **inputs)
print("exact:", out.stats.exact, "tokens a pass:", round(out.stats.accept_length, 2))
