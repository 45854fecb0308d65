import random

import numpy as np
import pytest

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.similarity import cohort as c
from forerun.recipes.code_detector.similarity.compare import Sizes, SourceFile, base_code, compare, prepare
from forerun.recipes.code_detector.similarity.test_compare import OTHER, OWN, RENAMED, TEMPLATE

LINES = (
    "    x = f(y)\n", "    if x > y:\n        y = g(x, y)\n", "    for i in range(y):\n        x += h[i]\n",
    "    while x:\n        x = x // 2\n", "    h[x] = y - x * 2\n", "    return k(x)\n", "    y, x = x, y\n",
    "    try:\n        x = int(y)\n    except ValueError:\n        pass\n", "    z = [a * 2 for a in y if a]\n",
)  # fmt: skip


def random_files(number: int, lines: int = 14) -> list[SourceFile]:
    """Files of random statements."""
    random_ = random.Random(number)
    return [
        SourceFile(f"s{n}", "def f(x, y):\n" + "".join(random_.choices(LINES, k=lines)), "python")
        for n in range(number)
    ]


def test_the_copy_stands_out():
    """All of it is in the other; of files drawn from nine statements chance brings some half together."""
    files = [*random_files(14), SourceFile("own", OWN, "python"), SourceFile("copy", RENAMED, "python")]
    report = c.compare_all(files, pair_limit=3)
    best = report.best[0]
    assert {best.comparison.a, best.comparison.b} == {"own", "copy"}
    assert best.comparison.syntax.score == 1.0
    assert (best.standing or 0) > (report.best[1].standing or 0) > 0
    assert (report.files, report.pairs) == (16, 120)
    assert len(report.best) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_the_best_are_those_of_tiling_every_pair(workers):
    files = random_files(24)
    prepared = [prepare(file, Sizes()) for file in files]
    every = sorted(
        (compare(a, b, Sizes()).syntax.score for n, a in enumerate(prepared) for b in prepared[n + 1 :]), reverse=True
    )
    report = c.compare_all(files, pair_limit=7, workers=workers)
    assert [pair.comparison.syntax.score for pair in report.best] == pytest.approx(every[:7])


def test_bounds_hold_for_every_pair():
    prepared = [prepare(file, Sizes()) for file in [*random_files(12), SourceFile("o", OWN, "python")]]
    scores = c.pair_scores(prepared, Sizes())
    assert np.array_equal(scores.words, scores.words.T)
    assert np.array_equal(scores.cover, scores.cover.T)
    for i, a in enumerate(prepared):
        for j, b in enumerate(prepared):
            if i != j:
                comparison = compare(a, b, Sizes())
                assert comparison.words.score == pytest.approx(scores.words[i, j])
                assert comparison.syntax.score <= scores.cover[i, j] + 1e-12


def test_the_cover_is_what_it_says():
    """Marks of each file that lie in a run of the other's, one file at a time."""
    from forerun.recipes.code_detector.similarity.grams import covered, grams

    prepared = [prepare(file, Sizes()) for file in random_files(6)]
    cover = c.pair_scores(prepared, Sizes()).cover
    tokens = [file.streams.syntax.tokens for file in prepared]
    for i in range(6):
        for j in range(i):
            shares = [
                covered(grams(tokens[x], 8), grams(tokens[y], 8), 8, len(tokens[x])).sum() for x, y in ((i, j), (j, i))
            ]
            assert cover[i, j] == pytest.approx(2 * min(shares) / (len(tokens[i]) + len(tokens[j])))


def test_base_code_leaves_every_pair_alone():
    files = [SourceFile(f"f{n}", TEMPLATE + code, "python") for n, code in enumerate((OWN, OTHER, OWN[::-1]))]
    base = [SourceFile("base", TEMPLATE, "python")]
    prepared = [prepare(file, Sizes(), base_code(base, Sizes())) for file in files]
    assert c.pair_scores(prepared, Sizes()).cover[0, 1] < 0.3
    best = c.compare_all(files, base=base).best
    assert all(pair.comparison.syntax.score < 0.3 for pair in best)


def test_small_files_and_small_cohorts_are_not_ranked():
    tiny = [SourceFile(f"t{n}", "print(1)\n", "python") for n in range(12)]
    assert c.compare_all(tiny).best == []
    own = [SourceFile(f"f{n}", OWN, "python") for n in range(3)]
    assert [pair.standing for pair in c.compare_all(own).best] == [None] * 3
    assert c.standings(np.zeros((9, 9))) is None


def test_standing_of_alike_files_is_not_inflated():
    """Where all files are one, no pair stands out."""
    own = [SourceFile(f"f{n}", OWN, "python") for n in range(12)]
    assert max(pair.standing or 0 for pair in c.compare_all(own).best) == 0


def test_bad_calls_are_explained():
    for files, options in (
        (random_files(1), {}),
        (random_files(2), {"pair_limit": 0}),
        (random_files(2), {"workers": 0}),
    ):
        with pytest.raises(InvalidSettings, match="two files"):
            c.compare_all(files, **options)
