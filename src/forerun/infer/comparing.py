"""The similarity side of the service: what each request asks, answered without a model."""

from collections.abc import Sequence

from forerun.infer.messages import BatchRequest, CodeFile, PairAnswer, SearchRequest, SimilarityRequest
from forerun.similarity.cohort import compare_all, require_time
from forerun.similarity.compare import Comparison, Sizes, SourceFile, base_code, compare, prepare

SIZES = Sizes()
STATEMENT = (
    "A high score says that two files have much in common and where. It does not say why: small exercises, code that "
    "was handed out, a common source or honest collaboration look the same.",
    "A low score does not show that two people worked apart; thorough rewriting escapes these measures.",
    "Read the marked lines beside each other before you talk to anybody.",
)


def source_files(files: Sequence[CodeFile], prefix: str = "file") -> list[SourceFile]:
    """With a name each: the given one, or its place."""
    return [SourceFile(file.name or f"{prefix} {n}", file.code, file.language) for n, file in enumerate(files, 1)]


def compare_two(request: SimilarityRequest) -> Comparison:
    """Both files side by side."""
    base = base_code(source_files(request.base), SIZES)
    a, b = (prepare(file, SIZES, base) for file in source_files([request.a, request.b]))
    return compare(a, b, SIZES)


def compare_batch(request: BatchRequest, until: float | None = None) -> list[PairAnswer]:
    """The most similar pairs; none for a single file. Given up when it is later than `until` (`time.monotonic`)."""
    if len(request.files) < 2:
        return []
    found = compare_all(
        source_files(request.files), sizes=SIZES, base=source_files(request.base), shown=request.shown, until=until
    )
    return [PairAnswer(comparison=pair.comparison, standing=pair.standing) for pair in found.best]


def search(request: SearchRequest, until: float | None = None) -> list[tuple[int, Comparison]]:
    """The candidates most like the query with their places, best first: by syntax, then words.

    Raises:
        TimeoutError: it is later than `until`, by `time.monotonic`; looked at between files.
    """
    base = base_code(source_files(request.base), SIZES)
    query = prepare(source_files([request.query], "query")[0], SIZES, base)
    found: list[tuple[int, Comparison]] = []
    for place, file in enumerate(source_files(request.candidates, "candidate")):
        require_time(until)
        found.append((place, compare(query, prepare(file, SIZES, base), SIZES)))
    found.sort(key=lambda each: (-each[1].syntax.score, -each[1].words.score, each[0]))
    return found[: request.shown]
