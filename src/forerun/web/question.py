"""What the pages ask, as settings, as a URL, and as text to copy. No torch, no web library."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

import yaml
from pydantic import AfterValidator, Field, ValidationError

from forerun.errors import InvalidSettings
from forerun.records import Record
from forerun.settings.load import settings_from
from forerun.settings.media import MEDIA, WITHOUT_TOKENS, MediaSettings
from forerun.settings.model import Attention, Precision
from forerun.settings.schema import OptimizerSettings, Settings
from forerun.step.generic import GENERIC

Method = Literal["full", "lora", "lora-int8", "qlora"]
Parallel = Literal["none", "ddp", "fsdp"]
Recomputation = Literal["none", "selective", "blocks"]
QUANTIZATION: Mapping[str, str] = {"lora-int8": "int8", "qlora": "nf4-double"}
"""Methods that keep the frozen weights in fewer bits."""
CHOICES: dict[str, tuple[str, ...]] = {
    "workload": GENERIC, "method": get_args(Method), "precision": get_args(Precision),
    "checkpointing": get_args(Recomputation), "attention": get_args(Attention),
    "optimizer": get_args(OptimizerSettings.model_fields["name"].annotation), "parallel": get_args(Parallel),
}  # fmt: skip
"""Fields that are chosen from a list."""


def _require_option(options: Sequence[str], value: str) -> str:
    if value not in options:
        raise ValueError(f"one of {', '.join(options)}")
    return value


Workload = Annotated[str, AfterValidator(partial(_require_option, CHOICES["workload"]))]
Optimizer = Annotated[str, AfterValidator(partial(_require_option, CHOICES["optimizer"]))]


class PageQuestion(Record):
    """One state of the pages."""

    model: str = "llama-2-7b"
    workload: Workload = "causal-lm"
    method: Method = "lora"
    gpu: str = "a100-40gb"
    batch: int = Field(default=4, ge=1)
    accumulation: int = Field(default=1, ge=1)
    length: int = Field(default=512, ge=1)
    image_size: int | None = Field(default=None, ge=8)
    audio_seconds: float | None = Field(default=None, gt=0)
    prompt_length: int | None = Field(default=None, ge=1)
    precision: Precision = "bf16-mixed"
    checkpointing: Recomputation = "none"
    attention: Attention = "auto"
    optimizer: Optimizer = "adamw"
    rank: int = Field(default=8, ge=1)
    parallel: Parallel = "none"
    devices: int = Field(default=1, ge=1)
    examples: int = Field(default=10_000, ge=1)
    epochs: float = Field(default=1.0, gt=0)

    def content(self) -> dict[str, Any]:
        """The settings that it asks for, as a file would hold them."""
        content: dict[str, Any] = {
            "name": "my-run", "workload": self.workload,
            "model": {"name": self.model} | ({"attention": self.attention} if self.attention != "auto" else {}),
            "precision": self.precision,
            "batch": {
                "micro_batch_size": self.batch, "gradient_accumulation_steps": self.accumulation,
                "sequence_length": self.length,
            },
            "optimizer": {"name": self.optimizer},
            "data": {"examples": self.examples}, "schedule": {"epochs": self.epochs},
        }  # fmt: skip
        if self.method != "full":
            content["adapter"] = {"kind": "lora", "rank": self.rank}
        if self.method in QUANTIZATION:
            content["quantization"] = QUANTIZATION[self.method]
        media = {word: getattr(self, word) for word in MEDIA.get(self.workload, ())}
        if stated := {word: value for word, value in media.items() if value is not None}:
            content["media"] = stated
        if self.checkpointing != "none":
            content["activation_checkpointing"] = self.checkpointing
        if self.parallel != "none" or self.devices != 1:
            content["parallel"] = {"kind": self.parallel, "world_size": self.devices}
        return content

    def settings(self) -> Settings:
        """The same, checked.

        Raises:
            InvalidSettings: a value or a combination is wrong.
        """
        return settings_from(self.content())

    def query(self) -> str:
        """What differs from the defaults, as the query of a URL."""
        return urlencode(self.model_dump(exclude_defaults=True))

    def yaml_text(self) -> str:
        """The settings file."""
        return yaml.safe_dump(self.content(), sort_keys=False)

    def command_line(self) -> str:
        """The command that answers the same, where the settings file is `run.yaml`."""
        return f"forerun forecast run.yaml --gpu {self.gpu}"


def idle_fields(question: PageQuestion) -> set[str]:
    """Fields that say nothing under the others: sizes of other kinds of samples, the rank of no adapter."""
    idle = set(MediaSettings.model_fields) - set(MEDIA.get(question.workload, ()))
    idle |= {"length"} if question.workload in WITHOUT_TOKENS else set()
    return idle | ({"rank"} if question.method == "full" else set())


def question_of(query: Mapping[str, str]) -> PageQuestion:
    """The question of a URL's query; what is no field of it is left out.

    Raises:
        InvalidSettings: a value is wrong; the field is named.
    """
    try:
        return PageQuestion.model_validate(
            {name: text for name, text in query.items() if name in PageQuestion.model_fields and text != ""}
        )
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}; found {each['input']!r}" for each in error.errors()
        ]
        raise InvalidSettings(f"The address asks what cannot be: {'. '.join(problems)}. Correct it.") from error
