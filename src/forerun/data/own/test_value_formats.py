import pytest

from forerun.data.own.columns import columns_of
from forerun.data.own.formats import recognise
from forerun.data.own.value_formats import are_tags, have_tag_each, is_prose, labelled_by_values, other_text, with_pair

TEXTS = [f"The film number {n} was a long and lovely one, and {n * n} people went to see it." for n in range(40)]


def table(**values):
    return [{name: value(n) for name, value in values.items()} for n in range(40)]


def first(rows):
    best, *others = recognise(rows)
    return best.format, dict(best.fields), [dict(p.fields) for p in others]


def test_amounts_beside_a_text_of_unknown_name_are_its_label():
    rows = table(Bewertungstext=lambda n: TEXTS[n], Note=lambda n: f"{1 + n % 5},{n:02}")
    assert first(rows) == ("labelled", {"text": "Bewertungstext", "label": "Note"}, [{"text": "Bewertungstext"}])
    rows = table(inhalt=lambda n: TEXTS[n], wert=lambda n: n / 7)
    assert first(rows)[:2] == ("labelled", {"text": "inhalt", "label": "wert"})


def test_a_usual_name_of_labels_decides_among_several_columns():
    rows = table(id=lambda n: f"{n:08x}", excerpt=lambda n: TEXTS[n], target=lambda n: n / 7, error=lambda n: n / 9)
    assert first(rows) == ("labelled", {"text": "excerpt", "label": "target"}, [])
    rows = table(was=lambda n: TEXTS[n], shop=lambda n: "ab"[n % 2], grade=lambda n: n % 4)
    assert first(rows)[:2] == ("labelled", {"text": "was", "label": "grade"})


def test_with_several_columns_and_no_usual_name_the_text_alone_is_the_default_and_each_is_offered():
    rows = table(was=lambda n: TEXTS[n], shop=lambda n: "ab"[n % 2], mood=lambda n: "cd"[n % 2])
    assert first(rows) == (
        "text", {"text": "was"}, [{"text": "was", "label": "shop"}, {"text": "was", "label": "mood"}],
    )  # fmt: skip


def test_numbers_of_rows_and_two_amounts_are_no_labels():
    assert first(table(inhalt=lambda n: TEXTS[n], nr=lambda n: n))[:2] == ("text", {"text": "inhalt"})
    assert first(table(inhalt=lambda n: TEXTS[n], a=lambda n: n / 7, b=lambda n: n / 9))[0] == "text"
    columns = columns_of(table(inhalt=lambda n: TEXTS[n], split=lambda n: ["train", "test"][n % 2]))
    assert labelled_by_values(columns) == []


def test_ids_and_two_words_are_no_texts_where_there_are_some():
    rows = table(key=lambda n: f"{n:08x}", inhalt=lambda n: TEXTS[n])
    assert first(rows) == ("text", {"text": "inhalt"}, [])
    assert [name for name, column in columns_of(rows).items() if is_prose(column)] == ["inhalt"]


@pytest.mark.parametrize("name", ["code", "text"])
def test_digits_are_a_text_by_their_name_where_nothing_else_is(name):
    rows = table(**{name: lambda n: str(3463260 + 7 * n)}, label=lambda n: ["even", "odd"][n % 2])
    assert first(rows)[:2] == ("labelled", {"text": name, "label": "label"})
    rows = table(body=lambda n: TEXTS[n], post=lambda n: 3463260 + 7 * n, label=lambda n: n % 2)
    assert first(rows)[1] == {"text": "body", "label": "label"}


def test_a_short_text_beside_a_labelled_one_is_offered_as_its_pair():
    rows = table(Title=lambda n: f"film news {n}", Description=lambda n: TEXTS[n], Class=lambda n: n % 4)
    best = recognise(rows)[0]
    assert (best.fields, best.is_certain) == ({"text": "Description", "label": "Class"}, True)
    columns = columns_of(rows)
    assert other_text(columns, best.fields) is None
    (pair,) = with_pair(columns, best)
    assert pair.fields == {"text": "Description", "pair": "Title", "label": "Class"}
    names = columns_of(table(text=lambda n: TEXTS[n], name=lambda n: f"Jo Doe{n}", label=lambda n: n % 2))
    assert with_pair(names, recognise(table(text=lambda n: TEXTS[n], label=lambda n: n % 2))[0]) == []


def test_words_need_a_tag_each():
    rows = [{"sentence": "Jo went home", "tags": "B-PER O O"}, {"sentence": "I stay", "tags": "O O"}]
    assert have_tag_each(rows, "sentence", "tags")
    assert have_tag_each([{"sentence": "I stay", "tags": ["O", "O"]}], "sentence", "tags")
    assert not have_tag_each([{"sentence": "Jo went home", "tags": "travel"}], "sentence", "tags")
    assert not have_tag_each([{"sentence": "home", "tags": "travel"}], "sentence", "tags")


def test_two_texts_of_unknown_names_are_offered_as_what_belongs_together():
    rows = [
        {"clicked_doc": f"the long text of the document {n}", "user_query": f"what is in {n} today"} for n in range(60)
    ]
    best, *others = recognise(rows)
    assert (best.format, best.is_certain) == ("text", False)
    assert {p.format for p in others} >= {"pairs", "prompt-completion"}
    (pairs,) = [p for p in others if p.format == "pairs"]
    assert pairs.fields == {"anchor": "user_query", "positive": "clicked_doc"}
    asked = recognise(rows, workload="embedding")[0]
    assert (asked.format, asked.fields, asked.is_certain) == ("pairs", pairs.fields, False)
    rewritten = recognise(
        [{"dirty": row["user_query"], "clean": row["clicked_doc"]} for row in rows], workload="seq2seq-lm"
    )
    assert rewritten[0].fields in ({"prompt": "dirty", "completion": "clean"}, {"source": "dirty", "target": "clean"})


def test_the_only_column_of_lists_is_the_label_among_columns_of_unknown_names():
    rows = table(
        notiz=lambda n: TEXTS[n], kunde=lambda n: f"c{n % 5}", wochentag=lambda n: ["mo", "di"][n % 2],
        themen=lambda n: [["rechnung"], ["rechnung", "versand"], []][n % 3],
    )  # fmt: skip
    assert first(rows)[:2] == ("labelled", {"text": "notiz", "label": "themen"})
    more = [{**row, "wege": row["themen"]} for row in rows]  # two columns of lists: none is
    assert first(more)[:2] == ("text", {"text": "notiz"})


def test_lists_beside_a_number_that_could_be_the_label_are_asked_about():
    tags = [["sql"], ["git", "sql"], []]
    rows = table(Title=lambda n: TEXTS[n], Tags=lambda n: tags[n % 3], Score=lambda n: n - 3)
    best, *others = recognise(rows)
    assert (dict(best.fields), best.is_certain) == ({"text": "Title", "label": "Score"}, False)
    assert [dict(p.fields) for p in others if p.format == "labelled"] == [{"text": "Title", "label": "Tags"}]
    assert recognise([{**row, "label": row.pop("Score")} for row in rows])[0].is_certain


def test_sentences_with_a_tag_for_each_word_under_names_that_nobody_knows():
    rows = table(
        Satz=lambda n: f"Herr Weiß zog {'nach Köln ' * (n % 3)}um", Marken=lambda n: f"O B-PER O {'O B-LOC ' * (n % 3)}O"
    )  # fmt: skip
    assert first(rows)[:2] == ("tagged", {"words": "Satz", "tags": "Marken"})
    assert recognise(rows, workload="token-classification")[0].fields == {"words": "Satz", "tags": "Marken"}
    uneven = [{**row, "Marken": row["Marken"] + " O"} for row in rows]
    assert first(uneven)[0] != "tagged"


def test_tags_are_outside_or_begin_as_spans_do():
    assert are_tags(["O B-PER I-PER", ["O", "S-LOC"]])
    assert not are_tags(["O O O"])
    assert not are_tags(["B-52 bomber"])
    assert not are_tags([])


def test_two_texts_are_offered_together_before_the_second_alone():
    rows = [{"incorrect": f"it are the case {n}", "correct": f"it is the case {n}"} for n in range(40)]
    formats = [(p.format, p.fields.get("text")) for p in recognise(rows)]
    assert formats == [
        ("text", "incorrect"), ("pairs", None), ("prompt-completion", None), ("translation", None), ("text", "correct"),
    ]  # fmt: skip


def test_many_columns_of_yes_and_no_beside_a_text_are_its_labels():
    rows = [
        {"text": f"some words about it, {n}", "a": n % 2, "b": int(n % 3 == 0), "c": int(n % 5 == 0)} for n in range(60)
    ]
    best = recognise(rows)[0]
    assert (best.fields["label"], best.is_certain) == ("a + b + c", False)
    two = recognise([{name: row[name] for name in ("text", "a", "b")} for row in rows])[0]
    assert two.format == "text"


def test_where_a_text_comes_from_is_no_rival_of_its_label():
    rows = [{"body": f"some words about it, {n}", "from": "abc"[n % 3], "folder": "xy"[n % 2]} for n in range(60)]
    best, *others = recognise(rows)
    assert (best.fields["label"], best.is_certain) == ("folder", False)
    assert "from" in [p.fields.get("label") for p in others]


def test_a_name_that_ends_in_a_usual_name_of_labels_decides_among_several_columns():
    rows = [
        {
            "text": f"some words about thing {n}",
            "airline": "ab"[n % 2],
            "airline_sentiment": "xyz"[n % 3],
            "n_class_x": n % 4,
        }
        for n in range(40)
    ]
    best, *others = recognise(rows)
    assert (best.fields["label"], best.is_certain) == ("airline_sentiment", False)
    assert "text" in [proposal.format for proposal in others]
