"""Rows and trainers of other programs for four more tasks of `side_by_side.py`: tags, hidden words, texts, vectors.

`tags`: words in small letters and which had a capital, beside `Trainer` with `DataCollatorForTokenClassification`.
`hidden`: the beginnings of paragraphs, beside `Trainer` with `DataCollatorForLanguageModeling`, which draws other words
to hide: its step losses are other numbers, and only the scores compare.
`rewrite`: the first words of a sentence, without capitals and marks, and as they were, beside `Seq2SeqTrainer`.
`search`: the first sentence of a paragraph and its rest, beside `SentenceTransformerTrainer` with
`MultipleNegativesRankingLoss` (scale 20, which is this project's temperature of 0.05), in the order of rows given.
"""

import json
import re
import runpy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

MAKE = Path(__file__).parents[1] / "docs" / "guides" / "make_data.py"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
SMALL_T5 = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2, "d_kv": 32, "dropout_rate": 0.0}
ROWS = {"tags": 500, "hidden": 900, "rewrite": 900, "search": 500}
SCORES = {"tags": "f1", "hidden": "loss", "rewrite": "loss", "search": "mrr"}
IGNORED = -100
CASES: dict[str, dict[str, Any]] = {
    "tags": {
        "workload": "token-classification", "model": {"name": "minilm", "config": NO_DROPOUT},
        "optimizer": {"learning_rate": 5e-4, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 30},
        "batch": {"micro_batch_size": 8, "sequence_length": 40, "padding": "bucketed"},
    },
    "hidden": {
        "workload": "masked-lm", "model": {"name": "tiny-bert", "config": {**NO_DROPOUT, **SMALL, "vocab_size": 1024}},
        "optimizer": {"learning_rate": 2e-3, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 60},
        "batch": {"micro_batch_size": 8, "sequence_length": 64, "padding": "bucketed"},
    },
    "rewrite": {
        "workload": "seq2seq-lm", "model": {"name": "tiny-t5", "config": {**SMALL_T5, "vocab_size": 512}},
        "optimizer": {"learning_rate": 3e-3, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 60},
        "batch": {"micro_batch_size": 8, "sequence_length": 40, "padding": "bucketed"},
    },
    "search": {
        "workload": "embedding", "model": {"name": "minilm", "config": NO_DROPOUT},
        "optimizer": {"learning_rate": 1e-4, "max_gradient_norm": 1.0}, "schedule": {"max_steps": 12},
        "batch": {"micro_batch_size": 16, "sequence_length": 48, "padding": "bucketed"},
    },
}  # fmt: skip


def write_rows(kind: str, path: Path) -> None:
    """The rows of a case."""
    runpy.run_path(str(MAKE))["documents"](path, ROWS[kind])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(_row(kind, row))}\n" for row in rows))


def _row(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    if kind == "search":
        return row
    if kind == "hidden":
        return {
            "text": " ".join(row["anchor"].split()[:14])
        }  # short: a long text is several samples here, and one there
    if kind == "rewrite":
        target = " ".join(row["anchor"].split()[:7])
        return {"source": re.sub(r"[^\w ]", "", target.lower()), "target": target}
    words = [re.sub(r"\W", "", word) or "and" for word in row["positive"].split()[:24]]
    return {"tokens": [word.lower() for word in words], "ner_tags": ["B-CAP" if w[0].isupper() else "O" for w in words]}


def tag_trainer(model: nn.Module, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`transformers.Trainer` on words and tags: the first piece of a word has its tag."""
    places = {name: number for number, name in enumerate(task.facts.label_names)}

    def sample(row: Any) -> dict[str, Any]:
        limit = task.facts.sequence_length
        batch = task.tokenizer(list(row.words), is_split_into_words=True, truncation=True, max_length=limit)
        owners = batch.word_ids()
        firsts = [own is not None and own != before for own, before in zip(owners, [None, *owners], strict=False)]
        labels = [places[row.tags[own]] if is_first else IGNORED for own, is_first in zip(owners, firsts, strict=True)]
        return {**batch, "labels": labels}

    collator = DataCollatorForTokenClassification(task.tokenizer, pad_to_multiple_of=8)
    data = Dataset.from_list([sample(row) for row in rows])
    return Trainer(model, TrainingArguments(**arguments), train_dataset=data, data_collator=collator)


def hidden_trainer(model: nn.Module, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`transformers.Trainer` on texts of which the collator hides 15 %."""
    limit = task.facts.sequence_length
    data = Dataset.from_list([dict(task.tokenizer(row.text, truncation=True, max_length=limit)) for row in rows])
    collator = DataCollatorForLanguageModeling(task.tokenizer, mlm_probability=0.15, pad_to_multiple_of=8)
    return Trainer(model, TrainingArguments(**arguments), train_dataset=data, data_collator=collator)


def rewriting_trainer(model: nn.Module, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`transformers.Seq2SeqTrainer` on sources and targets."""
    limit = task.facts.sequence_length
    data = Dataset.from_list([
        {**task.tokenizer(row.source, truncation=True, max_length=limit),
         "labels": task.tokenizer(text_target=row.target, truncation=True, max_length=limit)["input_ids"]}
        for row in rows
    ])  # fmt: skip
    data = data.remove_columns([name for name in data.column_names if name == "token_type_ids"])
    config: Any = model.config
    config.decoder_start_token_id, config.pad_token_id = task.facts.start_id, task.facts.pad_id
    collator = DataCollatorForSeq2Seq(task.tokenizer, model=model, pad_to_multiple_of=8)
    return Seq2SeqTrainer(model, Seq2SeqTrainingArguments(**arguments), train_dataset=data, data_collator=collator)


def search_trainer(model: Any, rows: Sequence[Any], task: Any, arguments: dict[str, Any]) -> Trainer:
    """`SentenceTransformerTrainer` with in-batch negatives; unit vectors of the mean of the tokens."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    folder = tempfile.mkdtemp(dir=arguments["output_dir"])
    model.save_pretrained(folder)
    task.tokenizer.save_pretrained(folder)
    encoder = Transformer(folder, max_seq_length=task.facts.sequence_length)
    sentences = SentenceTransformer(modules=[encoder, Pooling(model.config.hidden_size), Normalize()], device="cpu")
    data = Dataset.from_list([{"anchor": row.anchor, "positive": row.positive} for row in rows])
    order = {} if arguments["train_sampling_strategy"] == "random" else {"batch_sampler": _in_order}
    config = SentenceTransformerTrainingArguments(**arguments, **order)
    return SentenceTransformerTrainer(
        sentences, config, train_dataset=data, loss=MultipleNegativesRankingLoss(sentences, scale=20.0)
    )


def _in_order(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> BatchSampler:
    """Batches of rows as they come."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def plain_names(weights: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Weights under those of `names` that end theirs: sentence-transformers puts its modules before them."""
    by_end = {name: value for name, value in weights.items() if name in names}
    for name, value in weights.items():
        end = next((own for own in names if name.endswith(f".{own}")), None)
        if end is not None:
            by_end.setdefault(end, value)
    return by_end


TRAINERS: dict[str, Callable[..., Trainer]] = {
    "tags": tag_trainer, "hidden": hidden_trainer, "rewrite": rewriting_trainer, "search": search_trainer,
}  # fmt: skip
