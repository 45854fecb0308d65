"""Masked words (`masked-lm`): 15 % of the tokens are asked for, 80 % of those masked, 10 % random, 10 % as they are.

Which ones is a pure function of the seed, the epoch and the row, so that a resumed run masks as one that was never
stopped. Held-out rows are masked once, the same way for every evaluation. The baselines are tables of counts: of the
token, and of the token after the one before.

Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from forerun.data.own.stored_rows import StoredRows
from forerun.data.plan import BatchPlan
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import IGNORED, Batch, TokenData, TokenSample
from forerun.errors import InvalidSettings
from forerun.own.facts import TaskFacts
from forerun.own.parts import OwnParts
from forerun.own.scoring import held_out_data
from forerun.own.stores import stored_samples
from forerun.own.task import Task, watched
from forerun.own.token_scores import SHOWN_TEXTS, TOKEN_SCORES, TokenScores, Untrained, judge_tokens, score_tokens
from forerun.own.tokens import around_texts, plain_encoder, plain_ids, tokenizer_of
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
class HiddenSamples(Sequence[TokenSample]):
    """Held-out samples with tokens hidden, the same ones whenever they are read."""

    plain: StoredSamples
    masking: Masking

    def __len__(self) -> int:
        return len(self.plain)

    @overload
    def __getitem__(self, index: int) -> TokenSample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenSample]: ...
    def __getitem__(self, index: int | slice) -> TokenSample | Sequence[TokenSample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return self.masking.hidden(self.plain[number].ids, HELD_OUT, number)

    @property
    def id_lengths(self) -> NDArray[np.int64]:
        """Ids of each sample."""
        return self.plain.id_lengths

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        """Labels of each sample."""
        return self.plain.id_lengths


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
        return [[np.asarray(batch) + first for batch in step] for step in self.inner.epoch_steps(epoch)]  # type: ignore[misc]

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of one micro-batch without and with padding."""
        return self.inner.tokens([index % len(self.inner.samples) for index in indices])

    def collate(self, indices: Sequence[int]) -> Batch:
        """CPU tensors of one micro-batch."""
        rows = len(self.inner.samples)
        samples = [
            self.masking.hidden(self.inner.samples[i % rows].ids, i // rows, i % rows) for i in map(int, indices)
        ]
        return replace(self.inner, samples=samples).collate(range(len(samples)))


def open_masked(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of plain texts.

    Raises:
        InvalidSettings: the tokenizer has no mask token.
    """
    tokenizer, assumptions = tokenizer_of(
        settings,
        (row.text for row in parts.learning_rows),
        rows=parts.learning_rows.identity,
        lengths_only=lengths_only,
    )
    if tokenizer.mask_token_id is None:
        raise InvalidSettings(
            f"model.name: masked-lm needs a tokenizer with a mask token; that of {settings.model.name} has none. Take "
            f"an encoder such as bert-base-uncased, or set workload to causal-lm."
        )
    masking = Masking(
        settings.seed, tokenizer.mask_token_id, tuple(sorted(set(tokenizer.all_special_ids))), len(tokenizer)
    )
    length = settings.batch.sequence_length
    split = parts.split(settings.evaluation)
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields), sequence_length=length,
        pad_id=tokenizer.pad_token_id,
    )  # fmt: skip
    plain = {name: masked_rows(rows, tokenizer, facts) for name, rows in split.items()}
    hidden = {name: HiddenSamples(plain[name], masking) for name in ("validation", "test")}
    held_out = {name: held_out_data(settings, samples, facts.pad_id) for name, samples in hidden.items()}
    untrained = Untrained(held_out["test"])

    def baselines(scores: TokenScores) -> Judgement:
        texts = [tokenizer.decode(list(sample.ids), skip_special_tokens=True) for sample in plain["test"][:SHOWN_TEXTS]]
        note = f"{SHARE:.0%} of the tokens are hidden, the same ones for all."
        return judge_tokens(scores, plain["train"], hidden["test"], untrained, texts=texts, note=note)

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(score_tokens(step, held_out["validation"]).metrics())

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=MaskedData(TokenData(settings, plain["train"], facts.pad_id), masking),
        train_size=len(plain["train"]),
        watched_size=len(plain["validation"]),
        test_size=len(plain["test"]),
        final_examples=2 * len(plain["test"]),
        evaluate=evaluate,
        judge=lambda step: score_tokens(step, held_out["test"]),
        baselines=baselines,
        scores=TOKEN_SCORES,
        assumptions=assumptions,
        before=untrained.score,
    )


def masked_rows(rows: StoredRows, tokenizer: Any, facts: TaskFacts) -> StoredSamples:
    """Samples of at most the sequence length with special tokens around; a long text goes on in the next."""
    start, end = around_texts(tokenizer)
    room = facts.sequence_length - len(start) - len(end)

    def samples(_: object) -> Iterator[TokenSample]:
        for ids in plain_ids(plain_encoder(tokenizer), (row.text for row in rows)):
            for first in range(0, len(ids), room):
                yield TokenSample(np.asarray([*start, *ids[first : first + room], *end], np.int32))  # type: ignore[arg-type]

    return stored_samples(rows, tokenizer, {"task": facts.model_dump(mode="json")}, samples)[0][""]
