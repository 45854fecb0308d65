"""Which of a table's columns is the label, and which never is? Ranked by names in several languages and by values.

A name that says label comes first, then whatever has few values, then whatever has many; where a text comes from, and
numbers of customers, orders and rows are the last, if at all. Dates are none: each day would be a class of its own.
"""

import re
import unicodedata
from enum import IntEnum

from forerun.data.own.columns import Column
from forerun.data.own.format_parts import ALIASES, ORIGINS
from forerun.data.own.labels import SCALE

_LABELS = (
    "label labels class category categories sentiment intent topic topics emotion emotions stars rating polarity "
    "verdict etikett klasse kategorie urteil bewertung wertung einstufung stimmung thema note sterne absicht "
    "etiquette classe categorie avis jugement theme emocion etiqueta clase categoria sentimiento valoracion "
    "calificacion tema sentimento classificacao etichetta valutazione klass kategoria ocena"
)
_IDS = (
    "id ids nr no num number nummer numero numer uuid guid key index idx plz zip postcode postleitzahl phone telefon "
    "tel iban isbn sku ean"
)
LABEL_WORDS = frozenset(_LABELS.split())
"""Words that name labels in English, German, French, Spanish, Portuguese, Italian, Swedish, Polish, without accents."""
LABEL_ENDS = tuple(word for word in sorted(LABEL_WORDS) if len(word) > 5)
"""Those that end a German compound: `Produktkategorie`."""
ID_WORDS = frozenset(_IDS.split())
"""First or last words in names of numbers that stand for a thing."""
_DATES = "date datum fecha data time zeit timestamp created updated at jahr annee ano"
DATE_WORDS = frozenset(_DATES.split())
"""Words in names of columns that say when, where their values are numbers."""
EACH = 5
"""Rows a class from which there are few values."""


class LabelRank(IntEnum):
    """How likely a column is the label, the likeliest first."""

    NAMED = 0
    FEW = 1
    MANY = 2
    ORIGIN = 3
    NUMBERED = 4
    """A few numbers of things."""


def words_of(name: str) -> list[str]:
    """The words of a column's name in small letters without accents: `Kunden-Nr`, `customerId`, `Numéro client`."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
    return [word for word in re.split(r"[\W_]+", apart.lower()) if word]


def is_named_label(name: str) -> bool:
    """Whether a column has a usual name of labels, or one that ends in such a word: `airline_sentiment`, `Urteil`."""
    last = (words_of(name) or [""])[-1]
    return name.lower() in ALIASES["label"] or last in LABEL_WORDS or last.endswith(LABEL_ENDS)


def names_things(column: Column) -> bool:
    """Whether a column's name says that its values number or date things: `Kunden-Nr`, `user_id`, `created`."""
    words = words_of(column.name)
    if not words or is_named_label(column.name):
        return False
    is_date = column.kind == "number" and not DATE_WORDS.isdisjoint(words)
    return is_date or words[0] in ID_WORDS or words[-1] in ID_WORDS


def can_be_label(column: Column) -> bool:
    """Whether a column could be the label at all: no dates, and no many numbers of things."""
    return not column.are_dates and (column.distinct <= SCALE or not names_things(column))


def label_rank(column: Column) -> LabelRank:
    """How likely a column is the label."""
    if is_named_label(column.name):
        return LabelRank.NAMED
    if names_things(column):
        return LabelRank.NUMBERED
    if column.name.lower() in ORIGINS.split():
        return LabelRank.ORIGIN
    is_few = column.distinct <= SCALE and column.values >= EACH * column.distinct
    return LabelRank.FEW if is_few or column.kind == "texts" else LabelRank.MANY
