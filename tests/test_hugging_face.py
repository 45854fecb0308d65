"""A Hugging Face `Trainer` is forecast as it stands, measured while it trains, and compared."""

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
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

SETTINGS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2, "report_to": [],
            "use_cpu": True, "disable_tqdm": True, "remove_unused_columns": False}  # fmt: skip


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
    settings = {**SETTINGS, "save_strategy": "no", **arguments}
    return Trainer(
        model=model or BertForSequenceClassification(BertConfig(**SMALL)), data_collator=collate,
        args=TrainingArguments(str(folder), **settings), train_dataset=rows(is_causal=is_causal), eval_dataset=evaluated,
    )  # fmt: skip


@pytest.mark.medium
def test_the_whole_run_is_forecast(tmp_path):
    trainer = trainer_of(tmp_path)
    before = torch.get_rng_state()
    forecast = hf.forecast_trainer(trainer, gpu="t4")
    assert torch.equal(torch.get_rng_state(), before), "training finds the generators as they were"
    assert forecast.parameters.total == sum(p.numel() for p in trainer.model.parameters())
    assert (forecast.run.steps_per_epoch, forecast.run.total_steps) == (5, 10)
    assert forecast.run.checkpoints_written == 0, "save_strategy is no"
    state = forecast.memory.breakdown
    assert state.optimizer_state_bytes >= 2 * state.parameter_bytes * 0.99
    assert all(p.device.type == "cpu" for p in trainer.model.parameters()), "the trainer's model is as it was"


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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
        hf.forecast_trainer(trainer_of(tmp_path, optim="sgd"), gpu="cpu")
    empty = trainer_of(tmp_path)
    empty.train_dataset = None
    with pytest.raises(InvalidSettings, match="train_dataset"):
        hf.forecast_trainer(empty)
    model = BertForSequenceClassification(BertConfig(**SMALL))
    trainer = trainer_of(tmp_path, model)
    model.classifier.weight = type("Params4bit", (torch.nn.Parameter,), {})(model.classifier.weight.data)
    with pytest.raises(NotSupported, match="packed"):
        hf.without_weights(model)
    with pytest.raises(NotSupported, match="packed"):
        hf.forecast_trainer(trainer, gpu="t4")


class PairTrainer(Trainer):
    """A loss of its own: each batch goes through the model twice (R-Drop, Liang et al. 2021, arXiv:2106.14448)."""

    batches = 0

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        self.batches += 1
        outputs = [model(**inputs) for _ in range(2)]
        loss = sum(output.loss for output in outputs)
        return (loss, outputs[0]) if return_outputs else loss


class Tracker(TrainerCallback):
    """A callback that tells others of the run."""

    events = 0

    def on_log(self, *_, **__):
        self.events += 1

    on_step_end = on_train_begin = on_log


@pytest.mark.medium
def test_a_trainer_with_its_own_loss_is_copied_and_left_alone(tmp_path):
    folder = tmp_path / "out"
    plain, tracker = trainer_of(folder), Tracker()
    args = TrainingArguments(str(folder), **SETTINGS, optim="sgd", save_strategy="epoch", logging_steps=1)
    own = PairTrainer(
        model=plain.model, args=args, callbacks=[tracker], data_collator=collate, train_dataset=rows()
    )  # fmt: skip
    before = {name: value.clone() for name, value in plain.model.state_dict().items()}
    files, state = sorted(tmp_path.rglob("*")), dict(AcceleratorState._shared_state)
    forecasts = [hf.forecast_trainer(each, gpu="t4") for each in (plain, own)]
    flops = [forecast.step.model_flops for forecast in forecasts]
    assert flops[1] == pytest.approx(2 * flops[0], rel=0.01)
    assert forecasts[1].memory.breakdown.optimizer_state_bytes == 0
    assert forecasts[1].run.checkpoints_written == 2
    assert any("Tracker" in warning for warning in forecasts[1].warnings)
    assert (own.batches, tracker.events, own.state.global_step, own.optimizer) == (0, 0, 0, None)
    assert all(torch.equal(value, before[name]) for name, value in plain.model.state_dict().items())
    assert all(type(p) is torch.nn.Parameter and p.grad is None for p in plain.model.parameters())
    assert sorted(tmp_path.rglob("*")) == files
    assert AcceleratorState._shared_state == state
    assert str(own.args.device) == "cpu"
    own.train()
    assert own.state.global_step == 10


@pytest.mark.medium
def test_the_largest_batch_is_run_and_the_mean_is_that_of_all(tmp_path):
    """Rows of 4 to 39 tokens: the peak is that of the longest alone, the step between shortest and longest."""
    data = rows(256, is_causal=True)
    model = LlamaForCausalLM(LlamaConfig(**SMALL | {"vocab_size": 20_000}))

    def forecast_of(train_dataset):
        trainer = trainer_of(tmp_path, model, gradient_accumulation_steps=1)
        trainer.train_dataset = train_dataset
        return hf.forecast_trainer(trainer, gpu="t4")

    lengths = [len(row["input_ids"]) for row in data]
    longest, shortest = ([row for row in data if len(row["input_ids"]) == f(lengths)][:1] * 64 for f in (max, min))
    uneven, alike, short = (forecast_of(each) for each in (data, longest, shortest))
    assert any("uneven" in warning for warning in uneven.warnings)
    assert not any("uneven" in warning for warning in alike.warnings)
    assert uneven.memory.peak_allocated_bytes == pytest.approx(alike.memory.peak_allocated_bytes, rel=0.02)
    assert short.step.model_flops < uneven.step.model_flops < alike.step.model_flops
    tokens = sum(lengths) / len(lengths) * 4
    assert uneven.step.tokens_per_second * uneven.step.seconds.expected == pytest.approx(tokens, rel=0.05)


@pytest.mark.medium
def test_evaluation_is_run_and_its_predictions_stay_on_the_card(tmp_path):
    model = LlamaForCausalLM(LlamaConfig(**SMALL | {"vocab_size": 20_000}))
    calls = []
    evaluated = [row for row in rows(400, is_causal=True) if len(row["input_ids"]) == 39][:1] * 400

    def forecast_of(**arguments):
        trainer = trainer_of(tmp_path, model, evaluated, eval_strategy="epoch", **arguments)
        trainer.compute_metrics = lambda predictions: calls.append(predictions) or {}
        return hf.forecast_trainer(trainer, gpu="t4")

    held, moved = forecast_of(), forecast_of(eval_accumulation_steps=2)
    logits = 400 * 39 * 20_000 * 4
    # each batch is put to the others, in new memory; a run of all 50 batches has 2,545,404,416 bytes
    assert held.memory.phase_peaks["scoring"] == pytest.approx(2_545_404_416, rel=0.02)
    assert held.memory.peak_allocated_bytes == held.memory.phase_peaks["scoring"]
    assert held.memory.breakdown.total_bytes == held.memory.peak_allocated_bytes
    assert any("eval_accumulation_steps" in warning for warning in held.warnings)
    assert moved.memory.phase_peaks["scoring"] < logits / 4
    assert held.run.phases.evaluation_seconds > 0
    assert calls == []


@pytest.mark.medium
def test_a_correction_from_past_runs_moves_a_card_too(tmp_path):
    from forerun.experience import Correction, CorrectionTerm
    from forerun.forecasting.correcting import corrected
    from forerun.forecasting.ranges import PROGRAM

    forecast = hf.forecast_trainer(trainer_of(tmp_path), gpu="t4", ledger=f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    assert forecast.detail.corrected_by["step"] == 1.0
    twice = corrected(forecast, Correction(terms={"step": CorrectionTerm(factor=2.0, spread=0.1, runs=3)}), PROGRAM)
    assert twice.step.seconds.expected == pytest.approx(2 * forecast.step.seconds.expected)
    assert twice.run.phases.training_seconds == pytest.approx(2 * forecast.run.phases.training_seconds)
    assert twice.run.cost == pytest.approx(2 * forecast.run.cost)


@pytest.mark.medium
def test_trainers_of_trl_are_forecast_as_they_are(tmp_path):
    """SFT with adapters, packed; DPO with a reference model: neither fits settings, and both keep metrics of their own."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words(), eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    common = {"max_length": 64, "report_to": [], "use_cpu": True, "bf16": False, "per_device_train_batch_size": 4}
    texts = Dataset.from_list([{"text": "one two three four five " * (1 + n % 4)} for n in range(200)])
    sft = trl.SFTTrainer(
        LlamaForCausalLM(LlamaConfig(**SMALL)),
        args=trl.SFTConfig(str(tmp_path / "sft"), packing=True, padding_free=False, **common), train_dataset=texts,
        processing_class=tokenizer, peft_config=LoraConfig(r=4, target_modules=["q_proj"]),
    )  # fmt: skip
    pairs = Dataset.from_list([{"prompt": "one two ", "chosen": "three four", "rejected": "five"}] * 64)
    dpo = trl.DPOTrainer(
        LlamaForCausalLM(LlamaConfig(**SMALL)), args=trl.DPOConfig(str(tmp_path / "dpo"), **common),
        ref_model=LlamaForCausalLM(LlamaConfig(**SMALL)), train_dataset=pairs, processing_class=tokenizer,
    )  # fmt: skip
    first, second = (hf.forecast_trainer(trainer, gpu="l4") for trainer in (sft, dpo))
    assert first.parameters.trainable == 2 * (64 * 4 + 4 * 64)
    assert first.run.total_steps > 0
    size = sum(p.numel() for p in dpo.model.parameters())
    assert second.parameters.total == 2 * size
    assert second.step.phases.backward_seconds > 0
    assert not sft._metrics["train"]
    assert not dpo._metrics["train"]
    assert all(p.grad is None and p.device.type == "cpu" for p in dpo.ref_model.parameters())


def words():
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<pad>", "</s>", "<unk>", "one", "two", "three", "four", "five"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
