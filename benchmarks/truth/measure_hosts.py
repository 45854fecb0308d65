# ruff: noqa: E501 (tables)
"""Ground truth of what the host needs to issue a step, on one CUDA GPU: small models, whose kernels are never waited for.

    python3 benchmarks/truth/measure_hosts.py OUT.csv [SECONDS]

Needs PyTorch, transformers, timm and peft, not this package; `benchmarks.truth.hosts` counts the operators of the same
`steps`. Rows: host seconds of forward, backward and update (the median of `TIMED` steps after `WARM`), the GPU idle
before each step. The sizes are so small that the GPU is done before the host is.
"""

import csv
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WARM, TIMED = 4, 9
FIELDS = ("name", "forward_seconds", "backward_seconds", "update_seconds", "gpu", "versions", "error")
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "vocab_size": 500,
}


@dataclass
class Step:
    """A step of a model: `loss` of its inputs, under autocast where `precision` is bf16-mixed."""

    name: str
    build: Callable[[], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]
    precision: str = "fp32"
    optimizer: str = "adamw foreach"


def _named(kind: str, head: str, inputs: Callable[[], dict[str, torch.Tensor]], **sizes: Any) -> Callable[[], Any]:
    """A model of transformers from a configuration; its loss is the sum of its first output."""

    def build() -> Any:
        import transformers

        config = transformers.AutoConfig.for_model(kind, **sizes)
        model = getattr(transformers, head).from_config(config).cuda().train()
        given = {name: value.cuda() for name, value in inputs().items()}
        return model, lambda m: _first(m(**given)).float().mean()

    return build


def _first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def _ids(rows: int = 2, length: int = 16) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 400, (rows, length))}


def _adapted(build: Callable[[], Any], **how: Any) -> Callable[[], Any]:
    def adapt() -> Any:
        import peft

        model, loss = build()
        return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], **how)).cuda(), loss

    return adapt


def _recomputed(build: Callable[[], Any]) -> Callable[[], Any]:
    def recompute() -> Any:
        model, loss = build()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return model, loss

    return recompute


def _timm(name: str, side: int, **sizes: Any) -> Callable[[], Any]:
    def build() -> Any:
        import timm

        return timm.create_model(name, **sizes).cuda().train(), _loss_of(torch.randn(2, 3, side, side).cuda())

    return build


def _plain(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Any]:
    def build() -> Any:
        return make().cuda().train(), _loss_of(torch.randn(*shape).cuda())

    return build


def _loss_of(x: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    """The loss of a model that reads `x`, in its own dtype."""
    inputs = {dtype: x.to(dtype) for dtype in (torch.float32, torch.bfloat16)}
    return lambda model: _first(model(inputs[next(model.parameters()).dtype])).float().mean()


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return torch.relu(x + self.body(x))


class Loop(nn.Module):
    """A cell of plain operators, step by step."""

    def __init__(self, width: int, steps: int):
        super().__init__()
        self.inside, self.outside, self.steps = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) -> the same."""
        state = torch.zeros_like(x)
        for _ in range(self.steps):
            r, z, n = self.inside(x).chunk(3, -1)
            a, b, c = self.outside(state).chunk(3, -1)
            gate = torch.sigmoid(z + b)
            state = (1 - gate) * torch.tanh(n + torch.sigmoid(r + a) * c) + gate * state
        return state


class Decoder(nn.Module):
    """Blocks as nanoGPT has them."""

    def __init__(self, width: int = 64, layers: int = 12):
        super().__init__()
        self.blocks = nn.ModuleList([
            nn.ModuleDict({"a": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "o": nn.Linear(width, width),
                           "b": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})
            for _ in range(layers)
        ])  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> the same."""
        n, t, c = x.shape
        for block in self.blocks:
            q, k, v = block["qkv"](block["a"](x)).split(c, dim=2)
            q, k, v = (each.view(n, t, 4, c // 4).transpose(1, 2) for each in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(n, t, c)
            x = x + F.dropout(block["o"](y), 0.1, self.training)
            x = x + F.dropout(block["down"](F.gelu(block["up"](block["b"](x)))), 0.1, self.training)
        return x


def steps() -> list[Step]:
    """All, in the order in which they are measured."""
    llama = _named("llama", "AutoModelForCausalLM", _ids, **SMALL, num_key_value_heads=2)
    bert = _named("bert", "AutoModelForMaskedLM", _ids, **SMALL)
    gpt2 = _named("gpt2", "AutoModelForCausalLM", _ids, n_embd=64, n_layer=12, n_head=4, vocab_size=500)
    decoder = _plain(Decoder, 2, 16, 64)
    residual = _plain(lambda: nn.Sequential(nn.Conv2d(3, 16, 3), *[Residual(16) for _ in range(10)]), 2, 3, 16, 16)
    encoder = _plain(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 12), 2, 16, 64
    )
    t5 = _named("t5", "AutoModelForSeq2SeqLM", lambda: _ids() | {"labels": torch.randint(0, 400, (2, 12))},
                d_model=64, d_ff=128, d_kv=16, num_layers=6, num_heads=4, vocab_size=500,
                decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    whisper = _named("whisper", "AutoModelForSpeechSeq2Seq",
                     lambda: {"input_features": torch.randn(1, 80, 200), "labels": torch.randint(0, 400, (1, 12))},
                     d_model=64, encoder_layers=6, decoder_layers=6, encoder_attention_heads=4, decoder_attention_heads=4,
                     encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=500, max_source_positions=100,
                     pad_token_id=1, bos_token_id=2, eos_token_id=3, decoder_start_token_id=2)  # fmt: skip
    mixtral = _named("mixtral", "AutoModelForCausalLM", _ids, **SMALL | {"num_hidden_layers": 4}, num_key_value_heads=2,
                     num_local_experts=4, experts_implementation="eager")  # fmt: skip
    qwen = _named("qwen3", "AutoModelForCausalLM", _ids, **SMALL, num_key_value_heads=2, head_dim=16)
    swin = _timm("swin_tiny_patch4_window7_224", 224, embed_dim=24, num_heads=(1, 2, 4, 8))
    mlp = _plain(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(60)]), 32, 64)
    deberta = _named("deberta-v2", "AutoModelForMaskedLM", _ids, **SMALL | {"num_hidden_layers": 6},
                     relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16)  # fmt: skip
    return [
        Step("mlp of torch", mlp), Step("mlp of torch, autocast", mlp, "bf16-mixed"),
        Step("mlp of torch, sgd", mlp, optimizer="sgd foreach"), Step("mlp of torch, adam in a loop", mlp, optimizer="adam loop"),
        Step("mlp of torch, fused", mlp, optimizer="adamw fused"),
        Step("decoder by hand", decoder), Step("decoder by hand, autocast", decoder, "bf16-mixed"),
        Step("decoder by hand, bf16", decoder, "bf16-true"), Step("encoder of torch", encoder),
        Step("encoder of torch, autocast", encoder, "bf16-mixed"), Step("residual net", residual),
        Step("residual net, autocast", residual, "bf16-mixed"), Step("loop", _plain(lambda: Loop(32, 40), 8, 32)),
        Step("bert", bert), Step("bert, autocast", bert, "bf16-mixed"), Step("gpt2", gpt2),
        Step("gpt2, autocast", gpt2, "bf16-mixed"), Step("llama", llama), Step("llama, autocast", llama, "bf16-mixed"),
        Step("llama, bf16", llama, "bf16-true"), Step("llama, recomputed", _recomputed(llama)),
        Step("llama, LoRA, bf16", _adapted(llama), "bf16-true"), Step("llama, LoRA, autocast", _adapted(llama), "bf16-mixed"),
        Step("qwen3, bf16", qwen, "bf16-true"), Step("t5", t5), Step("t5, autocast", t5, "bf16-mixed"),
        Step("whisper, autocast", whisper, "bf16-mixed"), Step("mixtral, bf16", mixtral, "bf16-true"),
        Step("deberta", deberta), Step("vit of timm, autocast", _timm("vit_tiny_patch16_224", 64, img_size=64), "bf16-mixed"),
        Step("resnet18 of timm", _timm("resnet18", 32)), Step("efficientnet of timm, autocast", _timm("efficientnet_b0", 32), "bf16-mixed"),
        Step("convnext of timm, bf16", _timm("convnext_atto", 32), "bf16-true"), Step("swin of timm, autocast", swin, "bf16-mixed"),
    ]  # fmt: skip


def bound(step: Step, device: str = "cuda") -> tuple[nn.Module, Callable[[], torch.Tensor], torch.optim.Optimizer]:
    """Model, its loss and its optimizer; `device` is the type that autocast knows."""
    model, loss = step.build()
    if step.precision == "bf16-true":
        model = model.bfloat16()
    trained = [p for p in model.parameters() if p.requires_grad]
    kind, _, how = step.optimizer.partition(" ")
    options: dict[str, Any] = {"foreach": how == "foreach"} | (
        {"fused": True, "foreach": False} if how == "fused" else {}
    )
    made = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind]
    optimizer = made(trained, 1e-4, **options | ({"momentum": 0.9} if kind == "sgd" else {}))  # type: ignore[arg-type]

    def forward() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=step.precision == "bf16-mixed"):
            return loss(model)

    return model, forward, optimizer


def measured(step: Step) -> dict[str, Any]:
    """Host seconds of the phases of one step."""
    _, forward, optimizer = bound(step)
    times: list[tuple[float, ...]] = []
    for _ in range(WARM + TIMED):
        torch.cuda.synchronize()
        stamps = [time.perf_counter()]
        loss = forward()
        stamps.append(time.perf_counter())
        loss.backward()
        stamps.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        stamps.append(time.perf_counter())
        times.append(tuple(after - before for before, after in zip(stamps, stamps[1:], strict=False)))
        del loss
    names = ("forward_seconds", "backward_seconds", "update_seconds")
    return {
        name: statistics.median(column) for name, column in zip(names, zip(*times[WARM:], strict=True), strict=True)
    }


def main() -> None:
    """Measure and write, row by row."""
    import timm
    import transformers

    begin, most = time.perf_counter(), float(sys.argv[2]) if len(sys.argv) > 2 else 120.0
    versions = f"torch=={torch.__version__} transformers=={transformers.__version__} timm=={timm.__version__}"
    facts = {"gpu": torch.cuda.get_device_name(), "versions": versions}
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for step in steps():
            if time.perf_counter() - begin > most:
                print(f"stopped before {step.name}", file=sys.stderr)
                break
            row: dict[str, Any] = {"name": step.name}
            try:
                row |= measured(step)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:200]
            writer.writerow(row | facts)
            file.flush()
    print(f"{time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
