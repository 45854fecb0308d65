"""How well the similarity engine finds clones and copies, beside token overlap and an untrained MiniLM.

    python benchmarks/similarity.py --data FOLDER [--split test] [--vectors NAME=FILE.npz …]   about 4 minutes, one core
    python benchmarks/similarity.py --data FOLDER --time       all pairs of 2,000 files with two processes
    python benchmarks/similarity.py --data FOLDER --minilm FILE.npz       writes MiniLM's vectors (some minutes)

FOLDER holds `snippets.jsonl.gz` (id, source, language, task, split, role, code), `pairs.jsonl.gz` (kind, split, a, b,
clone) and `codeaid_scored_pairs.jsonl.gz` (problem, language, human_code, ai_code, score); where it is absent the
benchmark says so and ends. A FILE.npz has `ids` and unit `vectors`. Prints tables and one JSON line.
Method version 1: lengths of runs were chosen on the training and validation splits. Intervals are 95 %, over groups
that are resampled whole: tasks; for GCJ, which has two test tasks, files; for IR-Plag, two test cases, submissions.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr

from forerun.data.json_rows import read_rows
from forerun.evaluate.classification import Scored, bootstrap_auc, roc_auc
from forerun.evaluate.retrieval import retrieval
from forerun.models.minilm import minilm_vectors
from forerun.recipes.code_detector.similarity.cohort import compare_all, cover_of, shared_words, standings, tiled_share
from forerun.recipes.code_detector.similarity.compare import PreparedFile, Sizes, SourceFile, prepare
from forerun.report.tables import Cell, ResultTable
from forerun.report.terminal import result_table

Row = dict[str, Any]
Matrix = NDArray[np.float64]
Method = Callable[[Sequence[Row]], Matrix]
WORD = re.compile(r"\w+|\S")
SIZES = Sizes()
TIMED_FILES, TIMED_WORKERS, ALLOWED_SECONDS = 2000, 2, 60


def overlap(width: int) -> Method:
    """Jaccard index of the sets of `width` tokens in a row."""

    def matrix(rows: Sequence[Row]) -> Matrix:
        sets = []
        for row in rows:
            words = WORD.findall(row["code"])
            sets.append({" ".join(words[n : n + width]) for n in range(len(words) - width + 1)})
        names = {name: n for n, name in enumerate(sorted(set().union(*sets)))}
        ends = np.cumsum([0, *map(len, sets)])
        columns = np.asarray([names[name] for each in sets for name in each])
        incidence = csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(rows), max(1, len(names))))
        shared, sizes = (incidence @ incidence.T).toarray(), np.diff(ends)
        return shared / np.maximum(sizes[:, None] + sizes[None, :] - shared, 1)

    return matrix


@cache
def prepared(code: str, language: str) -> PreparedFile:
    """Parsed once."""
    return prepare(SourceFile("", code, language), SIZES)


def files_of(rows: Sequence[Row]) -> list[PreparedFile]:
    """Prepared files of rows."""
    return [prepared(row["code"], row["language"]) for row in rows]


def stored(path: Path) -> Method:
    """Cosine of the unit vectors in a file."""
    with np.load(path) as file:
        place, vectors = {name: n for n, name in enumerate(file["ids"].tolist())}, file["vectors"]
    return lambda rows: (lambda v: v @ v.T)(vectors[[place[row["id"]] for row in rows]])


def auc_cell(labels: Sequence[int], scores: Sequence[float], groups: Sequence[str]) -> tuple[str, float]:
    """AUC with its interval, as text, and as a number."""
    scored = Scored(np.asarray(labels, dtype=np.int64), np.asarray(scores, dtype=float), tuple(groups))
    value, (low, high) = roc_auc(scored.labels, scored.scores), bootstrap_auc(scored)
    return f"{value:.3f} ({low:.3f}–{high:.3f})", value


class Clones:
    """The rows of one split."""

    def __init__(self, folder: Path, split: str):
        self.rows = {row["id"]: row for row in read_rows(folder / "snippets.jsonl.gz") if row["split"] == split}
        self.pairs: dict[str, list[Row]] = {}
        for pair in read_rows(folder / "pairs.jsonl.gz"):
            if pair["split"] == split:
                self.pairs.setdefault(pair["kind"], []).append(pair)
        levels = [kind for kind in sorted(self.pairs) if kind.startswith("irplag_L")]
        honest = self.pairs.pop("irplag_nonplag")
        self.levels = {level: [*self.pairs.pop(level), *honest] for level in levels}
        every = [pair for pairs in self.levels.values() for pair in pairs if pair["clone"]]
        self.pairs["irplag, all levels"] = [*every, *honest]

    def group(self, pair: Row) -> str:
        """Group of a pair; resampling draws whole groups."""
        if self.rows[pair["a"]]["source"] == "rosettacode_2016":
            return str(self.rows[pair["a"]]["task"])
        roles = {self.rows[pair[side]]["role"]: pair[side] for side in ("a", "b")}
        return next((file for role, file in roles.items() if role != "original"), pair["a"])

    def scores(self, method: Method, pairs: Sequence[Row]) -> list[float]:
        """The method's score of each pair."""
        names = sorted({pair[side] for pair in pairs for side in ("a", "b")})
        place = {name: n for n, name in enumerate(names)}
        matrix = method([self.rows[name] for name in names])
        return [float(matrix[place[pair["a"]], place[pair["b"]]]) for pair in pairs]

    def tiled(self, pairs: Sequence[Row]) -> list[float]:
        """The tiled share of syntax of each pair."""
        files = [files_of([self.rows[pair["a"]], self.rows[pair["b"]]]) for pair in pairs]
        return [tiled_share((a, b), SIZES) for a, b in files]

    def standing(self, pairs: Sequence[Row]) -> list[float]:
        """Each pair's standing among all files of its case."""
        cases: dict[str, list[Row]] = {}
        for row in self.rows.values():
            cases.setdefault(str(row["task"]), []).append(row)
        by_case = {}
        for case in {str(self.rows[pair["a"]]["task"]) for pair in pairs}:
            rows = cases[case]
            matrix = standings(cover_of(files_of(rows), SIZES.minimum_tile))
            assert matrix is not None
            by_case[case] = (matrix, {row["id"]: n for n, row in enumerate(rows)})
        scores = []
        for pair in pairs:
            matrix, place = by_case[str(self.rows[pair["a"]]["task"])]
            scores.append(float(matrix[place[pair["a"]], place[pair["b"]]]))
        return scores


def pair_tables(clones: Clones, methods: dict[str, Method]) -> tuple[list[ResultTable], dict[str, float]]:
    """AUC by set, and of IR-Plag by level."""
    figures: dict[str, float] = {}
    tables = []
    for title, sets in (("Clone pairs: AUC", clones.pairs), ("IR-Plag by level: AUC", clones.levels)):
        columns = list(sets)
        rows: list[list[Cell]] = []
        scorers = {name: lambda pairs, m=method: clones.scores(m, pairs) for name, method in methods.items()}
        scorers["syntax, tiled"] = clones.tiled
        if sets is clones.levels:
            scorers["syntax, standing in its case"] = clones.standing
        for name, scorer in scorers.items():
            cells: list[Cell] = [name]
            for kind in columns:
                pairs = sets[kind]
                text, value = auc_cell([p["clone"] for p in pairs], scorer(pairs), [clones.group(p) for p in pairs])
                cells.append(text)
                figures[f"auc.{name}.{kind}"] = value
            rows.append(cells)
        tables.append(ResultTable(title=title, columns=["method", *columns], rows=rows))
    return tables, figures


def retrieval_table(clones: Clones, methods: dict[str, Method]) -> tuple[ResultTable, dict[str, float]]:
    """Finding the other solutions of a file's task among all files of its set."""
    every = list(clones.rows.values())
    rosetta = [row for row in every if row["source"] == "rosettacode_2016"]
    sets = {f"rosetta_{name}": [r for r in rosetta if r["language"] == name] for name in ("python", "java", "cpp")}
    sets |= {"rosetta_crosslang": rosetta, "gcj2017_cpp": [r for r in every if r["source"] == "gcj2017_cpp"]}
    rows: list[list[Cell]] = []
    figures = {}
    for kind, members in sets.items():
        groups = [str(row["task"]) for row in members]
        languages = [row["language"] for row in members] if kind == "rosetta_crosslang" else None
        for name, method in methods.items():
            report = retrieval(method(members), groups, kinds=languages)
            values = {figure: float(getattr(report, figure)) for figure in report.intervals}
            cells = [
                f"{value:.3f} ({report.intervals[f][0]:.3f}–{report.intervals[f][1]:.3f})"
                for f, value in values.items()
            ]
            rows.append([kind, name, report.queries, report.candidates, *cells])
            figures |= {f"{figure}.{name}.{kind}": value for figure, value in values.items()}
    columns = ["set", "method", "queries", "candidates", "MAP@R", "recall@1", "recall@10", "MRR"]
    return ResultTable(title="Retrieval over the full set", columns=columns, rows=rows), figures


def human_table(folder: Path, vectors: dict[str, Path]) -> tuple[ResultTable, dict[str, float]]:
    """Rank correlation with a person's score of how alike two answers are."""
    languages = {"Python": "python", "Java": "java", "C++": "cpp"}
    rows = read_rows(folder / "codeaid_scored_pairs.jsonl.gz")
    named = [(number, row) for number, row in enumerate(rows) if row["language"] in languages]
    files = [
        {"id": f"codeaid{number}{side}", "code": row[f"{side}_code"], "language": languages[row["language"]]}
        for number, row in named
        for side in ("human", "ai")
    ]
    scores = [float(row["score"]) for _, row in named]
    problems = [row["problem"] for _, row in named]
    cells: list[list[Cell]] = []
    figures = {}
    for name, method in {**plain_methods(), **{n: stored(path) for n, path in vectors.items()}}.items():
        matrix = method(files)
        values = [float(matrix[2 * n, 2 * n + 1]) for n in range(len(named))]
        rho, low, high = spearman(values, scores, problems)
        cells.append([name, len(named), len(set(problems)), rho, low, high])
        figures[f"spearman.{name}"] = rho
    columns = ["method", "pairs", "problems", "Spearman", "low", "high"]
    return ResultTable(
        title="With a person's scores (CodeAid; Python, Java, C++)", columns=columns, rows=cells
    ), figures


def spearman(values: Sequence[float], scores: Sequence[float], groups: Sequence[str]) -> tuple[float, float, float]:
    """Rank correlation with the 95 % interval over resampled groups."""
    values_, scores_, groups_ = np.asarray(values), np.asarray(scores), np.asarray(groups)
    names, random = np.unique(groups_), np.random.default_rng(0)
    bootstrap = []
    for _ in range(400):
        sample = np.concatenate([np.flatnonzero(groups_ == g) for g in random.choice(names, len(names))])
        bootstrap.append(float(spearmanr(values_[sample], scores_[sample]).statistic))
    low, high = np.quantile(bootstrap, [0.025, 0.975])
    return float(spearmanr(values_, scores_).statistic), float(low), float(high)


def plain_methods() -> dict[str, Method]:
    """Those that need no vectors."""
    return {
        "token Jaccard": overlap(1),
        "3-token Jaccard": overlap(3),
        "words (winnowing)": lambda rows: shared_words(files_of(rows)),
        "syntax (cover)": lambda rows: cover_of(files_of(rows), SIZES.minimum_tile),
    }


def write_minilm(folder: Path, to: Path, split: str) -> None:
    """MiniLM's vectors of the first 256 tokens of each snippet of `split`; with those of test the scored pairs'."""
    texts = {row["id"]: row["code"] for row in read_rows(folder / "snippets.jsonl.gz") if row["split"] == split}
    scored = read_rows(folder / "codeaid_scored_pairs.jsonl.gz") if split == "test" else []
    texts |= {f"codeaid{n}{side}": row[f"{side}_code"] for n, row in enumerate(scored) for side in ("human", "ai")}
    np.savez(to, ids=np.asarray(list(texts)), vectors=minilm_vectors(list(texts.values())))


def timing(folder: Path) -> dict[str, float]:
    """All pairs of 2,000 files, parsing included."""
    rows = read_rows(folder / "snippets.jsonl.gz")[-TIMED_FILES:]
    files = [SourceFile(row["id"], row["code"], row["language"]) for row in rows]
    start = time.perf_counter()
    comparison = compare_all(files, pair_limit=100, workers=TIMED_WORKERS)
    seconds = time.perf_counter() - start
    return {"files": comparison.files, "pairs": comparison.pairs, "tiled": comparison.tiled,
            "seconds": round(seconds, 1), "allowed_seconds": ALLOWED_SECONDS}  # fmt: skip


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test", choices=("train", "val", "test"))
    parser.add_argument("--vectors", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--minilm", type=Path)
    parser.add_argument("--time", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.data / "snippets.jsonl.gz").exists():
        sys.exit(f"skipped: {arguments.data} has no snippets.jsonl.gz; the clone sets are not shipped.")
    if arguments.minilm:
        write_minilm(arguments.data, arguments.minilm, arguments.split)
        return
    if arguments.time:
        print(json.dumps({"benchmark": "similarity.time", "version": 1, **timing(arguments.data)}))
        return
    vectors = {name: Path(path) for name, path in (text.split("=", 1) for text in arguments.vectors)}
    methods = {**plain_methods(), **{name: stored(path) for name, path in vectors.items()}}
    clones = Clones(arguments.data, arguments.split)
    tables, figures = pair_tables(clones, methods)
    for table, more in (retrieval_table(clones, methods), human_table(arguments.data, vectors)):
        tables.append(table)
        figures |= more
    for table in tables:
        Console(width=200).print(result_table(table))
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"benchmark": "similarity", "version": 1, "split": arguments.split, **rounded}))


if __name__ == "__main__":
    main()
