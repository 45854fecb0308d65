"""Write the index of models of images and sound: `python -m benchmarks.media_index KERAS_HUB TORCHVISION`.

KERAS_HUB is the folder `models` of keras-hub 0.32.0 (Apache-2.0, Keras team), TORCHVISION that of torchvision 0.29.2
(BSD-3-Clause): both state the parameters of published weights. Sizes are transformers 5.23's own class defaults, and
the fields below where a published model differs from them; a row is written only where the model that they build has
the stated count. `extra` of a candidate is what a package counts beside transformers' tensors, less what it leaves out.
"""

import ast
import contextlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.hub_index import row_text

import forerun.models
from forerun.models.build import build_model
from forerun.models.rows import Architecture

TARGET = Path(forerun.models.__file__ or "").parent / "architectures" / "media.toml"
HEADER = """# Sizes of published models of images and sound, written by `python -m benchmarks.media_index`; as hub.toml.
# Facts only: class defaults of transformers 5.23 and the sizes of the papers, kept where building them gives the count
# that keras-hub 0.32.0 (Apache-2.0) or torchvision 0.29.2 (BSD-3-Clause) states; read 2026-11-24.
"""
CLASSES = {"num_labels": 1000}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SEES = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 896, "vision_use_head": False,
}  # fmt: skip
"""SigLIP so400m as Gemma 3 has it (Gemma 3 report, arXiv 2503.19786, section 2)."""


@dataclass(frozen=True)
class Candidate:
    """A published model whose count is looked for; `extra` is what the package counts beside transformers' tensors."""

    identity: str
    kind: str
    of: str
    package: str
    entry: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    extra: int = 0
    why: str = ""
    more_ids: tuple[str, ...] = ()
    """Ids of the same shape, but for their heads."""


def _image(
    identity: str, kind: str, package: str, entry: str, extra: int = 0, why: str = "", **fields: Any
) -> Candidate:
    return Candidate(identity, kind, "image-classification", package, entry, {**CLASSES, **fields}, extra, why)


def _whisper(size: str, width: int, layers: int, heads: int, **fields: Any) -> Candidate:
    """Radford et al. 2022 (arXiv 2212.04356), table 1."""
    sizes = {
        "d_model": width, "encoder_layers": layers, "decoder_layers": layers, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
    }  # fmt: skip
    entry = "whisper_large_multi_v2" if size == "large-v2" else f"whisper_{size}_multi"
    return Candidate(f"openai/whisper-{size}", "whisper", "speech-seq2seq", "keras", entry, {**sizes, **fields})


def _gemma3(size: str, hidden: int, layers: int, heads: int, pairs: int, inner: int, width: int) -> Candidate:
    """Text sizes by litgpt 0.5.13; keras-hub leaves 64 unused rows of the embedding out."""
    text = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": pairs,
        "intermediate_size": inner, "head_dim": width, "sliding_window": 1024,
    }  # fmt: skip
    fields = {"text_config": text, "vision_config": SEES}
    why = "less 64 unused rows of the embedding"
    less, name = -64 * hidden, f"google/gemma-3-{size}-it"
    row = Candidate(name, "gemma3", "causal-lm", "keras", f"gemma3_{size}", fields, less, why)
    return replace(row, more_ids=(f"google/gemma-3-{size}-pt",))


POOLER = "without the head"
PLACES = "with the numbers of places, which are no parameters in transformers"
TABLE = "with a second table of places, for other image sizes, and without the head"


def _deit(size: str, hidden: int, heads: int) -> Candidate:
    fields = {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
    name = f"deit-{size}-distilled-patch16-224"
    entry = name.replace("-", "_") + "_imagenet"
    return _image(f"facebook/{name}", "deit", "keras", entry, -(1000 * hidden + 1000), POOLER, **fields)


def _dinov2(size: str, hidden: int, layers: int, heads: int) -> Candidate:
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "image_size": 518}
    extra = 1370 * hidden - (1000 * 2 * hidden + 1000)  # 37 x 37 patches and a class token
    name = f"facebook/dinov2-{size}-imagenet1k-1-layer"
    row = _image(name, "dinov2", "keras", f"dinov2_{size}", extra, TABLE, **fields)
    return replace(row, more_ids=(f"facebook/dinov2-{size}",))


def _convnext(size: str, depth: int, width: int) -> Candidate:
    widths = [width, 2 * width, 4 * width, 8 * width]
    return _image(
        f"facebook/convnext-{size}-224", "convnext", "torchvision", f"ConvNeXt_{size.title()}_Weights",
        depths=[3, 3, depth, 3], hidden_sizes=widths,
    )  # fmt: skip


def _swin(size: str, letter: str, **fields: Any) -> Candidate:
    return _image(
        f"microsoft/swin-{size}-patch4-window7-224", "swin", "torchvision", f"Swin_{letter}_Weights", **fields
    )


CONTRASTIVE = "image-text-contrastive"
CANDIDATES = (
    replace(_image("google/vit-base-patch16-224", "vit", "torchvision", "ViT_B_16_Weights"),
            more_ids=("google/vit-base-patch16-224-in21k",)),
    _image("google/vit-base-patch16-384", "vit", "torchvision", "ViT_B_16_Weights", image_size=384),
    replace(_image("google/vit-large-patch16-224", "vit", "torchvision", "ViT_L_16_Weights", **LARGE),
            more_ids=("google/vit-large-patch16-224-in21k",)),
    _swin("tiny", "T"),
    _swin("small", "S", depths=[2, 2, 18, 2]),
    _swin("base", "B", depths=[2, 2, 18, 2], embed_dim=128, num_heads=[4, 8, 16, 32]),
    _convnext("tiny", 9, 96), _convnext("small", 27, 96), _convnext("base", 27, 128), _convnext("large", 27, 192),
    _deit("tiny", 192, 3), _deit("small", 384, 6), _deit("base", 768, 12),
    _dinov2("small", 384, 12, 6), _dinov2("base", 768, 12, 12), _dinov2("large", 1024, 24, 16),
    Candidate("openai/clip-vit-base-patch32", "clip", CONTRASTIVE, "keras", "clip_vit_base_patch32", {}, 50, PLACES),
    Candidate("openai/clip-vit-base-patch16", "clip", CONTRASTIVE, "keras", "clip_vit_base_patch16",
              {"vision_config": {"patch_size": 16}}, 197, PLACES),
    Candidate("openai/clip-vit-large-patch14", "clip", CONTRASTIVE, "keras", "clip_vit_large_patch14",
              {"projection_dim": 768, "vision_config": {**LARGE, "patch_size": 14},
               "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}}, 257, PLACES),
    Candidate("google/siglip-base-patch16-224", "siglip", CONTRASTIVE, "keras", "siglip_base_patch16_224", {}, 260,
              PLACES),
    _whisper("tiny", 384, 4, 6), _whisper("base", 512, 6, 8), _whisper("small", 768, 12, 12),
    _whisper("medium", 1024, 24, 16), _whisper("large", 1280, 32, 20), _whisper("large-v2", 1280, 32, 20),
    _gemma3("4b", 2560, 34, 8, 4, 10240, 256), _gemma3("12b", 3840, 48, 16, 8, 15360, 256),
    _gemma3("27b", 5376, 62, 32, 16, 21504, 128),
)  # fmt: skip


def keras_counts(folder: Path) -> dict[str, set[int]]:
    """Preset → its parameters; the modules are read and not run."""
    counts: dict[str, set[int]] = {}
    for file in sorted(folder.glob("*/*_presets.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.Assign):
                continue
            with contextlib.suppress(ValueError):  # what is put together from other dictionaries
                for name, preset in ast.literal_eval(node.value).items():
                    counts.setdefault(name, set()).add(preset["metadata"]["params"])
    return counts


def torchvision_counts(folder: Path) -> dict[str, set[int]]:
    """Class of weights → the parameters of each of its entries."""
    counts: dict[str, set[int]] = {}
    for file in sorted(folder.glob("*.py")):
        name = ""
        for line in file.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"class (\w+_Weights)\(", line):
                name = match[1]
            if name and (match := re.search(r'"num_params": (\d+)', line)):
                counts.setdefault(name, set()).add(int(match[1]))
    return counts


def row_of_candidate(candidate: Candidate, counts: Mapping[str, set[int]]) -> Architecture | None:
    """The row, or None where the built model has not a stated count."""
    from transformers import AutoConfig

    with torch.device("meta"):
        model = build_model(AutoConfig.for_model(candidate.kind, **candidate.fields), candidate.of)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count + candidate.extra not in counts.get(candidate.entry, set()):
        return None
    package = "keras-hub 0.32.0 (Apache-2.0" if candidate.package == "keras" else "torchvision 0.29.2 (BSD-3-Clause"
    beside = f", {candidate.why}" if candidate.why else ""
    source = f"sizes of transformers 5.23 and the paper; count equal to {package}; read 2026-11-24){beside}"
    ids = candidate.identity, *candidate.more_ids
    return Architecture(
        name=candidate.identity.partition("/")[2], aliases=ids, family=candidate.kind,
        model_type=candidate.kind, config=candidate.fields, parameters=count, parameters_of=candidate.of, source=source,
        licence="see its page",
    )  # fmt: skip


def main() -> None:
    """Write the file anew; what was left out is printed."""
    counts = {"keras": keras_counts(Path(sys.argv[1])), "torchvision": torchvision_counts(Path(sys.argv[2]))}
    rows = {each.identity: row_of_candidate(each, counts[each.package]) for each in CANDIDATES}
    TARGET.write_text(HEADER + "".join(row_text(row) for row in rows.values() if row), encoding="utf-8")
    print(
        f"{sum(row is not None for row in rows.values())} rows; left out: {[name for name in rows if not rows[name]]}"
    )


if __name__ == "__main__":
    main()
