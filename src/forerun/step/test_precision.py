"""Weights in 16 bits under autocast: what the Hugging Face Trainer's `bf16=True` makes of a model loaded in bf16."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from
from forerun.step.build import build_step, prepare_model
from forerun.step.heads import generic_workload
from forerun.step.precision import policy_of

CONTENT = {
    "name": "p", "workload": "causal-lm", "precision": "bf16-mixed", "model": {"name": "tiny-llama", "dtype": "bfloat16"},
    "batch": {"micro_batch_size": 2, "sequence_length": 32}, "data": {"examples": 8},
}  # fmt: skip
LORA = {"kind": "lora", "rank": 4, "targets": ["q_proj", "v_proj"]}


def model_of(**changes):
    settings = settings_from(CONTENT | changes)
    with torch.device("meta"):
        return prepare_model(settings, generic_workload("causal-lm"), pretrained=False)


def dtypes_of(model, part):
    return {parameter.dtype for name, parameter in model.named_parameters() if part in name}


def test_adapters_are_fp32_and_all_else_is_as_it_was_loaded():
    model = model_of(adapter=LORA | {"modules_to_save": ["lm_head"]})
    assert dtypes_of(model, "lora_") == {torch.float32}
    assert dtypes_of(model, "modules_to_save") == {torch.bfloat16}
    assert dtypes_of(model, "base_layer") == {torch.bfloat16}
    assert dtypes_of(model_of(), "") == {torch.bfloat16}


def test_an_older_peft_keeps_adapters_narrow():
    assert dtypes_of(model_of(adapter=LORA, versions={"peft": "0.11.1"}), "lora_") == {torch.bfloat16}


def test_the_hash_of_settings_without_the_word_is_what_it_was():
    said = settings_from(CONTENT | {"model": {"name": "tiny-llama", "dtype": "auto"}})
    assert said.hash == settings_from(CONTENT | {"model": {"name": "tiny-llama"}}).hash
    assert said.hash != settings_from(CONTENT).hash


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": "fp32"}, "Set it to float32, or precision to bf16-mixed"),
        ({"precision": "fp16-mixed"}, "float32 or float16"),
        ({"precision": "fp16-mixed", "model": {"name": "tiny-llama", "dtype": "float16"}}, "adapter.kind='none'"),
        ({"parallel": {"kind": "ddp", "world_size": 2, "zero": 2}}, "DeepSpeed"),
    ],
)
def test_what_no_trainer_does_is_refused(changes, says):
    with pytest.raises(InvalidSettings, match=r"model\.dtype") as error:
        settings_from(CONTENT | changes)
    assert says in str(error.value)


def test_a_loss_scale_goes_with_adapters_in_fp32():
    model = {"name": "tiny-llama", "dtype": "float16"}
    settings = settings_from(CONTENT | {"precision": "fp16-mixed", "model": model, "adapter": LORA})
    assert policy_of(settings).parameter_dtype is torch.float16
    assert settings.has_narrow_weights


def test_a_step_has_the_loss_and_gradients_of_peft_under_autocast():
    settings = settings_from(CONTENT | {"adapter": LORA})
    step = build_step(settings, generic_workload("causal-lm"), "cpu", pretrained=False)
    ids = torch.randint(0, 100, (2, 32))
    batch = {"input_ids": ids, "labels": ids}
    ours = step.model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = type(ours.get_base_model())(ours.get_base_model().config).to(torch.bfloat16)
        theirs = get_peft_model(theirs, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
        theirs.load_state_dict(ours.state_dict())
        assert {n: p.dtype for n, p in theirs.named_parameters()} == {n: p.dtype for n, p in ours.named_parameters()}
        losses = [model(**batch).loss for model in (ours, theirs)]
    assert losses[0].item() == losses[1].item()
    for loss in losses:
        loss.backward()
    for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        if one.requires_grad:
            assert one.grad is not None, name
            assert torch.equal(one.grad, other.grad), name
