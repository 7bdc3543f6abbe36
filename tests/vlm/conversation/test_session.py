"""Sessions on the shipped model: turns and pictures added, and what they cost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import mmspec
from mmspec.run.scenes import demo_scenes
from mmspec.zoo.world.render import render
from tests.vlm.conversation.talks import counted
from tests.vlm.layer_kinds import model_with
from tests.vlm.tiny import words

ASKED = ("Describe this picture in detail.", "And this one?", "What is the same in both?")


@pytest.fixture(scope="module")
def zoo() -> tuple:
    model, processor = mmspec.zoo.load("vlm")
    return model, processor, [render(scene) for scene in demo_scenes(2)]


def fresh(zoo: tuple, session: mmspec.Session, answered: int, **settings: Any) -> torch.Tensor:
    """What a call with the whole conversation before an answer says."""
    model, processor, _ = zoo
    shown = sum(part["type"] == "image" for message in session.messages[:answered] for part in message["content"])
    text = processor.apply_chat_template(session.messages[:answered], add_generation_prompt=True)
    inputs = processor(images=[session.pictures[:shown]], text=[text], return_tensors="pt")
    return model.generate(**inputs, **settings)


@pytest.mark.default_cells("None", "vlm/eagle")
@pytest.mark.parametrize("name", (None, "vlm/msd", "vlm/eagle", "auto"))
def test_three_turns_about_two_pictures_match_fresh_prompts(zoo: tuple, name: str | None) -> None:
    model, processor, images = zoo
    drafter = name if name in (None, "auto") else mmspec.zoo.load(name)
    settings = dict(max_new_tokens=40, do_sample=False)
    session, reads = mmspec.Session(model, processor, drafter=drafter, **settings), []
    for number, text in enumerate(ASKED):
        with counted(model) as seen:
            answer = session.ask(text, images[number : number + 1])
        truth = fresh(zoo, session, 2 * number + 1, **settings)
        assert torch.equal(session.last.sequences, truth)
        assert answer == session.messages[-1]["content"][0]["text"] and answer
        reads.append((session.last.read, seen["pictures"]))
    assert [pictures for _, pictures in reads] == [1, 1, 0]
    assert reads[2][0] * 10 < session.last.sequences.shape[1]


@pytest.mark.default_cells("vlm/msd")
@pytest.mark.parametrize("name", (None, "vlm/msd", "vlm/eagle"))
def test_sampled_turns_match_fresh_calls_with_the_same_seed(zoo: tuple, name: str | None) -> None:
    model, processor, images = zoo
    drafter = name and mmspec.zoo.load(name)
    settings = dict(max_new_tokens=24, do_sample=True, temperature=1.0)
    session, reads = mmspec.Session(model, processor, drafter=drafter, **settings), []
    for number, text in enumerate(ASKED):
        session.add(text, images[number : number + 1])
        inputs = session.inputs()
        truth = mmspec.generate(model, drafter=drafter, seed=number, **inputs, **settings)
        assert torch.equal(session.generate(seed=number).sequences, truth)
        reads.append(session.last.read / inputs["input_ids"].shape[1])
    assert reads[0] == 1 and max(reads[1:]) < 0.6 and reads[2] < 0.1


def test_a_second_question_costs_less_than_a_tenth_of_the_first(zoo: tuple) -> None:
    model, processor, images = zoo
    session = mmspec.Session(model, processor, drafter=mmspec.zoo.load("vlm/msd"), max_new_tokens=40, do_sample=False)
    session.ask(ASKED[0], images)
    first = session.last.read
    with counted(model) as seen:
        session.ask("And what is left of it?")
    assert seen["pictures"] == 0 and 10 * session.last.read < first


def test_a_failed_answer_is_rolled_back(zoo: tuple) -> None:
    model, processor, images = zoo
    session = mmspec.Session(model, processor, max_new_tokens=8, do_sample=False)
    with pytest.raises(ValueError, match="num_beams: expected 1, got 2"):
        session.ask(ASKED[0], images[:1], num_beams=2)
    assert session.messages == [] and session.pictures == []
    assert session.ask(ASKED[0], images[:1]) and len(session.messages) == 2
    assert torch.equal(session.last.sequences, fresh(zoo, session, 1, max_new_tokens=8, do_sample=False))


def test_messages_may_be_added_before_an_answer_is_generated(zoo: tuple) -> None:
    model, processor, images = zoo
    session = mmspec.Session(model, processor, max_new_tokens=8, do_sample=False)
    session.add(ASKED[0], images[:1])
    session.generate()
    session.add(ASKED[1], images[1:])
    session.add(ASKED[2])
    out = session.generate(seed=3)
    assert torch.equal(out.sequences, fresh(zoo, session, 4, max_new_tokens=8, do_sample=False))
    assert [message["role"] for message in session.messages] == ["user", "assistant", "user", "user", "assistant"]


def test_a_template_that_shortens_answers_is_read_again_from_there(zoo: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """As templates do that leave out thoughts."""
    model, processor, images = zoo
    whole = processor.chat_template
    shortened = whole.replace(
        "{{ part['text'] }}{% endfor %}{% endif %}{{ '</s>' }}",
        "{{ part['text'][6:] }}{% endfor %}{% endif %}{{ '</s>' }}",
    )
    assert shortened != whole
    monkeypatch.setattr(processor, "chat_template", shortened)
    session = mmspec.Session(model, processor, drafter=mmspec.zoo.load("vlm/msd"), max_new_tokens=20, do_sample=False)
    session.ask(ASKED[0], images)
    said = session.last.sequences.shape[1]
    session.ask(ASKED[1])
    assert torch.equal(session.last.sequences, fresh(zoo, session, 3, max_new_tokens=20, do_sample=False))
    held = session.last.sequences.shape[1] - session.last.stats.emitted[0] - session.last.read
    assert held == said - 20 - 1


def test_invalid_messages_are_refused(zoo: tuple) -> None:
    model, processor, images = zoo
    session = mmspec.Session(model, processor)
    with pytest.raises(ValueError, match="expected a message to answer, got none"):
        session.generate()
    with pytest.raises(ValueError, match="text: expected no placeholder '<image>'"):
        session.ask("<image> what is this?")
    with pytest.raises(ValueError, match="text: expected a string, got 3"):
        session.ask(3)
    with pytest.raises(ValueError, match="images: expected a list of pictures, got Image"):
        session.ask("this?", images[0])
    with pytest.raises(ValueError, match="images: expected none with a tokenizer"):
        talker = processor.tokenizer
        talker.chat_template = processor.chat_template
        mmspec.Session(model, talker).ask("this?", images[:1])
    with pytest.raises(
        ValueError, match="processor: expected a processor with a chat template, got CLIPImageProcessor"
    ):
        mmspec.Session(model, processor.image_processor)


THINKING = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'w5 ' + message['content'] + ' w6 ' }}{% else %}"
    "{{ 'w7 ' + message['content'].split('w8')[-1] + ' w8 ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w7 w9' }}{% endif %}"
)


@pytest.mark.parametrize("name", ("Qwen3_5ForCausalLM", "LlamaForCausalLM", "JambaForCausalLM"))
def test_a_template_that_leaves_thoughts_out_is_followed(name: str) -> None:
    """Each answer opens a thought that later turns render without, as Qwen3.5's template does; recurrent layers go back."""
    model, tokenizer = model_with(name), copy.deepcopy(words())
    tokenizer.chat_template = THINKING
    session, shared = mmspec.Session(model, tokenizer, max_new_tokens=12, do_sample=False), 0
    for text in ("w11 w12 w13 w14", "w21 w22", "w31 w32 w33"):
        session.add(text)
        inputs = session.inputs()
        out = session.generate()
        assert torch.equal(out.sequences, model.generate(**inputs, max_new_tokens=12, do_sample=False))
        count = inputs["input_ids"].shape[1]
        assert out.read == count - shared
        shared = count - 2  # recurrent layers go back to the answer's opening, slots to one token before what differs


def test_a_tokenizer_does_for_text(zoo: tuple) -> None:
    model, processor, _ = zoo
    tokenizer = processor.tokenizer
    tokenizer.chat_template = processor.chat_template
    session = mmspec.Session(model, tokenizer, max_new_tokens=8, do_sample=False)
    for text in ("Hello?", "And now?"):
        session.ask(text)
        prompt = session.last.sequences[:, : -session.last.stats.emitted[0]]
        assert torch.equal(model.generate(prompt, max_new_tokens=8, do_sample=False), session.last.sequences)
    assert session.last.read < 20
