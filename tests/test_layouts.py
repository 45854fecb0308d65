"""Training with split layers is training in one process: losses, norms, weights, and checkpoints read under any layout."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from tests.rank_processes import run_ranks
from transformers import MixtralConfig, Qwen3Config

SLOW = pytest.mark.slow
DRIVER = Path(__file__).with_name("layout_driver.py")
STEPS = 4
pytestmark = [pytest.mark.medium, pytest.mark.parity]


def run(folder, world, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    printed = run_ranks(DRIVER, world, str(folder), json.dumps(changes), str(STEPS))
    (line,) = [text for text in printed.splitlines() if text.startswith("{")]
    return json.loads(line), torch.load(folder / "weights.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), 1)


def assert_same(actual, expected):
    """fp32 sums in another order, and AdamW divides small gradients by their size: 2e-4 after four updates of 1e-3."""
    assert set(actual) == set(expected)
    for name, weight in expected.items():
        assert torch.allclose(actual[name], weight, atol=2e-4), name


@pytest.mark.parametrize(
    ("world", "parallel", "recomputed"),
    [
        (2, {"tensor": 2}, "none"), (2, {"tensor": 2, "sequence_parallel": True}, "blocks"),
        (4, {"shard": 2, "replicate": 2}, "none"), (2, {"shard": 2, "zero": 1}, "none"),
        pytest.param(2, {"shard": 2, "zero": 2}, "blocks", marks=SLOW),
        pytest.param(4, {"shard": 2, "tensor": 2, "zero": 1}, "none", marks=SLOW),
        pytest.param(4, {"replicate": 2, "tensor": 2}, "none", marks=SLOW),
    ],
)  # fmt: skip
def test_split_layers_are_whole_ones(tmp_path, alone, world, parallel, recomputed):
    """Heads, channels, vocabulary and sequence over two ranks; copies of shards; clipping over all of them."""
    report, weights = run(tmp_path, world, parallel=parallel, recomputed=recomputed)
    assert report["losses"] == pytest.approx(alone[0]["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(alone[0]["norms"], rel=1e-4)
    assert_same(weights, alone[1])
    assert report["local"] < 0.51 * alone[0]["local"]


@pytest.mark.parametrize(
    ("world", "parallel"),
    [(2, {"shard": 2}), pytest.param(2, {"shard": 2, "zero": 1}, marks=SLOW),
     pytest.param(4, {"shard": 2, "replicate": 2, "zero": 2}, marks=SLOW)],
)  # fmt: skip
def test_losses_in_chunks_over_shards_are_whole_ones(tmp_path, alone, world, parallel):
    """FSDP2 gathers the output layer for the forward pass, and it stays until its gradient is there."""
    report, weights = run(tmp_path, world, parallel=parallel, cross_entropy="chunked")
    assert report["losses"] == pytest.approx(alone[0]["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(alone[0]["norms"], rel=1e-4)
    assert_same(weights, alone[1])


@pytest.fixture(scope="module")
def alone_in_full_rows(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), 1, padding="fixed")


@pytest.mark.parametrize(
    ("world", "parallel", "recomputed", "loss"),
    [
        (2, {"context": 2}, "none", "chunked"), (4, {"shard": 2, "context": 2}, "selective", "full"),
        pytest.param(4, {"context": 4}, "blocks", "full", marks=SLOW),
        pytest.param(4, {"replicate": 2, "context": 2}, "none", "full", marks=SLOW),
        pytest.param(4, {"tensor": 2, "context": 2, "sequence_parallel": True}, "none", "full", marks=SLOW),
        pytest.param(4, {"shard": 2, "context": 2}, "none", "chunked", marks=SLOW),
    ],
)  # fmt: skip
def test_split_sequences_are_whole_ones(tmp_path, alone_in_full_rows, world, parallel, recomputed, loss):
    """Rows of up to 32 tokens, padded; labels at the edges of pieces, accumulation, clipping and shards over all ranks."""
    report, weights = run(
        tmp_path, world, parallel=parallel, recomputed=recomputed, padding="fixed", cross_entropy=loss
    )
    expected, one = alone_in_full_rows
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)
    assert report["local"] < 1.01 * expected["local"] * parallel.get("replicate", 1) / world


@pytest.mark.parametrize(
    ("driver", "refusals"), [("context_driver.py", {"gemma2", "gpt_neo"}), ("expert_driver.py", {"llama"})]
)
def test_families_over_two_ranks(driver, refusals):
    """Losses and gradients of each family with split sequences, or dealt experts, are those of one model."""
    printed = run_ranks(DRIVER.with_name(driver), 2)
    (line,) = [text for text in printed.splitlines() if text.startswith("{")]
    results = json.loads(line)
    refused = {family: result for family, result in results.items() if isinstance(result, str)}
    assert set(refused) == refusals, refused
    for family, result in results.items():
        if family not in refused:
            assert result["loss"] == pytest.approx(result["whole_loss"], rel=1e-5), family
            assert result["gradient_error"] < 1e-4, family


def test_families_whose_layers_are_split_over_two_ranks():
    """Losses and gradients are those of whole layers; packed layers and norms over all heads keep whole outputs."""
    printed = run_ranks(DRIVER.with_name("tensor_driver.py"), 2)
    (line,) = [text for text in printed.splitlines() if text.startswith("{")]
    results = json.loads(line)
    assert len(results) == 22
    for family, result in results.items():
        assert result["loss"] == pytest.approx(result["whole_loss"], rel=1e-5), family
        assert result["gradient_error"] < 1e-4, family
        assert result["local"] < 0.53, family


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU")
@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        (2, {"tensor": 2, "sequence_parallel": True}), pytest.param(2, {"pipeline": 2}, marks=SLOW),
        pytest.param(2, {"context": 2}, marks=SLOW), pytest.param(4, {"pipeline": 2, "tensor": 2}, marks=SLOW),
        pytest.param(4, {"shard": 2, "tensor": 2}, marks=SLOW),
    ],
)  # fmt: skip
def test_compiled_blocks_of_any_layout_are_the_plain_ones(tmp_path, alone_in_full_rows, world, parallel):
    report, weights = run(tmp_path, world, parallel=parallel, padding="fixed", compile="default")
    expected, one = alone_in_full_rows
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A small mixture and its run in one process."""
    model = tmp_path_factory.mktemp("mixture")
    MixtralConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        vocab_size=500, num_local_experts=8, num_experts_per_tok=3,
    ).save_pretrained(model)  # fmt: skip
    return str(model), run(tmp_path_factory.mktemp("alone"), 1, model=str(model), padding="fixed")


def test_more_ranks_than_experts_train_one_mixture(tmp_path):
    """FSDP splits two experts over four ranks along another dimension, dealt or not."""
    few = MixtralConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        vocab_size=500, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    few.save_pretrained(tmp_path / "model")
    same = {"model": str(tmp_path / "model"), "padding": "fixed"}
    expected, one = run(tmp_path / "alone", 1, **same)
    for parallel in ({"shard": 4}, {"shard": 4, "expert": 2}):
        report, weights = run(tmp_path / f"{len(parallel)}", 4, parallel=parallel, **same)
        assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
        assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
        assert_same(weights, one)
        assert report["local"] < 0.27 * expected["local"]


@pytest.mark.parametrize(
    ("world", "parallel", "recomputed"),
    [
        (2, {"shard": 2, "expert": 2}, "none"), (4, {"shard": 4, "expert": 2}, "blocks"),
        pytest.param(4, {"shard": 2, "replicate": 2, "expert": 2}, "none", marks=SLOW), (4, {"shard": 2, "context": 2, "expert": 4}, "none"),
        (4, {"pipeline": 2, "shard": 2, "expert": 2}, "none"), (2, {"pipeline": 2}, "blocks"),
    ],
)  # fmt: skip
def test_dealt_experts_are_one_mixture(tmp_path, mixture, world, parallel, recomputed):
    """Gradients of experts are summed over those that hold the same ones, and count in the norm that is clipped."""
    model, (expected, one) = mixture
    report, weights = run(tmp_path, world, model=model, parallel=parallel, recomputed=recomputed, padding="fixed")
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)


def test_rows_for_experts_of_another_machine_go_there_once(tmp_path, mixture):
    """Two machines of two ranks: a row goes to its own place over there, and from there on to its neighbours."""
    model, (expected, one) = mixture
    words = {"model": model, "padding": "fixed", "recomputed": "blocks", "gpus_per_node": 2}
    report, weights = run(tmp_path, 4, parallel={"shard": 4, "expert": 4}, **words)
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU")
@pytest.mark.parametrize(
    ("world", "words"),
    [
        (4, {"parallel": {"shard": 4, "expert": 4}, "gpus_per_node": 2}),
        (2, {"parallel": {"tensor": 2, "expert": 2, "sequence_parallel": True}}), (2, {"parallel": {"tensor": 2}}),
    ],
)  # fmt: skip
def test_compiled_blocks_with_experts_are_the_plain_ones(tmp_path, mixture, world, words):
    """Ten blocks, more than Dynamo compiles anew."""
    same = {"model": mixture[0], "padding": "fixed", "config": {"num_hidden_layers": 10}}
    expected, one = run(tmp_path / "alone", 1, **same)
    report, weights = run(tmp_path / "ranks", world, compile="default", **words, **same)
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)


@pytest.mark.parametrize(
    ("world", "parallel", "recomputed"),
    [
        (2, {"tensor": 2, "expert": 2, "sequence_parallel": True}, "blocks"),
        pytest.param(2, {"tensor": 2}, "none", marks=SLOW), pytest.param(2, {"tensor": 2, "expert": 2}, "none", marks=SLOW),
        pytest.param(4, {"shard": 2, "tensor": 2, "sequence_parallel": True}, "blocks", marks=SLOW),
        pytest.param(4, {"shard": 2, "tensor": 2, "expert": 4, "sequence_parallel": True}, "none", marks=SLOW),
        pytest.param(4, {"context": 2, "tensor": 2, "expert": 4}, "none", marks=SLOW),
        pytest.param(4, {"pipeline": 2, "tensor": 2, "expert": 2, "sequence_parallel": True}, "none", marks=SLOW),
    ],
)  # fmt: skip
def test_mixtures_beside_split_layers_are_one_mixture(tmp_path, mixture, world, parallel, recomputed):
    """Experts split like the layers, or dealt over the ranks that split them; routers get their gradients from all."""
    model, (expected, one) = mixture
    report, weights = run(tmp_path, world, model=model, parallel=parallel, recomputed=recomputed, padding="fixed")
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)
    assert report["local"] < 0.51 * expected["local"]


@SLOW
def test_packed_parts_go_on_under_other_layouts(tmp_path, mixture):
    """A rank writes its piece of gate and its piece of up; others read what they need of both."""
    model, (_, one) = mixture
    layouts = (4, {"shard": 2, "tensor": 2}), (2, {"tensor": 2, "expert": 2}), (2, {"tensor": 2}), (1, {})
    for number, (world, parallel) in enumerate(layouts):
        report, weights = run(tmp_path, world, model=model, parallel=parallel, padding="fixed", sharded=True)
        assert report["first"] == (2 if number else 0)
        assert_same(weights, one)
        shutil.rmtree(tmp_path / "step-00000004")


def test_norms_of_heads_and_tied_embeddings(tmp_path):
    """Gradients of a norm over each head are added up over the heads of all ranks."""
    model = tmp_path / "model"
    config = Qwen3Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=128, vocab_size=500, tie_word_embeddings=True,
    )  # fmt: skip
    config.save_pretrained(model)
    expected, one = run(tmp_path / "one", 1, model=str(model))
    parallel = {"tensor": 2, "sequence_parallel": True}
    report, weights = run(tmp_path / "two", 2, model=str(model), parallel=parallel)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)


STAGES = {"padding": "fixed", "config": {"num_hidden_layers": 4, "tie_word_embeddings": False}}
"""An epoch has 21 rows: the last of its steps has 5, where others have 8."""


@pytest.fixture(scope="module")
def one_stage(tmp_path_factory):
    return run(tmp_path_factory.mktemp("one"), 1, **STAGES)


def test_a_pipeline_is_trained_and_goes_on_bit_for_bit(tmp_path, one_stage):
    """Each stage writes what it holds; two steps again are the same bits, and one process can go on as well."""
    expected, one = one_stage
    report, weights = run(tmp_path, 2, parallel={"pipeline": 2}, **STAGES)
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)
    assert report["local"] == pytest.approx(expected["local"] / 2, rel=0.01)
    shutil.rmtree(tmp_path / "step-00000004")
    again, same = run(tmp_path, 2, parallel={"pipeline": 2}, **STAGES)
    assert (again["first"], again["losses"]) == (2, report["losses"][2:])
    assert all(torch.equal(same[name], weight) for name, weight in weights.items())
    shutil.rmtree(tmp_path / "step-00000004")
    alone, weights = run(tmp_path, 1, **STAGES)
    assert alone["first"] == 2
    assert_same(weights, one)


def test_stages_with_parts_go_on_under_other_layouts(tmp_path, one_stage):
    """Two parts for each stage, sharded; then stages of split layers, then shards without stages."""
    layouts = (
        (4, {"pipeline": 2, "shard": 2, "schedule": "interleaved", "virtual_stages": 2}),
        (4, {"pipeline": 2, "tensor": 2}), (2, {"shard": 2}),
        (4, {"pipeline": 2, "tensor": 2, "schedule": "interleaved", "virtual_stages": 2, "engine": "megatron"}),
    )  # fmt: skip
    for number, (world, parallel) in enumerate(layouts):
        report, weights = run(tmp_path, world, parallel=parallel, **STAGES)
        assert report["first"] == (2 if number else 0)
        assert_same(weights, one_stage[1])
        shutil.rmtree(tmp_path / "step-00000004")


@pytest.mark.parametrize(
    ("world", "parallel", "recomputed"),
    [
        (4, {"pipeline": 2, "context": 2}, "none"),
        pytest.param(4, {"pipeline": 2, "context": 2, "schedule": "interleaved", "virtual_stages": 2}, "blocks", marks=SLOW),
        pytest.param(4, {"pipeline": 2, "context": 2, "schedule": "zero-bubble", "virtual_stages": 2}, "none", marks=SLOW),
        pytest.param(8, {"pipeline": 2, "context": 2, "tensor": 2, "sequence_parallel": True}, "none", marks=SLOW),
        (4, {"pipeline": 2, "tensor": 2, "sequence_parallel": True, "schedule": "interleaved", "virtual_stages": 2}, "blocks"),
        pytest.param(4, {"pipeline": 2, "tensor": 2, "sequence_parallel": True, "schedule": "zero-bubble", "virtual_stages": 2}, "none", marks=SLOW),
    ],
)  # fmt: skip
def test_stages_of_split_sequences(tmp_path, one_stage, world, parallel, recomputed):
    """Each stage is given pieces of the rows, and knows their positions; scores are of whole rows."""
    expected, one = one_stage
    report, weights = run(tmp_path, world, parallel=parallel, recomputed=recomputed, **STAGES)
    assert report["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert report["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert_same(weights, one)
    if parallel.get("schedule") != "zero-bubble":  # a V: the first rank has the embedding and the output layer
        assert report["local"] < 1.01 * expected["local"] / world


def test_dealt_experts_go_on_in_one_process(tmp_path, mixture):
    """State of the optimizer is kept by name: experts are a group of their own where they are dealt."""
    model, (_, one) = mixture
    words = {"model": model, "padding": "fixed", "sharded": True}
    _, weights = run(tmp_path, 2, parallel={"shard": 2, "expert": 2}, **words)
    shutil.rmtree(tmp_path / "step-00000004")
    report, weights = run(tmp_path, 1, **words)
    assert report["first"] == 2
    assert_same(weights, one)


@pytest.mark.parametrize(
    ("words", "parallel"),
    [
        (STAGES, {"pipeline": 2}), ({"padding": "fixed"}, {"context": 2}),
        ({"padding": "fixed"}, {"tensor": 2, "sequence_parallel": True}),
        pytest.param(STAGES, {"pipeline": 2, "context": 2, "tensor": 2, "sequence_parallel": True}, marks=SLOW),
        ({"padding": "fixed", "model": "mixture"}, {"shard": 2, "expert": 2}),
    ],
)  # fmt: skip
def test_scores_and_a_checkpoint_right_after_them(tmp_path, mixture, words, parallel):
    """An epoch ends with scoring and a checkpoint, while weights are gathered still; a run goes on from there."""
    words = {**words, "is_scored": True}
    if words.get("model"):
        words["model"] = mixture[0]
    expected, one = run(tmp_path / "one", 1, **words)
    world = math.prod(size for name, size in parallel.items() if name in ("shard", "pipeline", "context", "tensor"))
    report, weights = run(tmp_path / "two", world, parallel=parallel, **words)
    assert report["scores"] == pytest.approx(expected["scores"], rel=1e-4)
    assert_same(weights, one)
    shutil.rmtree(tmp_path / "two" / "step-00000004")
    again, weights = run(tmp_path / "two", world, parallel=parallel, **words)
    assert again["first"] == 3
    assert_same(weights, one)


def test_checkpoints_in_parts_go_on_under_any_layout(tmp_path, alone):
    """Four ranks write what they hold, each part once; two read what they need, and then one does."""
    _, weights = run(tmp_path, 4, parallel={"shard": 2, "tensor": 2}, sharded=True)
    assert_same(weights, alone[1])
    second = tmp_path / "step-00000002"
    assert len(list(second.glob("model-*.safetensors"))) == 4
    for world, parallel in ((2, {"tensor": 2, "sequence_parallel": True}), (1, {})):
        shutil.rmtree(tmp_path / "step-00000004")
        report, weights = run(tmp_path, world, parallel=parallel)
        assert report["first"] == 2
        assert_same(weights, alone[1])
