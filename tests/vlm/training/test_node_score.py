"""C2T's network: nodes of verified drafts with their labels, a balanced training, one file, one text form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.core.drafting.heap import BestFirst
from mmspec.vlm import load_drafter
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.node_score import LikelyNodes, NodeScore, NodeScoreConfig
from mmspec.vlm.training.node_score import VerifiedNodes, node_loss, train_node_score, verified_nodes_of
from tests.vlm.drafters.rows import row_of
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny


def planted(turned: bool, count: int = 600) -> VerifiedNodes:
    """Nodes that are accepted above a line of chance and depth; one in four is."""
    torch.manual_seed(0)
    features = torch.stack([torch.rand(count) * -4, torch.rand(count), torch.randint(1, 6, (count,)).float()], -1)
    height = features[:, 0] - 0.3 * features[:, 2] * (1 if turned else -1)
    return VerifiedNodes(features, height > height.quantile(0.75))


def test_training_finds_the_line_of_each_kind_of_nodes() -> None:
    picked, drawn = planted(False), planted(True)
    network = train_node_score(picked, drawn, steps=150)
    for nodes, kind in ((picked, False), (drawn, True)):
        right = (network(nodes.features, kind) > 0) == nodes.accepted
        assert right.float().mean() > 0.95
        assert ((network(nodes.features, not kind) > 0) == nodes.accepted).float().mean() < 0.95
    assert sum(p.numel() for p in network.drawn.parameters()) < 50
    with pytest.raises(ValueError, match="drawn: expected accepted and rejected nodes"):
        train_node_score(picked, VerifiedNodes(drawn.features, torch.ones_like(drawn.accepted)))


def test_both_labels_have_the_same_weight() -> None:
    logits, accepted = torch.tensor([2.0, -1.0, 0.5, 1.0]), torch.tensor([True, False, False, False])
    log = torch.nn.functional.logsigmoid
    expected = -(log(logits[:1]).mean() + log(-logits[1:]).mean()) / 2
    torch.testing.assert_close(node_loss(logits, accepted), expected)


@pytest.mark.parametrize("sampled", (pytest.param(False, marks=pytest.mark.whole), True), ids=("greedy", "sampled"))
def test_nodes_of_a_request_are_labelled_by_its_verdicts(sampled: bool) -> None:
    model, shape = tiny("llama"), BestFirst(6, 3, 2)
    settings = dict(prompt("llama", images=0, batch=1), max_new_tokens=24, do_sample=sampled, seed=[3])
    nodes = verified_nodes_of(model, make("eagle"), [settings], shape)
    run = mmspec.generate(model, drafter=make("eagle").with_shape(shape), return_dict=True, **settings)
    accepted = [row[0] for row in run.stats.accepted[1:-1]]  # without the prefill and the last round
    assert int(nodes.accepted.sum()) == sum(accepted) and len(nodes.accepted) <= 6 * len(accepted)
    assert (nodes.features[:, 0] <= 1e-6).all() and set(nodes.features[:, 2].tolist()) <= {1.0, 2.0, 3.0}


@pytest.fixture
def network() -> NodeScore:
    torch.manual_seed(1)
    return NodeScore(NodeScoreConfig(4))


def test_a_network_is_a_file_and_a_filter_a_text(network: NodeScore, tmp_path: Path) -> None:
    network.save_pretrained(tmp_path / "c2t")
    make("eagle").save_pretrained(tmp_path / "eagle")
    text = f"eagle:shape=(best:nodes=6,score=(c2t:least=0.4@{tmp_path / 'c2t'}))@{tmp_path / 'eagle'}"
    shape = drafter_from_text(text, tiny("llama")).shapes[1]
    assert isinstance(shape.score, LikelyNodes) and (shape.score.least, shape.nodes) == (0.4, 6)
    features = torch.randn(5, 3)
    assert torch.equal(load_drafter(tmp_path / "c2t", target=tiny("llama"))(features, True), network(features, True))
    with pytest.raises(ValueError, match="length: expected a controller of lengths"):
        drafter_from_text(f"eagle:length=(c2t@{tmp_path / 'c2t'})@{tmp_path / 'eagle'}", tiny("llama"))
    with pytest.raises(ValueError, match="least: expected at least 0 and at most 1"):
        LikelyNodes(network, 1.5)


def test_filtered_words_are_the_targets_own_and_rows_do_not_meet(network: NodeScore) -> None:
    inputs, model = prompt("llava", 2, "start", 3), tiny("llava")
    drafter = make("eagle").with_shape(BestFirst(8, 3, 3, score=LikelyNodes(network, 0.52)))
    wanted = model.generate(**inputs, max_new_tokens=10, do_sample=False)
    greedy = mmspec.generate(model, drafter=drafter, max_new_tokens=10, do_sample=False, **inputs)
    assert torch.equal(greedy, wanted)
    sampled = dict(drafter=drafter, do_sample=True, max_new_tokens=10)
    together = mmspec.generate(model, seed=[3, 4, 5], **sampled, **inputs)
    for row in range(3):
        alone = mmspec.generate(model, seed=[3 + row], **sampled, **row_of(inputs, row))
        assert torch.equal(alone[0, -10:], together[row, -10:])
