"""Requests and answers of the service, checked on the way in; extra fields are refused, sizes are part of the types.

A `name` is a label that comes back in the answer; nothing that a request says is ever used as a path.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from forerun.recipes.code_detector.service.known_human import KnownHuman
from forerun.recipes.code_detector.similarity.compare import FileComparison

Language = Literal["python", "java", "cpp"]
Verdict = Literal["worth-a-conversation", "no-finding", "not-enough-code", "not-code", "no-verdict"]
MOST_CHARACTERS, MOST_FILES, MOST_NAME = 100_000, 200, 200
MOST_BATCH = 50


class Message(BaseModel):
    """Closed and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CodeFile(Message):
    """One source file."""

    code: Annotated[str, Field(max_length=MOST_CHARACTERS)]
    language: Language
    name: Annotated[str, Field(max_length=MOST_NAME)] = ""
    """A label for the answer; never opened."""


class SimilarityRequest(Message):
    """Two files to compare, and code that was handed out and does not count."""

    a: CodeFile
    b: CodeFile
    base: Annotated[list[CodeFile], Field(max_length=20)] = []


class BatchRequest(Message):
    """Files of one assignment."""

    files: Annotated[list[CodeFile], Field(min_length=1, max_length=MOST_BATCH)]
    base: Annotated[list[CodeFile], Field(max_length=20)] = []
    shown: Annotated[int, Field(ge=1, le=100)] = 20
    """Pairs to show."""


class SearchRequest(Message):
    """A file, and the files to look for its like among."""

    query: CodeFile
    candidates: Annotated[list[CodeFile], Field(min_length=1, max_length=MOST_FILES)]
    base: Annotated[list[CodeFile], Field(max_length=20)] = []
    shown: Annotated[int, Field(ge=1, le=50)] = 10
    by: Literal["syntax", "embedding"] = "syntax"
    """What ranks the candidates; `embedding` finds solutions of the same task that share no code."""


class FeedbackRequest(Message):
    """What became of a prediction."""

    prediction_id: Annotated[str, Field(min_length=1, max_length=64)]
    outcome: Literal["confirmed", "refuted"]
    """Whether the file turned out to be AI-written, or a person's."""


class Window(Message):
    """A part of a long file: lines from 1, both ends included."""

    first_line: int
    last_line: int
    probability: float


class DetectAnswer(Message):
    """The verdict on one file."""

    prediction_id: str
    name: str
    verdict: Verdict
    reason: str
    probability: float | None
    """Calibrated; null where no verdict is given."""
    threshold: float | None
    second_opinion: float | None = None
    """Probability by the code without its formatting; null where it was not asked, for files not to be flagged."""
    second_threshold: float | None = None
    """What that must lie above too for a flag; null where there is no second opinion."""
    budget: float
    """Share of people's files that the threshold may flag."""
    tokens: int
    windows: list[Window]
    statement: list[str]
    """What the score does not prove; to be shown with it."""
    model: str
    """Hash of the settings of the model's run."""


class SimilarityAnswer(Message):
    """Two files compared, on three tiers."""

    comparison: FileComparison
    embedding: float
    """Cosine of the files' vectors, from -1 to 1; comparable only with other values of the same model."""
    unrelated: float | None = None
    """Share of pairs of unrelated files that are as alike by that cosine; null where the embedding was not trained."""
    guarantee: int
    """Words in a row that cannot be shared unnoticed."""
    statement: list[str]


class PairAnswer(Message):
    """One pair of a batch."""

    comparison: FileComparison
    standing: float | None
    """Robust standard deviations above the median of the batch; null for fewer than ten files."""


class BatchAnswer(Message):
    """Verdicts on all files, and the most similar pairs."""

    files: list[DetectAnswer]
    pairs: list[PairAnswer]
    guarantee: int
    statement: list[str]


class FoundFile(Message):
    """One candidate."""

    index: int
    """Its place in the request."""
    comparison: FileComparison
    embedding: float
    unrelated: float | None = None


class SearchAnswer(Message):
    """The candidates most like the query, by what was asked for."""

    found: list[FoundFile]
    statement: list[str]


class StatusAnswer(Message):
    """What is served, and how busy it is."""

    status: Literal["ready"]
    model: str
    name: str
    languages: list[str]
    least_tokens: int
    budget: float
    threshold: float | None
    answered: int
    waiting: int
    uptime_seconds: float
    keeps_code: bool
    """Whether the code of requests is stored."""
    embedding: str = "detector"
    """What the trained embedding of the third tier learned from; `detector` where there is none, and the cosine is that
    of the detector's own head, which was not trained to find the like."""
    second_threshold: float | None = None
    """Threshold of the second opinion; null where there is none."""
    known_human: tuple[KnownHuman, ...] = ()
    """People's files of sources that the model has not seen, and how many are flagged all the same."""


class FeedbackAnswer(Message):
    """Feedback was noted."""

    prediction_id: str
    outcome: Literal["confirmed", "refuted"]


class ProblemDetail(Message):
    """Why a request was not answered."""

    problem: str
    where: list[str] = []
    """Fields that are wrong."""
