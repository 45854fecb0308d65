"""What the pages ask, as settings, as a URL, and as text to copy. No torch, no web library."""

from collections.abc import Mapping
from typing import Any, Literal, get_args
from urllib.parse import urlencode

import yaml
from pydantic import Field, ValidationError

from forerun.errors import InvalidSettings
from forerun.records import Record
from forerun.settings.load import settings_from
from forerun.settings.schema import Attention, Precision, Settings

Method = Literal["full", "lora", "qlora"]
Parallel = Literal["none", "ddp", "fsdp"]
Workload = Literal["causal-lm", "sequence-classification", "masked-lm", "seq2seq-lm"]
Recomputation = Literal["none", "selective", "blocks"]
Optimizer = Literal["adamw", "adamw-8bit", "paged-adamw-8bit", "sgd", "adafactor", "lion", "muon"]
CHOICES: dict[str, tuple[str, ...]] = {
    "workload": get_args(Workload), "method": get_args(Method), "precision": get_args(Precision),
    "checkpointing": get_args(Recomputation), "attention": get_args(Attention), "optimizer": get_args(Optimizer),
    "parallel": get_args(Parallel),
}  # fmt: skip
"""Fields that are chosen from a list."""
TRAINER_OPTIMIZERS = {
    "adamw": "adamw_torch_fused", "adamw-8bit": "adamw_8bit", "paged-adamw-8bit": "paged_adamw_8bit", "sgd": "sgd",
    "adafactor": "adafactor", "lion": "lion_32bit",
}  # fmt: skip
"""transformers' names (`training_args.OptimizerNames`, 5.23); muon has none."""


class PageQuestion(Record):
    """One state of the pages."""

    model: str = "llama-2-7b"
    workload: Workload = "causal-lm"
    method: Method = "lora"
    gpu: str = "a100-40gb"
    batch: int = Field(default=4, ge=1)
    accumulation: int = Field(default=1, ge=1)
    length: int = Field(default=512, ge=1)
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
        if self.method == "qlora":
            content["quantization"] = "nf4-double"
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

    def trainer_text(self) -> str:
        """`TrainingArguments` of transformers for the same step."""
        arguments: dict[str, Any] = {
            "output_dir": "runs/my-run", "per_device_train_batch_size": self.batch,
            "gradient_accumulation_steps": self.accumulation, "num_train_epochs": self.epochs,
            "gradient_checkpointing": self.checkpointing == "blocks",
        }  # fmt: skip
        if self.precision in ("bf16-mixed", "fp16-mixed"):
            arguments[self.precision[:4]] = True
        if self.precision == "tf32":
            arguments["tf32"] = True
        if self.optimizer in TRAINER_OPTIMIZERS:
            arguments["optim"] = TRAINER_OPTIMIZERS[self.optimizer]
        lines = [f"    {name}={value!r}," for name, value in arguments.items()]
        notes = [f"# pad or pack to {self.length} tokens"]
        if self.precision.endswith("-true"):
            notes.append(f"# load the model with dtype=torch.{'bfloat16' if self.precision[0] == 'b' else 'float16'}")
        if self.optimizer not in TRAINER_OPTIMIZERS:
            notes.append(f"# {self.optimizer}: the Trainer has no such optimizer; pass it as `optimizers`")
        return "\n".join(["TrainingArguments(", *lines, ")", *notes])


def question_of(query: Mapping[str, str]) -> PageQuestion:
    """The question of a URL's query; what is no field of it is left out.

    Raises:
        InvalidSettings: a value is wrong; the field is named.
    """
    try:
        return PageQuestion.model_validate(
            {name: text for name, text in query.items() if name in PageQuestion.model_fields}
        )
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}; found {each['input']!r}" for each in error.errors()
        ]
        raise InvalidSettings(f"The address asks what cannot be: {'. '.join(problems)}. Correct it.") from error
