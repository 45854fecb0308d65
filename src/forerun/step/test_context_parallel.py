"""Which pieces of a sequence a rank has, what is refused with the nearest right value, and what a rank then holds."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import refuse_unsupported
from forerun.step.context_parallel import SharedSequence, require_whole_attention
from forerun.step.heads import generic_workload
from forerun.trace import GROUP_SIZE, OP, Category
from forerun.virtual.trace_step import trace_step

LENGTH = 256


def settings(length=LENGTH, padding="fixed", **changes):
    return settings_from({
        "name": "t", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
        "batch": {"micro_batch_size": 2, "sequence_length": length, "padding": padding}, **changes,
    })  # fmt: skip


class OneRank:
    """The mesh of a rank among four."""

    def __init__(self, rank):
        self.rank = rank

    def size(self):
        return 4

    def get_local_rank(self):
        return self.rank


def test_pieces_are_those_that_pytorch_deals():
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

    order = _HeadTailLoadBalancer(32, 4, "cpu")._generate_indices()[0]
    rows = torch.arange(64).view(2, 32)
    for rank in range(4):
        shared = SharedSequence.__new__(SharedSequence)
        shared.mesh = OneRank(rank)
        assert torch.equal(shared.pieces(rows), rows[:, order[8 * rank : 8 * rank + 8]])
        inputs = shared.inputs(rows)
        assert torch.equal(inputs["position_ids"][0], order[8 * rank : 8 * rank + 8])


def test_a_layout_counts_ranks_that_share_rows():
    layout = settings(parallel={"shard": 4, "tensor": 2, "context": 8}).parallel
    assert (layout.kind, layout.world_size, layout.data_ranks, layout.model_ranks) == ("fsdp", 64, 4, 16)
    assert settings(parallel={"context": 2}).parallel.kind == "fsdp"
    assert settings(parallel={"shard": 4, "context": 2}).global_batch_size == 2 * 4


def test_settings_without_it_keep_their_hash():
    assert settings(parallel={"shard": 4, "context": 1}).hash == settings(parallel={"shard": 4}).hash
    assert settings(parallel={"shard": 2, "context": 2}).hash != settings(parallel={"shard": 4}).hash


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"kind": "ddp", "world_size": 4, "context": 2}, "Set parallel.kind to fsdp"),
        ({"kind": "fsdp", "world_size": 6, "context": 4}, "Nearest: 8"),
        ({"context": 0}, "greater than or equal|1 or more"),
    ],
)
def test_wrong_layouts_are_refused_with_the_right_ones(parallel, message):
    with pytest.raises(InvalidSettings, match=message):
        settings(parallel=parallel)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 250}, "Nearest: 248, 256"), ({"length": 4}, "Nearest: 8"),
        ({"padding": "longest"}, "pieces of one length"), ({"padding": "packed"}, "pieces of one length"),
        ({"workload": "masked-lm", "model": {"name": "tiny-bert"}}, "causal-lm"), ({"adapter": {"kind": "lora", "dropout": 0.1}}, "adapter.dropout"),
        ({"model": {"name": "tiny-llama", "attention": "eager"}}, "ring attention"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(changes, message):
    with pytest.raises((NotSupported, InvalidSettings), match=message):
        refuse_unsupported(settings(**{"parallel": {"context": 4}, **changes}))


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("mistral", {"sliding_window": 128}, "attention within 128 of 256"),
        ("gemma2", {"sliding_window": 4096}, "capped attention"),
        ("llama", {"attention_dropout": 0.1}, "dropout of attention"),
        ("qwen3_next", {}, "linear_attention"),
    ],
)
def test_models_whose_tokens_do_not_see_all_before_them(family, fields, message):
    config = AutoConfig.for_model(family, num_hidden_layers=4, hidden_size=64, vocab_size=100, pad_token_id=0, **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(NotSupported, match=message):
        require_whole_attention(model, settings(parallel={"context": 2}))


def test_a_window_as_long_as_the_sequence_is_none():
    config = AutoConfig.for_model("mistral", num_hidden_layers=1, hidden_size=64, vocab_size=100, sliding_window=LENGTH)
    with torch.device("meta"):
        require_whole_attention(AutoModelForCausalLM.from_config(config), settings(parallel={"context": 2}))


def traced(name="h100-80gb", **changes):
    return trace_step(settings(**changes), generic_workload("causal-lm"), device(name), BatchShape(2, LENGTH))


@pytest.mark.parametrize("name", ["h100-80gb", "a100-40gb", "t4"])
def test_a_rank_gathers_keys_and_sends_their_gradients_round(name):
    """Two blocks: keys and values are gathered forward and backward, and the gradients of both move on twice."""
    split = traced(name, parallel={"context": 2}, precision="fp32" if name == "t4" else "bf16-mixed")
    ops = [split.ops[index] for kind, index in split.events[split.warm_from :] if kind == OP]
    calls = [split.calls[op.call] for op in ops if not split.calls[op.call].is_view]
    names = [call.name for call in calls]
    gathers = [call for call in calls if call.name == "_c10d_functional.all_gather_into_tensor.default"]
    assert len(gathers) == 2 * 2
    assert names.count("_c10d_functional.all_to_all_single.default") == 2 * 2
    assert {dict(call.keywords)[GROUP_SIZE] for call in gathers} == {2}
    attention = [name for name in names if "scaled_dot_product" in name]
    assert len(attention) == 2 * 2 * 2, "each rank attends to its own pieces and to those of one other"
    assert not any("math" in name for name in attention)


def test_a_rank_holds_its_share_of_the_logits_and_weights():
    whole, split = traced(parallel={"shard": 2}), traced(parallel={"shard": 2, "context": 4})

    def of(trace, owner):
        return sum(storage.bytes for storage in trace.storages if storage.owner is owner)

    assert split.total_parameters == whole.total_parameters
    assert of(split, Category.PARAMETER) == pytest.approx(of(whole, Category.PARAMETER) / 4, rel=0.05)
    logits = [max(storage.bytes for storage in trace.storages) for trace in (whole, split)]
    assert logits[1] == pytest.approx(logits[0] / 4, rel=0.01)
