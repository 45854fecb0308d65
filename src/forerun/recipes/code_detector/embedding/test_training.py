import json

import numpy as np
import pytest

from forerun.errors import BadData
from forerun.recipes.code_detector.embedding.training import (
    TaskFile,
    batches,
    inputs,
    make_embedding,
    task_files,
    train_embedding,
    unrelated_cosines,
)

THINGS = ("matrix", "account", "river", "planet", "ticket", "engine")


def solutions(split: str, start: int) -> list[TaskFile]:
    """Three solutions of each task, which share the names of a thing and little else."""
    return [
        TaskFile(
            "".join(f"{thing}_{n} = {name}({thing}_{n} + {n % number})\n" for n in range(6)) + f"{name} = {thing}\n" * number,
            "python", f"{thing}{start}", "made", split,
        )
        for thing in THINGS
        for number, name in enumerate((f"alpha{start}", f"beta{start}", f"gamma{start}"), start=1)
    ]  # fmt: skip


FILES = [*solutions("train", 0), *solutions("val", 1)]


def test_an_embedding_is_trained_chosen_on_validation_and_described():
    progress = []
    vectors = make_embedding(FILES, "six things", epochs=2, on_progress=lambda *figures: progress.append(figures))
    card = vectors.card
    assert [each[0] for each in progress] == [0, 1, 2]
    assert all(floor <= loss for _, loss, floor, _ in progress[1:])
    assert card.map_at_r == max(score for *_, score in progress)
    assert progress[card.epochs][3] == card.map_at_r
    assert (card.data, card.files, card.tasks, card.encoder) == ("six things", 18, 6, "none")
    assert card.unrelated == sorted(card.unrelated)
    assert -1 <= card.piece_cosine <= 1


def test_batches_hold_several_files_of_each_task():
    tasks = [file.task for file in FILES]
    for batch in batches(FILES, np.random.default_rng(0)):
        assert len(set(batch.tolist())) == len(batch)
        names = [tasks[n] for n in batch]
        assert all(names.count(name) > 1 for name in names)


def test_what_cannot_be_learned_is_refused():
    alone = [FILES[0], FILES[3], FILES[6]]
    with pytest.raises(BadData, match="two files"):
        batches(alone, np.random.default_rng(0))
    with pytest.raises(BadData, match="two tasks with two files"):
        train_embedding((FILES, inputs(FILES)), (alone, inputs(alone)), epochs=0)
    with pytest.raises(BadData, match="split val"):
        make_embedding(solutions("train", 0), "x", epochs=0)
    with pytest.raises(BadData, match="several tasks"):
        unrelated_cosines(np.ones((3, 2), np.float32), FILES[:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"language": "rust"}, "language must be one of"),
        ({"code": ""}, "code is not"),
        ({"split": "dev"}, "split must be"),
        ({"split": "val"}, "Keep tasks whole"),
    ],
)
def test_rows_are_checked(tmp_path, change, message):
    row = {"code": "x = 1", "language": "python", "task": "t", "split": "train"}
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in (row, row | change)))
    with pytest.raises(BadData, match=message):
        task_files(path)


def test_rows_without_splits_are_spread_by_task(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"code": "x = 1", "language": "python", "task": f"t{n // 2}"} for n in range(80)]
    path.write_text("\n".join(map(json.dumps, rows)))
    files = task_files(path)
    assert {file.split for file in files} == {"train", "val", "test"}
    assert all(one.split == two.split for one, two in zip(files[::2], files[1::2], strict=True))


def test_the_shipped_rows_serve_where_none_are_given():
    files = task_files(None)
    assert len(files) == 10_115
    assert len({file.task for file in files}) < len(files)
