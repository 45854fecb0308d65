import pytest

from forerun.data.own.formats import layout_of, recognise
from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import read_own_rows
from forerun.data.own.word_rows import with_sentences
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

FIELDS = {"words": "Word", "tags": "Tag", "sentence": "Sentence #"}
SENTENCES = [(["Peter", "came", "late"], ["B-PER", "O", "O"]), (["Yes", "he"], ["O", "O"])] * 8
ROWS = [
    {"Sentence #": f"Sentence: {number}" if place == 0 else "", "Word": word, "POS": "NN", "Tag": tag}
    for number, (words, tags) in enumerate(SENTENCES)
    for place, (word, tag) in enumerate(zip(words, tags, strict=True))
]


def test_rows_of_words_become_sentences():
    sentences = list(with_sentences(ROWS, FIELDS, "x", Repairs()))
    assert [(row["Word"], row["Tag"]) for row in sentences] == SENTENCES
    assert sentences[1] == {"Sentence #": "Sentence: 1", "Word": ["Yes", "he"], "POS": "NN", "Tag": ["O", "O"]}
    filled = [{"id": number // 2, "w": f"w{number}"} for number in range(6)]
    asked = list(with_sentences(filled, {"words": "w", "tags": "t", "sentence": "id"}, "x", Repairs()))
    assert asked == [{"id": number, "w": [f"w{2 * number}", f"w{2 * number + 1}"]} for number in range(3)]
    assert list(with_sentences([{"Word": "a b"}], FIELDS, "x", Repairs())) == [{"Word": "a b"}]


def test_a_word_that_is_empty_is_an_error_or_left_out():
    rows = [ROWS[0], {**ROWS[1], "Word": ""}, ROWS[2]]
    with pytest.raises(BadData, match="x, row 2: the column 'Word'"):
        list(with_sentences(rows, FIELDS, "x", Repairs()))
    repairs = Repairs(("empty-texts",))
    assert [row["Word"] for row in with_sentences(rows, FIELDS, "x", repairs)] == [["Peter", "late"]]
    assert repairs.counts["empty-texts"] == 1


def test_sentences_are_told_by_values():
    best, *others = recognise(ROWS)
    assert (best.format, best.fields, best.is_certain) == ("tagged", FIELDS, False)
    assert "labelled" in [p.format for p in others]
    numbered = [
        {"doc": n // 20, "sent": n // 4, "token": f"w{n}", "label": "OB"[n % 4 == 0] + "-X" * (n % 4 == 0)}
        for n in range(40)
    ]
    assert recognise(numbered)[0].fields == {"words": "token", "tags": "label", "sentence": "sent"}
    mixed = [{**row, "sent": n % 4} for n, row in enumerate(numbered)]
    assert "sentence" not in recognise([{k: v for k, v in row.items() if k != "doc"} for row in mixed])[0].fields


def test_a_file_is_read_as_sentences(tmp_path):
    path = tmp_path / "ner.csv"
    path.write_text("\n".join(",".join(cells) for cells in (ROWS[0], *(row.values() for row in ROWS))))
    rows = list(read_own_rows(str(path), fields=FIELDS))
    assert [row["Word"] for row in rows] == [words for words, _ in SENTENCES]
    settings = DataSettings(source=str(path), format="tagged", fields=FIELDS)
    assert layout_of(settings, rows).fields == FIELDS
