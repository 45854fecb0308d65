"""Which answers stand behind other prompts, what is refused, and the judgement of answers by hand."""

import json

import numpy as np
import pytest

from forerun.data.own.row_kinds import Turn, UnpairedRow
from forerun.data.sided_tokens import SidedData
from forerun.data.token_data import IGNORED, TokenSample
from forerun.errors import BadData, InvalidSettings
from forerun.own.experiment import open_task
from forerun.own.look import look_at
from forerun.own.unpaired import UnpairedSplit, judge_answers, mismatched_places
from forerun.settings.load import settings_from
from forerun.settings.preference import PreferenceSettings
from forerun.step.unpaired import MISMATCHED

PLAIN = {"name": "a", "workload": "preference", "model": {"name": "tiny-llama"}, "preference": {"loss": "kto"}}


def write_set(folder, rows, **preference):
    """Settings that train on `rows`, written into `folder`."""
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return settings_from(
        {
            "name": "a", "workload": "preference", "model": {"name": "tiny-llama"}, "preference": preference,
            "data": {"source": str(path)}, "batch": {"micro_batch_size": 2, "sequence_length": 48},
        }
    )  # fmt: skip


JUDGED = [
    {"prompt": f"how is town {n}?", "completion": f"it is {'good' if n % 3 else 'bad'}", "label": n % 3 > 0}
    for n in range(90)
]
PAIRS = [{"prompt": f"how is town {n}?", "chosen": "it is good", "rejected": "it is bad"} for n in range(60)]


def row(prompt, answer, is_desirable=True):
    return UnpairedRow((Turn("user", prompt),), (Turn("assistant", answer),), is_desirable)


@pytest.mark.parametrize("sizes", [[1] * 9, [3, 3, 3], [4, 1, 1, 1, 1], [2, 5, 3], [1, 1]])
def test_each_answer_stands_behind_one_other_prompt(sizes):
    rows = [row(f"prompt {n}", f"answer {n} {m}") for n, size in enumerate(sizes) for m in range(size)]
    places = mismatched_places(rows)
    assert sorted(places) == list(range(len(rows)))
    assert all(rows[place].prompt != own.prompt for own, place in zip(rows, places, strict=True))


def test_answers_to_one_prompt_alone_still_move_on():
    assert sorted(mismatched_places([row("one", str(n)) for n in range(5)])) == list(range(5))


def test_rows_and_loss_must_go_together(tmp_path):
    with pytest.raises(InvalidSettings, match=r"preference\.loss: rows of unpaired-preference.*found sigmoid.*kto"):
        open_task(write_set(tmp_path / "a", JUDGED))
    with pytest.raises(InvalidSettings, match=r"preference\.loss: kto learns from single answers.*found rows of pref"):
        open_task(write_set(tmp_path / "b", PAIRS, loss="kto"))


def test_answers_of_one_kind_are_refused(tmp_path):
    rows = [{**own, "label": True} for own in JUDGED]
    with pytest.raises(BadData, match=r"desirable and undesirable answers in each part; found \d+ and 0 in train"):
        open_task(write_set(tmp_path, rows, loss="kto"))


def test_look_shows_both_answers_and_the_verdict(tmp_path):
    looked = look_at(write_set(tmp_path, JUDGED, loss="kto"), rows=4)
    assert {row.label for row in looked.rows} <= {"desirable", "undesirable"}
    for own, other in (row.sides for row in looked.rows):
        texts = ["".join(token.text for token in side.tokens) for side in (own, other)]
        assert texts[0].split("?")[0] == texts[1].split("?")[0]
        assert other.name == "answer to another prompt, for the divergence"
        assert own.tokens[-1].carries_loss
        assert not any(token.carries_loss for token in other.tokens)
    assert looked.format == "unpaired-preference"


def test_answers_are_judged_by_hand():
    """A model that has raised every desirable answer but one, beside a reference that knows nothing."""
    rows = [row(f"prompt {n}", f"answer {n}", n % 3 > 0) for n in range(30)]
    sample = TokenSample([5, 6, 7], [IGNORED, 6, 7])
    data = SidedData(settings_from(PLAIN), {"": [sample] * 30, MISMATCHED: [sample] * 30}, 0, with_masks=False)
    verdicts = np.asarray([own.is_desirable for own in rows], np.float32)
    parts = ("train", "validation", "test")
    split = UnpairedSplit(
        dict.fromkeys(parts, data), dict.fromkeys(parts, verdicts), dict.fromkeys(parts, np.full((2, 30), -20.0)),
        PreferenceSettings(loss="kto"),
    )  # fmt: skip
    gains = np.where(verdicts > 0, 2.0, -1.0)
    gains[1] = -3.0
    likely = np.stack([-20 + gains, np.full(30, -19.5)])  # half a nat from the reference
    judgement = judge_answers(likely, split, rows, {"train": 0, "validation": 1, "test": 2})
    assert judgement.metrics["auc"] == pytest.approx(19 / 20)
    assert judgement.metrics["accuracy"] == pytest.approx(29 / 30)
    assert judgement.metrics["margin"] == pytest.approx(0.1 * ((2 * 19 - 3) / 20 + 1))
    assert judgement.metrics["untrained, whole answer.auc"] == judgement.metrics["length.auc"] == 0.5
    assert judgement.metrics["majority.accuracy"] == pytest.approx(20 / 30)
    assert judgement.metrics["auc.low"] < judgement.metrics["auc"] <= judgement.metrics["auc.high"]
    tables = {table.title: table for table in judgement.tables}
    assert "1 of validation, 2 of test" in tables["Test, beside its baselines"].note
    assert tables["Surest mistakes"].rows == [["answer 1", "yes", -3.5]]
