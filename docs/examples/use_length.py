from length import JointStop

import mmspec
from mmspec.vlm.drafters import Chain

model, processor = mmspec.zoo.load("vlm")
eagle = mmspec.zoo.load("vlm/eagle")
inputs = processor(text="USER: Tell me a story. ASSISTANT:", return_tensors="pt")
plain = model.generate(**inputs, max_new_tokens=48)

for length in (JointStop(0.3), mmspec.methods.parse("joint:least=0.6,longest=4", kind="controller").make()):
    drafter = eagle.with_shape(Chain(length))
    out = mmspec.generate(model, drafter=drafter, max_new_tokens=48, return_dict=True, **inputs)
    print(length, "identical:", out.sequences.equal(plain), "tokens a pass:", round(out.stats.accept_length, 2))
