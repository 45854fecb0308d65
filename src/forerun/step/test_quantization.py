"""Stand-ins hold what bitsandbytes' layers hold, and bitsandbytes' layers really train."""

import builtins

import pytest
import torch
from torch import nn

import forerun
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, MissingExtra, NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import build_step, prepare_model
from forerun.step.heads import generic_workload
from forerun.step.parallel import transformer_blocks
from forerun.step.quantization import Linear4bit, Linear8bit, QuantizedLinear, parameter_count, quantize
from forerun.step.training_step import StepObserver
from forerun.trace import Category
from forerun.virtual.trace_step import trace_step

KINDS = ("int8", "nf4", "nf4-double")
LORA = {"kind": "lora", "rank": 4, "alpha": 8}


def settings_with(kind, model="tiny-llama", **changes):
    content = {
        "name": "q", "workload": "causal-lm", "model": {"name": model}, "quantization": kind, "adapter": LORA,
        "batch": {"micro_batch_size": 2, "sequence_length": 16}, "data": {"examples": 8},
        "optimizer": {"learning_rate": 0.01},
    }  # fmt: skip
    return settings_from({**content, **changes})


def stored_bytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stand_in_holds_the_bytes_of_the_real_layer(kind):
    bnb = pytest.importorskip("bitsandbytes")
    real = quantize(nn.Sequential(nn.Linear(192, 128, bias=False)), kind, torch.float32)[0]
    with torch.device("meta"):
        stand_in = quantize(nn.Sequential(nn.Linear(192, 128, bias=False)), kind, torch.float32)[0]
    stand_in_tensors = [*stand_in.parameters(), *stand_in.buffers()]
    if kind == "int8":
        assert isinstance(real, bnb.nn.Linear8bitLt)
        assert isinstance(stand_in, Linear8bit)
        assert stored_bytes(stand_in_tensors) == stored_bytes([real.weight.CB, real.weight.SCB])
        return
    state = real.weight.quant_state
    assert isinstance(stand_in, Linear4bit)
    parts = [real.weight, state.absmax, state.code]
    if kind == "nf4-double":
        parts += [state.state2.absmax, state.state2.code, state.offset]
    assert stored_bytes(stand_in_tensors) == stored_bytes(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_step_learns_on_this_cpu(kind):
    """Really quantised, through peft's own adapter layers: the loss falls and only the adapter moves."""
    pytest.importorskip("bitsandbytes")
    settings = settings_with(kind)
    torch.manual_seed(0)
    workload = generic_workload("causal-lm")
    step = build_step(settings, workload, "cpu", pretrained=False)
    layer = next(m for m in step.model.modules() if type(m).__name__ in ("Linear4bit", "Linear8bitLt"))
    assert not isinstance(layer, QuantizedLinear)
    torch.manual_seed(1)
    ids = torch.randint(0, 64, (2, 16))
    losses = [float(step.run([{"input_ids": ids, "labels": ids}], StepObserver()).loss) for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]


def test_heads_and_embeddings_stay():
    settings = settings_with("nf4")
    with torch.device("meta"):
        model = prepare_model(settings, generic_workload("causal-lm"), pretrained=False)
    kinds = {name: type(m).__name__ for name, m in model.named_modules()}
    assert kinds["base_model.model.lm_head"] == "Linear"
    assert kinds["base_model.model.model.layers.0.mlp.up_proj.base_layer"] == "Linear4bit"


@pytest.mark.parametrize("kind", KINDS)
def test_t5_keeps_the_layers_that_transformers_keeps_in_fp32(kind):
    forecast = forerun.forecast(
        {"name": "t", "workload": "seq2seq-lm", "model": {"name": "tiny-t5"}, "quantization": kind, "adapter": LORA,
         "batch": {"micro_batch_size": 2, "sequence_length": 16}, "data": {"examples": 8}},
        gpu="a100-40gb",
    )  # fmt: skip
    assert forecast.memory.breakdown.parameter_bytes > 0
    with torch.device("meta"):
        model = prepare_model(settings_with(kind, "tiny-t5", workload="seq2seq-lm"), generic_workload("seq2seq-lm"),
                              pretrained=False)  # fmt: skip
    quantised = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert quantised
    assert not any(".wo" in name for name in quantised)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_count_as_what_they_stand_for(kind):
    with torch.device("meta"):
        plain = nn.Sequential(nn.Linear(192, 128), nn.LayerNorm(128))
        before = parameter_count(plain)
        assert parameter_count(quantize(plain, kind, torch.float32)) == before


def test_gpt2_layers_are_turned_round():
    """GPT-2 keeps its matrices as (in, out); the stand-in is a linear layer of (out, in)."""
    settings = settings_with("nf4", model="tiny-gpt2")
    with torch.device("meta"):
        model = prepare_model(settings, generic_workload("causal-lm"), pretrained=False)
    layers = [m for m in model.modules() if isinstance(m, QuantizedLinear)]
    assert any(m.out_features == 3 * m.in_features for m in layers)
    assert not any(type(m).__name__ == "Conv1D" for m in model.modules())


def test_running_without_the_library_is_an_error_and_tracing_is_not(monkeypatch):
    original = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == "bitsandbytes":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtra, match="forerun\\[quantization\\]"):
        quantize(nn.Sequential(nn.Linear(64, 64)), "nf4", torch.float32)
    with torch.device("meta"):
        quantize(nn.Sequential(nn.Linear(64, 64)), "nf4", torch.float32)


def test_quantised_weights_need_an_adapter():
    with pytest.raises(InvalidSettings, match="adapter"):
        settings_with("nf4", adapter={"kind": "none"})


@pytest.mark.parametrize("kind", KINDS)
def test_scoring_between_steps_changes_no_gradient(kind):
    """bitsandbytes 0.50 repacks 4-bit weights when a CPU scores in evaluation mode; trained on, they pass no gradient."""
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    step = build_step(settings_with(kind), generic_workload("causal-lm"), "cpu", pretrained=False)
    batch = {"input_ids": torch.arange(3, 35).reshape(2, 16), "labels": torch.arange(3, 35).reshape(2, 16)}

    def gradients():
        step.model.zero_grad()
        step.workload.loss(step.model, batch).sum.backward()
        return [p.grad.clone() for p in step.model.parameters() if p.grad is not None]

    before = gradients()
    step.model.eval()
    with torch.inference_mode():
        step.model(input_ids=batch["input_ids"])
    step.model.train()
    after = gradients()
    assert any(bool(g.any()) for g in before)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_step_does_the_arithmetic_of_one_that_is_not(kind):
    """8-bit products are arithmetic too: without them a forecast of int8 priced its forward pass by memory alone."""
    shape = BatchShape(2, 16)
    a100 = device("a100-40gb")
    plain = trace_step(settings_with("none"), generic_workload("causal-lm"), a100, shape)
    quantised = trace_step(settings_with(kind), generic_workload("causal-lm"), a100, shape)
    flops = [sum(trace.calls[op.call].flops for op in trace.ops) for trace in (plain, quantised)]
    assert flops[1] == pytest.approx(flops[0], rel=0.01)


@pytest.mark.parametrize("changes", [{"precision": "bf16-true"}, {"kbit_preparation": True}], ids=["16 bits", "kbit"])
def test_packed_weights_are_sharded_and_gathered_packed(changes):
    """As bitsandbytes' bnb_4bit_quant_storage: shards and what is gathered have 4 bits a weight."""
    settings = settings_with("nf4", parallel={"kind": "fsdp", "world_size": 2}, **changes)
    whole, sharded = (
        trace_step(each, generic_workload("causal-lm"), device("a100-40gb"), BatchShape(2, 16))
        for each in (settings_with("nf4", **changes), settings)
    )
    with torch.device("meta"):
        model = prepare_model(settings, generic_workload("causal-lm"), pretrained=False)
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert all(layer.weight.nbytes == layer.in_features * layer.out_features / 2 for layer in layers)
    assert sharded.total_parameters == whole.total_parameters
    held, shards = (sum(s.bytes for s in t.storages if s.owner is Category.PARAMETER) for t in (whole, sharded))
    assert shards == pytest.approx(held / 2, rel=0.15), "all but the scales is halved"
    (block, *_) = transformer_blocks(model)
    gathered = {call.bytes_written for call in sharded.calls if "allgather" in call.name}
    assert sum(p.nbytes for p in block.parameters()) in gathered


def test_eight_bits_are_not_sharded_and_shards_are_not_run():
    parallel = {"kind": "fsdp", "world_size": 2}
    with pytest.raises(NotSupported, match="those of 8 bits in none"):
        prepare_model(settings_with("int8", parallel=parallel), generic_workload("causal-lm"), pretrained=False)
    with pytest.raises(NotSupported, match="is forecast, not run"):
        quantize(nn.Sequential(nn.Linear(64, 64)), "nf4", torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_adapters_are_fp32_where_they_run_as_where_they_are_traced(quantization, precision):
    settings = settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 8},
        "adapter": {"kind": "lora", "rank": 4}, "quantization": quantization, "precision": precision,
    })  # fmt: skip
    for place in ("meta", "cpu"):
        with torch.device(place):
            model = prepare_model(settings, generic_workload("causal-lm"), pretrained=False)
        assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}, place
