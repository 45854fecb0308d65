"""What does the model see of the first rows, and which tokens carry loss? The batches that training makes of them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from forerun.data.token_data import IGNORED
from forerun.own.experiment import open_task
from forerun.own.facts import TaskFacts
from forerun.records import Record
from forerun.settings.schema import Settings
from forerun.step.unpaired import MISMATCHED

PARTIAL = "\ufffd"
"""What bytes that are no whole letter are decoded to."""
LABELS_OF_TOKENS = ("token-classification", "masked-lm")
"""Workloads whose labels are worth reading beside the tokens: there they are other than the next token."""
SIDES = {
    "": "text",
    "decoder_": "answer",
    "other_": "other text",
    "negative_": "text that is far",
    "rejected_": "rejected",
    MISMATCHED: "answer to another prompt, for the divergence",
}
"""Prefix of a batch's key → what it holds."""


class LookedToken(Record):
    """One token of a row."""

    id: int
    text: str
    """What it adds; a letter that several tokens make stands at the last of them, a part of none by its name."""
    is_special: bool
    carries_loss: bool
    label: str | None = None
    """What is to be answered here, where it is not the token itself."""


class LookedSide(Record):
    """The tokens of one row, or of one of its sides, without padding."""

    name: str
    tokens: list[LookedToken]
    padding: int
    """Padding tokens after them in this batch."""


class LookedRow(Record):
    """One sample, as it is in a batch; with `padding: packed` a row of several samples."""

    sides: list[LookedSide]
    label: str | None = None
    """Label of the whole row."""


class Look(Record):
    """The first rows of a run's training data, tokenised."""

    workload: str
    format: str
    fields: dict[str, str]
    rows: list[LookedRow]
    train_samples: int
    validation_samples: int
    test_samples: int
    mean_tokens: float
    """Mean tokens of a training sample after cutting."""
    at_limit: int
    """Training samples that fill `batch.sequence_length`, and may have been cut."""
    loss_share: float
    """Share of the tokens of the rows here that carry loss."""
    notes: list[str] = []
    """What a run says of its data: tools that a template leaves out, chats that are several samples."""


def look_at(settings: Settings, rows: int = 3) -> Look:
    """The first `rows` samples of the first epoch's order as training sees them.

    Raises:
        BadData, InvalidSettings: as a run of these settings.
    """
    task = open_task(settings)
    steps = task.data.epoch_steps(0)
    order = [index for step in steps for batch in step for index in batch]
    batches = [task.data.collate([index]) for index in order[:rows]]
    looked = [_row(batch, task.facts, task.tokenizer) for batch in batches]
    lengths = [task.data.tokens([index])[0] for index in order]
    tokens = [token for row in looked for side in row.sides for token in side.tokens]
    return Look(
        workload=settings.workload,
        format=task.facts.format,
        fields=task.facts.fields,
        rows=looked,
        train_samples=task.train_size,
        validation_samples=task.watched_size,
        test_samples=task.test_size,
        mean_tokens=sum(lengths) / len(lengths),
        at_limit=sum(length >= settings.batch.sequence_length for length in lengths),
        loss_share=sum(token.carries_loss for token in tokens) / max(1, len(tokens)),
        notes=list(task.assumptions),
    )


def _row(batch: dict[str, Tensor], facts: TaskFacts, tokenizer: Any) -> LookedRow:
    sides = []
    for prefix, name in SIDES.items():
        ids = batch.get(f"{prefix}input_ids")
        if ids is not None:
            labels = batch.get(f"{prefix}labels")
            if prefix == "decoder_":  # it reads what it is to write, one token later
                labels = batch["labels"]
                ids = labels.where(labels != IGNORED, facts.pad_id)
            sides.append(_side(name, ids[0].tolist(), _labels_of(labels, ids, prefix, batch), facts, tokenizer))
    if "is_desirable" in batch:
        return LookedRow(sides=sides, label="desirable" if batch["is_desirable"][0] else "undesirable")
    labels = batch.get("labels")
    has_own = labels is not None and labels.shape != batch["input_ids"].shape and "decoder_input_ids" not in batch
    return LookedRow(sides=sides, label=_label(labels[0].tolist(), facts) if has_own and labels is not None else None)


def _labels_of(labels: Tensor | None, ids: Tensor, prefix: str, batch: dict[str, Tensor]) -> list[int] | None:
    """Labels of the tokens, or None where the side has none, or none that carry loss."""
    is_source = not prefix and "decoder_input_ids" in batch
    if labels is None or labels.shape != ids.shape or is_source or prefix == MISMATCHED:
        return None
    return labels[0].tolist()


def _side(name: str, ids: Sequence[int], labels: Sequence[int] | None, facts: TaskFacts, tokenizer: Any) -> LookedSide:
    size = len(ids)
    while size > 1 and ids[size - 1] == facts.pad_id and (labels is None or labels[size - 1] == IGNORED):
        size -= 1
    special = set(tokenizer.all_special_ids)
    # a token that is predicted from those before it is not the first
    first = int(facts.workload in ("causal-lm", "preference"))
    texts = token_texts(ids[:size], tokenizer)
    tokens = [
        LookedToken(
            id=token, text=texts[place], is_special=token in special,
            carries_loss=labels is not None and labels[place] != IGNORED and place >= first,
            label=_answer(labels[place], facts, tokenizer) if labels is not None else None,
        )
        for place, token in enumerate(ids[:size])
    ]  # fmt: skip
    return LookedSide(name=name, tokens=tokens, padding=len(ids) - size)


def _answer(label: int, facts: TaskFacts, tokenizer: Any) -> str | None:
    if label == IGNORED or facts.workload not in LABELS_OF_TOKENS:
        return None
    return facts.label_names[label] if facts.workload == "token-classification" else _text(label, tokenizer)


def token_texts(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text that each token adds; of a letter whose bytes are several tokens, the last one adds it."""
    texts: list[str] = []
    before: list[int] = []
    parts: list[int] = []
    for token in ids:
        text = _added(before, [*parts, token], tokenizer)
        if parts and PARTIAL in text.rstrip(PARTIAL):  # what was open is no letter
            texts[-len(parts) :] = [_text(part, tokenizer) for part in parts]
            parts, text = [], _decoded([token], tokenizer)
        parts = [*parts, token] if text.endswith(PARTIAL) else []
        before = before if parts else [token]
        texts.append("" if parts else text or _text(token, tokenizer))
    if parts:
        texts[-len(parts) :] = [_text(part, tokenizer) for part in parts]
    return texts


def _added(before: Sequence[int], ids: Sequence[int], tokenizer: Any) -> str:
    """What tokens add behind another one: alone, WordPiece's and SentencePiece's lose the blank before them."""
    start = _decoded(before, tokenizer) if before else ""
    whole = _decoded([*before, *ids], tokenizer)
    return whole.removeprefix(start) if PARTIAL not in start and whole.startswith(start) else _decoded(ids, tokenizer)


def _text(token: int, tokenizer: Any) -> str:
    """A token as text; a part of a character by its name in the vocabulary."""
    text = _decoded([token], tokenizer)
    return text if text and PARTIAL not in text else str(tokenizer.convert_ids_to_tokens(token))


def _decoded(ids: Sequence[int], tokenizer: Any) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _label(value: Any, facts: TaskFacts) -> str:
    if facts.label_kind == "number":
        return f"{(value if isinstance(value, float) else value[0]) * facts.label_scale + facts.label_mean:g}"
    if facts.label_kind == "several":
        return ", ".join(name for name, here in zip(facts.label_names, value, strict=True) if here) or "none"
    return facts.label_names[int(value)]
