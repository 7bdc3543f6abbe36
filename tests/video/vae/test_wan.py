"""Chunks give the pixels of one call, and a place in a video can be kept and gone back to without a trace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mmspec.video import vae as wan
from mmspec.video.vae import LatentLayout, StreamingWanVAE, VAEState, small_frames
from tests.video.vae.plain import plain_decode, plain_encode
from tests.video.vae.tiny import CHANNELS, KINDS, MEAN, STD, Stream, autoencoder, bytes_of, rows_of

EXACT = {"atol": 0.0, "rtol": 0.0}


def latents(frames: int, batch: int = 2, side: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, CHANNELS, frames, side, side, generator=torch.Generator().manual_seed(seed))


def whole(vae: StreamingWanVAE, latents: Tensor) -> Tensor:
    """The model's own decoding in one call."""
    mean, std = (torch.tensor(values)[:, None, None, None] for values in (MEAN, STD))
    with torch.no_grad():
        return vae.model.decode(latents * std + mean).sample


def in_chunks(stream: Stream, given: Tensor, sizes: Sequence[int]) -> Tensor:
    return torch.cat([stream.push(chunk) for chunk in given.split(list(sizes), dim=2)], dim=2)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (1, 4, 2, 5)], ids=str)
def test_any_cut_into_chunks_gives_the_pixels_of_one_call(kind: str, sizes: Sequence[int]) -> None:
    vae = StreamingWanVAE(autoencoder(kind))
    given = latents(12)
    frames = in_chunks(Stream(vae.decode), given, sizes)
    torch.testing.assert_close(frames, whole(vae, given), atol=1e-6, rtol=0)
    assert frames.shape[2] == 1 + 11 * vae.layout.frames
    assert frames.shape[3:] == (2 * vae.layout.stride, 2 * vae.layout.stride)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_match_a_pass_over_the_whole_video_without_a_cache(kind: str) -> None:
    vae, given = StreamingWanVAE(autoencoder(kind)), latents(8)
    for sizes in ((1, 1, 1, 1, 4), (2, 1, 5), (3, 3, 2)):  # the second latent is where the first one's mark tells
        frames = in_chunks(Stream(vae.decode), given, sizes)
        torch.testing.assert_close(frames, plain_decode(vae.model, given), atol=2e-5, rtol=0)
    each = vae.layout.frames
    pixels = frames[:, :, : 1 + 5 * each]
    found = in_chunks(Stream(vae.encode), pixels, (1, each, 2 * each, 2 * each))
    torch.testing.assert_close(found, plain_encode(vae.model, pixels), atol=5e-5, rtol=0)


def forgets_the_mark(state: VAEState) -> VAEState:
    """The first frame as zeros, as if it had been doubled."""
    return VAEState(tuple(None if isinstance(entry, str) else entry for entry in state.entries))


def cuts_the_past(state: VAEState) -> VAEState:
    """One frame of the past instead of two."""
    return VAEState(tuple(e[:, :, -1:] if isinstance(e, Tensor) and e.shape[2] == 2 else e for e in state.entries))


@pytest.mark.parametrize(("mutant", "first"), [(forgets_the_mark, 1), (cuts_the_past, 3)])
def test_a_state_that_loses_something_shows(mutant, first: int) -> None:  # noqa: ANN001
    vae, given = StreamingWanVAE(autoencoder("wan 2.1")), latents(5)
    _, state = vae.decode(given[:, :, :first])
    wanted = plain_decode(vae.model, given)[:, :, 1 + 4 * (first - 1) :]
    found, _ = vae.decode(given[:, :, first:], state)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
    wrong, _ = vae.decode(given[:, :, first:], mutant(state))
    assert wrong.shape != wanted.shape or (wrong - wanted).abs().max() > 1e-3


def test_the_first_latent_frame_gives_one_frame_and_every_other_four() -> None:
    vae = StreamingWanVAE(autoencoder("wan 2.1"))
    stream, given = Stream(vae.decode), latents(4)
    assert [stream.push(one).shape[2] for one in given.split(1, dim=2)] == [1, 4, 4, 4]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 1, 3], ids="{} before".format)
def test_a_rolled_back_draft_leaves_no_trace(kind: str, before: int) -> None:
    vae = StreamingWanVAE(autoencoder(kind))
    kept, drafted, redrawn, later = latents(before or 1), latents(3, seed=1), latents(3, seed=2), latents(2, seed=3)
    tried, clean = Stream(vae.decode), Stream(vae.decode)
    for stream in (tried, clean) if before else ():
        stream.push(kept)
    place = tried.snapshot()
    rejected = tried.push(drafted)
    tried.restore(place)
    found, wanted = [torch.cat([stream.push(redrawn), stream.push(later)], 2) for stream in (tried, clean)]
    torch.testing.assert_close(found, wanted, **EXACT)
    assert (rejected - found[:, :, : rejected.shape[2]]).abs().max() > 0.01


def written(state: VAEState, step, chunk: Tensor) -> list[int]:
    """Entries of a state that a step from it writes into."""
    before = [entry.clone() if isinstance(entry, Tensor) else entry for entry in state.entries]
    versions = [entry._version if isinstance(entry, Tensor) else 0 for entry in state.entries]
    _, after = step(chunk, state)
    found = []
    for number, (old, new) in enumerate(zip(state.entries, after.entries, strict=True)):
        if isinstance(old, Tensor):
            same = torch.equal(old, before[number]) and old._version == versions[number]
            shared = isinstance(new, Tensor) and new.untyped_storage().data_ptr() == old.untyped_storage().data_ptr()
            if not same or shared:
                found.append(number)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_entries_are_replaced_and_never_written_into(kind: str, chunks: int) -> None:
    vae = StreamingWanVAE(autoencoder(kind))
    state, video = None, None
    each = vae.layout.frames
    for number in range(chunks):
        _, state = vae.decode(latents(1, seed=number), state)
        _, video = vae.encode(torch.rand(2, 3, each if number else 1, vae.layout.stride, vae.layout.stride), video)
    assert written(state, vae.decode, latents(3, seed=9)) == []
    assert written(video, vae.encode, torch.rand(2, 3, 2 * each, vae.layout.stride, vae.layout.stride)) == []


def test_a_model_that_wrote_into_its_cache_would_be_found() -> None:
    vae = StreamingWanVAE(autoencoder())
    _, state = vae.decode(latents(2))
    decoder = vae.model.decoder

    class Careless(torch.nn.Module):
        def forward(self, x: Tensor, feat_cache: list, feat_idx: list, first_chunk: bool) -> Tensor:
            feat_cache[2].mul_(1.5)
            return decoder(x, feat_cache=feat_cache, feat_idx=feat_idx, first_chunk=first_chunk)

    vae.model.decoder = Careless()
    assert written(state, lambda chunk, state: vae.decode(chunk, state), latents(1)) == [2]


def test_writing_into_the_frames_that_were_returned_changes_nothing() -> None:
    vae = StreamingWanVAE(autoencoder())
    stream, given = Stream(vae.decode), latents(6)
    stream.push(given[:, :, :3]).zero_()
    frames = stream.push(given[:, :, 3:])
    torch.testing.assert_close(frames, whole(vae, given)[:, :, -frames.shape[2] :], atol=1e-6, rtol=0)


def test_videos_interleave_with_each_other_and_with_calls_of_the_model() -> None:
    vae = StreamingWanVAE(autoencoder())
    videos = [latents(6, seed=seed) for seed in (1, 2)]
    streams, frames = [Stream(vae.decode) for _ in videos], [[], []]
    for start in (0, 2, 4):
        for number, (stream, given) in enumerate(zip(streams, videos, strict=True)):
            frames[number].append(stream.push(given[:, :, start : start + 2]))
            whole(vae, latents(1, seed=5))  # it clears the cache that the model itself has
    for parts, given in zip(frames, videos, strict=True):
        torch.testing.assert_close(torch.cat(parts, 2), whole(vae, given), atol=1e-6, rtol=0)


def test_rows_of_a_batch_are_rolled_back_separately() -> None:
    vae = StreamingWanVAE(autoencoder())
    given, redrawn = latents(5, batch=3), latents(2, batch=1, seed=8)
    _, before = vae.decode(given[:, :, :3])
    _, after = vae.decode(given[:, :, 3:], before)
    _, again = vae.decode(redrawn, rows_of(before, [1]))
    rows = (rows_of(after, [0]), again, rows_of(after, [2]))
    entries = zip(*(state.entries for state in rows), strict=True)
    state = VAEState(tuple(torch.cat(entry) if isinstance(entry[0], Tensor) else entry[0] for entry in entries))
    ending = latents(2, batch=3, seed=9)
    frames, _ = vae.decode(ending, state)
    history = given.clone()
    history[1, :, 3:] = redrawn[0]
    torch.testing.assert_close(frames, whole(vae, torch.cat([history, ending], 2))[:, :, -8:], atol=1e-5, rtol=0)


def test_a_long_video_holds_no_more_state_than_a_short_video() -> None:
    vae = StreamingWanVAE(autoencoder())
    stream, sizes = Stream(vae.decode), []
    for _ in range(12):
        stream.push(latents(2, batch=1))
        sizes.append(bytes_of(stream.snapshot()))
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_in_chunks_gives_the_latents_of_one_call(kind: str) -> None:
    vae = StreamingWanVAE(autoencoder(kind))
    each, side = vae.layout.frames, 2 * vae.layout.stride
    frames = torch.rand(2, 3, 1 + 4 * each, side, side) * 2 - 1
    found = in_chunks(Stream(vae.encode), frames, (1 + each, each, 2 * each))
    at_once, _ = vae.encode(frames)
    torch.testing.assert_close(found, at_once, atol=1e-6, rtol=0)
    assert found.shape == (2, CHANNELS, 5, 2, 2)
    if each == 4:  # the model's own call knows no other number
        mean, std = (torch.tensor(values)[:, None, None, None] for values in (MEAN, STD))
        with torch.no_grad():
            torch.testing.assert_close(
                found, (vae.model.encode(frames).latent_dist.mode() - mean) / std, atol=1e-5, rtol=0
            )


def test_one_frame_encodes_as_a_first_latent_whatever_came_before() -> None:
    """What a window that slides needs: its oldest frame becomes the first of a video."""
    vae = StreamingWanVAE(autoencoder())
    frames = torch.rand(1, 3, 9, 16, 16) * 2 - 1
    alone, _ = vae.encode(frames[:, :, 4:5])
    inside, _ = vae.encode(frames)
    again, _ = vae.encode(frames[:, :, 4:])
    torch.testing.assert_close(alone[:, :, 0], again[:, :, 0], atol=1e-6, rtol=0)
    assert (alone[:, :, 0] - inside[:, :, 1]).abs().max() > 0.01


def test_normalised_and_restored_undo_each_other() -> None:
    layout, own = LatentLayout.of_wan(autoencoder()), latents(2)
    torch.testing.assert_close(layout.restored(layout.normalised(own)), own)
    shifted = torch.tensor(MEAN)[:, None, None, None].expand(1, -1, 1, 1, 1)
    torch.testing.assert_close(layout.normalised(shifted), torch.zeros_like(shifted))


def test_half_precision_models_give_float32_frames_and_latents() -> None:
    vae = StreamingWanVAE(autoencoder().to(torch.bfloat16))
    frames, state = vae.decode(latents(2))
    found, _ = vae.encode(frames)
    assert frames.dtype == found.dtype == torch.float32 and vae.dtype == torch.bfloat16
    assert {entry.dtype for entry in state.entries if isinstance(entry, Tensor)} == {torch.bfloat16}
    assert (frames - whole(StreamingWanVAE(autoencoder()), latents(2))).abs().mean() < 0.02


def test_the_layout_of_the_published_autoencoder() -> None:
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        layout = LatentLayout.of_wan(AutoencoderKLWan())
    assert (layout.channels, layout.stride, layout.frames) == (16, 8, 4)
    assert layout.mean[0] == -0.7571 and layout.std[-1] == 1.9160


def test_latents_of_another_autoencoder_are_refused() -> None:
    own, other = (LatentLayout.of_wan(autoencoder(kind)) for kind in ("patches", "two frames a latent"))
    own.check(own, "drafter")
    with pytest.raises(
        ValueError, match="drafter: expected latents of the same autoencoder, got stride 2 instead of 8, frames"
    ):
        own.check(other, "drafter")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda vae: vae.decode(torch.zeros(1, 5, 2, 2, 2)),
            r"latents: expected \[B, 3, F, h, w\].*got \(1, 5, 2, 2, 2\)",
        ),
        (lambda vae: vae.decode(torch.zeros(1, 3, 0, 2, 2)), r"with a frame at least"),
        (lambda vae: vae.encode(torch.zeros(1, 3, 4, 16, 16)), "expected a multiple of 4 and one more.*got 4"),
        (
            lambda vae: vae.encode(torch.zeros(1, 3, 3, 16, 16), vae.encode(torch.zeros(1, 3, 1, 16, 16))[1]),
            "expected a multiple of 4 behind the start of a video, got 3",
        ),
        (lambda vae: vae.encode(torch.zeros(1, 3, 1, 16, 12)), r"sides that are multiples of 8.*\(1, 3, 1, 16, 12\)"),
        (lambda vae: vae.encode(torch.zeros(1, 3, 1, 16, 16, dtype=torch.uint8)), "expected float.*torch.uint8"),
        (lambda vae: (vae.model.enable_tiling(), vae.decode(latents(1))), "got tiling"),
    ],
)
def test_invalid_latents_frames_and_tiling_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(StreamingWanVAE(autoencoder()))


@pytest.mark.parametrize("kind", KINDS)
def test_quick_decoding_gives_the_same_pixels_and_states(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = autoencoder(kind), latents(5)
    plain, quick = StreamingWanVAE(model), StreamingWanVAE(model, quick=True)
    (wanted, past), (frames, state) = plain.decode(given), quick.decode(given)
    torch.testing.assert_close(frames, wanted, atol=1e-4, rtol=0)
    assert not torch.equal(frames, wanted)  # or nothing was taken
    torch.testing.assert_close(quick.encode(wanted)[0], plain.encode(wanted)[0], atol=1e-4, rtol=0)
    for own, entry in zip(state.entries, past.entries, strict=True):
        assert type(own) is type(entry) and (isinstance(own, str | None) or own.shape == entry.shape)
    later = [one.decode(latents(2, seed=1), kept)[0] for one, kept in ((plain, past), (quick, state))]
    torch.testing.assert_close(*later, atol=1e-4, rtol=0)
    monkeypatch.setattr(wan, "SMALL_FRAME", 0)  # large frames are taken one by one
    torch.testing.assert_close(quick.decode(given)[0], wanted, atol=1e-4, rtol=0)


def test_kernels_for_small_frames_match_pytorch() -> None:
    x, weight = torch.randn(2, 4, 5, 9, 8), torch.randn(6, 2, 3, 3, 1)
    given = {"stride": (1, 2, 1), "padding": (0, 1, 0), "groups": 2}
    wanted = torch.nn.functional.conv3d(x, weight, None, **given)
    norm = torch.nn.functional.normalize(x, dim=1)
    with torch.no_grad(), small_frames(x.device, x.dtype):
        torch.testing.assert_close(torch.nn.functional.conv3d(x, weight, None, **given), wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.nn.functional.normalize(x, dim=1), norm)
        assert torch.equal(torch.nn.functional.normalize(x, p=1.0, dim=1), torch.nn.functional.normalize(x, 1.0, 1))
    weight.requires_grad_()
    with small_frames(x.device, x.dtype):
        torch.nn.functional.conv3d(x, weight, None, **given).sum().backward()
    assert weight.grad is not None
