import numpy as np

from forerun.recipes.code_detector.similarity.features import (
    STRUCTURE,
    VOCABULARY,
    features,
    features_of,
    hashed,
    name_parts,
)
from forerun.recipes.code_detector.similarity.test_streams import JAVA_FOR, JAVA_WHILE


def test_names_fall_into_parts():
    assert name_parts("moveLeft(HTTPServer2, snake_case)") == ["move", "left", "http", "server", "2", "snake", "case"]


def test_structure_does_not_see_names_nor_loop_forms():
    one, two = features(JAVA_FOR, "java"), features(JAVA_WHILE, "java")
    assert np.array_equal(one[VOCABULARY:], two[VOCABULARY:])
    assert not np.array_equal(one[:VOCABULARY], two[:VOCABULARY])


def test_vocabulary_does_not_see_order_nor_language():
    one, two = features("int total = moveLeft(1);", "java"), features("moveLeft(1)\ntotal = int()", "python")
    assert np.allclose(one[:VOCABULARY], two[:VOCABULARY])


def test_parts_have_length_one_or_nothing():
    rows = features_of([("x = 1", "python"), ("", "cpp")])
    assert rows.shape == (2, VOCABULARY + STRUCTURE)
    assert np.allclose(np.linalg.norm(rows[:, :VOCABULARY], axis=1), [1, 0])


def test_different_words_seldom_meet():
    """Two sets of 50 words in 4,096 places: a cosine beyond 0.5 would take 25 collisions of one sign."""
    one, two = hashed([f"a{n}" for n in range(50)], 4096), hashed([f"b{n}" for n in range(50)], 4096)
    assert abs(float(one @ two)) < 0.5
    assert float(one @ one) == np.float32(1) or abs(float(one @ one) - 1) < 1e-6
