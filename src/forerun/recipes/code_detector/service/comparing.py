"""The similarity side of the service: requests that are answered without the detector."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.recipes.code_detector.embedding.vectors import EmbeddedFile, FileVectors, cosine_of
from forerun.recipes.code_detector.service.messages import (
    BatchRequest,
    CodeFile,
    PairAnswer,
    SearchRequest,
    SimilarityRequest,
)
from forerun.recipes.code_detector.similarity.cohort import compare_all, require_time
from forerun.recipes.code_detector.similarity.compare import (
    FileComparison,
    PreparedFile,
    Sizes,
    SourceFile,
    base_code,
    compare,
    prepare,
)

SIZES = Sizes()
STATEMENT = (
    "A high score says that two files have much in common and where. It does not say why: small exercises, code that "
    "was handed out, a common source or honest collaboration look the same.",
    "A low score does not show that two people worked apart; thorough rewriting escapes these measures.",
    "Read the marked lines beside each other before you talk to anybody.",
)


@dataclass(frozen=True)
class SimilarityResult:
    """Two files compared, and the cosine of a trained embedding where there is one."""

    comparison: FileComparison
    embedding: float | None


def source_files(files: Sequence[CodeFile], prefix: str = "file") -> list[SourceFile]:
    """The files with a name each: the one from the request, or the file's place."""
    return [SourceFile(file.name or f"{prefix} {n}", file.code, file.language) for n, file in enumerate(files, 1)]


def compare_two(request: SimilarityRequest, embedding: FileVectors | None = None) -> SimilarityResult:
    """Both files side by side."""
    base = base_code(source_files(request.base), SIZES)
    sources = source_files([request.a, request.b])
    a, b = (prepare(file, SIZES, base) for file in sources)
    comparison = compare(a, b, SIZES)
    if embedding is None:
        return SimilarityResult(comparison, None)
    first, second = embedding.embed([(sources[0].code, a), (sources[1].code, b)])
    return SimilarityResult(embedding.with_evidence(comparison, first, second), cosine_of(first, second))


def compare_batch(request: BatchRequest, until: float | None = None) -> list[PairAnswer]:
    """The most similar pairs; none for a single file. Given up when it is later than `until` (`time.monotonic`)."""
    if len(request.files) < 2:
        return []
    report = compare_all(
        source_files(request.files), sizes=SIZES, base=source_files(request.base), pair_limit=request.shown, until=until
    )
    return [PairAnswer(comparison=pair.comparison, standing=pair.standing) for pair in report.best]


def search(
    request: SearchRequest, until: float | None = None, embedding: FileVectors | None = None
) -> list[tuple[int, SimilarityResult]]:
    """The candidates most like the query with their places, best first: by syntax, then words; or by the embedding.

    Raises:
        TimeoutError: it is later than `until`, by `time.monotonic`; looked at between files.
    """
    base = base_code(source_files(request.base), SIZES)
    query_source, *sources = source_files([request.query], "query") + source_files(request.candidates, "candidate")
    query = prepare(query_source, SIZES, base)
    prepared: list[PreparedFile] = []
    for source in sources:
        require_time(until)
        prepared.append(prepare(source, SIZES, base))
    if request.by == "embedding" and embedding is not None:
        return _nearest(request.shown, (query_source.code, query), sources, prepared, embedding, until)
    comparisons: list[tuple[int, FileComparison]] = []
    for place, file in enumerate(prepared):
        require_time(until)
        comparisons.append((place, compare(query, file, SIZES)))
    comparisons.sort(key=lambda each: (-each[1].syntax.score, -each[1].words.score, each[0]))
    best = comparisons[: request.shown]
    if embedding is None:
        return [(place, SimilarityResult(comparison, None)) for place, comparison in best]
    first = embedding.embed([(query_source.code, query)])[0]
    return [
        (place, _embedded(comparison, first, embedding.embed([(sources[place].code, prepared[place])])[0], embedding))
        for place, comparison in best
    ]


def _nearest(
    count: int,
    query: tuple[str, PreparedFile],
    sources: Sequence[SourceFile],
    prepared: Sequence[PreparedFile],
    embedding: FileVectors,
    until: float | None,
) -> list[tuple[int, SimilarityResult]]:
    """The nearest neighbours by cosine; only these are compared in full."""
    first = embedding.embed([query])[0]
    others: list[EmbeddedFile] = []
    for source, file in zip(sources, prepared, strict=True):
        require_time(until)
        others += embedding.embed([(source.code, file)])
    order = sorted(range(len(others)), key=lambda place: (-cosine_of(first, others[place]), place))[:count]
    neighbours: list[tuple[int, SimilarityResult]] = []
    for place in order:
        require_time(until)
        comparison = compare(query[1], prepared[place], SIZES)
        neighbours.append((place, _embedded(comparison, first, others[place], embedding)))
    return neighbours


def _embedded(comparison: FileComparison, a: EmbeddedFile, b: EmbeddedFile, embedding: FileVectors) -> SimilarityResult:
    return SimilarityResult(embedding.with_evidence(comparison, a, b), cosine_of(a, b))
