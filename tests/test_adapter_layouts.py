"""LoRA over split layers, split sequences and stages is LoRA in one process; its checkpoints go on under any layout."""

import shutil

import pytest
import torch
from tests.layout_driver import training
from tests.test_layouts import STAGES, STEPS, assert_same, run

from forerun.step.parallel import whole

ADAPTER = {"adapter": {"kind": "lora", "rank": 4}}
FULL_ROWS = {**ADAPTER, "padding": "fixed"}
FOUR_BLOCKS = {**ADAPTER, **STAGES}
ALONG = {"tensor": 2, "sequence_parallel": True}
pytestmark = pytest.mark.parity


def assert_trained_as(expected, one, report, weights):
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)


@pytest.mark.medium
def test_adapters_of_split_layers_are_those_of_whole_ones(tmp_path):
    """Gradients of what every rank holds are summed, those of parts are not; what is frozen stays as it was.

    Scores, too: logits are split while training, and whole then.
    """
    words = {**ADAPTER, "is_scored": True}
    alone = training(tmp_path / "one", words, STEPS)
    before = {name: p.detach().clone() for name, p in alone.step.model.named_parameters()}
    reports = list(alone.steps())
    report, weights = run(tmp_path / "two", 2, parallel=ALONG, **words)
    assert report["losses"] == pytest.approx([each.loss for each in reports], rel=1e-4)
    assert report["norms"] == pytest.approx([float(each.gradient_norm) for each in reports], rel=1e-4)
    assert report["scores"] == pytest.approx([scores["loss"] for _, scores in alone.evaluations], rel=1e-4)
    assert_same(weights, {name: whole(p.detach()) for name, p in alone.step.model.named_parameters()})
    trained = {name for name, weight in weights.items() if not torch.equal(weight, before[name])}
    assert trained == {name for name in weights if "lora_" in name}


@pytest.fixture(scope="module")
def alone_in_full_rows(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), 1, **FULL_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "changes"),
    [
        (2, {"parallel": {"tensor": 2}, "recomputed": "blocks"}), (4, {"parallel": {**ALONG, "shard": 2}}),
        (4, {"parallel": {**ALONG, "replicate": 2}}), (2, {"parallel": {"context": 2}, "recomputed": "selective"}),
        (4, {"parallel": {**ALONG, "context": 2}}), (2, {"parallel": ALONG, "compile": "default"}),
        (4, {"parallel": {"shard": 2, "tensor": 2}, "compile": "default"}),
        (2, {"parallel": {"context": 2}, "compile": "default"}),
    ],
)  # fmt: skip
def test_adapters_of_any_layout_are_those_of_one_process(tmp_path, alone_in_full_rows, world, changes):
    expected, one = alone_in_full_rows
    assert_trained_as(expected, one, *run(tmp_path, world, **FULL_ROWS, **changes))


@pytest.fixture(scope="module")
def one_stage(tmp_path_factory):
    return run(tmp_path_factory.mktemp("one"), 1, **FOUR_BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "changes"),
    [
        (4, {"parallel": {**ALONG, "pipeline": 2}}), (2, {"parallel": {"pipeline": 2}, "compile": "default"}),
        (4, {"parallel": {"pipeline": 2, "shard": 2, "schedule": "interleaved", "virtual_stages": 2}}),
        (2, {"parallel": {"pipeline": 2, "schedule": "zero-bubble", "virtual_stages": 2}}),
    ],
)  # fmt: skip
def test_adapters_are_dealt_to_stages(tmp_path, one_stage, world, changes):
    expected, one = one_stage
    assert_trained_as(expected, one, *run(tmp_path, world, **FOUR_BLOCKS, **changes))


@pytest.mark.slow
def test_checkpoints_of_adapters_go_on_under_other_layouts(tmp_path, one_stage):
    """Each rank writes its parts of the adapters alone; stages, split layers, shards and one process go on from them."""
    layouts = (
        (4, {"shard": 2, "tensor": 2}), (2, {"pipeline": 2}), (4, {**ALONG, "pipeline": 2}), (2, {"shard": 2}), (1, {}),
    )  # fmt: skip
    for number, (world, parallel) in enumerate(layouts):
        report, weights = run(tmp_path, world, parallel=parallel, sharded=True, **FOUR_BLOCKS)
        assert report["first"] == (2 if number else 0), parallel
        assert_same(weights, one_stage[1])
        shutil.rmtree(tmp_path / "step-00000004")
    files = sorted((tmp_path / "step-00000002").glob("model-*.safetensors"))
    whole_bytes = sum(weight.nbytes for weight in one_stage[1].values())
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) < 0.5 * whole_bytes
