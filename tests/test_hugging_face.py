"""A Hugging Face `Trainer` is forecast as it stands, measured while it trains, and compared."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from forerun import hf
from forerun.errors import InvalidSettings, NotSupported
from forerun.ledger.store import open_ledger

pytest.importorskip("accelerate", reason="the Trainer needs it")
SMALL = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip


def rows(count=40, *, is_causal=False):
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number in range(count):
        ids = torch.randint(3, 100, (4 + 5 * number % 40,), generator=generator).tolist()
        samples.append({"input_ids": ids, "labels": ids if is_causal else number % 2})
    return samples


def collate(batch):
    length = max(len(row["input_ids"]) for row in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    for number, row in enumerate(batch):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    labels = ids.clone() if isinstance(batch[0]["labels"], list) else torch.tensor([row["labels"] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def trainer_of(folder, model=None, evaluated=None, **arguments):
    is_causal = model is not None and hasattr(model, "lm_head")
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2,
                "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True,
                "remove_unused_columns": False, **arguments}  # fmt: skip
    return Trainer(
        model=model or BertForSequenceClassification(BertConfig(**SMALL)), data_collator=collate,
        args=TrainingArguments(str(folder), **settings), train_dataset=rows(is_causal=is_causal), eval_dataset=evaluated,
    )  # fmt: skip


def test_the_whole_run_is_forecast(tmp_path):
    trainer = trainer_of(tmp_path)
    before = torch.get_rng_state()
    forecast = hf.forecast_trainer(trainer, gpu="t4")
    assert torch.equal(torch.get_rng_state(), before), "training finds the generators as they were"
    assert forecast.parameters.total == sum(p.numel() for p in trainer.model.parameters())
    assert (forecast.run.steps_per_epoch, forecast.run.total_steps) == (5, 10)
    assert forecast.run.checkpoints_written == 1
    state = forecast.memory.breakdown
    assert state.optimizer_state_bytes >= 2 * state.parameter_bytes * 0.99
    assert all(p.device.type == "cpu" for p in trainer.model.parameters()), "the trainer's model is as it was"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_settings_move_the_forecast(tmp_path, checkpointing):
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    plain = hf.forecast_trainer(trainer_of(tmp_path, model), gpu="l4")
    other = hf.forecast_trainer(
        trainer_of(tmp_path, model, bf16=not checkpointing, gradient_checkpointing=checkpointing), gpu="l4"
    )
    assert other.memory.breakdown.parameter_bytes == plain.memory.breakdown.parameter_bytes
    assert other.memory.peak_allocated_bytes != plain.memory.peak_allocated_bytes
    assert (other.step.hardware_flops > plain.step.hardware_flops) is checkpointing


def test_adapters_stay(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(LlamaForCausalLM(LlamaConfig(**SMALL)), LoraConfig(r=4, target_modules=["q_proj"]))
    forecast = hf.forecast_trainer(trainer_of(tmp_path, model), gpu="l4")
    assert forecast.parameters.trainable == 2 * (64 * 4 + 4 * 64)


@pytest.mark.medium
def test_a_run_is_measured_entered_and_compared(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    trainer = trainer_of(tmp_path, evaluated=rows(8), eval_strategy="epoch")
    forecast = hf.forecast_trainer(trainer, gpu="cpu", ledger=url)
    callback = hf.ForerunCallback(forecast, url)
    trainer.add_callback(callback)
    trainer.train()
    verdict = callback.verdict
    measured = {row.field: row for row in verdict.rows}
    assert measured["total_steps"].relative_error == 0
    assert measured["step.seconds"].measured > 0
    assert measured["run.evaluation_seconds"].measured > 0
    with open_ledger(url) as ledger:
        assert ledger.run(verdict.run_id).state == "verified"
    second = hf.forecast_trainer(trainer_of(tmp_path), gpu="cpu", ledger=url)
    assert any("Corrected by 1 earlier runs" in warning for warning in second.warnings)


def test_the_peak_is_that_of_the_real_step(tmp_path):
    """On this CPU, where our own loop runs the trainer's loss: 1 % and 4 KiB, as elsewhere."""
    from forerun.step.build import bind_step
    from forerun.step.training_step import StepObserver
    from forerun.train.measure import run_measuring_allocations

    trainer = trainer_of(tmp_path, LlamaForCausalLM(LlamaConfig(**SMALL)), gradient_accumulation_steps=1)
    forecast = hf.forecast_trainer(trainer, gpu="cpu")
    plan, sample = hf.plan_of(trainer)
    workload = hf.TrainerWorkload(trainer, sample)
    step = bind_step(hf.settings_of(trainer, plan), workload, trainer.model.train(), "cpu")
    batch = {key: value.clone() for key, value in sample.items()}
    step.run([batch], StepObserver())
    _, measured = run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    assert forecast.memory.peak_allocated_bytes == pytest.approx(measured, rel=0.01, abs=4096)


def test_what_cannot_be_forecast_is_said(tmp_path):
    with pytest.raises(NotSupported, match=r"args\.optim.*'sgd'"):
        hf.forecast_trainer(trainer_of(tmp_path, optim="sgd"))
    empty = trainer_of(tmp_path)
    empty.train_dataset = None
    with pytest.raises(InvalidSettings, match="train_dataset"):
        hf.forecast_trainer(empty)
    model = BertForSequenceClassification(BertConfig(**SMALL))
    model.classifier.weight = type("Params4bit", (torch.nn.Parameter,), {})(model.classifier.weight.data)
    with pytest.raises(NotSupported, match="packed"):
        hf.without_weights(model)
