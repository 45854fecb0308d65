import numpy as np
import pytest

from forerun.data.own.row_kinds import PairRow, TripletRow
from forerun.own.embedding import RetrievalTask, rank_scores, retrieval_task, text_keys
from forerun.own.facts import TaskFacts


def test_keys_tell_texts_apart():
    rows = [PairRow("Who?", "It is me."), PairRow("who ?", "it is  me."), PairRow("Who?", "You.")]
    keys = text_keys(rows, ("", "other_"))
    assert list(keys) == ["key", "other_key"]
    assert [len(set(keys[name].tolist())) for name in keys] == [2, 2]
    assert keys["key"][0] == keys["key"][2] != keys["key"][1]
    assert keys["other_key"][0] == keys["other_key"][1] != keys["other_key"][2]
    triplets = text_keys([TripletRow("a", "b", "a")], ("", "other_", "negative_"))
    assert triplets["key"] == triplets["negative_key"] != triplets["other_key"]


def test_another_text_that_belongs_to_an_anchor_is_not_ranked_before_its_own(monkeypatch):
    monkeypatch.setattr("forerun.own.embedding.text_samples", lambda *options: None)
    facts = TaskFacts(workload="embedding", format="pairs", sequence_length=8, pad_id=0)
    rows = [PairRow("Who?", "Me."), PairRow("Who?", "You."), PairRow("Where?", "Here."), PairRow("Where?", "Here.")]
    task = retrieval_task(rows, None, facts)  # type: ignore[arg-type]
    assert (task.places.tolist(), task.others) == ([0, 1, 2, 2], {0: [1], 1: [0]})
    similarity = np.asarray([[0.7, 0.9, 0.8], [0.7, 0.9, 0.8], [0.5, 0.6, 0.4], [0.0, 0.0, 1.0]])
    assert task.ranks(lambda part: similarity[part]).tolist() == [2, 1, 3, 1]
    assert similarity[0, 1] == 0.9
    alone = RetrievalTask(task.anchors, task.candidates, task.places, *[None] * 2)  # type: ignore[arg-type]
    assert alone.ranks(lambda part: similarity[part]).tolist() == [3, 1, 3, 1]
    assert rank_scores(np.asarray([2.0, 1.0]))["mrr"] == pytest.approx(0.75)
