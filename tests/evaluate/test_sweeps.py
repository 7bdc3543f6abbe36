"""Every domain brings its sweep: its default grid runs on tiny stand-ins for the zoo, and its scorers say what is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.domain import SamplingOverrides
from mmspec.evaluate.engine.plan import SweepPlan, cell_groups, domain_of_model
from mmspec.evaluate.engine.registry import DOMAINS, domain_of
from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.engine.work import SweepWork, run_work
from mmspec.evaluate.vlm.domain import DOMAIN as TEXTS
from mmspec.evaluate.vlm.domain import combined_run
from mmspec.evaluate.vlm.quality import AnswerRight, ObjectsRight
from mmspec.run.timed_run import TimedRun
from mmspec.zoo.world.captions import caption
from mmspec.zoo.world.scene import sample_scene
from tests.evaluate.tiny_continuous import use_tiny_continuous
from tests.evaluate.tiny_images import use_tiny_images
from tests.evaluate.tiny_video import use_tiny_video
from tests.evaluate.tiny_zoo import byte_processor, tiny_zoo, use_tiny_zoo

TINY = {"vlm": use_tiny_zoo, "image": use_tiny_images, "continuous": use_tiny_continuous, "video": use_tiny_video}


def drawn(model: str, folder: Path, **changed: object) -> Records:
    wishes = SamplingOverrides(new_tokens=6, num_iter=4, guidance=2.0)
    return run_work(
        SweepWork.of(SweepPlan(folder=folder, models=(model,), count=1, threads=1, wishes=wishes, **changed))
    )


@pytest.mark.default_cells("vlm-missing0")
@pytest.mark.parametrize(
    ("model", "missing"),
    [
        ("vlm", {"vispec", "dspark"}),
        ("t2i", set()),
        ("c2i", set()),
        ("car", set()),
        ("mar", set()),
        ("video/tokens", set()),
    ],
)
def test_the_default_grid_of_every_model_runs(
    model: str, missing: set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain, _ = domain_of_model(model)
    TINY[domain](monkeypatch)
    found = drawn(model, tmp_path)
    failed = {
        sample["of"]["decoding"].partition(":")[0]: sample["failed"]
        for sample in found.samples.values()
        if sample["failed"]
    }
    assert set(failed) <= missing, failed
    done = [sample for sample in found.samples.values() if sample["failed"] is None]
    assert any(record["of"]["decoding"] == "ar" and record["exact"] for record in done) and len(done) > 2
    greedy = [record for record in done if record["of"]["temperature"] == 0 and record["exact"]]
    assert len({one["token_hash"] for one in greedy}) <= 1
    assert {key for key, _ in found.scores} == {record["key"] for record in done if record["shown"] is not None}


def test_blocks_of_video_are_films_with_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_video(monkeypatch)
    found = drawn("video", tmp_path, decodings=("draft", "sdvg:threshold=inf", "sdvg:router=magic"))
    kinds = {sample["of"]["decoding"]: sample for sample in found.samples.values()}
    assert kinds["ar"]["shown"]["frames"] > 4 and kinds["sdvg:threshold=inf"]["token_hash"] == kinds["ar"]["token_hash"]
    assert (
        kinds["draft"]["token_hash"] != kinds["ar"]["token_hash"] and "--router" in kinds["sdvg:router=magic"]["failed"]
    )
    assert all("truth" in score["figures"] and "features" not in score for score in found.scores.values())


def test_keys_of_the_benches_rows_are_decodings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_images(monkeypatch)
    method = domain_of("image").method("t2i", "scd-gumbel-64", "")
    assert method.title == "SCD gumbel 64" and domain_of("image").method("t2i", "sjd-16", "token").rule == "token"
    assert domain_of("continuous").method("car", "causal-head-8", "").title == "head window 8"


def test_rows_of_texts_are_decodings_where_the_zoo_has_their_drafter() -> None:
    block = domain_of("vlm").method("vlm", "eagle-block", "")
    assert block.rule == "block" and domain_of("vlm").method("vlm", "eagle-block", "token").rule == "token"


def test_a_decoding_or_a_rule_that_no_model_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_images(monkeypatch)
    for named, said in (
        ({"decodings": ("magic",)}, "--decoding: expected one of ar, sjd"),
        ({"decodings": ("sjd:colour=3",)}, "decoding .sjd.: expected a setting of sjd"),
    ):
        with pytest.raises(ValueError, match=said):
            cell_groups(SweepPlan(folder=Path("x"), models=("t2i",), **named))
    for model in ("t2i", "car", "vlm"):
        with pytest.raises(ValueError, match="--rule: expected"):
            cell_groups(SweepPlan(folder=Path("x"), models=(model,), rules=("magic",)))
    with pytest.raises(ValueError, match="--model: expected one of vlm, vlm/hybrid, vlm/smol"):
        cell_groups(SweepPlan(folder=Path("x"), models=("magic",)))


def test_a_decoding_is_run_by_the_models_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_images(monkeypatch)
    found = cell_groups(
        SweepPlan(folder=Path("x"), models=("t2i", "vlm"), decodings=("sjd:window=4", "recycling"), temperatures=(1.0,))
    )
    assert {(entry.model, method.key) for entry in found for method in entry.methods} == {
        ("t2i", "ar"),
        ("t2i", "sjd:window=4"),
        ("vlm", "ar"),
        ("vlm", "recycling"),
    }


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"count": 0}, "--count: expected 1 to"),
        ({"samples": 0}, "--samples"),
        ({"seed": 10_000}, "--seed"),
        ({"temperatures": (-1.0,)}, "--temperature: expected numbers of at least 0"),
        ({"part": (3, 2)}, "--part: expected K/N"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(changed: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SweepPlan(folder=Path("x"), models=("t2i",), **changed)


def test_every_domain_has_prompts_of_its_own_that_its_models_take() -> None:
    for name in DOMAINS:
        sweep = domain_of(name)
        for model in sweep.models:
            first, other = sweep.prompts(model, 3, 0), sweep.prompts(model, 3, 1)
            assert len({prompt.key for prompt in first}) == 3
            assert [prompt.text for prompt in first] == [prompt.text for prompt in sweep.prompts(model, 3, 0)]
            apart = {prompt.key for prompt in first}.isdisjoint(prompt.key for prompt in other)
            assert apart or model in ("c2i", "car", "mar")


def test_a_conversation_goes_on_from_its_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    sweep = domain_of("vlm")
    resources, setting = sweep.open("vlm"), sweep.setting("vlm", 0.0, SamplingOverrides(new_tokens=5))
    told: list[list[str]] = []
    whole = resources.processor.apply_chat_template
    monkeypatch.setattr(
        resources.processor,
        "apply_chat_template",
        lambda messages, **how: (
            told.append([str(message["content"]) for message in messages]) or whole(messages, **how)
        ),
    )
    run, (said,) = sweep.sampler(sweep.method("vlm", "ar", ""), resources, setting)(
        EvaluationPrompt("a", ("one?", "two?", "three?")), 0
    )
    assert [len(text) for text in told] == [1, 3, 5] and len(said.split("\n\n")) == 3
    first = sweep.sampler(sweep.method("vlm", "ar", ""), resources, setting)(EvaluationPrompt("a", ("one?",)), 0)[0]
    assert run.output[0][: len(first.output[0])] == first.output[0] and len(run.output[0]) > len(first.output[0])
    recycling = sweep.sampler(sweep.method("vlm", "recycling", ""), resources, setting)
    drafted = recycling(EvaluationPrompt("a", ("one?", "two?", "three?")), 0)[0]
    assert drafted.output == run.output and drafted.exact


def test_costs_of_turns_add_up() -> None:
    parts = {"prefill": 0.5, "target": 0.5}
    one = TimedRun(1.0, ((1, 2, 3),), 3, 1.0, parts, accepted=((0,), (1,)))
    two = TimedRun(2.0, ((4,),), 2, 0.5, parts, exact=False, accepted=((0,),))
    made = combined_run([one, two])
    assert made.seconds == 3.0 and made.output == ((1, 2, 3, 4),) and made.target_passes == 5 and not made.exact
    assert made.accept_length == 4 / 5 and made.parts == {"prefill": 1.0, "target": 1.0} and len(made.accepted) == 3
    assert made.decode_rounds == 2 + 1 and combined_run([one]) is one


def test_objects_and_answers_are_recognised_in_texts() -> None:
    scene = sample_scene((1 << 31) + 5)
    right = caption(scene, 0)
    prompts = [EvaluationPrompt("a", ("x",), world=scene.seed)] * 2 + [
        EvaluationPrompt("b", ("x",), answers=("Paris",))
    ]
    found = ObjectsRight()([right, "nothing is here", "x"], prompts)
    assert found[0] > 0.9 and found[1] == 0.0 and np.isnan(found[2])
    told = AnswerRight()(["x", "x", "It is PARIS."], prompts)
    assert np.isnan(told[:2]).all() and told[2] == 1.0


def test_text_rules_are_parsed_from_a_single_line() -> None:
    assert TEXTS.method("vlm", "lookup", "block").title == "prompt lookup + block verification"
    made = TEXTS.method("vlm", "lookup", "typical:threshold=0.2")
    assert made.rule == "typical:threshold=0.2" and made.title == "prompt lookup + typical acceptance (threshold 0.2)"
    for text in ("magic", "block:k=3", "typical:k=3"):
        with pytest.raises(ValueError, match="^(--rule|rule '[a-z]+'): expected"):
            TEXTS.method("vlm", "lookup", text)


def test_the_length_of_chains_is_the_setting_of_a_drafter() -> None:
    made = TEXTS.method("vlm", "small:length=3", "")
    assert (made.key, made.drafter) == ("small:length=3", "small") and made.title.endswith(" (chain of 3)")
    for text in ("", ":length=1", "small:length", "small:=3", "small:length="):
        with pytest.raises(ValueError, match="--decoding: expected NAME, NAME:setting=value"):
            TEXTS.method("vlm", text, "")
    for text, expected in (
        ("small:window=3", r"expected settings that small takes \(length\), got 'window'"),
        ("ar:length=3", r"expected settings that ar takes \(none\), got 'length'"),
        ("small:length=3.5", "expected a number for length of small, got '3.5'"),
        ("small@runs/small", "expected one of ar, hf, .*, got 'small@runs/small'"),
    ):
        with pytest.raises(ValueError, match=f"--decoding: {expected}"):
            TEXTS.method("vlm", text, "")


def test_several_turns_need_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.run.vlm_requests import encode_turns

    processor = byte_processor()
    with pytest.raises(ValueError, match="expected no placeholder"):
        encode_turns(processor, ["a <image>", "b"], ["x"], ())
    processor.chat_template = None
    with pytest.raises(ValueError, match="turns: expected a single turn for a processor without a chat template"):
        encode_turns(processor, ["a", "b"], ["x"], ())
    assert tiny_zoo()["vlm"][1].chat_template
