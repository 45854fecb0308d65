"""Words to tags (`token-classification`): the first piece of each word carries its tag, the others none.

Words that the sequence length cuts off count as `O` when a model is scored, or as what stands for it among numbers
without names (`evaluate/spans.py`). Baselines: every word the tag that it has
most often in the training rows (unseen words the most frequent tag of all), and nothing but the most frequent tag.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from forerun.data.own.row_kinds import TaggedRow
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import IGNORED, TokenData, TokenSample
from forerun.errors import BadData
from forerun.evaluate.spans import OUTSIDE, PREFIXES, count_spans, f1_difference, outside_of, scores_by_type
from forerun.own.facts import TaskFacts
from forerun.own.label_tables import EXAMPLES, THIRDS, shortened, thirds
from forerun.own.parts import OwnParts
from forerun.own.scoring import answers, held_out_data
from forerun.own.stores import stored_samples
from forerun.own.task import Task, named, strongest, watched
from forerun.own.tokens import around_texts, in_batches, plain_encoder, plain_ids, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Batch
from forerun.train.alive import TrivialLoss, count_entropy

TAG_SCORES = {"f1": True, "precision": True, "recall": True, "accuracy": True}
Tags = list[list[str]]


def open_tagging(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of tagged words.

    Raises:
        BadData: fewer than two tags.
    """
    split = parts.split(settings.evaluation)
    tokenizer, assumptions = tokenizer_of(
        settings,
        (" ".join(row.words) for row in parts.learning_rows),
        rows=parts.learning_rows.identity,
        lengths_only=lengths_only,
    )
    names = tuple(sorted({tag for rows in split.values() for row in rows for tag in row.tags}))
    if len(names) < 2:
        raise BadData(f"{settings.data.source}: tagging needs at least two tags; found {', '.join(names) or 'none'}.")
    outside = outside_of(names, (tag for row in split["train"] for tag in row.tags))
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields), label_names=names,
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id,
    )  # fmt: skip
    samples = {part: tagged_samples(rows, facts, tokenizer) for part, rows in split.items()}
    held_out = {part: held_out_data(settings, samples[part], facts.pad_id) for part in ("validation", "test")}
    data = TokenData(settings, samples["train"], facts.pad_id)

    def evaluate(step: TrainingStep) -> dict[str, float]:
        rows = split["validation"]
        return watched(tag_scores(answer_tags(step, held_out["validation"], rows, names, outside), rows, outside))

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=data,
        train_size=len(samples["train"]),
        watched_size=len(samples["validation"]),
        test_size=len(samples["test"]),
        final_examples=len(samples["test"]),
        evaluate=evaluate,
        judge=lambda step: answer_tags(step, held_out["test"], split["test"], names, outside),
        baselines=lambda tags: judge_tags(tags, split["train"], split["test"], outside),
        scores=TAG_SCORES,
        assumptions=assumptions,
        trivial=TrivialLoss(count_entropy(samples["train"].counts), "always answering with the shares of the tags"),
    )


def tagged_samples(rows: StoredRows, facts: TaskFacts, tokenizer: Any) -> StoredSamples:
    """Samples of a part, on disk; many rows are tokenised at once."""

    def samples(_: object) -> Iterator[TokenSample]:
        around, encode = around_texts(tokenizer), plain_encoder(tokenizer)
        for part in in_batches(rows, lambda row: sum(map(len, row.words))):
            words = [word if place == 0 else f" {word}" for row in part for place, word in enumerate(row.words)]
            ids = plain_ids(encode, words)
            for row in part:
                own = [next(ids).tolist() or [unknown_id(tokenizer)] for _ in row.words]
                yield _labelled_words(row, own, facts, around)

    return stored_samples(rows, tokenizer, {"task": facts.model_dump(mode="json")}, samples)[0][""]


def tagged_sample(row: TaggedRow, facts: TaskFacts, tokenizer: Any) -> TokenSample:
    """Ids of the words with special tokens around, and a label for the first piece of each word."""
    ids = [word_ids(word, tokenizer, is_first=number == 0) for number, word in enumerate(row.words)]
    return _labelled_words(row, ids, facts, around_texts(tokenizer))


def _labelled_words(
    row: TaggedRow, pieces_of_words: Sequence[list[int]], facts: TaskFacts, around: tuple[list[int], list[int]]
) -> TokenSample:
    start, end = around
    places = {name: number for number, name in enumerate(facts.label_names)}
    ids, labels = list(start), [IGNORED] * len(start)
    room = facts.sequence_length - len(end)
    for pieces, tag in zip(pieces_of_words, row.tags, strict=True):
        if len(ids) + len(pieces) > room:
            break
        ids += pieces
        labels += [places[tag], *([IGNORED] * (len(pieces) - 1))]
    return TokenSample(np.asarray([*ids, *end], np.int32), np.asarray(labels + [IGNORED] * len(end), np.int32))  # type: ignore[arg-type]


def word_ids(word: str, tokenizer: Any, *, is_first: bool) -> list[int]:
    """Ids of one word of a sentence: with a blank before it unless it is the first; one id at least."""
    ids = tokenizer(word if is_first else f" {word}", add_special_tokens=False)["input_ids"]
    return ids or [unknown_id(tokenizer)]


def unknown_id(tokenizer: Any) -> int:
    """Id of words that the tokenizer makes nothing of."""
    return tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id


def answer_tags(
    step: TrainingStep, data: TokenData, rows: Sequence[TaggedRow], names: Sequence[str], outside: str
) -> Tags:
    """The likeliest tag of every word; `outside`, or the first tag, for words that were cut off."""

    def likeliest(batch: Batch) -> torch.Tensor:
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "count")}
        best = step.model(**inputs).logits.argmax(dim=-1)
        return torch.where(batch["labels"] != IGNORED, best, IGNORED).cpu()

    default = outside if outside in names else names[0]
    result: Tags = [[] for _ in rows]
    for indices, parts in answers(step, data, likeliest):
        for index, own in zip(indices, (row for part in parts for row in part.tolist()), strict=True):
            tags: list[str] = [names[int(place)] for place in own if place != IGNORED]
            result[index] = tags + [default] * (len(rows[index].words) - len(tags))
    return result


def tag_scores(tags: Tags, rows: Sequence[TaggedRow], outside: str = OUTSIDE) -> dict[str, float]:
    """Span scores, and the share of words with the right tag."""
    truth = [row.tags for row in rows]
    pairs = [(a, b) for own, true in zip(tags, truth, strict=True) for a, b in zip(own, true, strict=True)]
    return {**count_spans(tags, truth, outside).scores, "accuracy": sum(a == b for a, b in pairs) / max(1, len(pairs))}


def tag_baselines(train: Sequence[TaggedRow], rows: Sequence[TaggedRow]) -> dict[str, Tags]:
    """Tags of the baselines for the words of `rows`."""
    everywhere = Counter(tag for row in train for tag in row.tags)
    most = everywhere.most_common(1)[0][0]
    by_word: dict[str, Counter[str]] = {}
    for row in train:
        for word, tag in zip(row.words, row.tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    return {
        "tag of the word": [[usual.get(word, most) for word in row.words] for row in rows],
        "majority": [[most] * len(row.words) for row in rows],
    }


def judge_tags(tags: Tags, train: Sequence[TaggedRow], test: Sequence[TaggedRow], outside: str = OUTSIDE) -> Judgement:
    """Scores beside the baselines, by type, by length and for words never seen, with the confusions."""
    rivals = tag_baselines(train, test)
    baselines = {name: tag_scores(own, test, outside) for name, own in rivals.items()}
    best = strongest("f1", baselines, is_higher_better=True)
    metrics, truth = tag_scores(tags, test, outside), [row.tags for row in test]
    spans = count_spans(tags, truth, outside)
    low, high = spans.interval()
    gap_low, gap_high = f1_difference(spans, count_spans(rivals[best], truth, outside))
    metrics |= {**named(baselines), "f1.low": low, "f1.high": high, "f1.gap.low": gap_low, "f1.gap.high": gap_high}
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in TAG_SCORES)]]
    rows += [[name, *(own[each] for each in TAG_SCORES)] for name, own in baselines.items()]
    what = "whole spans" if outside == OUTSIDE else f"words whose tag is not {outside}"
    note = (
        f"{len(test):,} test rows; F1 of {what} {low:.3f} to {high:.3f} (95 %, rows drawn again), {gap_low:+.3f} "
        f"to {gap_high:+.3f} against {best}, the strongest baseline."
    )
    if outside != OUTSIDE:
        note += f" Tags are numbers without names, and {outside}, the most frequent, counts as outside of spans."
    by_type: list[list[Cell]] = [
        [kind, int(own["spans"]), own["precision"], own["recall"], own["f1"]]
        for kind, own in scores_by_type(tags, truth, outside).items()
    ]
    return Judgement(
        metrics,
        [
            ResultTable(title="Test, beside its baselines", note=note, columns=["", *TAG_SCORES], rows=rows),
            ResultTable(title="By type", columns=["type", "spans", "precision", "recall", "F1"], rows=by_type),
            _slice_table(tags, train, test, outside),
            _confusion_table(tags, test),
            _mistake_table(tags, test, outside),
        ],
        comparison_data={"tags": tags},
    )


def _slice_table(tags: Tags, train: Sequence[TaggedRow], test: Sequence[TaggedRow], outside: str) -> ResultTable:
    rows: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds([len(row.words) for row in test]), strict=True):
        if len(part):
            scores = tag_scores([tags[n] for n in part], [test[n] for n in part], outside)
            rows.append([name, len(part), scores["f1"], scores["accuracy"]])
    training_words = {word for row in train for word in row.words}
    for name, is_new in (("words of the training rows", False), ("words never met", True)):
        hits = [
            own == true
            for own_tags, row in zip(tags, test, strict=True)
            for own, true, word in zip(own_tags, row.tags, row.words, strict=True)
            if (word not in training_words) == is_new
        ]
        rows.append([name, len(hits), None, sum(hits) / len(hits) if hits else None])
    return ResultTable(title="By length and word", columns=["", "count", "F1", "accuracy"], rows=rows)


def _confusion_table(tags: Tags, test: Sequence[TaggedRow]) -> ResultTable:
    pairs = Counter(
        (true, own)
        for own_tags, row in zip(tags, test, strict=True)
        for own, true in zip(own_tags, row.tags, strict=True)
        if own != true
    )
    rows: list[list[Cell]] = [[true, own, count] for (true, own), count in pairs.most_common(EXAMPLES)]
    return ResultTable(title="Confusions", note="The most frequent.", columns=["true", "answer", "words"], rows=rows)


def _mistake_table(tags: Tags, test: Sequence[TaggedRow], outside: str) -> ResultTable:
    wrong = [(own, row) for own, row in zip(tags, test, strict=True) if list(row.tags) != own][:EXAMPLES]
    rows: list[list[Cell]] = [
        [shortened(_marked(row.words, each, outside)) for each in (row.tags, own)] for own, row in wrong
    ]
    return ResultTable(title="Mistakes", columns=["true", "answer"], rows=rows)


def _marked(words: Sequence[str], tags: Sequence[str], outside: str) -> str:
    """Words, those with a tag other than `outside` marked with it."""
    plain = [tag[2:] if tag.startswith(PREFIXES) else tag for tag in tags]
    pairs = zip(words, tags, plain, strict=True)
    return " ".join(word if tag == outside else f"[{word}]{kind}" for word, tag, kind in pairs)
