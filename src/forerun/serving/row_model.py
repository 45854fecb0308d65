"""A trained encoder that answers rows: labels with probabilities, numbers, tags of words, vectors, hidden words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun.data.own.row_kinds import TaggedRow
from forerun.data.own.spans import spans_of_tags, words_of
from forerun.data.sampler import LENGTH_MULTIPLE
from forerun.data.token_data import IGNORED
from forerun.errors import NotSupported
from forerun.own.facts import TaskFacts
from forerun.own.tagging import tagged_sample
from forerun.own.trained import TrainedModel
from forerun.serving.hidden_words import filled_answer
from forerun.serving.questions import Question
from forerun.step.pairs import pooled
from forerun.step.precision import POLICIES

BATCH_TOKENS = 8192
"""Padded tokens of a batch."""
BATCH_LOGITS = 2**26
"""Most logits of a batch: 256 MiB in fp32. A masked language model has one for each token and word."""
KINDS = {
    "sequence-classification": "labels", "token-classification": "tags", "embedding": "vectors", "masked-lm": "masks",
}  # fmt: skip
"""What each workload answers."""
SIGNIFICANT = 6
HALF = 0.5
"""Threshold of a label that has none of its own: models trained before there were any."""


class RowModel:
    """A model that answers rows; the order of the work is by length, the answers are in the rows' order."""

    def __init__(self, trained: TrainedModel):
        """Raises NotSupported for a workload that writes text."""
        self.facts, self.tokenizer = trained.facts, trained.tokenizer
        self.model, self.policy = trained.model, POLICIES[trained.settings.precision]
        if self.facts.workload not in KINDS:
            raise NotSupported(
                f"A {self.facts.workload} model gives no labels or vectors. Models that answer rows: "
                f"{', '.join(KINDS)}. Use forerun generate for text."
            )
        self.kind = KINDS[self.facts.workload]

    def answer(self, rows: Sequence[tuple[str, str | None]]) -> list[Mapping[str, Any]]:
        """Answers to texts, each alone or with a second one; `tokens` were read, and `truncated` says that more came.

        Raises:
            NotSupported: the model reads single texts and got pairs, or the other way round.
        """
        if not self.facts.is_paired and any(pair is not None for _, pair in rows):
            raise NotSupported(
                "The model was trained on single texts and would not know a second one. Send texts, or train on pairs."
            )
        if self.kind == "tags" and self.facts.format == "spans":
            words = (tuple(word for word, _, _ in words_of(text)) for text, _ in rows)
            return self.questions([Question(text, words=each) for (text, _), each in zip(rows, words, strict=True)])
        if self.kind == "tags":
            return self.questions([Question(words=tuple(text.split())) for text, _ in rows])
        return self.questions([Question(text, pair) for text, pair in rows])

    def questions(self, questions: Sequence[Question]) -> list[Mapping[str, Any]]:
        """Answers to rows of a file.

        Raises:
            NotSupported: the model reads pairs and got single texts.
        """
        if self.facts.is_paired and any(question.pair is None for question in questions):
            raise NotSupported(
                "The model was trained on pairs of texts, so each row needs a second one. Send text and pair."
            )
        if self.kind == "masks" and any(self.tokenizer.mask_token not in question.text for question in questions):
            raise NotSupported(
                f"The model fills in {self.tokenizer.mask_token}, so each text needs one. Put it in place of a word."
            )
        inputs = [self._encoded(question) for question in questions]
        answers: dict[int, Mapping[str, Any]] = {}
        order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]["input_ids"]))
        device = next(self.model.parameters()).device
        with torch.inference_mode(), self.policy.autocast(device.type):
            while order:
                size = max(1, self._batch_tokens // max(1, len(inputs[order[0]]["input_ids"])))
                batch, order = order[:size], order[size:]
                outputs = self._outputs([inputs[place] for place in batch], device)
                for place, output in zip(batch, outputs, strict=True):
                    answers[place] = {
                        **self._answered(output, inputs[place]),
                        "tokens": len(inputs[place]["input_ids"]),
                        "truncated": self._is_cut(questions[place], inputs[place]),
                    }
        return [answers[place] for place in range(len(questions))]

    @property
    def _batch_tokens(self) -> int:
        return min(BATCH_TOKENS, BATCH_LOGITS // len(self.tokenizer)) if self.kind == "masks" else BATCH_TOKENS

    def _encoded(self, question: Question) -> Mapping[str, Any]:
        options: dict[str, Any] = {"truncation": True, "max_length": self.facts.sequence_length, "verbose": False}
        if self.kind == "tags":
            row = TaggedRow(question.words, (self.facts.label_names[0],) * len(question.words))
            sample = tagged_sample(row, self.facts, self.tokenizer)
            return {
                "input_ids": list(sample.ids),
                "first_pieces": sample.target,
                "words": question.words,
                "text": question.text,
            }
        both = self.tokenizer(question.text, question.pair, return_token_type_ids=self.facts.is_paired, **options)
        return {**both, "text": question.text}

    def _is_cut(self, question: Question, encoded: Mapping[str, Any]) -> bool:
        """Whether the text goes on after the tokens that the model reads, as many as in training."""
        most = self.facts.sequence_length
        if self.kind == "tags":
            return bool(sum(label != IGNORED for label in encoded["first_pieces"]) < len(question.words))
        if len(encoded["input_ids"]) < most:
            return False
        return len(self.tokenizer(question.text, question.pair, verbose=False)["input_ids"]) > most

    def _outputs(self, inputs: Sequence[Mapping[str, Any]], device: torch.device) -> Sequence[Tensor]:
        """The model's output for each row, padding left out."""
        longest = max(len(one["input_ids"]) for one in inputs)
        length = min(self.facts.sequence_length, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        names = ("input_ids", "attention_mask", *(("token_type_ids",) if self.facts.is_paired else ()))
        batch = {
            name: torch.full((len(inputs), length), self.facts.pad_id if name == "input_ids" else 0) for name in names
        }
        for row, one in enumerate(inputs):
            for name in names:
                values = one[name] if name != "attention_mask" else [1] * len(one["input_ids"])
                batch[name][row, : len(values)] = torch.tensor(values)
        mask = batch["attention_mask"].to(device)
        if self.kind == "vectors":
            return list(pooled(self.model, batch["input_ids"].to(device), mask).float().cpu())
        output = self.model(**{name: tensor.to(device) for name, tensor in batch.items()})
        logits = output.logits.float().cpu()
        return [
            row[: len(one["input_ids"])] if self.kind in ("tags", "masks") else row
            for row, one in zip(logits, inputs, strict=True)
        ]

    def _answered(self, output: Tensor, encoded: Mapping[str, Any]) -> dict[str, Any]:
        if self.kind == "vectors":
            return {"vector": [round(value, SIGNIFICANT) for value in output.tolist()]}
        if self.kind == "tags":
            return self._tags(output, encoded)
        if self.kind == "masks":
            return filled_answer(output, encoded["text"], encoded["input_ids"], self.tokenizer)
        return label_answer(output.numpy(), self.facts)

    def _tags(self, output: Tensor, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """The tag of each word, by its first piece; words that were cut off have none. Of a text also the places."""
        best = output.argmax(-1).tolist()
        places = [place for place, label in enumerate(encoded["first_pieces"]) if label != IGNORED]
        tags: list[str | None] = [self.facts.label_names[best[place]] for place in places]
        words = list(encoded["words"])
        tags += [None] * (len(words) - len(tags))
        spans = {"spans": spans_of_tags(encoded["text"], tags)} if encoded["text"] else {}
        return {**spans, "words": words, "tags": tags}


def label_answer(logits: np.ndarray, facts: TaskFacts) -> dict[str, Any]:
    """The answer of a classifier's outputs (labels,): `label` and `probability`, `labels`, or `number`."""
    wide = logits.astype(np.float64)
    if facts.label_kind == "number":
        return {"number": float(f"{wide[0] * facts.label_scale + facts.label_mean:.{SIGNIFICANT}g}")}
    chances = 1 / (1 + np.exp(-wide)) if facts.label_kind == "several" else np.exp(wide - np.logaddexp.reduce(wide))
    probabilities = {
        name: round(float(chance), SIGNIFICANT) for name, chance in zip(facts.label_names, chances, strict=True)
    }
    if facts.label_kind == "several":
        levels = facts.label_levels or (HALF,) * len(chances)
        return {
            "labels": [
                name for name, chance, level in zip(facts.label_names, chances, levels, strict=True) if chance > level
            ],
            "probabilities": probabilities,
        }
    best = facts.label_names[int(chances.argmax())]
    return {"label": best, "probability": probabilities[best], "probabilities": probabilities}
