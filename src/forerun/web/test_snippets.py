"""Texts to copy are taken by the libraries that they are for, and say the step of the settings."""

import io
import re
from itertools import product

import pytest
import yaml

from forerun.web.question import CHOICES, PageQuestion
from forerun.web.snippets import OPTIMIZERS, axolotl_text, snippets_of, trainer_text, trl_text

AXOLOTL_KEYS = {
    "base_model", "output_dir", "micro_batch_size", "gradient_accumulation_steps", "num_epochs", "sequence_len",
    "sample_packing", "pad_to_sequence_len", "learning_rate", "weight_decay", "max_grad_norm", "optimizer",
    "gradient_checkpointing", "bf16", "fp16", "tf32", "bfloat16", "float16", "attn_implementation", "adapter", "lora_r",
    "lora_alpha", "lora_dropout", "lora_target_linear", "load_in_8bit", "load_in_4bit", "fsdp_version", "fsdp_config",
}  # fmt: skip
"""Fields of `AxolotlInputConfig`, axolotl 0.19.0 (PyPI; read 2026-11-24); it cannot be installed beside this PyTorch."""
AXOLOTL_SHARDING = {"reshard_after_forward", "activation_checkpointing"}
"""Fields of its `FSDPConfig`."""
QUESTIONS = [
    PageQuestion(method="qlora", precision="bf16-mixed", checkpointing="blocks"),
    PageQuestion(method="lora-int8", precision="fp16-true", attention="sdpa:flash"),
    PageQuestion(method="full", precision="fp32", parallel="fsdp", devices=4, checkpointing="blocks", batch=2),
    PageQuestion(method="full", precision="bf16-true", optimizer="muon", checkpointing="selective", attention="eager"),
]


def names_of(text):
    """What a text of Python binds; bfloat16 is refused on a machine without a GPU unless the CPU is asked for."""
    names = {}
    text = re.sub(r"^arguments = (\w+)\(", r"arguments = \1(use_cpu=True,", text, flags=re.MULTILINE)
    exec(compile(text, "snippet", "exec"), names)
    return names


@pytest.mark.medium  # importing the Trainer
def test_the_trainer_takes_its_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("accelerate")
    from transformers.training_args import OptimizerNames

    assert set(OPTIMIZERS.values()) <= {name.value for name in OptimizerNames}
    for question in QUESTIONS:
        names = names_of(trainer_text(question.settings()))
        arguments = names["arguments"]
        assert arguments.per_device_train_batch_size == question.batch
        assert arguments.max_grad_norm == 0.0, "settings that do not clip"
        assert (names["model_kwargs"]["dtype"] == "bfloat16") == (question.precision == "bf16-true")
        assert arguments.bf16 == (question.precision == "bf16-mixed")
        sharded = question.parallel == "fsdp"
        assert bool(arguments.fsdp) == sharded
        recomputes = arguments.fsdp_config["activation_checkpointing"] if sharded else arguments.gradient_checkpointing
        assert recomputes == (question.checkpointing == "blocks")
        assert ("adapter" in names) == (question.method != "full")
        if question.method == "qlora":
            bits = names["model_kwargs"]["quantization_config"]
            assert (bits.bnb_4bit_quant_type, bits.bnb_4bit_use_double_quant) == ("nf4", True)
            assert (names["adapter"].r, names["adapter"].target_modules) == (8, "all-linear")


@pytest.mark.scripts
def test_trl_takes_its_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("trl")
    for question in QUESTIONS:
        arguments = names_of(trl_text(question.settings()))["arguments"]
        assert (arguments.max_length, arguments.packing) == (question.length, False)
        assert (arguments.bf16, arguments.fp16) == (question.precision == "bf16-mixed", False)
        assert arguments.gradient_checkpointing == (question.checkpointing == "blocks" and question.parallel != "fsdp")


def test_axolotl_knows_every_key():
    for question in QUESTIONS:
        content = yaml.safe_load(io.StringIO(axolotl_text(question.settings())))
        assert set(content) <= AXOLOTL_KEYS
        assert set(content.get("fsdp_config", ())) <= AXOLOTL_SHARDING
        assert content["micro_batch_size"] == question.batch
        assert content.get("adapter") == {"full": None, "lora-int8": "lora"}.get(question.method, question.method)
        assert sum(content.get(word, False) for word in ("bf16", "fp16", "bfloat16", "float16")) == (
            question.precision != "fp32"
        )


def test_what_cannot_be_said_is_a_comment():
    question = QUESTIONS[3]
    for snippet in snippets_of(question.settings()):
        notes = "".join(re.findall("^# .*", snippet.text, re.MULTILINE))
        assert "selective" in notes
        assert ("muon" in notes) == (snippet.language == "python"), "axolotl has muon"


@pytest.mark.parametrize("workload", CHOICES["workload"])
def test_each_workload_has_what_trains_it(workload):
    settings = PageQuestion(workload=workload, image_size=32, audio_seconds=2.0).settings()
    titles = [snippet.title for snippet in snippets_of(settings)]
    assert ("axolotl" in titles) == (workload == "causal-lm")
    notes = trainer_text(settings)
    for word in ("image_size", "audio_seconds"):
        assert (word in notes) == (getattr(settings.media, word) is not None)


def test_every_choice_has_a_text():
    for method, precision in product(CHOICES["method"], CHOICES["precision"]):
        for snippet in snippets_of(PageQuestion(method=method, precision=precision, model="a'\nb\"").settings()):
            if snippet.language == "python":
                compile(snippet.text, "snippet", "exec")
            else:
                assert yaml.safe_load(snippet.text)["base_model"] == "a'\nb\""
