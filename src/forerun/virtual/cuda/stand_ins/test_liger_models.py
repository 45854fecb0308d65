"""Models of transformers with Liger: fewer launches, no logits, and everything put back afterwards."""

import tempfile

import pytest
import torch

import forerun


def config():
    from transformers import LlamaConfig

    return LlamaConfig(hidden_size=256, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=2,
                       intermediate_size=512, vocab_size=8000)  # fmt: skip


def train(apply):
    from transformers import AutoModelForCausalLM

    with forerun.virtual_cuda("a100-80gb") as gpu:
        if apply == "class":
            from liger_kernel.transformers import apply_liger_kernel_to_llama

            apply_liger_kernel_to_llama()
        model = AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16).cuda()
        if apply == "instance":
            from liger_kernel.transformers import _apply_liger_kernel_to_instance

            _apply_liger_kernel_to_instance(model=model)
        ids = torch.randint(0, 8000, (4, 256), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    return gpu


def names(gpu):
    return {call.name.split(".")[1] for call in gpu.trace.calls if "liger" in call.name}


@pytest.mark.medium
def test_a_class_and_an_instance_get_the_same_kernels_and_save_memory():
    plain, by_class, by_instance = (train(apply) for apply in ("", "class", "instance"))
    expected = {"liger_rms_norm", "liger_silu_mul", "liger_rope"}
    expected |= {f"{name}_backward" for name in expected} | {"liger_cross_entropy"}
    assert names(by_class) == names(by_instance) == expected
    assert names(plain) == set()
    assert by_class.memory.peak_allocated_bytes == by_instance.memory.peak_allocated_bytes
    logits = 4 * 256 * 8000 * 4
    assert by_class.memory.peak_allocated_bytes < plain.memory.peak_allocated_bytes - logits


def test_everything_is_put_back():
    from transformers.models.llama import modeling_llama

    before = modeling_llama.LlamaForCausalLM.forward, modeling_llama.apply_rotary_pos_emb
    train("class")
    assert (modeling_llama.LlamaForCausalLM.forward, modeling_llama.apply_rotary_pos_emb) == before


@pytest.mark.medium
def test_the_trainer_applies_it():
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    rows = [{"input_ids": list(range(64)), "labels": list(range(64))} for _ in range(8)]
    with forerun.virtual_cuda("a100-80gb") as gpu, tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16)
        arguments = TrainingArguments(folder, use_liger_kernel=True, max_steps=1, per_device_train_batch_size=4, bf16=True,
                                      report_to=[], disable_tqdm=True, save_strategy="no")  # fmt: skip
        Trainer(model, arguments, train_dataset=rows).train()
    assert "liger_cross_entropy" in names(gpu)


def test_a_model_type_without_stand_in_is_named():
    with forerun.virtual_cuda("a100-80gb"):
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel

        with pytest.raises(NotImplementedError, match=r"(?s)mllama.*llama, mistral"):
            _apply_liger_kernel("mllama")


def test_a_type_that_liger_itself_passes_over_runs_without():
    from transformers import AutoModelForCausalLM, GPT2Config

    with forerun.virtual_cuda("a100-80gb"):
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        model = AutoModelForCausalLM.from_config(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=100))
        _apply_liger_kernel_to_instance(model=model)
    assert "forward" not in vars(model)


def test_losses_of_preferences_can_be_imported_and_are_refused_by_name():
    """TRL imports them wherever Liger is installed, whether they are used or not."""
    with forerun.virtual_cuda("a100-80gb"):
        from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss, LigerFusedLinearKTOLoss

        assert LigerFusedLinearKTOLoss is not LigerFusedLinearDPOLoss
        with pytest.raises(NotImplementedError, match=r"chunked_loss\.LigerFusedLinearDPOLoss: a CUDA kernel"):
            LigerFusedLinearDPOLoss(beta=0.1)
