"""A script that quantises has the tensors, operators and optimizer state of a settings file that does."""

import subprocess
import sys

import pytest
import torch

import forerun
from forerun.step.eight_bit import TracedOptimizer, paged_bytes
from forerun.step.quantization import QuantizedLinear, quantize
from forerun.virtual.cuda.stand_ins import bitsandbytes as stand_in

pytest.importorskip("bitsandbytes")
BLOCK = 512


def config():
    from transformers import LlamaConfig

    return LlamaConfig(hidden_size=512, num_attention_heads=8, num_hidden_layers=2, intermediate_size=1024,
                       vocab_size=2048)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import AutoModelForCausalLM

    path = tmp_path_factory.mktemp("llama")
    AutoModelForCausalLM.from_config(config()).save_pretrained(path)
    return path


def quantization(kind):
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
                              bnb_4bit_use_double_quant=kind == "nf4-double")  # fmt: skip


def sizes(tensors):
    return sorted(-(-t.numel() * t.element_size() // BLOCK) for t in tensors)


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_loading_quantised_weights_gives_the_tensors_of_the_settings(folder, kind):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        expected = quantize(AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16), kind, torch.bfloat16)
    layers = [module for module in expected.modules() if isinstance(module, QuantizedLinear)]
    with forerun.virtual_cuda("a100-80gb") as gpu:
        options = {"quantization_config": quantization(kind), "device_map": {"": 0}, "dtype": torch.bfloat16}
        model = AutoModelForCausalLM.from_pretrained(folder, **options)
        ids = torch.zeros(2, 64, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids)
    played = [module.__dict__["_forerun_layer"] for module in model.modules() if "_forerun_layer" in module.__dict__]
    stored = [[*layer.parameters(), *layer.buffers()] for layer in played]
    assert len(stored) == len(layers) == 14
    wanted = [[*layer.parameters(), *layer.buffers()] for layer in layers]
    assert sizes(t for each in stored for t in each) == sizes(t for each in wanted for t in each)
    operator = "forerun.multiply_int8.default" if kind == "int8" else "forerun.dequantize_4bit.default"
    assert operator in {call.name for call in gpu.trace.calls}


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_layers_that_a_program_builds_and_moves(kind):
    import bitsandbytes as bnb

    expected = quantize(torch.nn.Sequential(torch.nn.Linear(512, 1024, device="meta")), kind, torch.bfloat16)[0]
    with forerun.virtual_cuda("a100-80gb"):
        if kind == "int8":
            layer = bnb.nn.Linear8bitLt(512, 1024, has_fp16_weights=False)
        else:
            layer = bnb.nn.Linear4bit(512, 1024, compress_statistics=kind == "nf4-double", quant_type="nf4")
        layer.load_state_dict(torch.nn.Linear(512, 1024).state_dict())
        before = torch.cuda.memory_allocated()
        layer = layer.cuda()
        added = torch.cuda.memory_allocated() - before
        assert isinstance(layer.weight, (bnb.nn.Params4bit, bnb.nn.Int8Params))
        assert layer.weight.is_cuda
        assert kind == "int8" or layer.weight.quant_state.shape == (1024, 512)
        rows = torch.zeros(8, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer(rows).sum().backward()
        assert rows.grad is not None
        assert rows.grad.shape == rows.shape
    wanted = BLOCK * sum(sizes([*expected.parameters(), *expected.buffers()]))
    assert added == pytest.approx(wanted, abs=2 * BLOCK)


def test_weights_in_16_bits_are_quantised_in_each_forward_pass():
    import bitsandbytes as bnb

    with forerun.virtual_cuda("a100-80gb") as gpu:
        layer = bnb.nn.Linear8bitLt(512, 1024, has_fp16_weights=True).half().cuda().requires_grad_(False)
        rows = torch.zeros(8, 512, device="cuda", dtype=torch.float16, requires_grad=True)
        layer(rows).sum().backward()
    names = [call.name for call in gpu.trace.calls]
    assert names.index("bitsandbytes.int8_vectorwise_quant.default") < names.index("forerun.multiply_int8.default")
    assert layer.weight.dtype == torch.float16


@pytest.mark.parametrize(("name", "paged"), [("AdamW8bit", False), ("PagedAdamW8bit", True)])
def test_optimizer_state_is_that_of_the_settings(name, paged):
    import bitsandbytes as bnb

    bnb.optim.GlobalOptimManager.get_instance().initialize()  # a Trainer before leaves its embeddings' 32 bits there
    with forerun.virtual_cuda("a100-80gb") as gpu:
        parameters = [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for shape in ((512, 512), (16, 16))]
        for each in parameters:
            each.grad = torch.zeros_like(each)
        before = torch.cuda.memory_allocated()
        optimizer = getattr(bnb.optim, name)(parameters)
        optimizer.step()
        added = torch.cuda.memory_allocated() - before
    traced = TracedOptimizer(
        [torch.nn.Parameter(torch.zeros(p.shape)) for p in parameters], moments=2, bits=8, paged=paged
    )
    for each in traced.param_groups[0]["params"]:
        each.grad = torch.zeros_like(each)
        traced.state[each].update(traced._new_state(each))
    tensors = {id(t): t for state in traced.state.values() for t in state.values() if t.device.type != "meta"}
    assert added == pytest.approx(BLOCK * sum(sizes(tensors.values())), abs=2 * BLOCK)
    assert gpu.trace.paged_bytes == paged_bytes(traced)


def test_weights_are_unpacked_by_pointers_as_unsloth_does():
    """`cdequantize_blockwise_bf16_nf4(code, packed, scales, result, block, count, stream)` (unsloth/kernels/utils.py)."""
    with forerun.virtual_cuda("t4") as gpu:
        from bitsandbytes import functional

        packed, scales = torch.zeros(2048, device="cuda", dtype=torch.uint8), torch.zeros(64, device="cuda")
        result = torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
        assert hasattr(functional.lib.cdequantize_blockwise_bf16_nf4, "restype"), "what ctypes hands out"
        pointers = [functional.get_ptr(each) for each in (None, packed, scales, result)]
        functional.lib.cdequantize_blockwise_bf16_nf4(*pointers, 64, 4096, 0)
        call = gpu.trace.calls[gpu.trace.ops[-1].call]
        with pytest.raises(NotImplementedError, match="cadam32bit_grad_fp32"):
            functional.lib.cadam32bit_grad_fp32(*pointers)
    assert call.name == "forerun.cdequantize_blockwise_bf16_nf4.default"
    assert (call.bytes_read, call.bytes_written) == (2048 + 64 * 4, 64 * 64 * 2)


LATE = """
import sys, torch, forerun
with forerun.virtual_cuda("t4") as gpu:
    assert "bitsandbytes" not in sys.modules, "1.5 s, and two classes AdamW among PyTorch's"
    import bitsandbytes
    layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float16, quant_type="nf4").cuda()
    assert torch.cuda.is_available()
    layer(torch.zeros(2, 64, device="cuda", dtype=torch.float16))
    assert any("dequantize_4bit" in call.name for call in gpu.trace.calls)
assert not isinstance(bitsandbytes.functional.lib, type(None)) and "forerun" not in type(bitsandbytes.functional.lib).__module__
"""


def test_the_library_is_imported_where_the_program_imports_it():
    answer = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-1500:]


@pytest.mark.parametrize("cards", [0, 1])
def test_it_is_imported_for_the_cards_of_the_machine(cards, monkeypatch):
    """A notebook that forecasts first and trains then has its CUDA library."""
    monkeypatch.setattr(stand_in, "COUNT_DEVICES", lambda: cards)
    with forerun.virtual_cuda("t4"):
        with stand_in._as_the_machine_is():
            assert torch.cuda.is_available() is (cards > 0)
        assert torch.cuda.is_available()
