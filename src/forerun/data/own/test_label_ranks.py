import random

import pytest

from forerun.data.own.columns import columns_of
from forerun.data.own.formats import recognise
from forerun.data.own.label_ranks import LabelRank, can_be_label, is_named_label, label_rank, words_of
from forerun.data.own.labels import label_kind

TABLES = {
    "German": ("Kunden-Nr", "Bestelldatum", "Produkt", "Bewertungstext", "Urteil"),
    "French": ("numéro_client", "date_commande", "produit", "commentaire", "Catégorie"),
    "Spanish": ("id_cliente", "fecha", "producto", "comentario", "clasificación_tema"),
    "English": ("customerId", "ordered_at", "product", "feedback", "airline_sentiment"),
}


def rows_of_table(names):
    """Numbers of customers, dates, products, texts and three classes, in that order of columns."""
    chance = random.Random(1)
    number, day, thing, text, label = names
    return [
        {
            number: 10_000 + chance.randrange(121),
            day: f"{1 + n % 28:02}.{1 + n % 12:02}.2024",
            thing: f"thing {chance.randrange(10)}",
            text: f"a long text of {n} words about {n * n} things that somebody has bought",
            label: chance.choice(["good", "bad", "so so"]),
        }
        for n in range(350)
    ]


@pytest.mark.parametrize("names", TABLES.values(), ids=TABLES)
def test_the_label_is_found_among_numbers_dates_and_products(names):
    """`init` proposed the text alone, and as a classification the number of the customer."""
    number, day, thing, text, label = names
    rows = rows_of_table(names)
    best, *others = recognise(rows)
    assert (best.fields, best.workload) == ({"text": text, "label": label}, "sequence-classification")
    offered = [p.fields.get("label") for p in others]
    assert thing in offered
    assert not {number, day} & set(offered)
    asked = recognise(rows, workload="sequence-classification")[0]
    assert asked.fields["label"] == label
    assert label_kind([row[label] for row in rows], "|").kind == "one"


def test_one_column_of_few_values_is_the_label_before_one_of_many():
    rows = [{"inhalt": f"some words of {n} about it", "team": f"t{n % 40}", "art": f"a{n % 4}"} for n in range(200)]
    assert recognise(rows)[0].fields == {"text": "inhalt", "label": "art"}
    alike = [{**row, "weg": f"w{n % 3}"} for n, row in enumerate(rows)]
    best, *others = recognise(alike)
    assert (best.format, best.is_certain) == ("text", False), "two are as likely: the text alone, and a question"
    assert [p.fields["label"] for p in others] == ["weg", "art", "team"]


def test_numbers_of_things_are_offered_where_nothing_else_could_be_a_label():
    rows = [{"inhalt": f"some words of {n} about it", "author_id": 100 + n % 40} for n in range(200)]
    best, other = recognise(rows)
    assert (best.format, other.fields.get("label")) == ("text", "author_id")
    assert recognise(rows, workload="sequence-classification")[0].fields["label"] == "author_id"


def test_columns_are_ranked_by_names_and_values():
    values = {"Kunden-Nr": 121, "plz": 8, "kunde": 9, "Stadt": 60, "Art": 4, "class_id": 5}
    rows = [{name: f"v{n % count}" for name, count in values.items()} for n in range(300)]
    columns = columns_of(rows)
    ranks = [label_rank(columns[name]) for name in values]
    numbered = LabelRank.NUMBERED
    assert ranks == [numbered, numbered, LabelRank.ORIGIN, LabelRank.MANY, LabelRank.FEW, LabelRank.NAMED]
    assert [can_be_label(columns[name]) for name in values] == [False, True, True, True, True, True]


def test_dates_are_no_labels_and_told_as_dates():
    for pattern in ("{:02}.01.2024", "2024-01-{:02}", "1/{}/24", "2024-01-{:02} 10:00:00"):
        column = columns_of([{"day": pattern.format(1 + n % 28)} for n in range(90)])["day"]
        assert column.are_dates
        assert not can_be_label(column)
    assert not columns_of([{"price": f"{n}.50"} for n in range(90)])["price"].are_dates
    assert not columns_of([{"n": n} for n in range(90)])["n"].are_dates


def test_names_are_read_without_accents_and_in_their_words():
    assert words_of("Numéro client") == ["numero", "client"]
    assert words_of("customerId") == ["customer", "id"]
    named = ["Urteil", "Produktkategorie", "Catégorie", "valoración", "airline_sentiment", "Note", "label"]
    assert all(map(is_named_label, named))
    assert not any(map(is_named_label, ["Produkt", "Kunden-Nr", "n_class_x", "notiz", "_"]))
