"""Training throughput side by side: Forerun, the Hugging Face Trainer and a Lightning Fabric loop.

    python benchmarks/throughput.py [--repeats 3] [--device cpu] [--to FILE]     prints a table and one JSON line

The same small BERT from the same random weights learns the same real texts with the same AdamW, precision, learning
rate and number of updates; each contestant in a process of its own, the contestants in turn, the turn repeated. Seconds
are those of training, data included; start-up, scoring and checkpoints are not. The score is the accuracy on held-out
texts, by one function for all. Needs the packages accelerate and lightning-fabric. Method version 1.

Cases: `mixed` has sentences and whole reviews (4 to 256 tokens), `sentences` sentences alone, `even` pieces of reviews
that all have 64 tokens: nothing to gain, so nobody may lose.
"""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

SAMPLES, MICRO_BATCH, EPOCHS, RATE, VOCABULARY, LONGEST = 1600, 32, 3, 5e-4, 8000, 256
CONFIG = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "max_position_embeddings": LONGEST, "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
FULL = 0.985
"""Mean fraction of a packed row that is filled."""
CASES = ("mixed", "sentences", "even")
CONTESTANTS = (
    "Hugging Face Trainer", "Hugging Face Trainer, by length", "Lightning Fabric", "Forerun, bucketed",
    "Forerun, packed",
)  # fmt: skip
BASELINE = CONTESTANTS[0]


def prepare(folder: Path) -> None:
    """Tokenise once for everybody: one JSON file per case with train and test ids and labels."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from forerun.data.text_polarity import embedded

    rows = embedded()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["[PAD]", "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator((row.text for row in rows if row.split == "train"), trainer)

    def ids_of(text: str) -> list[int]:
        return [1, *tokenizer.encode(text).ids[: LONGEST - 1]]

    everything = {case: {"train": [], "test": []} for case in CASES}
    for row in rows:
        split = "train" if row.split == "train" else "test"
        ids, label = ids_of(row.text), int(row.is_positive)
        everything["mixed"][split].append((ids, label))
        if row.source == "sentence_polarity":
            everything["sentences"][split].append((ids, label))
        else:
            pieces = [ids[i : i + 63] for i in range(1, len(ids), 63)]
            everything["even"][split] += [([1, *piece], label) for piece in pieces if len(piece) == 63]
    for case, splits in everything.items():
        generator = torch.Generator().manual_seed(0)
        for split, samples in splits.items():
            order = torch.randperm(len(samples), generator=generator).tolist()
            splits[split] = [samples[i] for i in order[: SAMPLES if split == "train" else 1000]]
        (folder / f"{case}.json").write_text(json.dumps(splits))


def new_model(device: str) -> Any:
    """The model that everybody starts from."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**CONFIG)).to(device)


def padded(samples: list[Any]) -> dict[str, torch.Tensor]:
    """A batch padded to its longest sample, as the peers' collators make it."""
    length = max(len(ids) for ids, _ in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (tokens, _) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([label for _, label in samples])}


def accuracy(model: Any, samples: list[Any], device: str) -> float:
    """Share of right answers, in batches of like lengths."""
    samples = sorted(samples, key=lambda sample: len(sample[0]))
    right = 0
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(samples), 64):
            batch = {k: v.to(device) for k, v in padded(samples[first : first + 64]).items()}
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(-1) == labels).sum())
    return right / len(samples)


def hugging_face(samples: list[Any], device: str, *, by_length: bool) -> tuple[Any, float, int]:
    """The Trainer of transformers; model, seconds and updates."""
    from transformers import Trainer, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(samples)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": samples[index][0], "labels": samples[index][1]}

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return padded([(row["input_ids"], row["labels"]) for row in rows])

    model = new_model(device)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=MICRO_BATCH, num_train_epochs=EPOCHS, learning_rate=RATE,
            lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=0.0, optim="adamw_torch_fused",
            save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=device == "cpu",
            remove_unused_columns=False, dataloader_num_workers=0,
            **({"train_sampling_strategy": "group_by_length"} if by_length else {}),
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), data_collator=collate)
        start = time.perf_counter()
        result = trainer.train()
        return model, time.perf_counter() - start, int(result.global_step)


def fabric_loop(samples: list[Any], device: str) -> tuple[Any, float, int]:
    """The loop that the documentation of Lightning Fabric shows."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator=device, devices=1)
    fabric.launch()
    bare = new_model(device)
    model, optimizer = fabric.setup(bare, torch.optim.AdamW(bare.parameters(), lr=RATE, weight_decay=0.0, fused=True))
    loader = torch.utils.data.DataLoader(samples, batch_size=MICRO_BATCH, shuffle=True, collate_fn=padded)  # type: ignore[arg-type]
    loader = fabric.setup_dataloaders(loader)
    updates, start = 0, time.perf_counter()
    model.train()
    for _ in range(EPOCHS):
        for batch in loader:
            fabric.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
    return bare, time.perf_counter() - start, updates


def forerun_loop(samples: list[Any], device: str, *, padding: str) -> tuple[Any, float, int]:
    """Our loop, checkpoints left out of the time; packed rows are as many as make the same number of updates."""
    from forerun.data.token_data import TokenData, TokenSample
    from forerun.settings.load import settings_from
    from forerun.step.build import bind_step
    from forerun.step.heads import generic_workload
    from forerun.train.loop import Training, seed_everything

    updates = -(-len(samples) // MICRO_BATCH)
    lengths = [len(ids) for ids, _ in samples]
    tokens = sum(lengths) / updates
    rows = max(1, round(tokens / LONGEST))
    row = max(max(lengths), round(tokens / rows / FULL))
    size = rows if padding == "packed" else MICRO_BATCH
    settings = settings_from({
        "name": "throughput", "workload": "sequence-classification", "model": {"name": "tiny-bert"},
        "batch": {"micro_batch_size": size, "sequence_length": row if padding == "packed" else max(lengths),
                  "padding": padding},
        "optimizer": {"learning_rate": RATE, "weight_decay": 0.0},
        "schedule": {"epochs": EPOCHS, "max_steps": EPOCHS * updates, "decay": "constant"},
        "checkpoints": {"every_steps": 10**6}, "data": {"mean_tokens": sum(lengths) / len(lengths)},
    })  # fmt: skip
    seed_everything(0)
    workload = generic_workload(settings.workload)
    model = new_model(device).train()
    data = TokenData(settings, [TokenSample(ids, label) for ids, label in samples])
    step = bind_step(settings, workload, model, device)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        training = Training(step, data, Path(folder))
        steps = sum(1 for _ in training.steps())
        return model, time.perf_counter() - start - training.elapsed.checkpoint_seconds, steps


def contest(name: str, case: Path, device: str) -> dict[str, Any]:
    """Train once in this process."""
    content = json.loads(case.read_text())
    samples = [(ids, label) for ids, label in content["train"]]
    kind, _, more = name.partition(", ")
    if kind == "Forerun":
        model, seconds, updates = forerun_loop(samples, device, padding=more)
    elif kind == "Lightning Fabric":
        model, seconds, updates = fabric_loop(samples, device)
    else:
        model, seconds, updates = hugging_face(samples, device, by_length=bool(more))
    tokens = EPOCHS * sum(len(ids) for ids, _ in samples)
    return {
        "seconds": seconds, "updates": updates, "tokens_per_second": tokens / seconds,
        "accuracy": accuracy(model, content["test"], device),
    }  # fmt: skip


def in_a_process(name: str, case: Path, device: str) -> dict[str, Any]:
    """`contest` in a process of its own."""
    command = [sys.executable, __file__, "--contestant", name, "--case", str(case), "--device", device]
    quiet = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, capture_output=True, text=True, env=quiet)
    if result.returncode:
        sys.exit(f"{name}: {result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--to", type=Path, help="Write the JSON line to this file too.")
    parser.add_argument("--contestant", help="Train this one in the process itself and print its JSON.")
    parser.add_argument("--case", type=Path)
    options = parser.parse_args()
    if options.contestant:
        print(json.dumps(contest(options.contestant, options.case, options.device)))
        return
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for case in options.cases.split(","):
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
            for _ in range(options.repeats):
                for name in CONTESTANTS:
                    runs[name].append(in_a_process(name, Path(folder) / f"{case}.json", options.device))
            results[case] = {name: summary(several, runs[BASELINE]) for name, several in runs.items()}
            print(f"\n{case:32} {'s':>7} {'tokens/s':>9} {'times HF':>9} {'updates':>8} {'accuracy':>9}", flush=True)
            for name, row in results[case].items():
                print(f"{name:32} {row['seconds']:7.1f} {row['tokens_per_second']:9,.0f} {row['ratio']:9.2f} "
                      f"{row['updates']:8} {row['accuracy']:9.3f}", flush=True)  # fmt: skip
    packages = ("torch", "transformers", "lightning-fabric", "accelerate")
    line = json.dumps({
        "benchmark": "throughput", "version": 1, "device": options.device, "machine": platform.machine(),
        "date": f"{dt.date.today()}", "versions": {p: version(p) for p in packages}, "cases": results,
    })  # fmt: skip
    print(line)
    if options.to:
        options.to.write_text(line + "\n", encoding="utf-8")


def summary(runs: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians; the ratio is the median of the turns' own ratios, since a machine changes its speed over minutes."""
    return {
        "seconds": statistics.median(run["seconds"] for run in runs),
        "tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
        "ratio": statistics.median(b["seconds"] / run["seconds"] for run, b in zip(runs, baseline, strict=True)),
        "updates": runs[0]["updates"],
        "accuracy": statistics.fmean(run["accuracy"] for run in runs),
    }


if __name__ == "__main__":
    main()
