from rule import Cautious, Eager

import mmspec
from mmspec.core.length import FixedLength
from mmspec.vlm.drafters import Chain

model, processor = mmspec.zoo.load("vlm")
drafter = mmspec.zoo.load("vlm/eagle").with_shape(Chain(FixedLength(5)))  # sampled chains, as both rules want them
inputs = processor(text="USER: Tell me a story. ASSISTANT:", return_tensors="pt")

for rule in (Cautious(0.9), Eager(1.5)):
    asked = dict(do_sample=True, seed=0, max_new_tokens=48, return_dict=True)
    out = mmspec.generate(model, drafter=drafter, rule=rule, **asked, **inputs)
    print(out.stats.rule, "exact:", out.stats.exact, "tokens a pass:", round(out.stats.accept_length, 2))
