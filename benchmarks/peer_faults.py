"""Faults of the usual trainer, shown on the installed version, with our loop beside it.

    python benchmarks/peer_faults.py [--to FILE]      prints a table and one JSON line; about two minutes on a CPU

Four checks on small random models, fp32, no dropout; each for transformers' Trainer and for Forerun:

- accumulation: gradient norm of one step over the same 8 samples of uneven length, 4 micro-batches against one. 1 is
  right.
- leakage: largest difference of an encoder's vectors for a document packed beside another one against the document
  alone. 0 is right.
- out of memory: raised once in the third of six steps. Is the run's result that of a run without? The peer restarts
  from step 0 with weights that it has already trained.
- resume: stopped in the middle of the second epoch with batches grouped by length, and resumed; are weights bit-equal
  to those of a run that was not stopped?

Method version 1.
"""

import argparse
import datetime as dt
import json
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from forerun.data.token_data import TokenData, TokenSample
from forerun.settings.load import settings_from
from forerun.step.build import bind_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.train.loop import Training, seed_everything

CONFIG = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 128,
}  # fmt: skip
ENCODER = {**CONFIG, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SAMPLES = 48


def samples(count: int = SAMPLES) -> list[TokenSample]:
    """Uneven lengths, 3 to 62 tokens, two classes."""
    generator = torch.Generator().manual_seed(1)
    lengths = [3 + 7 * number % 60 for number in range(count)]
    return [
        TokenSample(torch.randint(3, 100, (length,), generator=generator).tolist(), number % 2)
        for number, length in enumerate(lengths)
    ]


def model_of(workload: str) -> Any:
    """A small random model."""
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if workload == "causal-lm":
        return LlamaForCausalLM(LlamaConfig(**CONFIG))
    return BertForSequenceClassification(BertConfig(**ENCODER))


def peer_batch(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Padded to the longest."""
    length = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


def peer_trainer(folder: str, model: Any, rows: list[TokenSample], **arguments: Any) -> Any:
    """transformers' Trainer over `rows`."""
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": list(row.ids), "labels": row.target} for row in rows]
    settings = TrainingArguments(
        folder, use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
        optim="adamw_torch_fused", lr_scheduler_type="constant", weight_decay=0.0,
        **{"save_strategy": "no", "learning_rate": 1e-3, "max_grad_norm": 0.0, **arguments},
    )  # fmt: skip
    return Trainer(model=model, args=settings, train_dataset=data, data_collator=peer_batch)  # type: ignore[arg-type]


def our_training(folder: Path, model: Any, rows: list[TokenSample], **sections: Any) -> Training:
    """Our loop over `rows`."""
    settings = settings_from({
        "name": "a", "workload": "sequence-classification", "model": {"name": "tiny-bert"},
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.0}, **sections,
        "schedule": {"decay": "constant", **sections.get("schedule", {})},
    })  # fmt: skip
    step = bind_step(settings, generic_workload(settings.workload), model.train(), "cpu")
    return Training(step, TokenData(settings, rows), folder)


def gradient_norm(model: Any) -> float:
    """Norm of all gradients together."""
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())


def accumulation() -> dict[str, Any]:
    """Gradient norm of four micro-batches over that of one."""
    rows = samples(8)
    norms: dict[str, list[float]] = {"peer": [], "ours": []}
    for size, steps in ((8, 1), (2, 4)):
        model = model_of("sequence-classification")
        with tempfile.TemporaryDirectory() as folder:
            trainer = peer_trainer(
                folder, model, rows, per_device_train_batch_size=size, gradient_accumulation_steps=steps, max_steps=1,
                learning_rate=0.0, max_grad_norm=1e9,
            )  # fmt: skip
            step_norms: list[float] = []

            class Watch(trainer_callback()):
                def on_pre_optimizer_step(
                    self, *unused: Any, model: Any = model, step_norms: Any = step_norms, **kwargs: Any
                ) -> None:
                    step_norms.append(gradient_norm(model))

            trainer.add_callback(Watch())
            trainer.train()
            norms["peer"].append(step_norms[0])
            model = model_of("sequence-classification")
            batch = {"micro_batch_size": size, "gradient_accumulation_steps": steps, "sequence_length": 64}
            ours = our_training(Path(folder) / "ours", model, rows, batch=batch)
            batches = [ours.data.collate(indices) for indices in ours.data.epoch_steps(0)[0]]
            count = ours.step.counted(batches)
            for index, part in enumerate(batches):
                ours.step.micro_step(part, count, index, StepObserver())
            norms["ours"].append(gradient_norm(model))
    return {
        "peer": f"×{norms['peer'][1] / norms['peer'][0]:.3f}", "ours": f"×{norms['ours'][1] / norms['ours'][0]:.3f}",
        "peer_ratio": norms["peer"][1] / norms["peer"][0], "ours_ratio": norms["ours"][1] / norms["ours"][0],
    }  # fmt: skip


def trainer_callback() -> Any:
    """The base of the Trainer's callbacks."""
    from transformers import TrainerCallback

    return TrainerCallback


def leakage() -> dict[str, Any]:
    """How far an encoder's vectors move when another document is packed before it."""
    model = model_of("sequence-classification").eval()
    first, second = (torch.tensor([list(row.ids)]) for row in samples(4)[2:4])
    flat = torch.cat([first, second], dim=1)
    positions = torch.cat([torch.arange(first.shape[1]), torch.arange(second.shape[1])])[None]
    with torch.no_grad():
        alone = model.bert(input_ids=second).last_hidden_state
        peer = model.bert(input_ids=flat, position_ids=positions).last_hidden_state[:, first.shape[1] :]
        workload = generic_workload("token-classification")
        documents = torch.tensor([[1] * first.shape[1] + [2] * second.shape[1]])
        inputs: dict[str, Any] = {"input_ids": flat}
        batch = {"input_ids": flat, "documents": documents, "position_ids": positions}
        workload._keep_apart(model, batch, inputs, contextlib_stack())  # type: ignore[union-attr]
        ours = model.bert(**inputs).last_hidden_state[:, first.shape[1] :]
    peer_error, our_error = (float((vectors - alone).abs().max()) for vectors in (peer, ours))
    return {
        "peer": f"off by {peer_error:.0e}", "ours": f"off by {our_error:.0e}", "peer_error": peer_error,
        "our_error": our_error,
    }  # fmt: skip


def contextlib_stack() -> Any:
    """A stack of contexts that nobody needs to leave."""
    import contextlib

    return contextlib.ExitStack()


def distance(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Largest difference of two sets of weights."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def copied(model: Any) -> list[torch.Tensor]:
    """Weights as they are now."""
    return [p.detach().clone() for p in model.parameters()]


def failing_once(model: Any, call: int) -> None:
    """Let the forward pass number `call` run out of memory."""
    original, calls = model.forward, {"number": 0}

    def forward(*arguments: Any, **keywords: Any) -> Any:
        calls["number"] += 1
        if calls["number"] == call:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (injected)")
        return original(*arguments, **keywords)

    model.forward = forward


def out_of_memory() -> dict[str, Any]:
    """Weights after six steps with one failure against weights without."""
    rows, runs = samples(), {}
    for fails in (False, True):
        model = model_of("sequence-classification")
        steps: list[int] = []
        if fails:
            failing_once(model, 3)
        with tempfile.TemporaryDirectory() as folder:
            trainer = peer_trainer(
                folder, model, rows, per_device_train_batch_size=8, max_steps=6, auto_find_batch_size=True
            )

            class Count(trainer_callback()):
                def on_step_end(self, *unused: Any, steps: list[int] = steps, **kwargs: Any) -> None:
                    steps.append(1)

            trainer.add_callback(Count())
            trainer.train()
            runs["peer", fails] = (copied(model), len(steps), trainer._train_batch_size)
            model = model_of("sequence-classification")
            if fails:
                failing_once(model, 3)
            seed_everything(0)
            batch = {"micro_batch_size": 8, "sequence_length": 64, "padding": "longest"}
            ours = our_training(Path(folder) / "ours", model, rows, batch=batch, schedule={"max_steps": 6})
            reports = list(ours.steps())
            runs["ours", fails] = (copied(model), len(reports), reports[-1].samples)
    away = {who: distance(runs[who, False][0], runs[who, True][0]) for who in ("peer", "ours")}
    return {
        who: f"{runs[who, True][1]} updates at {runs[who, True][2]} samples, weights {away[who]:.0e} away"
        for who in ("peer", "ours")
    } | {"peer_distance": away["peer"], "our_distance": away["ours"]}


def resume() -> dict[str, Any]:
    """Weights after stopping at step 9 of 18, six an epoch, against weights without."""
    rows, weights = samples(), {}
    for stops in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            common: dict[str, Any] = {
                "per_device_train_batch_size": 8, "num_train_epochs": 3, "train_sampling_strategy": "group_by_length",
                "save_strategy": "steps", "save_steps": 9, "seed": 0,
            }  # fmt: skip
            model = model_of("sequence-classification")
            if stops:

                class Stop(trainer_callback()):
                    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                        control.should_training_stop = state.global_step == 9

                trainer = peer_trainer(folder, model, rows, **common)
                trainer.add_callback(Stop())
                trainer.train()
                model = model_of("sequence-classification")
            trainer = peer_trainer(folder, model, rows, **common)
            trainer.train(resume_from_checkpoint=stops)
            weights["peer", stops] = copied(model)
            sections = {
                "batch": {"micro_batch_size": 8, "sequence_length": 64, "padding": "bucketed"},
                "schedule": {"epochs": 3}, "checkpoints": {"every_steps": 9},
            }  # fmt: skip
            seed_everything(0)
            ours = our_training(Path(folder) / "ours", model_of("sequence-classification"), rows, **sections)
            if stops:
                for report in ours.steps():
                    if report.step == 10:
                        break
                seed_everything(1)
                ours = our_training(Path(folder) / "ours", model_of("sequence-classification"), rows, **sections)
            for _ in ours.steps():
                pass
            weights["ours", stops] = copied(ours.step.model)
    away = {who: distance(weights[who, False], weights[who, True]) for who in ("peer", "ours")}
    return {who: "bit-equal" if away[who] == 0 else f"weights {away[who]:.0e} away" for who in away} | {
        "peer_distance": away["peer"], "our_distance": away["ours"]
    }  # fmt: skip


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "accumulation: gradient of 4 micro-batches": accumulation,
    "leakage between packed documents (encoder)": leakage,
    "out of memory in step 3 of 6": out_of_memory,
    "resume in epoch 2, batches by length": resume,
}


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, help="Write the JSON line to this file too.")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {}
    print(f"{'':44} {'Trainer of transformers ' + version('transformers'):44} Forerun")
    for name, check in CHECKS.items():
        results[name] = check()
        print(f"{name:44} {results[name]['peer']:44} {results[name]['ours']}", flush=True)
    versions = {name: version(name) for name in ("torch", "transformers", "accelerate")}
    line = json.dumps({
        "benchmark": "peer_faults", "version": 1, "date": f"{dt.date.today()}", "versions": versions, "checks": results
    })  # fmt: skip
    print(line)
    if options.to:
        options.to.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
