"""Moving scenes, the prompts that ask for them, and what is read off their frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.scene import EVAL_START, KINDS, SHAPES
from mmspec.zoo.world.tracking import agreement, direction_of, shape_of, track
from mmspec.zoo.world.video import DIRECTIONS, SPEEDS, STEADY, VideoScene, render_frames, sample_video_scene
from mmspec.zoo.world.video_prompts import LONGEST, named_movers, video_prompt, video_prompt_tokenizer

SEEDS = [*range(60), *range(EVAL_START, EVAL_START + 60)]
FRAMES = 24


@pytest.fixture(scope="module")
def scenes() -> list[tuple[VideoScene, np.ndarray]]:
    return [(scene, render_frames(scene, FRAMES)) for scene in map(sample_video_scene, SEEDS)]


def test_everything_is_a_function_of_the_seed(scenes: list) -> None:
    for seed, (scene, frames) in list(zip(SEEDS, scenes, strict=True))[::30]:
        again = sample_video_scene(seed)
        assert again == scene and np.array_equal(render_frames(again, 3), frames[:3])
        assert np.array_equal(render_frames(again, 2, first=FRAMES - 2), frames[-2:])
        assert video_prompt(again, 3, 8) == video_prompt(scene, 3, 8)
    assert len({video_prompt(sample_video_scene(1), seed) for seed in range(20)}) > 5


def test_evaluation_scenes_share_no_background_and_no_handwriting_with_training(scenes: list) -> None:
    halves = [scene for scene, _ in scenes[:60]], [scene for scene, _ in scenes[60:]]
    assert not {s.background.phase for s in halves[0]} & {s.background.phase for s in halves[1]}
    samples = [{m.sample for s in half for m in s.movers} - {-1} for half in halves]
    assert all(samples) and not samples[0] & samples[1]
    with pytest.raises(ValueError, match="TRAIN_SEEDS or EVAL_SEEDS"):
        sample_video_scene(-1)


def test_objects_stay_inside_never_overlap_and_keep_their_speed_between_bounces(scenes: list) -> None:
    for scene, _ in scenes:
        covered = np.zeros((200, IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE), dtype=int)
        for mover in scene.movers:
            places = np.array([mover.at(frame) for frame in range(200)])
            assert (places >= 0).all() and (places <= IMAGE_SCENE_SIDE - mover.pixels).all()
            for frame, (x, y) in enumerate(places):
                covered[frame, y : y + mover.pixels, x : x + mover.pixels] += 1
            step, bounced = np.diff(places, axis=0), {frame for frame, _ in mover.bounces(200)}
            free = [frame not in bounced for frame in range(1, 200)]
            assert (np.abs(step[free]) == np.abs([mover.dx, mover.dy])).all()
            assert {abs(value) for value in (mover.dx, mover.dy)} <= {
                0,
                *range(*SPEEDS[mover.speed]),
                SPEEDS[mover.speed][1],
            }
        assert covered.max() == 1
    assert {len(scene.movers) for scene, _ in scenes} == {1, 2}
    assert {mover.direction for scene, _ in scenes for mover in scene.movers} == set(DIRECTIONS)


def test_directions_and_bounces_match_the_places(scenes: list) -> None:
    for scene, _ in scenes:
        for mover in scene.movers:
            assert not mover.bounces(STEADY + 1) and mover.heading(0) == mover.direction
            bounces = dict(mover.bounces(101))
            places = np.array([mover.at(frame) for frame in range(101)])
            for frame in range(1, 100):
                before, after = (np.sign(places[f + 1] - places[f]) for f in (frame - 1, frame))
                if frame not in bounces and frame + 1 not in bounces:
                    assert (before == after).all() and DIRECTIONS[mover.heading(frame)] == tuple(after)
            assert bounces and set(bounces.values()) <= {"left", "right", "top", "bottom"}


def test_a_bounce_is_described_with_its_frame_and_edge() -> None:
    mover = replace(sample_video_scene(0).movers[0], pixels=20, x=34, y=10, dx=4, dy=0, direction="right")
    assert [mover.at(frame)[0] for frame in range(6)] == [34, 38, 42, 42, 38, 34]
    assert mover.bounces(6) == [(3, "right")] and mover.bounces(3) == []
    assert [mover.heading(frame) for frame in (1, 3)] == ["right", "left"]
    touching = replace(mover, x=36)  # 36 40 44 40: it touches the edge in frame 2 and leaves it in frame 3
    assert touching.bounces(4) == [(3, "right")] and touching.heading(2) == "left"
    assert replace(mover, x=6, dx=-4, direction="left").bounces(5) == [(2, "left")]


def test_frames_show_each_object_where_it_is_and_nothing_else_moves(scenes: list) -> None:
    for scene, frames in scenes[::6]:
        assert frames.shape == (FRAMES, IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE, 3) and frames.dtype == np.uint8
        still = np.ones((IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE), dtype=bool)
        for mover in scene.movers:
            for frame in range(FRAMES):
                x, y = mover.at(frame)
                still[y : y + mover.pixels, x : x + mover.pixels] = False
        assert (frames[:, still] == frames[0, still]).all()
    with pytest.raises(ValueError, match="frames: expected at least 1 from frame 0 on"):
        render_frames(scenes[0][0], 0)


def test_prompts_name_color_kind_and_direction_of_every_object(scenes: list) -> None:
    tokenizer = video_prompt_tokenizer()
    bounces = 0
    for number, (scene, _) in enumerate(scenes):
        for seed in range(3):
            prompt = video_prompt(scene, seed, 8)
            assert sorted(named_movers(prompt)) == sorted((m.kind, m.color, m.direction) for m in scene.movers), prompt
            ids = tokenizer(prompt)["input_ids"]
            assert len(ids) <= LONGEST and tokenizer.unk_token_id not in ids, prompt
            bounces += "edge" in prompt
        assert "edge" not in video_prompt(scene, number)
    assert bounces > 30
    assert named_movers("a red star sings") == [("star", "red", "")] and named_movers("nothing") == []


def test_the_tracker_finds_every_object_and_its_direction(scenes: list) -> None:
    shapes = []
    for scene, frames in scenes:
        for mover in scene.movers:
            found = track(frames[:8], mover.color)
            assert found.seen.all() and direction_of(found) == mover.direction
            middle = np.array([mover.at(frame) for frame in range(8)]) + (mover.pixels - 1) / 2
            assert np.abs(found.place - middle).max() < 3.5
            if mover.kind in SHAPES:
                shapes.append(shape_of(found) == mover.kind)
    assert np.mean(shapes) > 0.97


def test_the_tracker_follows_a_bounce_and_recognises_still_objects(scenes: list) -> None:
    scene, frames = next(pair for pair in scenes if len(pair[0].movers) == 1 and pair[0].movers[0].bounces(20))
    mover = scene.movers[0]
    found = track(frames, mover.color)
    for frame in range(0, FRAMES - 2):
        if not mover.bounces(frame + 3)[len(mover.bounces(frame + 1)) :]:  # none in the two steps behind it
            assert direction_of(found, frame, 2) == mover.heading(frame)
    assert direction_of(track(np.repeat(frames[:1], 6, 0), mover.color)) is None
    other = next(color for color in ("red", "green") if color != mover.color)
    unseen = track(frames, other)
    assert not unseen.seen.any() and direction_of(unseen) is None and shape_of(unseen) is None


def test_agreement_decreases_with_every_wrong_word(scenes: list) -> None:
    marks = []
    for scene, frames in scenes[::4]:
        named = named_movers(video_prompt(scene, 0))
        marks.append(agreement(frames, named))
        kind, color, direction = named[0]
        others = [name for name in KINDS if (name in SHAPES) == (kind in SHAPES) and name != kind]
        turned = [name for name in DIRECTIONS if name != direction]
        assert agreement(frames, [(kind, color, turned[0]), *named[1:]]) < marks[-1]
        assert agreement(frames[STEADY::-1], named) < marks[-1]  # backwards
        if kind in SHAPES and marks[-1] == 1:
            assert agreement(frames, [(others[0], color, direction), *named[1:]]) < 1
    assert np.mean(marks) > 0.98 and agreement(scenes[0][1], []) == 0
    with pytest.raises(ValueError, match="frames: expected uint8"):
        track(scenes[0][1].astype(np.float32), "red")
