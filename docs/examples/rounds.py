import mmspec

model, processor = mmspec.zoo.load("vlm")
drafter = mmspec.drafters.PromptLookup()
prompts = ["USER: Tell me a story. ASSISTANT:", "USER: What is red? ASSISTANT:"]
requests = [
    mmspec.vlm.start(model, drafter=drafter, max_new_tokens=24, **processor(text=prompt, return_tensors="pt"))
    for prompt in prompts
]

running = list(requests)
while running:  # a round of each in turn
    running = [request for request in running if request.step()]

for request in requests:
    (tokens,) = request.target.tokens
    print(processor.decode(tokens), request.stats.accepted)
