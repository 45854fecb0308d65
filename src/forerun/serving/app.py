"""The service over a trained run: OpenAI's paths for text and vectors, and `/v1/classify`, as a FastAPI application.

One model answers; requests for labels and vectors that arrive together share a batch (`infer.batching`), texts are
written one after the other, and who comes while too many wait is refused (429). Nothing from a request is opened,
imported or rendered: a chat template runs in transformers' own sandbox, on messages as data.
"""

import asyncio
import base64
import contextlib
import json
import struct
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from forerun.infer.batching import Batcher
from forerun.infer.gate import Gate
from forerun.infer.request_rate import PER_SECOND, rate_of
from forerun.serving.hidden_words import likeliest
from forerun.serving.messages import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    FillMaskRequest,
    TextRequest,
)
from forerun.serving.refusals import Busy, add_errors, gate_problem, problem
from forerun.serving.writing import Sampling, Writer, Writing

DEFAULT_NEW_TOKENS = 256
Answer = Mapping[str, Any]


class RowAnswers(Protocol):
    """A model that answers rows of texts: labels or vectors."""

    kind: str
    """`labels`, `tags`, `vectors` or `masks`."""

    def answer(self, rows: Sequence[tuple[str, str | None]]) -> list[Answer]:
        """One answer a row, in order; `tokens` is the number of its tokens, `truncated` that it has more."""
        ...


class Connection(Protocol):
    """What starlette's `Request` knows of its client."""

    async def is_disconnected(self) -> bool:
        """Whether the client has left."""
        ...


@dataclass(frozen=True)
class TextServiceLimits:
    """Most that one request may cost, and how many may wait."""

    body_bytes: int = 4_000_000
    seconds: float = 300.0
    waiting: int = 16
    """Texts that wait while one is written."""
    rows: int = 32
    """Rows in one batch of labels or vectors."""
    requests_per_second: float = PER_SECOND
    """Of one address; 0 for any number."""


class WritingQueue:
    """Texts one after the other; at most so many wait."""

    def __init__(self, writer: Writer, limits: TextServiceLimits):
        self.writer, self.limits = writer, limits
        self.waiting = 0
        self._turn = asyncio.Semaphore(1)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the model.

        Raises:
            Busy: too many wait already.
        """
        if self.waiting > self.limits.waiting:
            raise Busy
        self.waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self.waiting -= 1

    async def pieces(self, writing: Writing) -> AsyncGenerator[str]:
        """Pieces of a text without blocking the loop; the model stops when nobody reads on, or the time is up."""
        iterator, until, is_late = iter(writing), time.monotonic() + self.limits.seconds, False
        step: asyncio.Future[str | None] | None = None
        try:
            while not is_late:
                step = asyncio.ensure_future(asyncio.to_thread(_next_piece, iterator))
                if (piece := await asyncio.shield(step)) is None:
                    break
                yield piece
                is_late = time.monotonic() > until
        finally:
            writing.cancel()
            with anyio.CancelScope(shield=True):  # its thread goes on where its client has left; the turn ends after it
                await _close(iterator, step)
            if is_late:  # after `close`, which takes any cancelled text for one that a stop text ended
                writing.finish_reason = "length"


def make_text_app(
    name: str,
    *,
    writer: Writer | None = None,
    rows: RowAnswers | None = None,
    hosts: Sequence[str] | None = None,
    token: str | None = None,
    limits: TextServiceLimits | None = None,
) -> FastAPI:
    """The application; `hosts` are the names by which it may be called, `token` what every request must carry."""
    limits = limits or TextServiceLimits()
    batcher = None if rows is None else Batcher(rows.answer, most=limits.rows, queue=16 * limits.rows)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if batcher is not None:
            batcher.start()
        yield
        if batcher is not None:
            await batcher.stop()

    app = FastAPI(title=f"Forerun: {name}", version="1", docs_url=None, redoc_url=None, lifespan=lifespan)
    _add_models(app, name)
    if writer is not None:
        _add_text(app, name, WritingQueue(writer, limits))
    if rows is not None and batcher is not None:
        _add_rows(app, name, rows.kind, batcher)
    add_errors(app)
    rate = rate_of(limits.requests_per_second)
    app.add_middleware(
        Gate, most_bytes=limits.body_bytes, token=token, hosts=hosts, rate=rate, form=gate_problem  # type: ignore[arg-type]
    )  # fmt: skip
    return app


def _add_models(app: FastAPI, name: str) -> None:
    own = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "forerun"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [own]}

    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> Any:
        if model_id != name:
            wrong = f"The model {name} is served here, and no other. Ask for it, or leave the model out."
            return JSONResponse(problem(wrong, "invalid_request_error", "model", code="model_not_found"), 404)
        return own

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ready", "model": name}


def _add_text(app: FastAPI, name: str, queue: WritingQueue) -> None:
    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, connection: Request) -> Any:
        ids = queue.writer.chat_ids([message.plain() for message in request.messages], request.schemas)
        sampling = _sampling(request, request.max_completion_tokens or request.max_tokens, queue.writer, len(ids))
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        if request.stream:
            return await _streamed(queue, ids, sampling, request, {**head, "object": "chat.completion.chunk"}, _delta)
        text, writing = await _whole(queue, ids, sampling, connection)
        message, has_calls = queue.writer.tool_answers.message(text, request.schemas)
        reason = "tool_calls" if has_calls else writing.finish_reason
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(writing)}

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, connection: Request) -> Any:
        ids = queue.writer.text_ids(request.text)
        sampling = _sampling(request, request.max_tokens, queue.writer, len(ids))
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": name,
        }  # fmt: skip
        if request.stream:
            return await _streamed(queue, ids, sampling, request, head, _text_piece)
        text, writing = await _whole(queue, ids, sampling, connection)
        choice = {"index": 0, "text": text, "finish_reason": writing.finish_reason, "logprobs": None}
        return {**head, "choices": [choice], "usage": _usage(writing)}


def _add_rows(app: FastAPI, name: str, kind: str, batcher: Batcher[tuple[str, str | None], Answer]) -> None:
    if kind == "masks":

        @app.post("/v1/fill-mask")
        async def fill_mask(request: FillMaskRequest) -> dict[str, Any]:
            answers = await batcher.ask([(text, None) for text in request.texts])
            data = [{"index": place, **likeliest(answer, request.top_k)} for place, answer in enumerate(answers)]
            return {"object": "list", "data": data, "model": name}

    elif kind == "vectors":

        @app.post("/v1/embeddings")
        async def embeddings(request: EmbeddingRequest) -> dict[str, Any]:
            answers = await batcher.ask([(text, None) for text in request.texts])
            tokens = sum(answer["tokens"] for answer in answers)
            as_text = request.encoding_format == "base64"
            data = [
                {
                    "object": "embedding", "index": place, "embedding": _vector(answer["vector"], as_text=as_text),
                    "truncated": answer["truncated"],
                }
                for place, answer in enumerate(answers)
            ]  # fmt: skip
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return {"object": "list", "data": data, "model": name, "usage": usage}
    else:

        @app.post("/v1/classify")
        async def classify(request: ClassifyRequest) -> dict[str, Any]:
            answers = await batcher.ask(request.rows)
            data = [{"index": place, **answer} for place, answer in enumerate(answers)]
            return {"object": "list", "data": data, "model": name}


def _vector(values: Sequence[float], *, as_text: bool) -> list[float] | str:
    """Numbers, or their fp32 bytes in base64."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if as_text else list(values)


def _sampling(request: TextRequest, most: int | None, writer: Writer, prompt: int) -> Sampling:
    """How to continue; without a stated length, as many tokens as there is room for, up to `DEFAULT_NEW_TOKENS`."""
    room = DEFAULT_NEW_TOKENS if writer.longest is None else max(1, writer.longest - prompt)
    return Sampling(
        new_tokens=most or min(DEFAULT_NEW_TOKENS, room),
        temperature=request.temperature or 0.0,
        top_p=1.0 if request.top_p is None else request.top_p,
        stop=request.stops,
        seed=request.seed,
        shows_special=isinstance(request, ChatRequest) and bool(request.schemas),
    )


async def _whole(
    queue: WritingQueue, ids: Sequence[int], sampling: Sampling, connection: Connection
) -> tuple[str, Writing]:
    """The text; only its beginning where the client has left, for whom nobody else shall wait."""
    writing, text = queue.writer.write(ids, sampling), []
    async with queue.turn(), contextlib.aclosing(queue.pieces(writing)) as pieces:
        while not await connection.is_disconnected() and (piece := await anext(pieces, None)) is not None:
            text.append(piece)
    return "".join(text), writing


async def _streamed(
    queue: WritingQueue,
    ids: Sequence[int],
    sampling: Sampling,
    request: TextRequest,
    head: dict[str, Any],
    piece_of: Any,
) -> StreamingResponse:
    """Server-sent events; refused before the first one where the prompt is too long or too many wait."""
    writing = queue.writer.write(ids, sampling)
    if queue.waiting > queue.limits.waiting:
        raise Busy
    wants_usage = request.stream_options is not None and request.stream_options.include_usage
    tools = request.schemas if isinstance(request, ChatRequest) else []
    reader = queue.writer.tool_answers

    async def events() -> AsyncIterator[str]:
        try:
            async with queue.turn(), contextlib.aclosing(queue.pieces(writing)) as pieces:
                yield _event({**head, "choices": [piece_of(None, None)]})
                rest: list[str] = []
                async for piece in reader.before_calls(pieces, rest) if tools else pieces:
                    if piece:
                        yield _event({**head, "choices": [piece_of(piece, None)]})
                content, calls = reader.split("".join(rest), tools)
                if content.strip() if calls else content:
                    yield _event({**head, "choices": [piece_of(content, None)]})
                if calls:
                    numbered = [{"index": place, **call} for place, call in enumerate(calls)]
                    choice = {"index": 0, "delta": {"tool_calls": numbered}, "finish_reason": None}
                    yield _event({**head, "choices": [choice]})
                reason = "tool_calls" if calls else writing.finish_reason
                yield _event({**head, "choices": [piece_of("", reason)]})
            if wants_usage:
                yield _event({**head, "choices": [], "usage": _usage(writing)})
        except (RuntimeError, ValueError, IndexError, Busy) as error:  # the head of the answer has been sent
            yield _event(problem(str(error) or "Too many requests are waiting.", "server_error", None))
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _delta(piece: str | None, reason: str | None) -> dict[str, Any]:
    """A choice of a chat's stream: the first names the role, the last the reason."""
    delta = {"role": "assistant", "content": ""} if piece is None else {"content": piece} if reason is None else {}
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _text_piece(piece: str | None, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": piece or "", "finish_reason": reason, "logprobs": None}


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _usage(writing: Writing) -> dict[str, int]:
    counts = {"prompt_tokens": writing.prompt_tokens, "completion_tokens": writing.new_tokens}
    return {**counts, "total_tokens": sum(counts.values())}


async def _close(pieces: Iterator[str], step: "asyncio.Future[str | None] | None") -> None:
    """Close what writes, once no thread is in it."""
    if step is not None:
        await asyncio.wait([step])
    close = getattr(pieces, "close", None)
    if close is not None:
        await asyncio.to_thread(close)


def _next_piece(pieces: Iterator[str]) -> str | None:
    return next(pieces, None)
