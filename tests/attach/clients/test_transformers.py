"""Pipelines and streamers of transformers give the same output over an enabled model."""

from __future__ import annotations

from threading import Thread

import pytest
import transformers as hf

from tests.attach.clients.programs import (
    EAGLE,
    STORY,
    captioner,
    drafting,
    messages,
    same_output,
    text_inputs,
    text_model,
)

pytestmark = pytest.mark.whole
GREEDY = dict(max_new_tokens=60, do_sample=False)


@pytest.mark.parametrize("drafter", ("lookup", EAGLE, "auto"))
def test_image_text_to_text(drafter: str) -> None:
    model, processor = captioner()
    pipe = hf.pipeline("image-text-to-text", model=model, processor=processor)
    answers = same_output(model, lambda: pipe(text=messages(), return_full_text=False, **GREEDY), drafter)
    assert "picture" in answers[0]["generated_text"]


def test_text_generation_in_batches() -> None:
    model, tokenizer = text_model()
    pipe = hf.pipeline("text-generation", model=model, tokenizer=tokenizer)
    prompts = [STORY, "USER: What is red? ASSISTANT:", STORY, STORY]
    answers = same_output(model, lambda: pipe(prompts, batch_size=4, **GREEDY))
    assert len(answers) == len(prompts)


def test_a_streamer_in_a_thread() -> None:
    model, tokenizer = text_model()

    def stream() -> str:
        streamer = hf.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
        thread = Thread(target=model.generate, kwargs=dict(text_inputs(), streamer=streamer, **GREEDY))
        thread.start()
        text = "".join(streamer)
        thread.join()
        return text

    assert "objects" in same_output(model, stream)


def test_the_check_fails_where_nothing_is_drafted() -> None:
    model, _ = text_model()
    with pytest.raises(AssertionError), drafting(model, None):
        model.generate(**text_inputs(), max_new_tokens=8, do_sample=False)
