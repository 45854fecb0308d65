"""The training task of the recipe `okadfa`: the next token, by a chosen attention and learning rule.

    L = cross-entropy + λ · share · mean over blocks of ‖W Wᵀ − 1‖²/d of queries and keys

The learning rule lives in the model (`model.feedback`): the step calls `backward` once, whatever the rule. `share`
rises from 0 to 1 over the first tenth of the updates; it is a buffer of the model, so a resumed run goes on with it.
Every step reports the plain token loss and the least attention ratio of its blocks.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings, NotSupported
from forerun.recipes.okadfa.model.feedback import Feedback, LearningRule
from forerun.recipes.okadfa.model.kernel_decoder import (
    AttentionKind,
    DecoderConfig,
    DecoderOutput,
    KernelDecoder,
    decoder_config,
)
from forerun.settings.load import recipe_options
from forerun.settings.schema import Section, Settings
from forerun.step.chunked_loss import chunked_cross_entropy
from forerun.step.parallel import unwrapped
from forerun.step.workload import Batch, LossSum

Count = Annotated[int, Field(ge=1)]


class OkadfaOptions(Section):
    """`Settings.recipe` of okadfa."""

    attention: AttentionKind = "favor"
    """softmax | elu | favor; `unscaled` is the original's fault, which the run catches."""
    learning_rule: LearningRule = "dfa-macro"
    """backpropagation | dfa-macro | dfa-micro | shallow."""
    feedback: Feedback = "random"
    """random | positive | identity: the matrix that projects the error at the top."""
    corpus: Literal["text", "induction", "markov"] = "text"
    """`text` is that of `data.source`; the others have known entropies."""
    tokenizer: Literal["auto", "gpt2", "learned"] = "auto"
    """`auto`: GPT-2's where the model has its vocabulary and the tokenizer is there, else learned from the text."""
    orthogonality: Annotated[float, Field(ge=0)] = 1e-4
    """λ of the penalty on queries and keys."""
    redraw_every: Annotated[int, Field(ge=0)] = 1000
    """Updates between draws of random features; 0 keeps the first."""
    shallow_twin: bool = True
    """Train the same model by `shallow` for as many updates after the run, and compare. Criteria need it."""


def config_of(settings: Settings) -> DecoderConfig:
    """Shape, attention and learning rule.

    Raises:
        InvalidSettings, UnknownModel: a name, an option or a size is wrong.
    """
    options = recipe_options(settings, OkadfaOptions)
    recipe_fields = {name: getattr(options, name) for name in ("attention", "learning_rule", "feedback")}
    for name in recipe_fields:
        if name in settings.model.config:
            raise InvalidSettings(f"model.config.{name}: is set by recipe.{name}. Use --set recipe.{name}=….")
    return decoder_config(settings.model.name, {**settings.model.config, **recipe_fields})


class OkadfaWorkload:
    """The step of `okadfa`."""

    name = "okadfa"

    def __init__(self, settings: Settings, vocabulary_size: int | None = None):
        """`vocabulary_size` where the data has another than the shape."""
        self.options = recipe_options(settings, OkadfaOptions)
        self.vocabulary_size = vocabulary_size

    def build_model(self, settings: Settings, *, pretrained: bool) -> KernelDecoder:
        """The decoder; it always starts from random weights.

        Raises:
            NotSupported: an adapter, quantisation or sharding, which this recipe has no use or test for.
        """
        refuse_unsupported(settings, self.options)
        changes = {} if self.vocabulary_size is None else {"vocabulary_size": self.vocabulary_size}
        config = settings.model_copy(
            update={"model": settings.model.model_copy(update={"config": {**settings.model.config, **changes}})}
        )
        model = KernelDecoder(config_of(config))
        model.returns_states = settings.cross_entropy == "chunked"
        return model

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Ids and labels (size, length), int64."""
        ids = torch.zeros(size, length, dtype=torch.long)
        return {"input_ids": ids, "labels": torch.zeros(size, length, dtype=torch.long)}

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Cross-entropy summed in fp32 over the labels, with the penalty once for each."""
        output: DecoderOutput = model(batch["input_ids"])
        decoder: KernelDecoder = unwrapped(model)  # type: ignore[assignment]
        labels = batch["labels"].reshape(-1)
        flat = output.logits.reshape(len(labels), -1)
        if decoder.returns_states:
            total = chunked_cross_entropy(flat, decoder.head, labels)
        else:
            total = F.cross_entropy(flat.float(), labels, ignore_index=IGNORED, reduction="sum")
        details: dict[str, Tensor] = {
            "token_loss": total.detach() / len(labels), "attention_ratio": output.attention_ratios.min(),
        }  # fmt: skip
        if self.options.orthogonality and torch.is_grad_enabled():
            penalty = decoder.orthogonality()
            details["orthogonality"] = penalty.detach()
            total = total + penalty * decoder.orthogonality_share * (self.options.orthogonality * len(labels))
        return LossSum(total, details)

    def count(self, batch: Batch) -> float:
        """Labels; those of training are all valid."""
        return float(batch["labels"].numel())

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """None: all parts learn from the start."""
        return None

    def learning_rate_scale(self, parameter_name: str) -> float:
        """1: all parameters learn at one rate."""
        return 1.0


def refuse_unsupported(settings: Settings, options: OkadfaOptions) -> None:
    """Refuse what would be wrong or is not tested.

    Raises:
        NotSupported: naming the setting and the remedy.
    """
    if settings.adapter.kind != "none" or settings.quantization != "none":
        raise NotSupported(
            f"adapter.kind: okadfa trains all weights from scratch; found adapter.kind={settings.adapter.kind!r} and "
            f"quantization={settings.quantization!r}. Set both to none."
        )
    if settings.parallel.kind == "fsdp":
        raise NotSupported(
            "parallel.kind: okadfa is not sharded by this version: detached blocks and gathered weights are not tested "
            "together; found 'fsdp'. Set parallel.kind to ddp."
        )
    if settings.batch.padding != "fixed":
        raise NotSupported(
            f"batch.padding: okadfa's windows are all as long as the context; found {settings.batch.padding!r}. "
            f"Set batch.padding to fixed."
        )
