"""Masked words (`masked-lm`): 15 % of the tokens are asked for, 80 % of those masked, 10 % random, 10 % as they are.

Which ones is a pure function of the seed, the epoch and the row, so that a resumed run masks as one that was never
stopped. Held-out rows are masked once, the same way for every evaluation. The baselines are tables of counts: of the
token, and of the token after the one before.

Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun.data.plan import BatchPlan
from forerun.data.token_data import IGNORED, Batch, TokenData, TokenSample
from forerun.errors import InvalidSettings
from forerun.own.facts import TaskFacts
from forerun.own.parts import OwnParts
from forerun.own.scoring import held_out_data
from forerun.own.task import Task, first_rows, watched
from forerun.own.token_scores import TOKEN_SCORES, TokenScores, Untrained, judge_tokens, score_tokens
from forerun.own.tokens import around_texts, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep

SHARE, MASKED, RANDOM = 0.15, 0.8, 0.1
HELD_OUT = 2**31 - 1
"""Stands for the epoch of rows that are not trained on."""


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden."""

    seed: int
    mask_id: int
    special_ids: tuple[int, ...]
    """Never hidden, never put in place of another."""
    size: int
    """Ids that a random token is drawn from."""

    def hidden(self, ids: Sequence[int], epoch: int, row: int) -> TokenSample:
        """The row with some tokens hidden, at least one, and labels for those."""
        random = np.random.default_rng((self.seed, epoch, row))
        whole = np.asarray(ids, dtype=np.int32)
        free = np.flatnonzero(~np.isin(whole, self.special_ids))
        inputs, labels = whole.copy(), np.full_like(whole, IGNORED)
        if len(free):
            count = max(1, round(SHARE * len(free)))
            places = random.choice(free, size=count, replace=False)
            draw = random.random(count)
            other = random.integers(0, self.size, count)
            labels[places] = whole[places]
            inputs[places[draw < MASKED]] = self.mask_id
            swap = (draw >= MASKED) & (draw < MASKED + RANDOM) & ~np.isin(other, self.special_ids)
            inputs[places[swap]] = other[swap]
        return TokenSample(inputs, labels)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MaskedData:
    """`TrainingData` of rows that are masked anew each epoch; an index says its epoch, epoch · rows + row."""

    inner: TokenData
    masking: Masking

    def plan(self) -> BatchPlan:
        """Shapes of an epoch."""
        return self.inner.plan()

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Optimizer steps of an epoch."""
        first = epoch * len(self.inner.samples)
        return [[[int(i) + first for i in batch] for batch in step] for step in self.inner.epoch_steps(epoch)]

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of one micro-batch without and with padding."""
        return self.inner.tokens([index % len(self.inner.samples) for index in indices])

    def collate(self, indices: Sequence[int]) -> Batch:
        """CPU tensors of one micro-batch."""
        rows = len(self.inner.samples)
        samples = [self.masking.hidden(self.inner.samples[i % rows].ids, i // rows, i % rows) for i in indices]
        return replace(self.inner, samples=samples).collate(range(len(samples)))


def open_masked(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of plain texts.

    Raises:
        InvalidSettings: the tokenizer has no mask token.
    """
    tokenizer, assumptions = tokenizer_of(settings, (row.text for row in parts.train), lengths_only=lengths_only)
    if tokenizer.mask_token_id is None:
        raise InvalidSettings(
            f"model.name: masked-lm needs a tokenizer with a mask token; that of {settings.model.name} has none. Take "
            f"an encoder such as bert-base-uncased, or set workload to causal-lm."
        )
    masking = Masking(
        settings.seed, tokenizer.mask_token_id, tuple(sorted(set(tokenizer.all_special_ids))), len(tokenizer)
    )
    length = settings.batch.sequence_length
    split = {"train": parts.train, "validation": first_rows(parts.validation, settings.evaluation.examples)}
    split["test"] = parts.test
    plain = {name: masked_rows([row.text for row in rows], tokenizer, length) for name, rows in split.items()}
    hidden = {
        name: [masking.hidden(sample.ids, HELD_OUT, number) for number, sample in enumerate(plain[name])]
        for name in ("validation", "test")
    }
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields), sequence_length=length,
        pad_id=tokenizer.pad_token_id,
    )  # fmt: skip
    held_out = {name: held_out_data(settings, samples, facts.pad_id) for name, samples in hidden.items()}
    untrained = Untrained(held_out["test"])

    def baselines(scores: TokenScores) -> Judgement:
        texts = [tokenizer.decode(list(sample.ids), skip_special_tokens=True) for sample in plain["test"]]
        pairs = _all_pairs(plain["train"]), _hidden_pairs(plain["test"], hidden["test"])
        note = f"{SHARE:.0%} of the tokens are hidden, the same ones for all."
        return judge_tokens(scores, (), hidden["test"], untrained, texts=texts, note=note, pairs=pairs)

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(score_tokens(step, held_out["validation"]).metrics())

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=MaskedData(TokenData(settings, plain["train"], facts.pad_id), masking),
        train_size=len(plain["train"]),
        watched_size=len(plain["validation"]),
        final_examples=2 * len(plain["test"]),
        evaluate=evaluate,
        judge=lambda step: score_tokens(step, held_out["test"]),
        baselines=baselines,
        scores=TOKEN_SCORES,
        assumptions=assumptions,
        before=untrained.score,
    )


def masked_rows(texts: Sequence[str], tokenizer: Any, length: int) -> list[TokenSample]:
    """Rows of at most `length` ids with special tokens around; a long text goes on in the next row."""
    start, end = around_texts(tokenizer)
    room = length - len(start) - len(end)
    rows: list[TokenSample] = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        parts = [ids[first : first + room] for first in range(0, len(ids), room)]
        rows += [TokenSample(np.asarray([*start, *part, *end], np.int32)) for part in parts]  # type: ignore[arg-type]
    return rows


def _all_pairs(samples: Sequence[TokenSample]) -> np.ndarray:
    rows = [np.stack([np.asarray(s.ids)[:-1], np.asarray(s.ids)[1:]], axis=1) for s in samples if len(s.ids) > 1]
    return np.concatenate(rows)


def _hidden_pairs(plain: Sequence[TokenSample], hidden: Sequence[TokenSample]) -> np.ndarray:
    """The token before each hidden one as the model sees it, and the hidden one."""
    rows = []
    for whole, sample in zip(plain, hidden, strict=True):
        place = np.flatnonzero(np.asarray(sample.target) != IGNORED)
        place = place[place > 0]
        rows.append(np.stack([np.asarray(sample.ids)[place - 1], np.asarray(whole.ids)[place]], axis=1))
    return np.concatenate(rows)
