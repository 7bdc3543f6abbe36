"""Constrained decoding: JSON by a schema from a picture is the same, drafted, in fewer passes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import transformers as hf

import mmspec
from tests.attach.clients.programs import caption_inputs, captioner, drafting, installed

pytestmark = pytest.mark.whole
THING = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "cyan", "white"]}, "shape": {"enum": ["square", "circle", "triangle"]}},
    "required": ["color", "shape"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"objects": {"type": "array", "minItems": 2, "maxItems": 3, "items": THING}},
    "required": ["objects"],
    "additionalProperties": False,
}
LONGEST = 200


def xgrammar() -> dict:
    library, contrib = installed("xgrammar"), installed("xgrammar.contrib.hf")
    model, processor = captioner()
    info = library.TokenizerInfo.from_huggingface(processor.tokenizer, vocab_size=model.config.text_config.vocab_size)
    grammar = library.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    return dict(logits_processor=hf.LogitsProcessorList([contrib.LogitsProcessor(grammar)]))


def outlines() -> dict:
    library, backends = installed("outlines"), installed("outlines.backends")
    wrapped = library.from_transformers(*captioner())
    made = backends.get_json_schema_logits_processor("outlines_core", wrapped, json.dumps(SCHEMA))
    return dict(logits_processor=hf.LogitsProcessorList([made]))


def enforcer() -> dict:
    library = installed("lmformatenforcer")
    tokenizer = captioner()[1].tokenizer
    end, start = tokenizer.eos_token_id, tokenizer.encode("0", add_special_tokens=False)[-1]
    # as its own adapter for transformers does, which does not import under transformers 5
    words = [
        (i, tokenizer.decode([start, i])[1:], len(tokenizer.decode([start, i])[1:]) > len(tokenizer.decode([i])))
        for i in range(len(tokenizer))
        if i not in tokenizer.all_special_ids
    ]
    data = library.TokenEnforcerTokenizerData(words, tokenizer.decode, end, False, len(tokenizer))
    parser = library.JsonSchemaParser(SCHEMA)
    checked = library.TokenEnforcer(data, parser)
    parser.config.max_consecutive_whitespaces = 1
    return dict(prefix_allowed_tokens_fn=lambda row, ids: checked.get_allowed_tokens(ids.tolist()).allowed_tokens)


@pytest.mark.parametrize("drafter", ("lookup", "eagle@zoo:vlm/eagle", "dspark@zoo:vlm/dspark", "both@zoo:vlm/eagle"))
@pytest.mark.parametrize("library", (xgrammar, outlines, enforcer), ids=lambda library: library.__name__)
def test_json_by_schema_from_a_picture(library: Callable[[], dict], drafter: str) -> None:
    model, processor = captioner()
    inputs = caption_inputs()
    length = inputs["input_ids"].shape[1]
    plain = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False, **library())
    with drafting(model, drafter) as handle:
        drafted = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False, **library())
    assert torch.equal(drafted, plain)
    least = 1.3 if drafter == "lookup" else 4.0  # a trained drafter drafts under the same grammar
    assert handle.summary().accept_length > least
    answer = json.loads(processor.tokenizer.decode(plain[0, length:], skip_special_tokens=True))
    assert 2 <= len(answer["objects"]) <= 3 and all(set(found) == {"color", "shape"} for found in answer["objects"])


def test_sampled_json_keeps_its_schema() -> None:
    model, processor = captioner()
    inputs = caption_inputs()
    length = inputs["input_ids"].shape[1]
    for seed in range(3):
        settings = dict(max_new_tokens=LONGEST, do_sample=True, temperature=1.0, **xgrammar())
        tokens = mmspec.generate(model, drafter="lookup", seed=seed, **inputs, **settings)
        answer = json.loads(processor.tokenizer.decode(tokens[0, length:], skip_special_tokens=True))
        assert 2 <= len(answer["objects"]) <= 3
