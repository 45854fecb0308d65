"""The service: `forerun serve RUN` as a FastAPI application, with its OpenAPI document at /openapi.json.

Nothing from a request is opened, imported or unpickled: code is text that is parsed and scored. Every answer carries
what its score does not prove. A request that is too large, takes too long, or comes while the queue is full is refused
(413, 503, 429); errors name the field and never repeat the input.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun.infer.batching import Batcher, QueueFull
from forerun.infer.gate import Gate
from forerun.infer.request_rate import PER_SECOND, rate_of
from forerun.recipes.code_detector.embedding.vectors import FileVectors
from forerun.recipes.code_detector.service.comparing import (
    STATEMENT,
    SimilarityResult,
    compare_batch,
    compare_two,
    search,
)
from forerun.recipes.code_detector.service.messages import (
    BatchAnswer,
    BatchRequest,
    CodeFile,
    DetectAnswer,
    FeedbackAnswer,
    FeedbackRequest,
    FoundFile,
    ProblemDetail,
    SearchAnswer,
    SearchRequest,
    SimilarityAnswer,
    SimilarityRequest,
    StatusAnswer,
)
from forerun.recipes.code_detector.service.scoring import Answer, DetectionQuestion, ScoringModel, verdict_of
from forerun.recipes.code_detector.service.store import Prediction, PredictionStore
from forerun.recipes.code_detector.similarity.winnowing import Winnowing

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript"),
              "/page.css": ("page.css", "text/css")}  # fmt: skip
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ProblemDetail} for code in (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 503)
}
Result = TypeVar("Result")


@dataclass(frozen=True)
class ServiceLimits:
    """Most that one request may cost: bytes, seconds, files."""

    body_bytes: int = 4_000_000
    seconds: float = 20.0
    queue: int = 256
    batch: int = 32
    wait_seconds: float = 0.005
    comparing_threads: int = 2
    requests_per_second: float = PER_SECOND
    """Of one address; 0 for any number."""


class Service:
    """The detector, its queue, and the threads that compare files; started and stopped with the application."""

    def __init__(
        self,
        detector: ScoringModel,
        limits: ServiceLimits,
        store: PredictionStore | None,
        embedding: FileVectors | None,
    ):
        self.detector, self.limits, self.store, self.embedding = detector, limits, store, embedding
        self.began, self.answered = time.monotonic(), 0
        self._batcher: Batcher[DetectionQuestion, Answer] | None = None
        self._threads = ThreadPoolExecutor(limits.comparing_threads, thread_name_prefix="compare")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the queue on entering, stop it and the threads on leaving."""
        limits = self.limits
        self._batcher = Batcher(
            self.detector.answer, most=limits.batch, wait_seconds=limits.wait_seconds, queue=limits.queue
        )
        self._batcher.start()
        try:
            yield
        finally:
            await self._batcher.stop()
            self._threads.shutdown(wait=False)

    @property
    def waiting(self) -> int:
        """Files in the queue of the model."""
        return 0 if self._batcher is None else self._batcher.waiting

    async def ask(self, files: list[CodeFile]) -> list[Answer]:
        """The model's answers."""
        assert self._batcher is not None, "the service has not been started"
        questions = [DetectionQuestion(file.code, file.language) for file in files]
        answers = await asyncio.wait_for(self._batcher.ask(questions), self.limits.seconds)
        self.answered += len(answers)
        return answers

    def until(self) -> float:
        """When work that begins now must give up, by `time.monotonic`."""
        return time.monotonic() + self.limits.seconds

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Something that takes a while, with a limit; the thread goes on until it looks at `until`."""
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.run_in_executor(self._threads, work), self.limits.seconds)

    async def detect(self, files: list[CodeFile], endpoint: str) -> list[DetectAnswer]:
        """Verdicts, each entered in the store."""
        answers = await self.ask(files)
        verdicts = [self._detected(file, answer) for file, answer in zip(files, answers, strict=True)]
        if self.store is not None:
            rows = [
                Prediction.of(verdict, file, answer.probability, endpoint)
                for verdict, file, answer in zip(verdicts, files, answers, strict=True)
            ]
            await self.in_thread(lambda: self.store.add(rows) if self.store is not None else None)
        return verdicts

    async def cosines(
        self, first: CodeFile, others: Sequence[CodeFile], compared: Sequence[SimilarityResult]
    ) -> list[tuple[float, float | None]]:
        """Cosines of one file and others, with the share of unrelated pairs that are as alike.

        Without a trained embedding they are those of the detector's own head, and the share is None.
        """
        if self.embedding is not None:
            trained = self.embedding
            values = [0.0 if each.embedding is None else each.embedding for each in compared]
            return [(value, trained.unrelated_share(value)) for value in values]
        answer, *more = await self.ask([first, *others])
        return [(float(np.clip(answer.vector @ each.vector, -1, 1)), None) for each in more]

    def _detected(self, file: CodeFile, answer: Answer) -> DetectAnswer:
        card = self.detector.card
        verdict, reason = verdict_of(answer, card, file.language, file.code)
        judged = verdict in ("worth-a-conversation", "no-finding")
        return DetectAnswer(
            prediction_id=secrets.token_urlsafe(12),
            name=file.name,
            verdict=verdict,
            reason=reason,
            probability=answer.probability if judged else None,
            threshold=card.served.threshold,
            second_opinion=answer.second if judged else None,
            second_threshold=card.served.second_threshold,
            budget=card.served.budget,
            tokens=answer.tokens,
            windows=list(answer.windows) if judged else [],
            statement=card.full_statement,
            model=card.settings_hash,
        )

    def status(self) -> StatusAnswer:
        """The model that is served, and how busy the service is."""
        card = self.detector.card
        return StatusAnswer(
            status="ready",
            model=card.settings_hash,
            name=card.name,
            languages=card.languages,
            least_tokens=card.least_tokens,
            budget=card.served.budget,
            threshold=card.served.threshold,
            second_threshold=card.served.second_threshold,
            answered=self.answered,
            waiting=self.waiting,
            uptime_seconds=time.monotonic() - self.began,
            keeps_code=self.store is not None and self.store.keeps_code,
            embedding="detector" if self.embedding is None else self.embedding.card.data,
            known_human=card.known_human,
        )


def make_app(
    detector: ScoringModel,
    *,
    limits: ServiceLimits | None = None,
    token: str | None = None,
    store: PredictionStore | None = None,
    embedding: FileVectors | None = None,
    hosts: Sequence[str] | None = None,
) -> FastAPI:
    """The application; with `token` every request but those of the page must carry it.

    `hosts` are the names by which it may be called; None takes any.
    """
    limits = limits or ServiceLimits()
    service = Service(detector, limits, store, embedding)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="Forerun: AI-written code and code similarity",
        version="1",
        summary="Scores that say what they do not prove",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=REFUSALS,
    )
    app.state.service = service
    _add_page(app)
    _add_detection(app, service)
    _add_similarity(app, service)
    _add_refusals(app)
    rate = rate_of(limits.requests_per_second)
    app.add_middleware(Gate, most_bytes=limits.body_bytes, token=token, hosts=hosts, rate=rate)  # type: ignore[arg-type]
    return app


def _add_page(app: FastAPI) -> None:
    for path, (name, kind) in PAGE_FILES.items():
        content = (PAGE / name).read_text(encoding="utf-8")

        app.add_api_route(path, _page(content, kind), include_in_schema=False)


def _page(content: str, kind: str) -> Callable[[], Response]:
    # A function of its own: a lambda in the loop above would serve the last file on every path.
    return lambda: Response(content, media_type=kind)


def _add_detection(app: FastAPI, service: Service) -> None:
    @app.get("/v1/status")
    async def status() -> StatusAnswer:
        """What is served, and how busy it is."""
        return service.status()

    @app.post("/v1/detect")
    async def detect(request: CodeFile) -> DetectAnswer:
        """Is this file AI-written? A verdict within a false-positive budget, or none."""
        return (await service.detect([request], "detect"))[0]

    @app.post("/v1/batch")
    async def batch(request: BatchRequest) -> BatchAnswer:
        """Verdicts on the files of an assignment, and its most similar pairs."""
        pairs = await service.in_thread(lambda: compare_batch(request, service.until()))
        files = await service.detect(request.files, "batch")
        statement = [*service.detector.card.full_statement, *STATEMENT]
        return BatchAnswer(files=files, pairs=pairs, guarantee=Winnowing().guarantee, statement=statement)

    @app.post("/v1/feedback")
    async def feedback(request: FeedbackRequest) -> FeedbackAnswer:
        """What became of a prediction."""
        store = service.store
        result = "unknown"
        if store is not None:
            result = await service.in_thread(lambda: store.add_feedback(request.prediction_id, request.outcome))
        if result == "unknown":
            raise HTTPException(404, "No prediction of that id is stored here.")
        if result == "contradicts":
            raise HTTPException(409, "Another outcome was given for this prediction; the first one stays.")
        return FeedbackAnswer(prediction_id=request.prediction_id, outcome=request.outcome)


def _add_similarity(app: FastAPI, service: Service) -> None:
    @app.post("/v1/similarity")
    async def similarity(request: SimilarityRequest) -> SimilarityAnswer:
        """What two files have in common, and on which lines."""
        compared = await service.in_thread(lambda: compare_two(request, service.embedding))
        [(cosine, unrelated)] = await service.cosines(request.a, [request.b], [compared])
        return SimilarityAnswer(
            comparison=compared.comparison,
            embedding=cosine,
            unrelated=unrelated,
            guarantee=Winnowing().guarantee,
            statement=list(STATEMENT),
        )

    @app.post("/v1/find-similar")
    async def find_similar(request: SearchRequest) -> SearchAnswer:
        """The candidates most like a file; candidates come with the request and are not kept."""
        if request.by == "embedding" and service.embedding is None:
            raise HTTPException(404, "No trained embedding is served here. Rank by syntax, or start it with one.")
        matches = await service.in_thread(lambda: search(request, service.until(), service.embedding))
        files = [request.candidates[place] for place, _ in matches]
        cosines = await service.cosines(request.query, files, [compared for _, compared in matches])
        answers = [
            FoundFile(index=place, comparison=compared.comparison, embedding=cosine, unrelated=unrelated)
            for (place, compared), (cosine, unrelated) in zip(matches, cosines, strict=True)
        ]
        return SearchAnswer(found=answers, statement=list(STATEMENT))


def _add_refusals(app: FastAPI) -> None:
    def refuse(
        status: int, problem: str, *, where: list[str] | None = None, headers: Mapping[str, str] | None = None
    ) -> JSONResponse:
        return JSONResponse({"problem": problem, "where": where or []}, status, headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        field_names = {"body", "a", "b", "base", "files", "query", "candidates", "code", "language", "name", "shown",
                 "prediction_id", "outcome"}  # fmt: skip
        where, problems = [], []
        for each in error.errors()[:20]:
            place = ".".join(str(part) if isinstance(part, int) or part in field_names else "?" for part in each["loc"])
            where.append(place)
            problems.append(f"{place}: {each['type'].replace('_', ' ')}")
        return refuse(
            422, f"The request does not fit its description: {'; '.join(problems)}. See /openapi.json.", where=where
        )

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return refuse(error.status_code, str(error.detail), headers=error.headers)

    async def full(request: Request, error: Exception) -> JSONResponse:
        return refuse(429, "Too many files are waiting. Try again in a second.", headers={"Retry-After": "1"})

    async def slow(request: Request, error: Exception) -> JSONResponse:
        return refuse(503, "This took longer than is allowed. Send less code at once.", headers={"Retry-After": "5"})

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(QueueFull, full)
    app.add_exception_handler(TimeoutError, slow)  # asyncio.TimeoutError is the same class since Python 3.11
