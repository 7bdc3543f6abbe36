"""The wrong words of captions are those that the scene contradicts."""

from __future__ import annotations

from mmspec.zoo.world.captions import caption, parse_caption, truth
from mmspec.zoo.world.mistakes import right_tokens, wrong_words
from mmspec.zoo.world.scene import COLORS, sample_scene


def words(text: str, seed: int) -> list[str]:
    return [text[first:end].lower() for first, end in wrong_words(text, sample_scene(seed))]


def test_reference_captions_have_none() -> None:
    for seed in range(60):
        scene = sample_scene(seed)
        assert parse_caption(caption(scene, seed)) and words(caption(scene, seed), seed) == []


def test_a_changed_word_is_found_and_no_other() -> None:
    found = 0
    for seed in range(60):
        scene, text = sample_scene(seed), caption(sample_scene(seed), seed)
        thing = truth(scene)[0]
        other = next(color for color in COLORS if all(color != item.color for item in scene.things))
        changed = text.replace(f"{thing.color} {thing.kind}", f"{other} {thing.kind}")
        if sorted(parse_caption(changed)) != sorted(parse_caption(text)):
            assert set(words(changed, seed)) == {other}
            found += 1
    assert found > 20


def test_tokens_that_reach_into_a_wrong_word_are_wrong() -> None:
    scene = sample_scene(3)
    text = caption(scene, 3)
    thing = truth(scene)[0]
    other = next(color for color in COLORS if all(color != item.color for item in scene.things))
    text = text.replace(f"{thing.color} {thing.kind}", f"{other} {thing.kind}")
    pieces = [text[i : i + 3] for i in range(0, len(text), 3)]  # tokens of three letters
    right = right_tokens(lambda ids: "".join(pieces[i] for i in ids), range(len(pieces)), scene)
    spans = wrong_words(text, scene)
    for number, good in enumerate(right):
        inside = any(first < 3 * number + 3 and 3 * number < end for first, end in spans)
        assert good is not inside
    assert spans and not all(right)
