"""Which settings should a run on somebody's own data begin with? Model, lengths, batch, rate and epochs, each with why.

A starting point, not an optimum: `forerun plan` and `forerun tune` go on from it. Only models that can be had are
proposed: from an installed wheel, the hub's cache, the hub where it answers, or from scratch; what would be better is
said beside it.

Rules of thumb, with their sources: learning rates of BERT-like encoders, Devlin et al. 2019, A.3 (2e-5 to 5e-5 for
110 M parameters; batches of 16 or 32; 2 to 4 epochs); of LoRA, Hu et al. 2021, D (2e-4); from scratch 1e-3 at widths of
64 to 256. A head that starts from random weights needs steps, however few the rows: up to 20 epochs (Mosbach et al.
2021, arXiv 2006.04884, section 6).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.data.own.inspection import estimated_tokens
from forerun.data.own.inspection_record import DESIRABLE, ROOM, UNDESIRABLE, Inspection
from forerun.data.own.row_kinds import CanonicalRow, ChatRow
from forerun.hardware.catalogue import Device
from forerun.models.catalogue import hub_id, hub_is_reachable
from forerun.models.minilm import minilm_is_installed
from forerun.models.smollm2 import is_smollm2, missing_reader, smollm2_is_installed
from forerun.settings.preference import UNPAIRED
from forerun.units import GIB, GIGA, MEGA

ENCODERS = ("sequence-classification", "token-classification", "masked-lm", "embedding")
SHORTEST, ROUNDED_TO = 16, 8
"""Tokens."""
SCRATCH_FACTOR = 2
"""Tokens of a small vocabulary that is learned here, to characters / 4: 500 have 2.08 bytes each (2026-11-26)."""
PACKED_LENGTH = 256
MOST_NEW_TOKENS = {"cpu": 64, "cuda": 256}
"""Kind of device → most tokens of an answer that judging writes."""
SCRATCH_SIZES = ((0, 64, 2, 2000), (500_000, 128, 4, 4000), (10_000_000, 256, 6, 8000))
"""From this many tokens of text: width, blocks and vocabulary of a model from scratch."""
HEADS = ("sequence-classification", "token-classification")
"""Workloads whose head starts from random weights on a pretrained model."""
FEW_ROWS, LEAST_STEPS, MOST_EPOCHS = 2000, 200, 20
"""Training rows below which steps have half as many samples; steps that a new head needs, and epochs to get there."""
MOST_DESIRABLE = 4 / 3
"""Desirable answers for each undesirable one up to which KTO's weights stay 1."""
ADAPTED_FROM = UNKNOWN_PARAMETERS = 100_000_000
"""Parameters from which adapters are trained, not all weights; and those of a model of which nothing is known."""


@dataclass(frozen=True)
class ModelChoice:
    """A model that can be had here, and why it."""

    name: str
    config: Mapping[str, int]
    """Sizes, for a model from scratch."""
    parameters: int
    longest: int
    """Tokens that it can read."""
    reason: str
    better: str
    """What to take instead where more can be had; empty if nothing."""

    is_from_scratch: bool = False
    """Whether there are no weights to start from."""
    needs_head: bool = False
    """Whether its weights lack the head of the workload."""


@dataclass(frozen=True)
class Candidate:
    """A pretrained model that init may propose."""

    name: str
    parameters: int
    longest: int
    memory_gib: int
    """Least memory of a GPU that it is proposed for; 0 also on a CPU."""
    languages: str
    """`English`, `code` or `any`."""
    knows: str = ""
    """The only language of its training texts, though its tokenizer has bytes for any."""
    fills_masks: bool = True
    """Encoder: whether its weights have the head that names hidden words."""


CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "encoder": (
        Candidate("codebert", 124_645_632, 512, 8, "code", fills_masks=False),
        Candidate("roberta-base", 124_645_632, 512, 8, "English"),
        Candidate("xlm-roberta-base", 278_043_648, 512, 12, "any"),
        Candidate("minilm", 22_713_216, 512, 0, "English", fills_masks=False),
    ),
    "sentence-encoder": (
        Candidate("multilingual-e5-large", 559_890_432, 512, 16, "any", fills_masks=False),
        Candidate("all-mpnet-base-v2", 109_484_928, 512, 8, "English", fills_masks=False),
        Candidate("minilm", 22_713_216, 512, 0, "English", fills_masks=False),
    ),
    "decoder": (
        Candidate("qwen2.5-7b", 7_615_616_512, 4096, 40, "any"),
        Candidate("qwen2.5-1.5b", 1_543_714_304, 4096, 12, "any"),
        Candidate("qwen2.5-0.5b", 494_032_768, 4096, 6, "any"),
        Candidate("smollm2-135m", 134_515_008, 2048, 0, "any", knows="English"),
    ),
    "seq2seq": (Candidate("t5-base", 222_903_552, 512, 12, "any"), Candidate("t5-small", 60_506_624, 512, 0, "any")),
}
"""What reads one language well, then what reads any; largest first. Sentence encoders have learned to compare texts."""


def choose_model(
    workload: str,
    inspection: Inspection,
    device: Device,
    can_be_had: Callable[[str], bool] | None = None,
    *,
    packs: bool = False,
) -> ModelChoice:
    """The model to begin with for a workload, the data and a device; `packs` where no row of plain text is cut."""
    can_be_had = can_be_had or is_available
    kind = model_kind(workload)
    language = _language(inspection)
    is_whole = packs or workload == "masked-lm"
    tokens = inspection.rows * (inspection.tokens.mean if is_whole else inspection.tokens.cut_mean)
    memory_gib = 0.0 if device.kind == "cpu" else device.memory_bytes / GIB
    fitting = [
        candidate
        for candidate in CANDIDATES["sentence-encoder" if workload == "embedding" else kind]
        if candidate.memory_gib <= memory_gib * 1.05 and _reads(candidate, language)
    ]
    here = next((candidate for candidate in fitting if can_be_had(candidate.name)), None)
    best = fitting[0] if fitting else None
    if here is None:
        if best is None:
            why = f"since init knows no pretrained model on {device.name} for texts like these"
            return _from_scratch(kind, tokens, "", why)
        better = f"{best.name}, when online or with its wheel or files here"
        shipped = next((candidate.name for candidate in fitting if is_smollm2(candidate.name)), None)
        if shipped is not None and (missing := missing_reader()):
            better = f"{shipped}: {missing}" + ("" if best.name == shipped else f"; or {better}")
        return _from_scratch(kind, tokens, better)
    better = "" if best is None or best is here else f"{best.name}, when online"
    where = "the largest" if best is here else "the largest installed"
    reason = (
        f"{where} pretrained model for {workload} on {device.name} that init knows ({here.parameters / MEGA:,.0f} M)"
    )
    if here.knows and language == "any":
        reason += f"; it learned from texts in {here.knows}, which these are not"
    needs_head, why = new_head(here.name, workload)
    return ModelChoice(here.name, {}, here.parameters, here.longest, reason + why, better, needs_head=needs_head)


def model_kind(workload: str) -> str:
    """What kind of network learns a workload: a key of `CANDIDATES`."""
    return "encoder" if workload in ENCODERS else "seq2seq" if workload == "seq2seq-lm" else "decoder"


def new_head(name: str, workload: str) -> tuple[bool, str]:
    """Whether pretrained weights have no head for a workload, as far as init knows, and the words for that."""
    without = (each.name for kind in CANDIDATES.values() for each in kind if not each.fills_masks)
    if workload == "masked-lm" and name in without:
        return True, "; its weights have no head for hidden words, which is learned from nothing"
    return workload in HEADS, ""


def is_available(name: str) -> bool:
    """Whether a model's weights are here, or its hub answers."""
    if name == "minilm":
        return minilm_is_installed()
    if is_smollm2(name) and smollm2_is_installed():
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id(name), "config.json"), str) or hub_is_reachable()


def first_settings(
    workload: str, choice: ModelChoice, inspection: Inspection, device: Device, is_text: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Sections of settings beside `data`, and the reason of each setting by its dotted path."""
    is_cpu = device.kind == "cpu"
    reasons: dict[str, str] = {"model.name": choice.reason}
    packs = workload == "causal-lm" and is_text
    length, reasons["batch.sequence_length"] = _length(inspection, choice, packs, goes_on=workload == "masked-lm")
    adapts = choice.parameters >= ADAPTED_FROM and workload in ("causal-lm", "preference")
    global_size = 8 if packs or workload == "preference" else 16 if workload in ("causal-lm", "seq2seq-lm") else 32
    if choice.needs_head and inspection.parts["train"] < FEW_ROWS:
        global_size = 16
    global_size = max(2, min(global_size, inspection.parts["train"] // 10 or 2))
    micro_size = min(global_size, 8 if is_cpu and not choice.is_from_scratch else global_size)
    steps = math.ceil(inspection.parts["train"] * inspection.samples_a_row / global_size)
    epochs, reasons["schedule.epochs"] = _epochs(inspection, choice, packs, steps)
    rate, reasons["optimizer.learning_rate"] = _rate(choice, adapts)
    warmup = max(1, min(500, round(0.06 * steps * epochs)))
    reasons["batch.micro_batch_size"] = f"{global_size} samples a step, {micro_size} at once"
    reasons["schedule.warmup_steps"] = f"6 % of about {round(steps * epochs):,} steps"
    sections: dict[str, Any] = {
        "model": {"name": choice.name, **({"config": dict(choice.config)} if choice.config else {})},
        "precision": "fp32" if is_cpu else "bf16-mixed" if device.has_bf16 else "fp16-mixed",
        "optimizer": {"name": "adamw", "learning_rate": rate, "weight_decay": 0.01, "max_gradient_norm": 1.0},
        "batch": {
            "micro_batch_size": micro_size,
            "gradient_accumulation_steps": max(1, global_size // micro_size),
            "sequence_length": length,
            "padding": "packed" if packs else "bucketed",
        },
        "schedule": {"epochs": epochs, "warmup_steps": warmup, "decay": "linear"},
    }
    if adapts:
        sections["adapter"] = {"kind": "lora", "rank": 16, "alpha": 32, "dropout": 0.05}
        size = f" {choice.parameters / MEGA:,.0f} M" if choice.parameters != UNKNOWN_PARAMETERS else ""
        reasons["adapter.kind"] = f"adapters, not all{size} weights: less memory, less forgotten"
        if not is_cpu and choice.parameters > GIGA and device.has_bf16:
            sections["precision"] = "bf16-true"
    return sections, reasons


def answer_settings(
    rows: Sequence[CanonicalRow], choice: ModelChoice, device: Device
) -> tuple[dict[str, Any], dict[str, str]]:
    """Section `evaluation` for chats and prompts with completions, whose test answers are written, and why; or none."""
    lengths = [
        estimated_tokens(row.messages[-1].content)
        for row in rows
        if isinstance(row, ChatRow) and row.messages and row.messages[-1].role == "assistant"
    ]
    if not lengths:
        return {}, {}
    factor = SCRATCH_FACTOR if choice.is_from_scratch else 1
    usual = factor * int(np.percentile(lengths, 95, method="inverted_cdf"))
    new_tokens = min(
        MOST_NEW_TOKENS["cpu" if device.kind == "cpu" else "cuda"],
        max(SHORTEST, ROUNDED_TO * math.ceil(ROOM * usual / ROUNDED_TO)),
    )
    why = f"tokens of an answer that is written to a test row; 95 % have at most {usual} (estimated)"
    why += ", longer ones are compared up to here" if new_tokens < usual else ""
    return {"evaluation": {"new_tokens": new_tokens}}, {
        "evaluation.new_tokens": f"{why}; 0 writes none, and judging is shorter"
    }


def unpaired_settings(inspection: Inspection) -> tuple[dict[str, Any], dict[str, str]]:
    """The section `preference` for single answers with verdicts, and the reason of each setting by its dotted path.

    Where one kind is rarer its loss weighs more: λ_D n_D / (λ_U n_U) is to be 1 to 4/3 (Ethayarajh et al. 2024,
    arXiv 2402.01306, eq. 8).
    """
    good, bad = (inspection.labels.get(kind, 0) for kind in (DESIRABLE, UNDESIRABLE))
    section: dict[str, Any] = {"loss": UNPAIRED}
    reasons = {"preference.loss": f"{good:,} desirable and {bad:,} undesirable answers, not in pairs"}
    if not good or not bad or bad <= good <= MOST_DESIRABLE * bad:
        return section, reasons
    rarer, weight = ("desirable", bad / good) if good < bad else ("undesirable", good / bad)
    reasons[f"preference.{rarer}_weight"] = f"of {rarer} answers there are fewer: both kinds weigh alike in all"
    return {**section, f"{rarer}_weight": round(weight, 2)}, reasons


def _length(inspection: Inspection, choice: ModelChoice, packs: bool, *, goes_on: bool) -> tuple[int, str]:
    """Tokens of a sample, and why; whether a longer text goes on in the next sample."""
    if packs:
        return min(PACKED_LENGTH, choice.longest), "texts are packed one after the other into rows of this length"
    factor = SCRATCH_FACTOR if choice.is_from_scratch and not inspection.are_tokens_counted else 1
    share = factor * inspection.tokens.at[95]
    wanted_length = max(SHORTEST, ROUNDED_TO * math.ceil(ROOM * share / ROUNDED_TO))
    length = min(wanted_length, choice.longest)
    how = "counted" if inspection.are_tokens_counted else "estimated"
    how += ", with the chat template's" if inspection.has_template_tokens else ""
    why = f"95 % of rows have at most {share} tokens ({how}), and {ROOM - 1:.0%} room"
    if length < wanted_length:
        why = f"the most that {choice.name} reads; 5 % of rows have more than {share} tokens ({how})"
    longer = "go on in the next sample" if goes_on else "are cut"
    return length, f"{why}; {inspection.truncated(length // factor):.1%} of rows {longer}"


def _epochs(inspection: Inspection, choice: ModelChoice, packs: bool, steps: int) -> tuple[int, str]:
    """Epochs of so many steps, and why."""
    rows = inspection.parts["train"]
    if choice.is_from_scratch:
        epochs = 10 if rows < 5000 else 5 if rows < 50_000 else 2
        return epochs, f"{rows:,} training rows, from random weights"
    epochs = 1 if packs or rows > 50_000 else 3
    if choice.needs_head and epochs * steps < LEAST_STEPS:
        epochs = min(MOST_EPOCHS, math.ceil(LEAST_STEPS / steps))
        return epochs, f"{rows:,} training rows: a new head needs some {LEAST_STEPS} steps; the best epoch is kept"
    return epochs, f"{rows:,} training rows, from pretrained weights"


def _rate(choice: ModelChoice, adapts: bool) -> tuple[float, str]:
    if choice.is_from_scratch:
        return 1e-3, "usual for small models from random weights"
    if adapts:
        return 2e-4, "usual for LoRA"
    return (1e-4, "usual for small pretrained models") if choice.parameters < 5e7 else (2e-5, "usual for fine-tuning")


def _from_scratch(kind: str, tokens: float, better: str, why: str = "since no pretrained model is here") -> ModelChoice:
    """A network sized by the tokens that training sees."""
    _, width, blocks, vocabulary = next(size for size in reversed(SCRATCH_SIZES) if tokens >= size[0])
    longest = 1024 if kind == "decoder" else 512
    heads = width // 32
    config: dict[str, int] = {
        "encoder": {
            "hidden_size": width, "num_hidden_layers": blocks, "num_attention_heads": heads,
            "intermediate_size": 4 * width, "vocab_size": vocabulary, "max_position_embeddings": longest,
        },
        "decoder": {
            "n_embd": width, "n_layer": blocks, "n_head": heads, "vocab_size": vocabulary, "n_positions": longest,
        },
        "seq2seq": {
            "d_model": width, "d_ff": 4 * width, "num_layers": blocks, "num_heads": heads, "d_kv": 32,
            "vocab_size": vocabulary,
        },
    }[kind]  # fmt: skip
    name = {"encoder": "tiny-bert", "decoder": "tiny-gpt2", "seq2seq": "tiny-t5"}[kind]
    parameters = blocks * 12 * width**2 * (2 if kind == "seq2seq" else 1) + vocabulary * width
    reason = f"from scratch, {why}: sized for some {tokens:,.0f} tokens of text"
    return ModelChoice(name, config, parameters, longest, reason, better, is_from_scratch=True)


def _language(inspection: Inspection) -> str:
    counts = {name: count for name, count in inspection.languages.items() if name != "not counts"}
    total = sum(counts.values())
    if not total:
        return "English"
    best = max(counts, key=lambda name: counts[name])
    return best if best in ("English", "code") and counts[best] >= 0.7 * total else "any"


def _reads(candidate: Candidate, language: str) -> bool:
    return candidate.languages in ("any", language) or (language == "code" and candidate.memory_gib == 0)
