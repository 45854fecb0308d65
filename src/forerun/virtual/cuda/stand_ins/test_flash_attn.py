"""Programs that import FlashAttention run; transformers finds it where the card could run it."""

import importlib.metadata
import importlib.util
import sys

import pytest
import torch

import forerun


def calls(gpu, part):
    return [gpu.trace.calls[op.call] for op in gpu.trace.ops if part in gpu.trace.calls[op.call].name]


def llama(attention):
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(hidden_size=256, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=2,
                         intermediate_size=512, vocab_size=1000)  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.bfloat16).cuda()


def test_the_package_is_there_while_the_program_runs_and_gone_after():
    with forerun.virtual_cuda("a100-80gb"):
        import flash_attn
        from flash_attn.bert_padding import pad_input, unpad_input  # noqa: F401

        assert importlib.metadata.version("flash-attn") == flash_attn.__version__
        assert importlib.util.find_spec("flash_attn.flash_attn_interface") is not None
        with pytest.raises(AttributeError, match=r"(?s)flash_attn\.not_there.*stand_in\("):
            _ = flash_attn.not_there
        with pytest.raises(ImportError, match=r"(?s)flash_attn\.not_there.*stand_in\("):
            from flash_attn import not_there  # noqa: F401
        with pytest.raises(ModuleNotFoundError, match=r"flash_attn\.nowhere"):
            importlib.import_module("flash_attn.nowhere")
    assert "flash_attn" not in sys.modules
    assert importlib.util.find_spec("flash_attn") is None


@pytest.mark.parametrize(("gpu", "second", "third"), [("t4", False, False), ("l4", True, False),
                                                      ("h100-80gb", True, True)])  # fmt: skip
def test_transformers_finds_what_the_card_can_run(gpu, second, third):
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_torch_cuda_available

    assert not is_torch_cuda_available(), "asked before, as RWKV's layers do, it is remembered"
    with forerun.virtual_cuda(gpu):
        assert (is_flash_attn_2_available(), is_flash_attn_3_available()) == (second, third)
    assert not is_flash_attn_2_available()


@pytest.mark.parametrize(("gpu", "version"), [("a100-80gb", 2), ("h100-80gb", 3)])
def test_a_model_of_transformers_runs_with_it(gpu, version):
    with forerun.virtual_cuda(gpu) as card:
        model = llama(f"flash_attention_{version}")
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
    forward = calls(card, f"_flash_attention_{version}_forward")
    assert len(forward) == len(calls(card, f"_flash_attention_{version}_backward")) == 2
    assert [spec.shape for spec in forward[0].inputs[:2]] == [(4, 128, 8, 32), (4, 128, 2, 32)]


def test_padded_rows_are_unpadded_by_their_mask():
    with forerun.virtual_cuda("a100-80gb") as card:
        model = llama("flash_attention_2")
        ids = torch.zeros((4, 128), dtype=torch.long, device="cuda")
        mask = torch.ones(4, 128, dtype=torch.long)
        mask[0, 100:] = 0
        model(input_ids=ids, labels=ids, attention_mask=mask.cuda()).loss.backward()
    forward = calls(card, "_flash_attention_2_forward")
    assert forward[0].inputs[0].shape == (4 * 128 - 28, 8, 32)


def test_packed_tensors_get_one_gradient():
    from_packed = {}
    with forerun.virtual_cuda("a100-80gb") as card:
        from flash_attn import flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_qkvpacked_func

        qkv = torch.randn(2, 64, 3, 8, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        flash_attn_qkvpacked_func(qkv, causal=True).sum().backward()
        kv = torch.randn(2, 64, 2, 8, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        q = torch.randn(2, 64, 8, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        flash_attn_kvpacked_func(q, kv).sum().backward()
        rows = torch.randn(100, 3, 8, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        offsets = torch.tensor([0, 40, 100], dtype=torch.int32, device="cuda")
        flash_attn_varlen_qkvpacked_func(rows, offsets, 60).sum().backward()
        from_packed = {"qkv": qkv, "kv": kv, "q": q, "rows": rows}
        for name, tensor in from_packed.items():
            assert tensor.grad.shape == tensor.shape, name
    assert len(calls(card, "_flash_attention_2_backward")) == 3


def test_kernels_below_autograd_can_be_imported_and_say_what_is_missing():
    """diffusers imports them beside `flash_attn_func`, and without them takes the package for broken."""
    with forerun.virtual_cuda("a100-80gb"):
        from flash_attn.flash_attn_interface import _wrapped_flash_attn_backward, _wrapped_flash_attn_forward

        for kernel in (_wrapped_flash_attn_forward, _wrapped_flash_attn_backward):
            with pytest.raises(NotImplementedError, match="below autograd"):
                kernel(torch.zeros(1, device="cuda"))
