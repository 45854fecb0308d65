"""KTO's loss by its formula, however a step is split, and as TRL's trainer computes it."""

import math

import pytest
import torch

from forerun.data.token_data import IGNORED
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import Preference
from forerun.step.training_step import StepObserver
from forerun.step.unpaired import MISMATCHED, UnpairedPreference, workload_of_settings
from forerun.step.workload import STEP_MEAN

OBJECTIVE = {"loss": "kto", "beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.7}
CONTENT = {
    "name": "a", "workload": "preference", "model": {"name": "tiny-llama"}, "preference": OBJECTIVE,
    "batch": {"sequence_length": 12, "micro_batch_size": 2}, "optimizer": {"name": "sgd", "learning_rate": 0.5},
}  # fmt: skip
PROMPT = 4
"""Tokens of each prompt; all answers have eight."""
LIKELY = -8 * math.log(500)
"""Log-probability of an answer about which a model of 500 tokens knows nothing, nats."""


def step_of(**sections):
    torch.manual_seed(0)
    settings = settings_from({**CONTENT, **sections})
    return build_step(settings, workload_of_settings(settings), "cpu", pretrained=False)


def batch_of(size, seed=3):
    """Random rows whose mismatched answers are those of the row before, and a reference that is not the model."""
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 60, (size, 12), generator=chance)
    labels = ids.clone()
    labels[:, :PROMPT] = IGNORED
    mismatched = torch.cat([ids[:, :PROMPT], ids.roll(1, 0)[:, PROMPT:]], dim=1)
    other_labels = mismatched.clone()
    other_labels[:, :PROMPT] = IGNORED
    noise = torch.randn(2, size, generator=chance)
    return {
        "input_ids": ids, "labels": labels, f"{MISMATCHED}input_ids": mismatched, f"{MISMATCHED}labels": other_labels,
        "reference": LIKELY + noise[0], "reference_mismatched": LIKELY - 3 + noise[1],
        "is_desirable": (torch.arange(size) % 3 != 0).float(),
    }  # fmt: skip


def pieces(whole, count):
    size = len(whole["input_ids"]) // count
    return [{key: value[i * size : (i + 1) * size] for key, value in whole.items()} for i in range(count)]


def logistic(value):
    return 1 / (1 + math.exp(-value))


def likelihood(model, ids, labels):
    """Log-probability of the answer of one row, token by token."""
    logits = model(input_ids=ids[None]).logits[0].double()
    return sum(
        float(logits[place - 1].log_softmax(-1)[labels[place]]) for place in range(1, 12) if labels[place] != IGNORED
    )


@torch.no_grad()
def by_hand(model, batch):
    """Equation 7 of the paper, a row at a time, in nats; and the divergence."""
    rows = range(len(batch["input_ids"]))
    apart = [
        likelihood(model, batch[f"{MISMATCHED}input_ids"][n], batch[f"{MISMATCHED}labels"][n])
        - float(batch["reference_mismatched"][n])
        for n in rows
    ]
    divergence = max(0.0, sum(apart) / len(apart))
    losses = []
    for n in rows:
        gain = likelihood(model, batch["input_ids"][n], batch["labels"][n]) - float(batch["reference"][n])
        if batch["is_desirable"][n]:
            losses.append(1.5 * (1 - logistic(0.3 * (gain - divergence))))
        else:
            losses.append(0.7 * (1 - logistic(0.3 * (divergence - gain))))
    return sum(losses) / len(losses), divergence


@pytest.mark.parametrize("shift", [0.0, 8.0])
def test_a_step_has_the_loss_of_the_formula(shift):
    """Once with a divergence above 0, once with one that is cut off there."""
    step, batch = step_of(), batch_of(6)
    batch["reference_mismatched"] += shift
    expected, divergence = by_hand(step.model, batch)
    assert (divergence == 0) == (shift > 0)
    result = step.run([batch], StepObserver())
    assert float(result.loss) == pytest.approx(expected, rel=1e-5)
    assert float(result.details["training_divergence"]) == pytest.approx(divergence, rel=1e-4)


def test_however_a_step_is_split_it_has_one_loss_and_one_gradient():
    losses, weights = [], []
    for count in (1, 2, 3):
        step = step_of()
        losses.append(float(step.run(pieces(batch_of(6), count), StepObserver()).loss))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in step.model.parameters()]))
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-5)
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=0, atol=1e-6)


def test_the_divergence_carries_no_gradient():
    step, batch = step_of(), batch_of(4)
    mean = torch.tensor(2.0, requires_grad=True)
    step.workload.loss(step.model, {**batch, STEP_MEAN: mean}).sum.backward()
    assert mean.grad is None
    assert all(parameter.grad is not None for parameter in step.model.parameters())


def test_desirable_answers_become_likelier_and_the_others_less():
    step, batch = step_of(optimizer={"name": "sgd", "learning_rate": 0.05}), batch_of(6)
    with torch.no_grad():
        before = torch.stack(step.workload.log_probabilities(step.model, batch))
        batch["reference"], batch["reference_mismatched"] = before
    for _ in range(10):
        result = step.run([batch], StepObserver())
    with torch.no_grad():
        gain = step.workload.log_probabilities(step.model, batch)[0] - before[0]
    good = batch["is_desirable"] > 0
    assert gain[good].mean() > 0 > gain[~good].mean()
    assert float(result.details["training_accuracy"]) > 0.5


def test_the_loss_of_settings_decides_the_workload():
    assert type(workload_of_settings(settings_from(CONTENT))) is UnpairedPreference
    assert type(workload_of_settings(settings_from({**CONTENT, "preference": {}}))) is Preference


@pytest.mark.medium
def test_steps_equal_those_of_trl(tmp_path):
    """Four steps of `KTOTrainer`, whose batches mismatch answers within themselves, on the same rows in their order."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    from forerun.own.tokens import learned_tokenizer

    step = step_of(optimizer={"name": "adamw", "learning_rate": 1e-2, "weight_decay": 0.0})
    tokenizer = learned_tokenizer(step.settings, ["how is the rain in the town", "it is good and fine, not bad"])
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    words = ["good", "fine", "bad", "not good", "the rain", "in town", "fine rain", "bad town"]
    rows = [
        {"prompt": f"how is {words[n]}?", "completion": f" it is {words[-n]}", "label": n % 3 != 0} for n in range(8)
    ]
    arguments = trl.KTOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=4, learning_rate=1e-2, optim="adamw_torch",
        lr_scheduler_type="constant", max_grad_norm=0.0, weight_decay=0.0, logging_steps=1, report_to="none", use_cpu=True, bf16=False,
        beta=OBJECTIVE["beta"], desirable_weight=OBJECTIVE["desirable_weight"], max_length=64, disable_dropout=True,
        undesirable_weight=OBJECTIVE["undesirable_weight"], precompute_ref_log_probs=True, save_strategy="no",
        train_sampling_strategy="sequential", gradient_checkpointing=False,
    )  # fmt: skip
    trainer = trl.KTOTrainer(
        step_of().model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    theirs = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    batches = [
        batch_of_rows(trainer.train_dataset.select(range(n, n + 2)), tokenizer.pad_token_id) for n in range(0, 8, 2)
    ]
    for batch in batches:
        with torch.no_grad():
            batch["reference"], batch["reference_mismatched"] = step.workload.log_probabilities(step.model, batch)
    ours = [float(step.run([batch], StepObserver()).loss) for batch in batches]
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert theirs[0] != pytest.approx(theirs[-1], abs=1e-3)


def batch_of_rows(rows, padding):
    """What TRL tokenised, as a batch here."""
    batch = {"is_desirable": torch.tensor([float(row["label"]) for row in rows])}
    for side, name in (("", "completion_ids"), (MISMATCHED, "KL_completion_ids")):
        whole = [row["prompt_ids"] + row[name] for row in rows]
        labels = [[IGNORED] * len(row["prompt_ids"]) + row[name] for row in rows]
        width = max(map(len, whole))
        batch[f"{side}input_ids"] = torch.tensor([ids + [padding] * (width - len(ids)) for ids in whole])
        batch[f"{side}labels"] = torch.tensor([own + [IGNORED] * (width - len(own)) for own in labels])
    width = max(batch["input_ids"].shape[1], batch[f"{MISMATCHED}input_ids"].shape[1])
    for key in [key for key in batch if batch[key].ndim == 2]:
        fill = IGNORED if key.endswith("labels") else padding
        batch[key] = torch.nn.functional.pad(batch[key], (0, width - batch[key].shape[1]), value=fill)
    return batch
