"""Processors and criteria of other libraries give the text of `transformers.generate`, and drafts of it are accepted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LogitsProcessorList

import mmspec
from tests.vlm.drafts import Scripted, continuation
from tests.vlm.stateful.test_processors import inputs_of
from tests.vlm.tiny import VOCAB, tiny

EOS = 2
PATTERN = r'\{"a":\[(ab,the10,){3,9}ab\]\}'
LIST = r"(abc,|the,|10,)*ab"
WHY = "the library is not installed"


@cache
def tokenizer() -> hf.PreTrainedTokenizerFast:
    """Single characters and a few longer tokens, as many as the tiny model has."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *'{}[]":,. ', *"abcdefghijklmnopqrstuvwxyz0123456789"]
    words += ['{"', '":', '",', '"}', "ab", "cd", "the", "10", "\n"]
    words += [f"<{i}>" for i in range(len(words), VOCAB)]
    splitter = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    splitter.pre_tokenizer, splitter.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=splitter, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", bos_token="<s>"
    )


def words() -> list[str]:
    return tokenizer().convert_ids_to_tokens(range(VOCAB))


def xgrammar(patterns: list[str]) -> dict:
    """One grammar for all rows, or one a row."""
    library = pytest.importorskip("xgrammar", reason=WHY)
    from xgrammar.contrib.hf import LogitsProcessor

    compiler = library.GrammarCompiler(library.TokenizerInfo(words(), vocab_size=VOCAB, stop_token_ids=[EOS]))
    return processor(LogitsProcessor([compiler.compile_regex(pattern) for pattern in patterns]))


def outlines(patterns: list[str]) -> dict:
    core = pytest.importorskip("outlines_core", reason=WHY)
    backend = pytest.importorskip("outlines.backends.outlines_core", reason=WHY)
    vocabulary = core.Vocabulary(EOS, {word: [i] for i, word in enumerate(words()) if i != EOS})
    return processor(backend.OutlinesCoreLogitsProcessor(core.Index(patterns[0], vocabulary), "torch"))


def enforcer(patterns: list[str]) -> dict:
    library = pytest.importorskip("lmformatenforcer", reason=WHY)
    texts = words()
    data = library.TokenEnforcerTokenizerData(
        [(i, text, False) for i, text in enumerate(texts) if i > 3],
        lambda ids: "".join(texts[i] for i in ids),
        EOS,
        False,
        VOCAB,
    )
    enforced = library.TokenEnforcer(data, library.RegexParser(patterns[0]))
    return dict(prefix_allowed_tokens_fn=lambda row, ids: enforced.get_allowed_tokens(ids.tolist()).allowed_tokens)


def processor(one: object) -> dict:
    return dict(logits_processor=LogitsProcessorList([one]))


def same(settings: Callable, batch: int, name: str | None, eos: int | None = EOS) -> mmspec.vlm.output.Generated:
    inputs, limits = inputs_of(batch), dict(max_new_tokens=40, do_sample=False, eos_token_id=eos)
    expected = tiny("llama").generate(**inputs, **limits, **settings())
    truth = continuation(expected, inputs["input_ids"].shape[1])
    drafter = Scripted(truth, name) if name in ("chain", "static") else name and mmspec.drafters.PromptLookup()
    result = mmspec.generate(tiny("llama"), drafter=drafter, return_dict=True, **inputs, **limits, **settings())
    assert result.sequences.tolist() == expected.tolist()
    assert result.stats.accept_length > 1 or name is None
    return result


@pytest.mark.parametrize("name", (None, "lookup", "chain", "static"))
@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize("library", (xgrammar, outlines, enforcer), ids=lambda library: library.__name__)
def test_structured_output(library: Callable, batch: int, name: str | None) -> None:
    result = same(lambda: library([PATTERN]), batch, name)
    text = tokenizer().decode(result.sequences[0, inputs_of(batch)["input_ids"].shape[1] :])
    assert text.startswith('{"a":[ab,the10,ab,the10,')


@pytest.mark.parametrize("name", (None, "chain", "static"))
def test_a_grammar_a_row(name: str | None) -> None:
    same(lambda: xgrammar([PATTERN, LIST]), 2, name)


ZOO = {
    "GenLength": lambda batch: dict(boost_factor=1.0),
    "TriggerPhrase": lambda batch: dict(
        batch_size=batch, phrase="the10", trigger_token_phrase=trigger(), trigger_count=3, trigger_after=True
    ),
    "ForceLastPhrase": lambda batch: dict(phrase="the10", batch_size=batch),
    "CiteFromPrompt": lambda batch: dict(boost_factor=2.0, conditional_boost_factor=3.0),
}


@cache
def trigger() -> str:
    """A token that the model gives by itself."""
    return tokenizer().decode(tiny("llama").generate(**inputs_of(2), max_new_tokens=6)[0, -2:-1])


@pytest.mark.parametrize("name", (None, "chain", "static"))
@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize("kind", ZOO)
def test_the_logits_processor_zoo(kind: str, batch: int, name: str | None) -> None:
    zoo = pytest.importorskip("logits_processor_zoo.transformers", reason=WHY)
    made = getattr(zoo, f"{kind}LogitsProcessor")
    same(lambda: processor(made(tokenizer=tokenizer(), **ZOO[kind](batch))), batch, name)


@pytest.mark.parametrize("eos", (EOS, None))
@pytest.mark.parametrize("name", (None, "chain", "static"))
@pytest.mark.parametrize("batch", (1, 2))
def test_the_criterion_of_an_evaluation_harness(batch: int, name: str | None, eos: int | None) -> None:
    harness = pytest.importorskip("lm_eval.models.utils_hf", reason=WHY)
    inputs = inputs_of(batch)
    length = inputs["input_ids"].shape[1]
    plain = tiny("llama").generate(**inputs, max_new_tokens=20)
    stops = [tokenizer().decode(row[length + 6 + 3 * i :][:2]) for i, row in enumerate(plain)]

    def criteria() -> dict:
        made = [harness.MultiTokenEOSCriteria(stop, tokenizer(), length, batch) for stop in stops]
        return dict(stopping_criteria=hf.StoppingCriteriaList(made))

    result = same(criteria, batch, name, eos)
    assert result.sequences.shape[1] < length + 40 or batch > 1
    assert torch.equal(result.sequences[:, :length], inputs["input_ids"])
