"""Benches and sweeps on another device: every input follows the model, clocks wait, and records name the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.registry import config_of, domain_of
from mmspec.evaluate.engine.rows import TIE, tie_of
from mmspec.evaluate.engine.shards import read_run
from mmspec.evaluate.engine.work import SweepWork, run_work
from mmspec.run import placement
from mmspec.run.placement import Placement, clock, device_name, inputs_on
from tests.evaluate import public_form, tiny_continuous, tiny_images, tiny_video, tiny_zoo
from tests.evaluate.pretend_gpu import GPU, PretendGpu, pretend_gpu

_ONE = {"prompts": 1, "batches": (1,)}
CASES = {
    "vlm": ("methods", {**_ONE, "new_tokens": 3, "temperatures": (0.0, 1.0), "methods": ("eagle", "lookup")}),
    "image": ("speed", {**_ONE, "guidance": (3.0,), "top_k": (0,), "methods": ("scd-gumbel-32", "eagle-tree")}),
    "continuous": ("quality", {"guidance": (2.0,), "num_iter": (4,), "images": 8, "methods": ("tolerance-0",)}),
    "video": ("tokens", {"prompts": 1, "repeats": 1, "methods": ("scd-64",)}),
}
# without suites whose rows of transformers the pretended GPU cannot run
WHOLE = [
    (domain, suite)
    for domain, suite in public_form.every()
    if suite not in ("real", "strict", "methods", "hybrid", "lengths")
]


@pytest.fixture(autouse=True)
def _models_are_made_anew() -> Iterator[None]:
    yield
    for make in (tiny_zoo.tiny_zoo, tiny_images.tiny_image_zoo, tiny_video.tiny_video_zoo):
        make.cache_clear()
    for name, make in vars(tiny_continuous).items():
        if name.startswith("tiny_") and hasattr(make, "cache_clear"):
            make.cache_clear()


def _benched(domain: str, suite: str, patch: pytest.MonkeyPatch, **settings: object) -> tuple[dict, PretendGpu]:
    (public_form.use_tiny_hybrid if suite == "hybrid" else public_form.USED[domain])(patch)
    with pretend_gpu(patch) as gpu:
        return bench(domain_of(domain), config_of(domain)(suite=suite, threads=1, **settings)), gpu


def _check(result: dict, gpu: PretendGpu) -> None:
    assert gpu.operations > 1000 and result["env"]["device"] == GPU.type
    failed = [row["failed"] for row in result["rows"] if row["failed"] and "expected weights of" not in row["failed"]]
    assert not failed, failed


@pytest.mark.parametrize(
    "domain", [pytest.param(case, marks=pytest.mark.whole) if case == "continuous" else case for case in CASES]
)
def test_no_tensor_stays_behind_when_a_model_moves(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, settings = CASES[domain]
    _check(*_benched(domain, suite, monkeypatch, **settings))


@pytest.mark.whole
@pytest.mark.parametrize(("domain", "suite"), WHOLE)
def test_no_tensor_stays_behind_in_any_suite(domain: str, suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(*_benched(domain, suite, monkeypatch, **public_form.SETTINGS[domain][suite]))


@pytest.mark.parametrize(("model", "use"), [("vlm", "vlm"), pytest.param("t2i", "image", marks=pytest.mark.whole)])
def test_a_sweep_names_its_device_in_every_shard(
    model: str, use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_form.USED[use](monkeypatch)
    decoding = {"vlm": "eagle", "t2i": "scd"}[model]
    with pretend_gpu(monkeypatch):
        plan = SweepPlan(
            folder=tmp_path, models=(model,), decodings=(decoding,), temperatures=(1.0,), count=1, threads=1
        )
        work = SweepWork.of(plan)
        monkeypatch.setattr(SweepWork, "scorings", lambda self, known: [])
        run_work(work)
    records = read_run(tmp_path)
    assert [sample["failed"] for sample in records.samples.values()] == [None, None]
    assert {one["device"] for one in (*records.models.values(), *records.headers)} == {GPU.type}
    assert records.headers[0]["about"]["device"] == GPU.type
    on_cpu = SweepPlan(folder=tmp_path, models=(model,), device="cpu", count=1)
    monkeypatch.setattr("mmspec.evaluate.engine.plan.placement_of", lambda device, dtype: Placement("cpu", dtype))
    with pytest.raises(ValueError, match="got a record of another seed, code, device or dtype"):
        SweepWork.of(SweepPlan(folder=on_cpu.folder, models=(model,), count=1)).known()


def test_the_pretend_gpu_refuses_what_a_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend_gpu(monkeypatch):
        far, near = torch.ones(2, device=GPU), torch.ones(2)
        assert (far.device, near.device, far.cpu().device) == (GPU, torch.device("cpu"), torch.device("cpu"))
        assert torch.equal(far + far, near.to(GPU) * 2) and float(far[torch.tensor([0, 1])].sum() + torch.ones(())) == 3
        for mixed in (lambda: far + near, lambda: torch.cat([far, near]), far.numpy):
            with pytest.raises((RuntimeError, TypeError), match="expected"):
                mixed()


def test_inputs_follow_the_model_and_only_pixels_its_precision() -> None:
    model = SimpleNamespace(device=torch.device("cpu"), dtype=torch.bfloat16)
    placed = inputs_on({"input_ids": torch.ones(1, 2, dtype=torch.long), "pixel_values": torch.ones(1), "n": 3}, model)
    assert [getattr(value, "dtype", None) for value in placed.values()] == [torch.int64, torch.bfloat16, None]


def test_clocks_wait_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: order.append(str(device)))
    monkeypatch.setattr(placement, "perf_counter", lambda: order.append("read") or 1.0)
    assert clock(torch.device("cuda:1")) == clock(torch.device("cpu")) == 1.0
    assert order == ["cuda:1", "read", "read"]
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A GPU")
    assert device_name(torch.device("cuda:1")) == "cuda:1 (A GPU)"


def test_drafts_are_timed_by_the_clock_that_waits() -> None:
    ticks = iter(range(100))
    drafter = SimpleNamespace(name="d", open=lambda target: SimpleNamespace(propose=lambda target, keys: "draft"))
    timed: list[float] = []
    observed = ObservedDrafter(drafter, lambda draft, seconds: timed.append(seconds), 1, lambda: next(ticks))
    observed.open(None).propose(None, None)
    assert (observed.opened, timed, next(ticks)) == ([1], [1], 4)


def test_half_precision_widens_a_tie() -> None:
    assert tie_of(torch.float32) == TIE and tie_of(torch.bfloat16) == 0.5
