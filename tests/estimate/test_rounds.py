"""Estimates of rounds: monotone where they must be, below 1 where nothing is accepted, and refused without figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmspec.estimate.acceptance import AcceptanceCurve, curve_of_counts, curve_of_length
from mmspec.estimate.device import (
    BANDWIDTH_SHARE,
    DEVICES,
    FLOPS_SHARE,
    Device,
    MeasuredProducts,
    MeasuredReads,
    device_of,
)
from mmspec.estimate.drafters import drafter_cost, drafter_costs
from mmspec.estimate.model_cost import Experts, ModelCost
from mmspec.estimate.round_cost import Request, RoundCost
from mmspec.estimate.schedules import Durations, simulate
from mmspec.estimate.table import estimate_table
from mmspec.estimate.videos import BlockModel, estimate_video
from mmspec.estimate.work import Work, product
from mmspec.methods import names

LAYER = {(512, 512): 4.0, (512, 1376): 2.0, (1376, 512): 1.0}
MODEL = ModelCost(
    "model",
    {shape: 8 * count for shape, count in LAYER.items()},
    (512, 8000),
    33_000_000,
    8192,
    0.0,
    16384,
    250_000,
    300,
    300,
    8,
    layer=LAYER,
)
SLOW = Device("slow", "bound by computing", "a test", 1e12, {"bfloat16": 2e12}, 1e-7, 1e9)
CHANCES = (0.8, 0.7, 0.6)


def costs(curve: AcceptanceCurve | None = None, device: Device = DEVICES["a100"], drafter: str = "eagle") -> RoundCost:
    return RoundCost(device, MODEL, drafter_cost(drafter), curve or AcceptanceCurve(CHANCES, "test"))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("device", [*DEVICES.values(), SLOW], ids=lambda one: one.name)
@pytest.mark.parametrize("drafter", ["eagle", "dflash", "lookup", "medusa"])
def test_more_acceptance_is_never_slower(device: Device, drafter: str) -> None:
    for length in (1, 3, 8):
        speeds = [
            costs(AcceptanceCurve((chance,), ""), device, drafter).estimate(Request(), length).speedup
            for chance in (0.0, 0.3, 0.6, 0.9, 1.0)
        ]
        assert speeds == sorted(speeds)


@pytest.mark.parametrize("drafter", ["eagle", "dflash", "lookup", "medusa", "hydra"])
def test_nothing_accepted_is_slower_than_plain(drafter: str) -> None:
    for length in (1, 4, 8):
        found = costs(AcceptanceCurve((0.0,), ""), drafter=drafter).estimate(Request(), length)
        assert found.tokens == 1 and found.speedup <= 1 and found.decoding <= 1
        strict = costs(AcceptanceCurve((0.0,), ""), SLOW, drafter).estimate(Request(), length)
        assert strict.speedup < 1


def test_a_larger_batch_gains_less_where_computing_is_the_limit() -> None:
    found = costs(device=SLOW)
    gains = [found.best(Request(batch=batch), range(1, 9), (8, 32)).decoding for batch in (1, 4, 16, 64)]
    assert gains == sorted(gains, reverse=True) and gains[-1] < gains[0]


def test_plain_decoding_has_a_speedup_of_1() -> None:
    assert costs().estimate(Request(), 0).speedup == 1


def test_a_larger_tree_accepts_more_than_a_smaller_tree_and_a_chain() -> None:
    curve = AcceptanceCurve(CHANCES, "")
    assert curve.tokens(3) == pytest.approx(1 + 0.8 + 0.56 + 0.336)
    assert curve.tokens(3) == curve.tokens(3, 3) < curve.tokens(3, 12) < curve.tokens(3, 60) < 4
    tree = curve_of_length(3.5, 5, "", 40)
    assert tree.tokens(5) == pytest.approx(3.5) == pytest.approx(tree.tokens(5, 40)) and tree.chain().tokens(5) < 3.5


def test_a_curve_of_counts_is_the_share_that_went_on() -> None:
    curve = curve_of_counts([0, 1, 1, 3], 3, "rounds")
    assert curve.chances == (0.75, 1 / 3, 1.0)
    assert curve.tokens(3) == pytest.approx(1 + (0 + 1 + 1 + 3) / 4)


def test_every_drafter_of_the_registry_has_costs() -> None:
    costs = drafter_costs()
    assert set(names("vlm", "drafter")) - {"auto"} <= costs.keys()
    assert costs["dspark"].pattern == costs["peagle"].pattern == "block" and costs["medusa"].pattern == "heads"
    assert costs["eagle3"].joined == 3 and costs["eagle"].joined == 2 and costs["lookup"].pattern == "nothing"
    assert costs["recycling"].tree and not costs["lookup"].tree and costs["scd"].pattern == "nothing"


def test_a_table_says_where_drafting_stops_being_faster() -> None:
    table = estimate_table(costs(AcceptanceCurve((0.3,), ""), SLOW), Request(), batches=(1, 64, 1024))
    assert "no draft is faster" in table.stops or "slower than plain" in table.stops
    record = table.record()
    assert record["label"] == "estimate, not measured" and len(record["batches"]) == 3
    assert [one["length"] for one in record["lengths"]] == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16]
    assert "faster up to" in estimate_table(costs(), Request(), batches=(1,)).stops


def test_a_device_prices_memory_computing_and_calls() -> None:
    device = Device("d", "", "", 1e9, {"float32": 1e12}, 1e-6, 1.0, waits=True)
    assert device.seconds(product(1, 1000, 1000), "float32") == pytest.approx(1e-6 + 4e6 / 1e9)
    assert device.seconds(product(1e6, 1000, 1000), "float32") == pytest.approx(1e-6 + 2e12 / 1e12)
    assert device.seconds(Work(calls=3, views=2), "float32") == pytest.approx(5e-6)
    measured = MeasuredProducts((1, 4), (32, 64), ((1e-6, 1e-6), (2e-6, 8e-6)))
    assert measured(1, 64 * 64) == pytest.approx(1e-6) and measured(4, 64 * 64) == pytest.approx(7e-6)
    assert measured(8, 64 * 64) == pytest.approx(15e-6)  # beyond what was measured in proportion


def test_reads_are_a_start_and_a_time_for_each_number() -> None:
    # 2 and 5 microseconds for 1,000 and 2,000 numbers among few weights, twice that among many
    reads = MeasuredReads(
        (1, 4), (1e6, 1e8), (1000, 2000), (((2e-6, 5e-6), (4e-6, 1e-5)), ((4e-6, 1e-5), (8e-6, 2e-5)))
    )
    assert reads(1, 1000, 1e6) == pytest.approx(2e-6) and reads(1, 2000, 1e6) == pytest.approx(5e-6)
    assert reads(1, 3000, 1e6) == pytest.approx(8e-6)  # on the line through both
    assert reads(1, 500, 1e6) == pytest.approx(1e-6)  # where the line would end below nothing
    assert reads(1, 1000, 1e9) == pytest.approx(4e-6)  # more weights than any cache holds
    assert reads(8, 1000, 1e6) == pytest.approx(8e-6)  # beyond the measured rows in proportion
    device = Device("d", "", "", 1e9, {"float32": 1e15}, 1e-6, 1.0, waits=True, reads=reads)
    assert device.seconds(product(1, 10, 100), "float32", 1e6) == pytest.approx(3e-6)
    assert device.seconds(product(1, 10, 200), "float32", 1e6) == pytest.approx(6e-6)


def test_operators_around_the_pass_of_a_drafted_round_take_longer() -> None:
    device = Device("d", "", "", 1e9, {"float32": 1e12}, 1e-6, 1.0, waits=True, view=5e-7, drafting=2.0, attention=1e9)
    assert device.seconds(Work(calls=3, views=2), "float32", drafting=True) == pytest.approx(8e-6)
    assert device.seconds(Work(calls=3, views=2), "float32") == pytest.approx(4e-6)
    assert device.seconds(Work(flops=1e6), "float32") == pytest.approx(1e-3)
    slow, fast = (costs(device=replace(SLOW, drafting=factor)).estimate(Request(), 3) for factor in (3, 1))
    assert slow.draft > fast.draft and slow.verify == fast.verify


def test_an_accelerator_takes_the_longest_of_launch_bytes_and_operations() -> None:
    device = Device("d", "", "", 1e9, {"float32": 1e12}, 1e-6, 1.0)
    small, read, computed = product(1, 4, 4), product(1, 1000, 1000), product(1e6, 1000, 1000)
    assert device.seconds(small, "float32") == pytest.approx(1e-6)
    assert device.seconds(read, "float32") == pytest.approx(4 * (1e6 + 2000) / (BANDWIDTH_SHARE * 1e9))
    assert device.seconds(computed, "float32") == pytest.approx(4 * (1e6 + 2e9) / (BANDWIDTH_SHARE * 1e9))
    quick = replace(device, bandwidth=1e15)
    assert quick.seconds(computed, "float32") == pytest.approx(2e12 / (FLOPS_SHARE * 1e12))
    assert device.seconds(Work(calls=3, views=9), "float32") == pytest.approx(3e-6)


def test_a_device_without_figures_and_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected figures above 0, got none for bandwidth"):
        Device("d", "", "", 0.0, {"float32": 1e12}, 1e-6, 1.0)
    with pytest.raises(ValueError, match="got none for flops"):
        Device("d", "", "", 1.0, {}, 1e-6, 1.0)
    with pytest.raises(ValueError, match=r"--device: expected one of h100.*here, got 'tpu'"):
        device_of("tpu")
    with pytest.raises(ValueError, match=r"--dtype: expected one of .* on h100, got 'int8'"):
        DEVICES["h100"].seconds(Work(calls=1), "int8")
    with pytest.raises(ValueError, match="--tree: expected it left out for lookup"):
        costs(drafter="lookup").estimate(Request(), 2, 8)
    with pytest.raises(ValueError, match="--drafter: expected a model for small"):
        costs(drafter="small").estimate(Request(), 2)


@pytest.mark.parametrize("chances", [(), (1.2,), (float("nan"),), (0.5, -0.1)])
def test_a_wrong_curve_is_refused(chances: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="--acceptance: expected chances from 0 to 1"):
        AcceptanceCurve(chances, "")


def test_schedules_share_one_clock() -> None:
    curve, certain = AcceptanceCurve((0.7,), ""), AcceptanceCurve((1.0,), "")
    times = Durations(0.1, lambda values: 1.0)
    found = {one.schedule: one for one in simulate(times, curve, 5, hit=1.0, early=0.0)}
    assert found["draft, then verify"].devices == 1 and found["PEARL"].devices == 2
    # a branch that is always at hand, drafted behind the whole pass, hides the draft
    assert found["Mirror-SD"].speedup == pytest.approx(found["draft, then verify"].speedup * 1.5, rel=0.05)
    assert found["EasySpec"].seconds > 0 and simulate(times, curve, 5) == simulate(times, curve, 5)
    # where all is accepted and both devices are as fast, a round takes the longer of both and emits a draft
    even = {one.schedule: one for one in simulate(Durations(0.2, lambda values: 1.0), certain, 5)}
    assert even["PEARL"].seconds == pytest.approx(1 / 5, rel=0.01)
    assert even["draft, then verify"].seconds == pytest.approx(2 / 6, rel=0.01)


def test_a_video_gains_with_accepted_blocks() -> None:
    target, small = BlockModel(5120, 13824, 40, 16, (1, 2, 2)), BlockModel(1536, 8960, 30, 16, (1, 2, 2))
    found = [estimate_video(DEVICES["h100"], target, small, share) for share in (0.0, 0.5, 1.0)]
    assert found[0].speedup < 1 < found[1].speedup < found[2].speedup
    assert all(entry.eager <= entry.speedup for entry in found) and target.tokens(3, 60, 104) == 4680
    with pytest.raises(ValueError, match="share of accepted blocks, 0 to 1, got 2"):
        estimate_video(DEVICES["h100"], target, small, 2.0)


@pytest.mark.parametrize("batch", (1, 16))
def test_target_efficiency_is_the_plain_pass_over_the_verifying_pass(batch: int) -> None:
    found, request = costs(device=SLOW), Request(batch=batch)
    plain, drafted = found.estimate(request, 0), found.estimate(request, 5)
    assert plain.target_efficiency == pytest.approx(1)
    assert drafted.target_efficiency == pytest.approx(plain.verify / drafted.verify) and drafted.verify > plain.verify
    # the speedup by MoESD's formula, from the drafted seconds and the efficiency
    share = drafted.draft / plain.verify + 1 / drafted.target_efficiency
    assert drafted.decoding == pytest.approx(drafted.tokens / share)
    assert drafted.record()["target_efficiency"] == drafted.target_efficiency


def test_experts_lower_the_target_efficiency_until_all_are_read() -> None:
    sparse = replace(MODEL, experts=Experts(8, 64, 4, ((512, 2752), (1376, 512))))
    memory = Device("reads", "bound by its memory", "a test", 1e12, {"bfloat16": 1e20}, 1e-12, 1e9)
    found = RoundCost(memory, sparse, drafter_cost("eagle"), AcceptanceCurve(CHANCES, "test"))
    one, some, many = (found.estimate(Request(batch=batch), 5).target_efficiency for batch in (1, 8, 64))
    assert one < some < many < 1
    assert one < RoundCost(memory, MODEL, drafter_cost("eagle"), found.curve).estimate(Request(), 5).target_efficiency
