"""Liger's kernels through settings: logits never whole, fewer kept activations, figures from the kernels' own sizes."""

import pytest

from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.fused_kernels import LIGER_TYPES
from forerun.step.heads import generic_workload
from forerun.step.test_decoder_types import small
from forerun.trace import OP
from forerun.virtual.cuda.stand_ins.liger_models import MODELS
from forerun.virtual.trace_evaluation import trace_scoring
from forerun.virtual.trace_step import trace_step

SIZE, LENGTH, VOCABULARY, WIDTH, INNER, LAYERS, HEADS = 4, 256, 8192, 256, 1024, 2, 4
TOKENS = SIZE * LENGTH


def settings(**changes):
    content = {
        "name": "k", "workload": "causal-lm", "precision": "bf16-true",
        "model": {"name": "tiny-llama", "kernels": "liger", "config": {
            "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": LENGTH,
        }},
        "batch": {"micro_batch_size": SIZE, "sequence_length": LENGTH}, "data": {"examples": 8},
    }  # fmt: skip
    model = {**content["model"], **changes.pop("model", {})}
    return settings_from({**content, **changes, "model": model})


def trace_of(given, gpu="a100-40gb"):
    return trace_step(given, generic_workload(given.workload), device(gpu), BatchShape(SIZE, LENGTH))


def calls(trace, part):
    return [trace.calls[op.call] for op in trace.ops if part in trace.calls[op.call].name]


@pytest.fixture(scope="module")
def plain():
    return trace_of(settings(model={"kernels": "none"}))


@pytest.fixture(scope="module")
def fused():
    return trace_of(settings())


def test_logits_are_never_whole(plain, fused):
    whole = TOKENS * VOCABULARY * 2
    assert any(s.bytes >= whole for s in plain.storages)
    # ops/fused_linear_cross_entropy.py: a chunk has next_power_of_2(tokens / (vocabulary / width)) rows
    chunk = 32 * VOCABULARY * 2
    weight = VOCABULARY * WIDTH * 2
    assert max(s.bytes for s in fused.storages) == max(weight, chunk)
    assert len(calls(fused, "liger_cross_entropy")) == TOKENS // 32


def test_what_is_kept_of_a_block_follows_from_its_kernels(plain, fused):
    """The plain gated layer keeps its activation too; fp32 copies inside a norm go; the peak falls by at least that."""
    saved = replay_memory(plain).peak_allocated_bytes - replay_memory(fused).peak_allocated_bytes
    activation = TOKENS * INNER * 2
    norms = TOKENS * WIDTH * 4
    logits = TOKENS * VOCABULARY * (2 + 4)
    assert saved > LAYERS * (activation + 2 * norms)
    assert saved > logits


def test_every_kernel_of_the_model_is_replaced(fused):
    assert len(calls(fused, "liger_rms_norm.")) == 2 * LAYERS + 1
    assert len(calls(fused, "liger_silu_mul.")) == LAYERS
    assert len(calls(fused, "liger_rope.")) == LAYERS
    assert fused.assumed_values == [], "the count of labels is not one that the loss uses"


def test_the_sum_over_chunks_is_one_product_on_tensor_cores(fused):
    mixed = trace_of(settings(precision="bf16-mixed"))
    products = calls(mixed, "addmm.dtype_out")
    assert len(products) == TOKENS // 32
    assert {call.arguments[1].dtype for call in products} == {"bfloat16"}
    assert {call.outputs[0].dtype for call in products} == {"float32"}
    assert all(call.bytes_written == VOCABULARY * WIDTH * 4 and not call.is_view for call in products)
    assert sum(call.flops for call in products) == 2 * TOKENS * VOCABULARY * WIDTH
    into_storage = [call for call in calls(fused, "mm.out") if call.outputs[0].shape[1] == VOCABULARY]
    assert sum(call.flops for call in into_storage) == 2 * TOKENS * VOCABULARY * WIDTH
    assert not any(call.is_view for call in into_storage), "a product into a tensor that exists is work too"


def test_scoring_takes_the_kernels_and_everything_is_put_back():
    from transformers.models.llama import modeling_llama

    rotation = modeling_llama.apply_rotary_pos_emb
    given = settings()
    trace = trace_scoring(given, generic_workload("causal-lm"), device("a100-40gb"), BatchShape(SIZE, LENGTH))
    assert calls(trace, "liger_cross_entropy")
    assert modeling_llama.apply_rotary_pos_emb is rotation


def test_the_types_of_settings_have_stand_ins():
    assert set(MODELS) == LIGER_TYPES


@pytest.mark.medium
@pytest.mark.parametrize("model_type", sorted(LIGER_TYPES - {"ministral"}))
def test_each_type_has_its_norms_gates_and_rotations_replaced(model_type):
    """No row of the catalogue is a Ministral of transformers' own type."""
    tiny = small(model_type)
    trace = trace_of(settings(model={**tiny, "kernels": "liger"}))
    layers = tiny["config"]["num_hidden_layers"]
    without_positions = layers // 4 if model_type == "smollm3" else 0  # every fourth of its layers
    assert len(calls(trace, "liger_rope.")) == layers - without_positions
    assert len(calls(trace, "liger_silu_mul.")) + len(calls(trace, "liger_gelu_mul.")) == layers
    assert len(calls(trace, "liger_rms_norm.")) >= 2 * layers + 1
    assert len(calls(trace, "liger_rms_norm_backward.")) == len(calls(trace, "liger_rms_norm."))
    assert calls(trace, "liger_cross_entropy")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_have_the_kernels_too(kind):
    """The output layer of shards is whole from the forward pass to its gradient."""
    given = settings(parallel={"kind": kind, "world_size": 2}, precision="bf16-mixed")
    trace = trace_of(given)
    warm = [trace.calls[trace.ops[index].call].name for kind, index in trace.events[trace.warm_from :] if kind == OP]
    assert sum("liger_cross_entropy" in name for name in warm) == TOKENS // 32


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"name": "gpt2", "config": {}}}, "found 'gpt2'"),
        ({"workload": "sequence-classification"}, "sequence-classification"),
        ({"compile": "default"}, "compile='default'"),
        ({"cross_entropy": "chunked"}, "cross_entropy='chunked'"),
        ({"parallel": {"tensor": 2}}, "split layers"),
    ],
)
def test_what_has_no_place_for_them_is_refused_by_name(changes, says):
    with pytest.raises(NotSupported, match=r"model\.kernels") as refusal:
        trace_of(settings(**changes))
    assert says in str(refusal.value)


def test_a_cpu_has_no_such_kernels():
    from forerun.api import forecast

    with pytest.raises(InvalidSettings, match=r"compute capability 7\.0"):
        forecast(settings(precision="fp32"), "cpu")
