"""Programs that call `model.generate` themselves: lm-eval's HFLM, LangChain's pipeline, and actors of Ray."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import mmspec
from tests.attach.clients.programs import STORY, installed, same_output, text_model

PROMPTS = [STORY, *(f"USER: {text} ASSISTANT:" for text in ("Describe a red circle.", "What is red?", "Hello."))]

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("batch", (1, 4))
def test_generate_until_of_the_evaluation_harness(batch: int) -> None:
    huggingface, instance = installed("lm_eval.models.huggingface"), installed("lm_eval.api.instance")
    model, tokenizer = text_model()
    harness = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=512)
    settings = {"until": ["middle left"], "max_gen_toks": 48, "do_sample": False}
    requests = [instance.Instance("generate_until", {}, (text, settings), i) for i, text in enumerate(PROMPTS)]
    answers = same_output(model, lambda: harness.generate_until(requests, disable_tqdm=True))
    assert "top left" in answers[0] and "middle left" not in answers[0], "the stop string was reached and cut"


def test_langchain_invokes_and_streams() -> None:
    langchain = installed("langchain_huggingface")
    model, tokenizer = text_model()
    pipe = hf.pipeline("text-generation", model=model, tokenizer=tokenizer, max_new_tokens=40, do_sample=False)
    chain = langchain.HuggingFacePipeline(pipeline=pipe)
    whole, parts = same_output(model, lambda: [chain.invoke(STORY), "".join(chain.stream(STORY))])
    assert whole.endswith(parts.strip())


class Captions:
    """An actor of Ray Data: opens the model once, and answers a batch of prompts."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model, self.tokenizer = text_model()
        self.handle = mmspec.enable(self.model, "lookup")

    def __call__(self, batch: dict) -> dict:
        encoded = self.tokenizer(list(batch["item"]), return_tensors="pt", padding=True, return_token_type_ids=False)
        tokens = self.model.generate(**encoded, max_new_tokens=32, do_sample=False)
        length = encoded["input_ids"].shape[1]
        texts = self.tokenizer.batch_decode(tokens[:, length:], skip_special_tokens=True)
        return {"prompt": batch["item"], "text": texts, "gain": [self.handle.summary().accept_length] * len(texts)}


def plain_answer(prompt: str) -> str:
    """The text that transformers generates."""
    model, tokenizer = text_model()
    encoded = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    tokens = model.generate(**encoded, max_new_tokens=32, do_sample=False)
    return tokenizer.decode(tokens[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)


def test_actors_of_ray() -> None:
    ray, data = installed("ray"), installed("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        actors = data.ActorPoolStrategy(size=2)
        items = data.from_items(PROMPTS, override_num_blocks=2)
        rows = items.map_batches(Captions, compute=actors, batch_size=2, num_cpus=1).take_all()
    finally:
        ray.shutdown()
    assert {row["prompt"]: row["text"] for row in rows} == {prompt: plain_answer(prompt) for prompt in PROMPTS}
    assert max(row["gain"] for row in rows) > 1
