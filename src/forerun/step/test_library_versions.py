"""What older libraries keep in memory, in bytes; what is not modelled is said."""

import pytest

from forerun.api import forecast
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.step.library_versions import (
    as_of_versions,
    copies_logits,
    cuda_of,
    has_linear_experts,
    kbit_preparation,
    number_of,
    prefers_cudnn,
    version_warnings,
)
from forerun.units import MIB
from forerun.virtual.trace_step import trace_step

SIZE, LENGTH, VOCABULARY = 4, 128, 30_000
LLAMA = {
    "name": "v", "workload": "causal-lm", "precision": "bf16-true", "data": {"examples": 8},
    "batch": {"micro_batch_size": SIZE, "sequence_length": LENGTH},
    "model": {"name": "tiny-llama", "config": {"vocab_size": VOCABULARY}},
}  # fmt: skip


def copies(versions: dict[str, str]) -> int:
    """Storages of the size of fp32 logits without the last token that the loss makes."""
    settings = settings_from(LLAMA | {"versions": versions})
    trace = trace_step(settings, generic_workload("causal-lm"), device("a100-40gb"), BatchShape(SIZE, LENGTH))
    return sum(storage.bytes == SIZE * (LENGTH - 1) * VOCABULARY * 4 for storage in trace.storages)


def test_logits_are_copied_before_4_49():
    assert copies({}) == 0
    assert copies({"transformers": "4.44.2"}) >= 3, "shifted, softmax, gradient"


@pytest.mark.parametrize(
    ("version", "kind", "answer"),
    [
        ("4.48.3", "llama", True),
        ("4.49", "llama", False),
        ("4.44", "gpt2", False),
        ("5.23.0", "qwen2", False),
        ("4.47.1", "gpt_bigcode", False),
        ("4.48.1", "gpt_bigcode", True),
    ],
)
def test_which_versions_copy(version, kind, answer):
    assert copies_logits({"transformers": version}, kind) is answer


@pytest.mark.parametrize("versions", [{"cuda": "11.3"}, {"torch": "1.12.1"}, {"torch": "1.12", "cuda": "11.6"}])
def test_the_context_holds_every_kernel_before_cuda_11_7(versions):
    same = {"model": LLAMA["model"] | {"attention": "sdpa"}, "optimizer": {"implementation": "for-loop"}}
    old, new = (forecast(LLAMA | same | {"versions": v}, "a100-40gb").memory for v in (versions, {"cuda": "12.8"}))
    assert old.context_bytes == device("a100-40gb", "11.3").context_bytes.expected
    assert old.device_bytes.expected - new.device_bytes.expected == old.context_bytes - new.context_bytes > 900 * MIB


def test_a_torch_that_was_built_for_a_later_cuda_has_its_context():
    assert cuda_of({"torch": "1.12", "cuda": "11.8"}) == "11.8"
    assert cuda_of({"torch": "1.13.1"}) == ""
    assert forecast(LLAMA | {"versions": {"torch": "2.4"}}, "a100-40gb").memory == forecast(LLAMA, "a100-40gb").memory
    assert forecast(LLAMA | {"versions": {"cuda": "11.3"}}, "mi210").memory == forecast(LLAMA, "mi210").memory


@pytest.mark.parametrize(
    ("versions", "answer"),
    [({}, True), ({"torch": "2.11"}, True), ({"torch": "2.10.0"}, False), ({"torch": "2.6"}, False),
     ({"torch": "2.11", "cuda": "12.8"}, True), ({"torch": "2.10", "cuda": "13.0"}, True),
     ({"torch": "2.9.1", "cuda": "12.8"}, False), ({"torch": "2.8", "cuda": "13"}, False), ({"cuda": "13"}, True),
     ({"transformers": "4.44"}, True)],
)  # fmt: skip
def test_which_versions_prefer_cudnn(versions, answer):
    assert prefers_cudnn(versions) is answer


@pytest.mark.parametrize(
    ("gpu", "changes"), [("h100-80gb", True), ("b200", True), ("a100-80gb", False), ("rtx-5090", False)]
)
def test_an_older_torch_takes_flash_attention_on_hopper(gpu, changes):
    """Twice the time of attention there, and no other on cards where no PyTorch prefers cuDNN's."""
    wide = {"name": "tiny-llama", "config": {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}}
    batch = {"micro_batch_size": 16, "sequence_length": 2048}
    long = LLAMA | {"model": wide, "batch": batch, "data": {"examples": 16}}
    old, new = (
        forecast(long | {"versions": versions}, gpu).step.seconds.expected for versions in ({"torch": "2.8"}, {})
    )
    assert (old > 1.02 * new) if changes else (old == new)


def test_adapters_are_fp32_from_peft_0_12_on():
    lora = LLAMA | {"adapter": {"kind": "lora"}}
    old, new = (forecast(lora | {"versions": {"peft": v}}, "a100-40gb") for v in ("0.11.1", "0.12.0"))
    more = new.memory.breakdown.parameter_bytes - old.memory.breakdown.parameter_bytes
    assert more == pytest.approx(2 * old.parameters.trainable, rel=0.05)


@pytest.mark.parametrize(("version", "more"), [("4.45.2", 0), ("4.46.3", 2)])
def test_16_bit_logits_live_beside_the_loss_from_4_46_on(version, more):
    peak = {v: forecast(LLAMA | {"versions": {"transformers": v}}, "a100-40gb").memory for v in ("4.42.4", version)}
    difference = peak[version].peak_allocated_bytes - peak["4.42.4"].peak_allocated_bytes
    assert difference == pytest.approx(more * SIZE * LENGTH * VOCABULARY, rel=0.03), "blocks of 2 MiB"


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "none"), ({"kbit_preparation": True}, "peft"), ({"versions": {"trl": "0.13.0"}}, "sft-trainer"),
        ({"versions": {"trl": "0.25.1"}, "quantization": "int8"}, "peft"),
        ({"versions": {"trl": "0.25.1"}, "precision": "bf16-true"}, "peft"),
        ({"versions": {"trl": "0.26.0"}}, "narrow-adapters"),
        ({"versions": {"trl": "1.16.0"}, "kbit_preparation": True}, "peft"),
        ({"versions": {"trl": "0.13.0"}, "quantization": "none"}, "none"),
    ],
)  # fmt: skip
def test_what_trl_makes_of_a_quantised_model(more, kind):
    quantised = {"precision": "bf16-mixed", "quantization": "nf4", "adapter": {"kind": "lora"}}
    assert kbit_preparation(settings_from(LLAMA | quantised | more)) == kind


def test_experts_are_layers_before_5():
    settings = settings_from(LLAMA | {"versions": {"transformers": "4.57.1"}})
    assert has_linear_experts(settings, "mixtral")
    assert not has_linear_experts(settings, "llama")
    assert not has_linear_experts(settings_from(LLAMA), "mixtral")


def test_what_is_not_modelled_is_said():
    versions = {"torch": "2.4", "transformers": "4.30", "peft": "0.9"}
    warnings = version_warnings(settings_from(LLAMA | {"versions": versions}))
    assert [w.split()[1] for w in warnings] == ["kernels", "transformers", "peft", "attention"]
    gpt2 = LLAMA | {"model": {"name": "tiny-gpt2"}, "versions": {"transformers": "4.44"}}
    assert "was not read" in version_warnings(settings_from(gpt2))[0]
    assert number_of("2.4.1") == (2, 4, 1)


def test_a_version_that_is_not_out_yet_is_said():
    (warning,) = version_warnings(settings_from(LLAMA | {"versions": {"transformers": "99.1"}}))
    assert "transformers 99.1 is newer than" in warning
    assert warning.endswith("it is taken as that.")


@pytest.mark.parametrize(
    ("versions", "attention", "implementation"),
    [
        ({"torch": "1.13.1"}, "eager", "for-loop"), ({"torch": "2.0.1"}, "eager", "auto"), ({"torch": "2.4"}, "auto", "auto"),
        ({"transformers": "4.35.2"}, "eager", "auto"), ({"transformers": "4.36"}, "auto", "auto"), ({}, "auto", "auto"),
    ],
)  # fmt: skip
def test_auto_is_what_it_was_in_the_stated_versions(versions, attention, implementation):
    settings = as_of_versions(settings_from(LLAMA | {"versions": versions}))
    assert (settings.model.attention, settings.optimizer.implementation) == (attention, implementation)


def test_what_the_settings_state_goes_before_versions():
    stated = {"model": LLAMA["model"] | {"attention": "sdpa"}, "optimizer": {"implementation": "fused"}}
    settings = settings_from(LLAMA | stated | {"versions": {"torch": "1.13"}})
    assert as_of_versions(settings) == settings
    gpt2 = settings_from(LLAMA | {"model": {"name": "tiny-gpt2"}, "versions": {"transformers": "4.41.2"}})
    assert as_of_versions(gpt2).model.attention == "eager", "BERT has had it since 4.41, GPT-2 since 4.42"


def test_a_forecast_of_an_old_torch_is_that_of_plain_attention_in_a_loop():
    plain = {"model": LLAMA["model"] | {"attention": "eager"}, "optimizer": {"implementation": "for-loop"}}
    old, stated = (forecast(LLAMA | more, "a100-40gb") for more in ({"versions": {"torch": "1.13.1"}}, plain))
    assert old.step.seconds.expected == stated.step.seconds.expected
    assert old.memory.peak_allocated_bytes == stated.memory.peak_allocated_bytes
    assert old.step.seconds.expected > forecast(LLAMA, "a100-40gb").step.seconds.expected


@pytest.mark.parametrize("versions", [{"numpy": "1.0"}, {"torch": "new"}, {"torch": ""}])
def test_other_libraries_and_words_are_refused(versions):
    with pytest.raises(InvalidSettings, match="versions"):
        settings_from(LLAMA | {"versions": versions})


def test_without_versions_the_hash_is_as_before():
    assert settings_from(LLAMA).hash == settings_from(LLAMA | {"versions": {}}).hash
    assert settings_from(LLAMA).hash != settings_from(LLAMA | {"versions": {"peft": "0.12"}}).hash
