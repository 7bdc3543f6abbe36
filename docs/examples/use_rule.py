from rule import Cautious

import mmspec
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters import Chain

model, processor = mmspec.zoo.load("vlm")
drafter = mmspec.zoo.load("vlm/eagle").with_shape(Chain(FixedLength(5)))  # both rules want sampled chains
inputs = processor(text="USER: Tell me a story. ASSISTANT:", return_tensors="pt")
sampled = dict(do_sample=True, seed=0, max_new_tokens=48, return_dict=True)

for rule in (Cautious(share=0.9), "eager:factor=1.5"):  # an object and a text form
    out = mmspec.generate(model, drafter=drafter, rule=rule, **sampled, **inputs)
    print(out.stats.rule, "exact:", out.stats.exact, "tokens a pass:", round(out.stats.accept_length, 2))

pipe = mmspec.zoo.load("t2i")
out = pipe("a large red star", decoding="sjd:window=16", rule="eager:factor=1.5", seed=0)
print(out.stats.rule, "exact:", out.stats.exact, "tokens a pass:", round(out.stats.accept_length, 2))
