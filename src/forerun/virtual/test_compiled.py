"""Compiled steps: against Inductor itself on this CPU, and what compiling does to memory and launches."""

import shutil
from collections import Counter

import pytest
import torch

import forerun
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.hardware.detect import detect_cpu
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import bind_step, build_step, prepare_model
from forerun.step.compiling import compile_blocks
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.train.measure import run_measuring_allocations
from forerun.virtual.trace_step import trace_step


def settings_of(name, workload, **changes):
    return settings_from(
        {
            "name": "c", "workload": workload, "model": {"name": name}, "data": {"examples": 800},
            "batch": {"micro_batch_size": 8, "sequence_length": 128}, "compile": "default", **changes,
        }
    )  # fmt: skip


def traced(settings, where="a100-40gb"):
    target = detect_cpu().device if where == "cpu" else device(where)
    return trace_step(settings, generic_workload(settings.workload), target, BatchShape(8, 128))


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU")
@pytest.mark.parametrize(
    ("name", "workload"),
    [("tiny-llama", "causal-lm"), ("tiny-bert", "sequence-classification"), ("tiny-t5", "seq2seq-lm"),
     ("tiny-gpt2", "causal-lm"), ("tiny-modernbert", "masked-lm")],
)  # fmt: skip
@pytest.mark.parametrize("unit", ["model", "blocks"])
def test_peak_is_that_of_inductor(name, workload, unit):
    """Within 3 %: which temporaries overlap at the peak depends on the order of kernels, which Inductor also moves."""
    settings = settings_of(name, workload, compile_unit=unit)
    forecast = replay_memory(traced(settings, "cpu"), is_host=True).peak_allocated_bytes
    torch.manual_seed(0)
    step = build_step(settings, generic_workload(workload), "cpu", pretrained=False)
    batch = generic_workload(workload).example_batch(settings, 8, 128)
    for _ in range(2):
        step.run([batch], StepObserver())
    _, measured = run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    assert forecast == pytest.approx(measured, rel=0.03)


@pytest.mark.medium
def test_kernels_are_fused_and_products_stay():
    plain, compiled = (
        traced(settings_of("tiny-bert", "masked-lm", precision="bf16-mixed", compile=mode))
        for mode in ("none", "default")
    )

    def launches(trace, *names):
        ops = [trace.calls[op.call] for op in trace.ops if op.phase in ("forward", "backward")]
        return sum(any(n in call.name for n in names) for call in ops if not call.is_view)

    assert launches(compiled, "mm.") == launches(plain, "mm.")
    assert launches(compiled, "") < 0.7 * launches(plain, "")
    assert {call.issuer for call in compiled.calls if call.name.startswith("fused")} == {"compiled"}


def test_modules_of_fused_kernels_are_named():
    trace = traced(settings_of("tiny-llama", "causal-lm"))
    modules = {op.module for op in trace.ops if op.phase == "forward" and trace.calls[op.call].name.startswith("fused")}
    assert any("layers.1.mlp" in module for module in modules), modules


@pytest.mark.medium
def test_graphs_take_their_memory_from_a_pool_of_their_own():
    plain, graphs = (traced(settings_of("tiny-llama", "causal-lm", compile=m)) for m in ("default", "reduce-overhead"))
    assert {s.stream for s in plain.storages} == {0}
    assert len({s.stream for s in graphs.storages}) == 2
    assert replay_memory(graphs).peak_reserved_bytes >= replay_memory(plain).peak_reserved_bytes
    assert "graph" in {call.issuer for call in graphs.calls}


@pytest.mark.medium
def test_parts_of_a_block_without_weights_are_recorded_once_a_call():
    # DoRA of peft breaks its graph; what is left calls one graph for layers of different widths, with no weights in it
    dora = {"kind": "lora", "dora": True}
    trace = traced(settings_of("tiny-llama", "causal-lm", adapter=dora, compile="max-autotune", compile_unit="blocks"))
    assert "graph" in {call.issuer for call in trace.calls}


@pytest.mark.medium
def test_what_pytorch_gives_up_compiling_is_refused():
    packed = {"adapter": {"kind": "lora"}, "quantization": "nf4-double", "precision": "tf32"}
    with pytest.raises(NotSupported, match="PyTorch gives up after 8 graphs of it"):
        traced(settings_of("tiny-mixtral", "causal-lm", compile="reduce-overhead", **packed))


@pytest.mark.parametrize("name", ["tiny-falcon", "tiny-deberta-v2", "tiny-mixtral"])
def test_models_with_constants_and_experts_compile(name):
    workload = "sequence-classification" if "deberta" in name else "causal-lm"
    trace = traced(settings_of(name, workload, precision="bf16-mixed"))
    assert any(call.name.startswith("fused") for call in trace.calls)


@pytest.mark.medium
@pytest.mark.parametrize("checkpointing", ["blocks", "selective"])
def test_checkpointing_saves_under_compile_too(checkpointing):
    def peak(value):
        return forerun.forecast(
            settings_of("tiny-llama", "causal-lm", activation_checkpointing=value), gpu="a100-40gb"
        ).memory.breakdown.activation_bytes

    assert peak(checkpointing) < peak("none")


@pytest.mark.medium
def test_numbers_that_are_drawn_again_when_recomputed_pass_through_inductor():
    settings = settings_of("tiny-t5", "seq2seq-lm", activation_checkpointing="blocks", precision="fp16-mixed")
    assert any(call.name.startswith("fused") for call in traced(settings).calls)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [({}, "Set compile_unit to blocks"),
     ({"compile_unit": "blocks", "compile": "reduce-overhead"}, "Set compile to default")],
)  # fmt: skip
def test_sharded_models_are_compiled_block_by_block_without_graphs_of_launches(change, remedy):
    settings = settings_of("tiny-llama", "causal-lm", parallel={"kind": "fsdp", "world_size": 2}, **change)
    with pytest.raises(NotSupported, match=remedy):
        forerun.forecast(settings, gpu="t4")


def exchanges(trace):
    """Collectives by name; a graph adds up in place what an eager step gives anew, and waits where it likes."""
    names = [trace.calls[op.call].name.replace("_.default", ".default") for op in trace.ops]
    return Counter(name for name in names if "c10d" in name and "wait_tensor" not in name)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("parallel", "checkpointing"),
    [
        ({"shard": 8}, "none"), ({"shard": 8}, "blocks"), ({"tensor": 2}, "none"),
        ({"shard": 2, "tensor": 2, "sequence_parallel": True}, "selective"), ({"context": 2}, "none"),
        ({"shard": 2, "pipeline": 2}, "none"),
    ],
)  # fmt: skip
def test_blocks_of_any_layout_are_compiled_between_their_exchanges(parallel, checkpointing):
    """As many products and collectives as in an eager step, fewer kernels of everything else, no more memory."""
    batch = {"micro_batch_size": 2, "sequence_length": 128, "padding": "fixed", "gradient_accumulation_steps": 2}
    common = {"precision": "bf16-mixed", "activation_checkpointing": checkpointing, "batch": batch}
    eager, compiled = (
        traced(settings_of("tiny-llama", "causal-lm", parallel=parallel, **common, **way))
        for way in ({"compile": "none"}, {"compile_unit": "blocks"})
    )
    if "context" in parallel:  # the graph gathers keys and values once for forward and backward pass
        assert exchanges(compiled) < exchanges(eager)
        assert set(exchanges(compiled)) == set(exchanges(eager))
    else:
        assert exchanges(compiled) == exchanges(eager) != Counter()

    def count(trace, part):
        return sum(part in trace.calls[op.call].name for op in trace.ops)

    assert count(compiled, ".mm.") <= count(eager, ".mm.")  # the eager backward pass runs the last products again
    assert count(compiled, ".mm.") >= 0.8 * count(eager, ".mm.")
    assert count(compiled, "fused.") > 0
    assert len(compiled.ops) < 0.8 * len(eager.ops)
    peaks = [replay_memory(trace).peak_allocated_bytes for trace in (compiled, eager)]
    assert peaks[0] <= peaks[1]


@pytest.mark.parametrize(
    ("change", "remedy"),
    [({"parallel": {"tensor": 2}, "activation_checkpointing": "blocks"}, "Set it to selective"),
     ({"parallel": {"pipeline": 2, "schedule": "zero-bubble", "virtual_stages": 2}}, "Set it to 1f1b"),
     ({"parallel": {"tensor": 3, "sequence_parallel": True}}, "Nearest: 63, 66"),
     ({"parallel": {"context": 2}, "compile_unit": "model"}, "Set compile_unit to blocks")],
)  # fmt: skip
def test_what_no_layout_compiles_is_refused(change, remedy):
    batch = {"micro_batch_size": 2, "sequence_length": 64, "padding": "fixed", "gradient_accumulation_steps": 4}
    with pytest.raises((NotSupported, InvalidSettings), match=remedy):
        forerun.forecast(
            settings_of("tiny-llama", "causal-lm", **{"compile_unit": "blocks", "batch": batch} | change), gpu="t4"
        )


def test_a_causal_model_that_is_compiled_whole_has_no_mask_and_no_wide_logits():
    trace = traced(settings_of("tiny-llama", "causal-lm", precision="bf16-mixed"))
    names = {call.name for call in trace.calls}
    assert any("flash_attention" in name for name in names)
    assert not any("efficient_attention" in name for name in names)
    assert not any("log_softmax" in name or "nll_loss" in name for name in names)


def graphs_of(compiled):
    """Sizes of the graphs of the first step of a small BERT, and of all steps: frozen and thawed, of two lengths."""
    settings = settings_of(
        "tiny-bert",
        "sequence-classification",
        compile_unit=compiled,
        schedule={"epochs": 2, "frozen_encoder_epochs": 1},
    )
    workload = generic_workload("sequence-classification")
    sizes, first = [], []

    def backend(graph, inputs):
        sizes.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    torch.manual_seed(0)
    step = bind_step(settings, workload, prepare_model(settings, workload, pretrained=False), "cpu", backend)
    for frozen in (True, False):
        step.freeze_encoder(frozen)
        for length in (64, 128):
            for _ in range(2):
                step.run([workload.example_batch(settings, 4, length)], StepObserver())
                first = first or list(sizes)
    torch._dynamo.reset()
    return first, sizes


@pytest.mark.medium
def test_blocks_share_their_graphs_and_a_freeze_schedule_compiles_once_more():
    """One length, any length, thawed: three times what the first step compiled, however many blocks and steps."""
    (first, blocks), (_, whole) = graphs_of("blocks"), graphs_of("model")
    assert len(blocks) <= 3 * len(first)
    assert sum(blocks) < sum(whole), "a model's own graphs hold every block again"


def test_a_model_without_blocks_says_so():
    with pytest.raises(NotSupported, match="compile_unit"):
        compile_blocks(torch.nn.Linear(2, 2), "inductor", None)


def test_compiled_blocks_are_one_graph_for_all_and_the_rest_stays_eager():
    whole, blocks = (traced(settings_of("tiny-llama", "causal-lm", compile_unit=unit)) for unit in ("model", "blocks"))
    issuers = {call.issuer for call in blocks.calls}
    assert {"compiled", "eager"} <= issuers | {"eager"}
    assert len(whole.calls) < len(blocks.calls), "what lies between blocks is not fused"


def test_a_loss_compiled_beside_blocks_holds_no_wide_logits():
    """In plain operators the loss makes fp32 copies of the logits; compiled it reads them as they are."""

    def wide(unit):
        trace = traced(settings_of("tiny-llama", "causal-lm", compile_unit=unit, precision="bf16-mixed"))
        names = {call.name for call in trace.calls}
        return any("log_softmax" in name for name in names)

    assert wide("blocks")
    assert not wide("blocks-and-loss")


@pytest.mark.timeout(120)
def test_kernels_never_need_each_other():
    """Found by a plan: RoBERTa's blocks were cut into kernels of which each had to wait for the other, without end."""
    for checkpointing in ("none", "blocks"):
        settings = settings_of(
            "tiny-roberta", "masked-lm", precision="fp16-mixed", compile_unit="blocks",
            activation_checkpointing=checkpointing,
        )  # fmt: skip
        assert any(call.name.startswith("fused") for call in traced(settings, "t4").calls)
