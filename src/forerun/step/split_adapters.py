"""LoRA beside layers that are split over ranks, split sequences and stages: how its two matrices lie, what is refused.

Of a layer split by columns (its output), A is whole on every rank and B is split by columns: the rows of B lie beside
those of the weight, and nothing more is exchanged in the forward pass. Each rank has its own part of A's gradient,
which is summed over ranks. Of a layer split by rows (its input), A is split along its input and B is whole: what A
makes, `adapter.rank` numbers a token, is summed over ranks (scattered along the sequence under
`parallel.sequence_parallel`) before B widens it; the sum of the layer itself stays one of its own. NeMo and Megatron-
Bridge do the latter alike, but split A of the former by its rank, B of the latter by columns, and gather.

Along a sequence and over stages adapters lie as the layers do: they work on each token alone, and go where their block
goes, under their names in the whole model.

Not covered: DoRA, whose lengths are those of whole weights, dropout, embeddings, output layers, parts trained whole.
"""

from typing import Any

from torch import nn

from forerun.errors import NotSupported
from forerun.settings.schema import Settings
from forerun.step.parallel import refuse_together


def require_split_adapters(settings: Settings, beside: str) -> None:
    """Refuse adapters that do not go together with the setting `beside`: `parallel.tensor`, `.context`, `.pipeline`.

    Raises:
        NotSupported: naming the setting and the reason.
    """
    adapter = settings.adapter
    moves_parts = beside != "parallel.context"
    obstacles = [
        ("adapter.kind", adapter.kind not in ("none", "lora"), f"of adapters, LoRA alone is split. Set it to lora, or "
         f"{beside} to 1"),
        ("adapter.dora", adapter.dora, "the lengths that DoRA trains are those of whole weights. Set it to false"),
        ("adapter.dropout", adapter.dropout > 0, "dropout would differ between ranks where activations are whole, and "
         "from that of one process. Set it to 0"),
        ("adapter.modules_to_save", moves_parts and bool(adapter.modules_to_save), "parts trained whole beside "
         "adapters are kept twice, and that is not split. Leave it out"),
    ]  # fmt: skip
    refuse_together(settings, beside, obstacles)


def require_layers_of_blocks(model: Any, settings: Settings, beside: str) -> None:
    """Refuse adapters on the embedding or the output layer of `model`.

    Raises:
        NotSupported: naming the setting `beside`.
    """
    ends = {"embedding": model.get_input_embeddings(), "output layer": model.get_output_embeddings()}
    for word, end in ends.items():
        if is_adapted(end):
            raise NotSupported(
                f"adapter.targets: beside {beside} layers of blocks have adapters; found the {word} among "
                f"{settings.adapter.targets!r}. Leave it out, or set {beside} to 1."
            )


def is_adapted(layer: nn.Module | None) -> bool:
    """Whether peft's LoRA lies around `layer`'s weight."""
    return isinstance(getattr(layer, "base_layer", None), nn.Module)


def parts_of(layer: nn.Module) -> tuple[nn.Module, list[nn.Module], list[nn.Module]]:
    """The layer itself and the matrices A and B of its adapters; none of a layer without."""
    if not is_adapted(layer):
        return layer, [], []
    adapted: Any = layer
    return adapted.base_layer, list(adapted.lora_A.values()), list(adapted.lora_B.values())
