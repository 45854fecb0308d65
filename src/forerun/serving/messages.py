"""Requests and answers of `forerun serve` for language models, classifiers and embeddings, checked on the way in.

Paths and fields are those of OpenAI's API (openai/openai-openapi, 2.3.0: chat/completions, completions, embeddings,
models), so that its clients work. A field that would change the answer and is not offered is refused by name; one
that changes nothing (`user`) is taken and not read. `model` is not read either: one is served, and the answer names it.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from forerun.data.own.columns import structure_of
from forerun.data.own.tool_calls import template_calls
from forerun.serving.hidden_words import CANDIDATES, SHOWN_CANDIDATES

MOST_CHARACTERS, MOST_TEXTS, MOST_MESSAGES, MOST_NEW_TOKENS = 400_000, 512, 1_000, 32_768
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "logprobs": (False,), "top_logprobs": (0,),
    "logit_bias": ({},), "best_of": (1,), "echo": (False,), "suffix": ("",), "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True, False), "tools": ([],), "tool_choice": ("none", "auto"), "dimensions": (),
}  # fmt: skip
"""Fields that clients send with the value that asks for nothing; `null` always is such a value."""
NOT_READ = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")


class ServiceRequest(BaseModel):
    """A request: closed, but for fields of the API that ask for nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _without_no_effect(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        left = {}
        for name, value in content.items():
            is_offered = name in cls.model_fields
            if name in NOT_READ or (name in NO_EFFECT and not is_offered and _asks_for_nothing(name, value)):
                continue
            left[name] = value  # what is no field is refused by name, as pydantic checks the request
        return left


def _asks_for_nothing(name: str, value: Any) -> bool:
    """Whether OpenAI's answer would be the same without `value`; `logprobs: 0` asks for one, though 0 == False."""
    if value is None:
        return True
    return any(value == nothing and isinstance(value, bool) == isinstance(nothing, bool) for nothing in NO_EFFECT[name])


class TextPart(BaseModel):
    """A part of a message; there are no others than text."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Literal["text"]
    text: Text


def require_text_parts(value: Any) -> Any:
    """`value`, if no part of it is anything but text.

    Raises:
        ValueError: where another part stands.
    """
    for place, part in enumerate(value if isinstance(value, list) else []):
        if isinstance(part, dict) and part.get("type", "text") != "text":
            raise ValueError(
                f"a text, or a list of parts of type text; found another type at place {place}, counted from 0. The "
                f"model reads text only"
            )
    return value


class CalledFunction(BaseModel):
    """What an answer calls."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
    arguments: Text = "{}"

    @field_validator("arguments")
    @classmethod
    def _are_a_mapping(cls, text: str) -> str:
        if not isinstance(structure_of(text.strip() or "{}"), dict):
            raise ValueError("must be the text of a JSON object")
        return text


class ToolCall(BaseModel):
    """One call in an answer."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    id: Text = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolFunction(BaseModel):
    """What a tool is called; its other fields go to the chat template as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]


class Tool(BaseModel):
    """A tool that may be called."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["function"]
    function: ToolFunction


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Text | list[TextPart] | None, BeforeValidator(require_text_parts)] = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MOST_MESSAGES)] | None = None
    tool_call_id: Text | None = None
    name: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_other_content(cls, content: Any) -> Any:
        for name in ("function_call", "audio") if isinstance(content, dict) else ():
            if content.get(name):
                raise ValueError(f"{name} is not offered by this service. Send the message as text")
        return content

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are of the assistant; found a message of {self.role}")
        if self.content is None and not self.tool_calls:
            raise ValueError("content must be a text, or a list of parts of type text; found none")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as chat templates read it; `developer` is today's name of `system`."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = template_calls([call.model_dump() for call in self.tool_calls])
        if self.role == "tool":
            message |= {key: value for key in ("tool_call_id", "name") if (value := getattr(self, key))}
        return message


class StreamOptions(BaseModel):
    """What a stream has beside its pieces."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    include_usage: bool = False


class TextRequest(ServiceRequest):
    """What both kinds of completion take."""

    model: str = ""
    """Ignored but for the answer: one model is served."""
    max_tokens: Annotated[int, Field(ge=1, le=MOST_NEW_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Here 0, the likeliest token, where nothing is said."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    """As far as PyTorch's generator takes it."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which the answer ends."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in texts if text)


class ChatRequest(TextRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    tools: Annotated[list[Tool], Field(max_length=MOST_TEXTS)] | None = None
    """For the chat template; refused where it writes none."""
    tool_choice: Literal["none", "auto"] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_NEW_TOKENS)] | None = None

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else [tool.model_dump() for tool in self.tools or []]


class CompletionRequest(TextRequest):
    """`POST /v1/completions`."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=1)]
    """One text; a list of one is one text."""

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


def require_texts(value: Any, ways: str = "a text", *, are_pairs_read: bool = False) -> Any:
    """`value`, if it is one text or a list of texts, or of pairs where they are read; blank texts are none.

    Raises:
        ValueError: what it is instead, and where.
    """
    rule = f"{ways}, or a list of 1 to {MOST_TEXTS} of them"
    items = value if isinstance(value, list) else [value]
    if not 1 <= len(items) <= MOST_TEXTS:
        raise ValueError(f"{rule}; found a list of {len(items)}")
    for place, item in enumerate(items):
        is_pair = are_pairs_read and isinstance(item, dict) and item.keys() == {"text", "pair"}
        for text in (item["text"], item["pair"]) if is_pair else (item,):
            if (problem := _problem_of(text)) is not None:
                where = f" at place {place}, counted from 0" if isinstance(value, list) else ""
                raise ValueError(f"{rule}; found {problem}{where}")
    return value


def _problem_of(text: Any) -> str | None:
    """What is wrong with a text, without a word of it."""
    if isinstance(text, dict):
        return f"an object with {', '.join(sorted(map(str, text)))[:60] or 'nothing'}"
    if not isinstance(text, str):
        kinds = {list: "a list", bool: "true or false", int: "a number", float: "a number"}
        return kinds.get(type(text), "null")
    if not text.strip():
        return "an empty text"
    if len(text) > MOST_CHARACTERS:
        return f"{len(text):,} characters, where {MOST_CHARACTERS:,} are read"
    return "half a surrogate pair, which is no character" if re.search("[\ud800-\udfff]", text) else None


class TextsRequest(ServiceRequest):
    """One text or several, each on its own."""

    model: str = ""
    input: Annotated[
        Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)], BeforeValidator(require_texts)
    ]

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else self.input


class EmbeddingRequest(TextsRequest):
    """`POST /v1/embeddings`."""

    encoding_format: Literal["float", "base64"] | None = None
    """`base64` is what OpenAI's own client asks for: fp32, least byte first."""


class FillMaskRequest(TextsRequest):
    """`POST /v1/fill-mask`: our own, with the parameter of transformers' pipeline."""

    top_k: Annotated[int, Field(ge=1, le=CANDIDATES)] = SHOWN_CANDIDATES


ROWS = 'a text, for a model of pairs {"text": …, "pair": …}'


class PairText(BaseModel):
    """A text and the one beside it, for models of pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: Text
    pair: Text


class ClassifyRequest(ServiceRequest):
    """`POST /v1/classify`: our own, as OpenAI has no such path."""

    model: str = ""
    input: Annotated[
        Text | PairText | Annotated[list[Text | PairText], Field(min_length=1, max_length=MOST_TEXTS)],
        BeforeValidator(lambda value: require_texts(value, ROWS, are_pairs_read=True)),
    ]

    @property
    def rows(self) -> list[tuple[str, str | None]]:
        """Texts, each with the one beside it."""
        each = self.input if isinstance(self.input, list) else [self.input]
        return [(one, None) if isinstance(one, str) else (one.text, one.pair) for one in each]
