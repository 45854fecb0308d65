"""What is kept of own data is opened again by whoever has the same data, tokenizer and task, and by nobody else."""

import shutil

import numpy as np
import pytest

from forerun.data.token_data import TokenSample
from forerun.errors import BadData
from forerun.own.parts import SCORED_ROWS, read_parts, scored_rows
from forerun.own.stores import code_digest, source_digest, stored_samples, tokenizer_digest
from forerun.own.tokens import learned_tokenizer
from forerun.settings.evaluation import EvaluationSettings
from forerun.settings.load import settings_from

TEXTS = [f"text number {number} says {number * 7}" for number in range(30)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def settings_of(folder, texts=TEXTS, **data):
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
    source = {"source": str(folder / "rows.csv"), "fields": {"text": "text"}, **data}
    model = {"name": "tiny-gpt2", "config": {"vocab_size": 300}}
    return settings_from(
        {"name": "s", "workload": "causal-lm", "model": model, "data": source, "batch": {"sequence_length": 64}}
    )


def entries(cache):
    return len(list(cache.glob("*/entry.json")))


def test_rows_are_read_once_wherever_the_file_lies(tmp_path, cache):
    first = read_parts(settings_of(tmp_path / "a"))
    again = read_parts(settings_of(tmp_path / "b"))
    assert (entries(cache), list(first.train), first.fields) == (1, list(again.train), again.fields)
    assert sorted(row.text for part in first.split(EvaluationSettings()).values() for row in part) == sorted(TEXTS)


def test_of_many_held_out_rows_some_drawn_by_chance_are_scored(tmp_path, monkeypatch):
    rows = read_parts(settings_of(tmp_path / "a", validation=0.5)).validation
    assert scored_rows(rows, 0) is rows, f"fewer than {SCORED_ROWS}"
    few = scored_rows(rows, 4)
    assert (len(few), list(few.places)) == (4, sorted(few.places))
    assert set(few.places) < set(rows.places)
    assert list(few.places) != list(rows.places[:4])
    assert list(scored_rows(rows, 4).places) == list(few.places), "the same ones each time"
    monkeypatch.setattr("forerun.own.parts.SCORED_BYTES", int(rows.size_bytes.sum()) // 2)
    assert 0 < len(scored_rows(rows, 0)) < len(rows)


@pytest.mark.parametrize("change", [{"texts": TEXTS[1:]}, {"validation": 0.2}, {"repair": ["empty-texts"]}])
def test_another_file_or_setting_is_another_entry(tmp_path, cache, change):
    read_parts(settings_of(tmp_path / "a"))
    read_parts(settings_of(tmp_path / "a", **change))
    assert entries(cache) == 2


def test_notes_name_the_file_of_this_run(tmp_path):
    texts = [*TEXTS, '""']
    for name in ("first", "second"):
        parts = read_parts(settings_of(tmp_path / name, texts, repair=["empty-texts"]))
        assert f"empty-texts: 1 ({tmp_path / name / 'rows.csv'}, row 31)" in parts.notes
        shutil.rmtree(tmp_path / name)


def test_bad_rows_leave_nothing_behind(tmp_path, cache):
    with pytest.raises(BadData, match="row 31"):
        read_parts(settings_of(tmp_path / "a", [*TEXTS, '""']))
    assert entries(cache) == 0


def test_samples_are_made_once_for_one_tokenizer_and_one_meaning(tmp_path):
    settings = settings_of(tmp_path / "a")
    rows, log = read_parts(settings).train, []
    tokenizers = [learned_tokenizer(settings, texts) for texts in (TEXTS, TEXTS, ["quite other words"] * 9)]

    def samples(facts):
        log.append("made")
        facts["rows"] = len(rows)
        return (TokenSample(np.arange(3 + number)) for number in range(len(rows)))

    def of(tokenizer, meaning, own_rows=rows):
        return stored_samples(own_rows, tokenizer, meaning, samples)

    (sides, facts), (again, _) = of(tokenizers[0], {"length": 8}), of(tokenizers[1], {"length": 8})
    assert (len(log), facts["rows"]) == (1, len(rows))
    assert [list(sample.ids) for sample in again[""]] == [list(sample.ids) for sample in sides[""]]
    of(tokenizers[2], {"length": 8})
    of(tokenizers[0], {"length": 9})
    of(tokenizers[0], {"length": 8}, rows[1:])
    assert len(log) == 4


def test_byte_pairs_are_learned_once_for_the_same_rows(tmp_path, cache):
    settings = settings_of(tmp_path / "a")
    rows = read_parts(settings).learning_rows

    def unread():
        raise AssertionError("learned again")
        yield ""

    fresh = learned_tokenizer(settings, TEXTS)
    assert entries(cache) == 1  # the rows
    digests = {tokenizer_digest(learned_tokenizer(settings, texts, rows.identity)) for texts in (TEXTS, unread())}
    assert digests == {tokenizer_digest(fresh)}
    with pytest.raises(AssertionError, match="learned again"):
        learned_tokenizer(settings, unread(), rows[1:].identity)
    larger = settings.model_copy(update={"model": settings.model.model_copy(update={"config": {"vocab_size": 310}})})
    with pytest.raises(AssertionError, match="learned again"):
        learned_tokenizer(larger, unread(), rows.identity)


def test_how_a_tokenizer_cut_last_does_not_tell_it_apart_but_its_template_does(tmp_path):
    tokenizer = learned_tokenizer(settings_of(tmp_path / "a"), TEXTS)
    before = tokenizer_digest(tokenizer)
    tokenizer(TEXTS, truncation=True, max_length=3, padding=True)
    assert tokenizer_digest(tokenizer) == before
    tokenizer.chat_template = tokenizer.chat_template + " "
    assert tokenizer_digest(tokenizer) != before


def test_a_folder_is_told_by_names_and_contents(tmp_path):
    folder = tmp_path / "pos"
    folder.mkdir()
    (folder / "1.txt").write_text("a")
    before = source_digest(str(tmp_path))
    (folder / "1.txt").rename(folder / "2.txt")
    assert source_digest(str(tmp_path)) != before
    assert source_digest("no/such.csv") == []
    assert len(code_digest()) == 64
