"""What the tables say of a pair, and of the embedding that they are made by."""

from forerun.recipes.code_detector.embedding.nearest import NearPair
from forerun.recipes.code_detector.embedding.tables import meaning, similar_tables
from forerun.recipes.code_detector.embedding.vectors import EmbeddingCard
from forerun.recipes.code_detector.similarity.cohort import CohortReport
from forerun.report.tables import ResultTable

CARD = EmbeddingCard(
    data="sets.jsonl", files=9, tasks=3, parts=[4], encoder="none", width=4, epochs=2, map_at_r_before=0.5,
    map_at_r=0.6, unrelated=[0.0, 0.1, 0.2, 0.3], piece_cosine=0.9,
)  # fmt: skip


def near_table(card: EmbeddingCard) -> ResultTable:
    report = CohortReport.model_construct(best=[], files=2, pairs=1, guarantee=9, median_cover=0.0)
    return similar_tables(report, [NearPair(a="a.py", b="A.java", cosine=0.6, unrelated=0.0, evidence=[])], card)[1]


def test_a_share_of_unrelated_pairs_is_said_in_words():
    assert meaning(0.0, 1001) == "fewer than 1 unrelated pair in 1,001"
    assert meaning(0.007, 1001) == "1 unrelated pair in 143"
    assert meaning(0.406, 1001) == "41% of unrelated pairs: says nothing"


def test_the_table_says_what_taught_the_embedding_or_that_nothing_did():
    assert "Trained on 3 tasks of sets.jsonl, 2 epochs." in near_table(CARD).note
    assert "taught it nothing" in near_table(CARD.model_copy(update={"epochs": 0})).note
    assert near_table(CARD).rows[0][:4] == ["a.py", "A.java", 0.6, "fewer than 1 unrelated pair in 4"]
