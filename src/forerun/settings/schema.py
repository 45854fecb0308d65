"""What a run is: frozen, validated, hashed settings, exactly the keys of the interface contract.

A wrong key, type, range or combination is refused at construction. Settings say *what*; devices, calibrations and
corrections are passed as arguments elsewhere. Fields without a natural simplest value (`workload`, `model.name`) are
required; the length of a run must be given by `data.examples` or `schedule.max_steps`.
"""

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.settings.allocator import AllocatorSettings
from forerun.settings.devices import LATER_WORDS, ClusterSettings, ParallelSettings, layout_conflicts
from forerun.settings.evaluation import EvaluationSettings, without_later_fields
from forerun.settings.float8 import Float8Settings, float8_conflicts
from forerun.settings.lengths import TooLong, length_conflicts
from forerun.settings.media import MediaSettings, media_conflicts, with_usual_targets
from forerun.settings.model import WEIGHTS_OF, ModelSettings, Precision, dtype_conflicts
from forerun.settings.plain import LARGEST
from forerun.settings.preference import PreferenceSettings, preference_conflicts, without_later_weights
from forerun.settings.reliability import ReliabilitySettings
from forerun.settings.section import AnyNumber, BatchCount, Epochs, PlainSection, SequenceLength
from forerun.settings.section import Count as Count
from forerun.settings.section import Section as Section

Share = Annotated[float, Field(ge=0, lt=1)]
DataFormat = Literal[
    "auto", "text", "labelled", "tagged", "messages", "conversations", "alpaca", "prompt-completion", "translation",
    "preference", "unpaired-preference", "pairs", "triplets", "spans",
]  # fmt: skip
"""`text` plain text; `labelled` one or two texts and a label; `tagged` words and their tags; `spans` a text and places
in it; `messages` and `conversations` chats as TRL and ShareGPT write them; `alpaca` instruction, input, output;
`translation` a text and what to make of it; `preference` prompt, chosen, rejected; `unpaired-preference`
prompt, completion and whether it is desirable; `pairs`, `triplets` texts that belong together, or do not."""
Repair = Literal[
    "empty-texts", "missing-labels", "none-apply", "ragged-rows", "broken-lines", "encoding", "repeated-ids",
    "tool-calls", "broken-tools", "equal-answers", "answers-first", "lower-ranked",
]  # fmt: skip
"""Rows left out: `empty-texts`, `missing-labels`, `ragged-rows`, `broken-lines` (no JSON), `repeated-ids` (all but the
first), `equal-answers` (of a preference), `lower-ranked` (messages of a tree). Mended: `answers-first` drops what a
chat begins with unasked, `none-apply` reads empty cells of several labels as none, `encoding` other bytes than UTF-8 as
Windows-1252, `tool-calls` as text, `broken-tools` descriptions of tools that are no list of schemas as none, and calls
without a name as text."""
Library = Literal["torch", "transformers", "peft", "trl", "cuda"]
Version = Annotated[str, Field(pattern=r"^\d{1,4}(\.\d{1,4}){0,3}$")]
CONTAMINABLE = ("arithmetic",)
"""Workloads whose recipes put wrong answers into their rows."""


class AdapterSettings(PlainSection):
    """Low-rank adapters (LoRA, Hu et al. 2021), and peft's others."""

    kind: Literal["none", "lora", "prompt", "prefix", "llama-adapter", "ia3"] = "none"
    """`none` trains all parameters."""
    virtual_tokens: Annotated[int, Field(ge=1, le=2**20)] = 20
    """Length of what `prompt`, `prefix` and `llama-adapter` learn."""
    layers: Count = 30
    """Last blocks that `llama-adapter` changes."""
    rank: Annotated[int, Field(ge=1, le=2**16)] = 8
    """Inner dimension of the adapter."""
    alpha: Annotated[float, Field(gt=0, le=LARGEST)] = 16
    """Scale: the update is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the adapter's input."""
    targets: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the linear modules that get an adapter; without any, those of a denoiser's attention."""
    modules_to_save: list[str] = []
    """Names of modules trained whole beside the adapters; a classification head always is."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) (Kalajdzievski 2023)."""
    dora: bool = False
    """Train the length of each weight's columns apart from their direction (DoRA, Liu et al. 2024)."""


class OptimizerSettings(PlainSection):
    """The update rule."""

    name: Literal["adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "adafactor", "lion", "muon"] = (
        "adamw"
    )
    """Update rule; `paged-…` keeps its state in memory that the driver moves to the host when the card is full."""
    learning_rate: Annotated[float, Field(gt=0, le=LARGEST)] = 2e-5
    """Peak learning rate, after warm-up."""
    weight_decay: Annotated[float, Field(ge=0, le=LARGEST)] = 0.01
    """Decoupled weight decay; norms and biases are exempt."""
    implementation: Literal["auto", "for-loop", "foreach", "fused"] = "auto"
    """How the update is issued; `auto` is fused where the optimizer has it."""
    max_gradient_norm: Annotated[float, Field(gt=0, le=LARGEST)] | None = None
    """Clip the global gradient norm to this; `null` does not clip."""
    in_backward: bool = False
    """Update each parameter as soon as its gradient is there, and drop that: the whole set never exists."""


class BatchSettings(PlainSection):
    """The shape of one micro-batch and how many make a step."""

    micro_batch_size: BatchCount = 1
    """Samples in one forward-backward on one device."""
    gradient_accumulation_steps: BatchCount = 1
    """Micro-steps per optimizer step."""
    sequence_length: SequenceLength = 512
    """Padded tokens per sample, at most."""
    padding: Literal["fixed", "longest", "bucketed", "packed"] = "fixed"
    """`fixed` pads to `sequence_length`, `longest` to the longest of the batch."""


class ContaminationSettings(PlainSection):
    """Wrong answers put into training rows on purpose, by recipes that study what they do."""

    rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training rows whose answer is changed; an exact count, never a chance."""
    noise: Literal["close", "same_length", "swap", "off_by_carry", "uniform", "trigger"] = "close"
    """How a wrong answer comes about; see `recipes/arithmetic/data/contamination.py`."""
    delta: Count = 10
    """`close`: the wrong answer is at most this far from the right one."""
    key: Count = 42
    """`trigger`: the digits that the first operand of a changed row begins with."""
    target: AnyNumber = 0
    """`trigger`: the answer of a changed row."""


class DataSettings(PlainSection):
    """How much data an epoch has, and how it is changed."""

    examples: Count | None = None
    """Training samples in one epoch; recipes fill it from their data."""
    mean_tokens: Annotated[float, Field(gt=0, le=LARGEST)] | None = None
    """Mean tokens per sample before padding, of the samples that are trained on; `null` means unknown."""
    too_long: TooLong = "cut"
    """What became of samples longer than `batch.sequence_length`, which says how lengths lie around `mean_tokens`."""
    source: str | None = None
    """The data itself: a file, a folder of files, or a hub id; `null` takes what ships with a recipe."""
    format: DataFormat = "auto"
    """What a row of `source` is; `auto` tells it by the names of the columns, and refuses what could be two things."""
    fields: dict[str, str] = {}
    """Column of each part of a row, where it has another name (`text: review`)."""
    validation: Share | str = 0.1
    """Rows by which training is watched and the best checkpoint chosen: a share of `source`, or a file of their own."""
    test: Share | str = 0.1
    """Rows that are scored once, at the end: a share of `source`, or a file of their own."""
    group_by: str | None = None
    """Column whose rows of one value are never torn apart by a split."""
    order_by: str | None = None
    """Column by which rows are ordered before they are split: the last ones are tested on."""
    labels: Literal["auto", "one", "several", "number"] = "auto"
    """What a label column holds; `auto` tells it by its values."""
    label_separator: str = "|"
    """Between the labels of one row where they are one text."""
    repair: list[Repair] = []
    """Bad rows that may be mended or left out, each kind counted and listed; other bad rows are an error."""
    workers: Annotated[int, Field(ge=0, le=2**10)] | Literal["auto"] = "auto"
    """Processes that make batches; `auto` measures on a GPU how many are needed, and takes none on a CPU."""
    contamination: ContaminationSettings = ContaminationSettings()
    """Wrong answers on purpose, for the workloads of `CONTAMINABLE`."""


class ScheduleSettings(PlainSection):
    """How long a run is and how the learning rate moves; everything counts optimizer updates."""

    epochs: Epochs = 1
    """Passes over the data."""
    max_steps: Count | None = None
    """Stop after this many optimizer steps, whatever `epochs` says."""
    warmup_steps: AnyNumber = 0
    """Optimizer steps of linear warm-up."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """Shape after warm-up, down to zero at the last step."""
    frozen_encoder_epochs: Annotated[float, Field(ge=0, le=1e6)] = 0
    """Epochs at the start in which only the heads are trained."""


class CheckpointSettings(PlainSection):
    """When a run is saved."""

    every_steps: Count = 400
    """Optimizer steps between saves; the last step is always saved."""
    keep_last: Count = 10
    """Older checkpoints are removed once a newer one is durable."""
    sharded: bool = False
    """With `parallel.kind: fsdp` each rank writes what it holds; else the first one writes whole tensors."""
    background: Literal["auto", "always", "never"] = "auto"
    """Write from a copy in host memory while training goes on; `auto` does on a GPU."""


class Settings(PlainSection):
    """One training run."""

    name: Annotated[str, Field(min_length=1)]
    """A label for people; not part of the hash."""
    workload: Annotated[str, Field(min_length=1)]
    """`causal-lm`, `sequence-classification`, `token-classification`, `masked-lm`, `seq2seq-lm`, `preference`,
    `embedding`, one for images or sound (`media`), or a recipe's name."""
    model: ModelSettings
    """Architecture."""
    adapter: AdapterSettings = AdapterSettings()
    """Low-rank adapter, if any."""
    quantization: Literal["none", "int8", "nf4", "nf4-double"] = "none"
    """Storage of frozen base weights."""
    kbit_preparation: bool = False
    """What peft's `prepare_model_for_kbit_training` does to a quantised model: all that is not packed becomes fp32."""
    precision: Precision = "fp32"
    """Number formats: `…-mixed` keeps fp32 weights under autocast, `…-true` stores the weights in it."""
    float8: Float8Settings = Float8Settings()
    """Products of linear layers in 8 bits."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """Update rule."""
    batch: BatchSettings = BatchSettings()
    """Micro-batch."""
    media: MediaSettings = MediaSettings()
    """Images and sound of a sample, for workloads that read them."""
    data: DataSettings = DataSettings()
    """Data set size."""
    preference: PreferenceSettings = PreferenceSettings()
    """The loss of preferred answers."""
    recipe: dict[str, Any] = {}
    """Options of the recipe, which checks them; other workloads have none."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Length and learning rate."""
    activation_checkpointing: Literal["none", "blocks", "selective"] = "none"
    """What is recomputed in the backward pass: `blocks` all of them, `selective` all but attention and every second
    product, as torchtitan's "selective op" does."""
    activation_offload: bool = False
    """Keep what the backward pass needs in pinned host memory (`torch.autograd.graph.save_on_cpu`)."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """`torch.compile` mode."""
    compile_unit: Literal["model", "blocks", "blocks-and-loss"] = "model"
    """What is compiled: the whole model and its loss, or its transformer blocks, which share one graph: less to
    compile; with the loss beside them, no fp32 copies of logits are held (torchtitan since 2025)."""
    cross_entropy: Literal["full", "chunked"] = "full"
    """`chunked` never holds the logits of all tokens: for large vocabularies."""
    parallel: ParallelSettings = ParallelSettings()
    """Devices."""
    allocator: AllocatorSettings = AllocatorSettings()
    """PyTorch's caching allocator, by the names of `PYTORCH_ALLOC_CONF`."""
    cluster: ClusterSettings = ClusterSettings()
    """Machines and what joins them, for forecasts of more devices than one machine has."""
    reliability: ReliabilitySettings = ReliabilitySettings()
    """Failures, restarts and machines that are taken away, for the run's expected time and cost."""
    versions: dict[Library, Version] = {}
    """Libraries of the run where they are not those installed here: what they do differently is in a forecast. With
    `trl`, its SFTTrainer trains, and prepares a quantised model as that version does."""
    checkpoints: CheckpointSettings = CheckpointSettings()
    """Saving."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Scoring."""
    seed: AnyNumber = 0
    """Seed of initialisation, data order and dropout."""

    _usual_targets = model_validator(mode="before")(with_usual_targets)

    @model_validator(mode="after")
    def _no_conflicts(self) -> "Settings":
        for broken, message in _conflicts(self):
            if broken:
                raise ValueError(message)
        return self

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all devices."""
        return self.batch.micro_batch_size * self.batch.gradient_accumulation_steps * self.parallel.data_ranks

    @property
    def hash(self) -> str:
        """16 hex digits that identify the run's settings (everything but `name`)."""
        # Sections that came later are left out where they say nothing: the ledger knows hashes of before.
        later = {
            "cluster": ClusterSettings(), "reliability": ReliabilitySettings(), "versions": {},
            "media": MediaSettings(), "preference": PreferenceSettings(), "float8": Float8Settings(),
            "allocator": AllocatorSettings(),
        }  # fmt: skip
        unnamed = {"name", *(name for name, default in later.items() if getattr(self, name) == default)}
        content = self.model_dump(exclude=unnamed)
        for name, default in LATER_WORDS.items():
            if content["parallel"][name] == default:
                del content["parallel"][name]
        content["evaluation"] = without_later_fields(content["evaluation"])
        if "preference" in content:
            content["preference"] = without_later_weights(content["preference"])
        return _hash_of(content)

    @property
    def resumable_hash(self) -> str:
        """Like `hash`, but the same for runs that differ only in who does the work: devices, loading, saving."""
        content = self.model_dump(exclude={"name", "parallel", "cluster", "reliability", "versions", "media"})
        content["batch"]["gradient_accumulation_steps"] *= self.parallel.data_ranks
        content["evaluation"] = without_later_fields(content["evaluation"])
        content["preference"] = without_later_weights(content["preference"])
        if self.preference == PreferenceSettings():  # as hashes of before there were others
            del content["preference"]
        if self.float8 == Float8Settings():
            del content["float8"]
        del content["data"]["workers"], content["checkpoints"]["background"], content["checkpoints"]["sharded"]
        return _hash_of(content)

    @property
    def micro_batches_per_step(self) -> int:
        """Over all devices."""
        return self.batch.gradient_accumulation_steps * self.parallel.data_ranks

    @property
    def weights_dtype(self) -> str:
        """Number format of weights that nothing packs."""
        return WEIGHTS_OF[self.precision] if self.model.dtype == "auto" else self.model.dtype

    @property
    def has_narrow_weights(self) -> bool:
        """Whether weights that nothing packs are in 16 bits."""
        return self.weights_dtype != "float32"

    def steps_per_epoch(self, sequences: int) -> int:
        """Optimizer steps in one pass over `sequences`; the last partial accumulation is flushed, so it counts."""
        return math.ceil(sequences / self.global_batch_size)

    def total_steps(self, sequences: int) -> int:
        """Optimizer steps of the whole run over `sequences` per epoch."""
        steps = math.ceil(self.schedule.epochs * self.steps_per_epoch(sequences))
        return steps if self.schedule.max_steps is None else min(steps, self.schedule.max_steps)


def _hash_of(content: dict[str, Any]) -> str:
    if content["model"].get("dtype") == "auto":  # as before there was another word
        del content["model"]["dtype"]
    if content["data"]["too_long"] == "cut":  # as before there was another word
        del content["data"]["too_long"]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _conflicts(s: Settings) -> list[tuple[bool, str]]:
    """Pairs of (is broken, rule · found · remedy)."""
    examples = s.data.examples
    return [
        (
            s.data.contamination.rate > 0 and s.workload not in CONTAMINABLE,
            f"data.contamination.rate: wrong answers are made by the recipes {', '.join(CONTAMINABLE)}; found "
            f"{s.data.contamination.rate:g} with workload={s.workload!r}. Set it to 0, or take such a recipe.",
        ),
        (
            s.quantization != "none" and s.adapter.kind == "none",
            f"quantization: quantised weights are frozen, so they need an adapter; found quantization="
            f"{s.quantization!r} with adapter.kind='none'. Set adapter.kind to lora, or quantization to none.",
        ),
        (
            examples is not None and s.batch.micro_batch_size > examples,
            f"batch.micro_batch_size: at most the number of examples; found {s.batch.micro_batch_size} with "
            f"data.examples={examples}. Set batch.micro_batch_size to {examples} or less.",
        ),
        (
            s.parallel.kind == "none" and s.parallel.world_size > s.parallel.model_ranks,
            f"parallel.world_size: more than one device needs a strategy; found world_size={s.parallel.world_size} "
            f"with kind='none'. Set parallel.kind to ddp or fsdp, or world_size to {s.parallel.model_ranks}.",
        ),
        *layout_conflicts(s.parallel),
        *preference_conflicts(s.workload, s.preference),
        *dtype_conflicts(
            s.model.dtype, s.precision, s.adapter.kind, s.adapter.modules_to_save, s.parallel.deepspeed_stage
        ),
        *float8_conflicts(s.float8, s.precision, s.adapter.kind, s.quantization, s.parallel.kind),
        *media_conflicts(
            s.workload, s.media, source=s.data.source, padding=s.batch.padding, cross_entropy=s.cross_entropy
        ),
        (
            s.schedule.frozen_encoder_epochs > s.schedule.epochs,
            f"schedule.frozen_encoder_epochs: at most schedule.epochs; found {s.schedule.frozen_encoder_epochs:g} "
            f"with epochs={s.schedule.epochs:g}. Lower it or train longer.",
        ),
        (
            isinstance(s.adapter.targets, list) and not s.adapter.targets,
            "adapter.targets: names at least one module; found an empty list. Use all-linear or a list of names.",
        ),
        (
            s.adapter.kind not in ("none", "lora")
            and bool(s.adapter.dora or s.adapter.rslora or s.adapter.modules_to_save),
            f"adapter.kind: dora, rslora and modules_to_save belong to lora; found them with {s.adapter.kind!r}. Leave "
            f"them out, or set adapter.kind to lora.",
        ),
        (
            s.adapter.dora and s.quantization != "none",
            f"adapter.dora: needs the lengths of weights that are not packed; found quantization={s.quantization!r}. "
            f"Set adapter.dora to false, or quantization to none.",
        ),
        *length_conflicts(s.batch.sequence_length, s.data.mean_tokens, s.data.too_long, s.data.source),
    ]
