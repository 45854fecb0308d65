"""Steps of NVIDIA's DeepLearningExamples that lambdal/deeplearning-benchmark times, written anew from what they do.

Each builder takes `batch` and `precision` ("amp" or "tf32", which older cards run in fp32) and returns a model and its
step, as `forerun.forecast_step` takes them. Source: NVIDIA/DeepLearningExamples, PyTorch (ConvNets, SSD, Tacotron2,
Transformer-XL, NCF), in LambdaLabsML's fork, whose options are in `scripts/config_v1` of the former. Left out: loading
of data, TorchScript's fusion of Transformer-XL's LAMB (eager here, which the host feels in small batches).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.many_cards.models import NeuralFilter, SingleShot, TransformerXL, WaveGlow, resnet50
from torch import Tensor, nn

Program = tuple[nn.Module, Callable[[], None]]
MOMENTUM, LOSS_SCALE = 0.9, 2.0**16
BOXES, CLASSES = 8732, 81
SIZES = {
    "base": {"blocks": 16, "width": 512, "heads": 8, "inner": 2048, "dropout": 0.1, "attention_dropout": 0.0},
    "large": {"blocks": 18, "width": 1024, "heads": 16, "inner": 4096, "dropout": 0.2, "attention_dropout": 0.2},
}
LENGTHS = {"base": 192, "large": 256}
"""Tokens of a row, and of what it remembers."""
SAMPLES, HOP, BANDS = 8000, 256, 80


def allow_tf32() -> None:
    """As NVIDIA's containers do for products, and PyTorch for convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def image_classes(*, batch: int, precision: str) -> Program:
    """ResNet-50 v1.5 at 224 pixels, SGD, channels first."""
    allow_tf32()
    network, is_half = resnet50(1000).train(), precision == "amp"
    update = torch.optim.SGD(network.parameters(), lr=0.1, momentum=MOMENTUM, weight_decay=1e-4, foreach=False)
    images, labels = torch.randn(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)
    scaler = torch.amp.GradScaler("cuda", enabled=is_half)

    def step() -> None:
        with torch.autocast(images.device.type, dtype=torch.float16, enabled=is_half):
            loss = F.cross_entropy(network(images), labels)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad()
        loss.item()

    return network, step


def boxes(*, batch: int, precision: str) -> Program:
    """SSD300 with ResNet-50, hard negatives mined by two sorts."""
    allow_tf32()
    network, is_half = SingleShot(CLASSES).train(), precision == "amp"
    weights = list(network.parameters())
    groups = [
        {"params": [p for p in weights if p.dim() == 1], "weight_decay": 0.0},
        {"params": [p for p in weights if p.dim() > 1]},
    ]
    update = torch.optim.SGD(groups, lr=1e-3, momentum=MOMENTUM, weight_decay=5e-4, foreach=False)
    images, places = torch.randn(batch, 3, 300, 300), torch.ones(batch, BOXES, 4)
    classes, default, mean = (
        torch.zeros(batch, BOXES, dtype=torch.int32),
        torch.ones(1, 4, BOXES),
        torch.ones(1, 3, 1, 1),
    )
    scaler = torch.amp.GradScaler("cuda", enabled=is_half)

    def step() -> None:
        images.sub_(mean).div_(mean)
        with torch.autocast(images.device.type, dtype=torch.float16, enabled=is_half):
            offsets, scores = network(images)
            loss = box_loss(
                offsets.float(), scores.float(), places.transpose(1, 2).contiguous(), classes.long(), default
            )
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad()

    return network, step


def box_loss(offsets: Tensor, scores: Tensor, places: Tensor, classes: Tensor, default: Tensor) -> Tensor:
    """Offsets of boxes with an object, classes of those and of thrice as many of the worst without."""
    is_object = classes > 0
    count = is_object.sum(1)
    centre = 10 * (places[:, :2] - default[:, :2]) / default[:, 2:]
    target = torch.cat((centre, 5 * (places[:, 2:] / default[:, 2:]).log()), 1).contiguous()
    near = (is_object.float() * F.smooth_l1_loss(offsets, target, reduction="none").sum(1)).sum(1)
    each = F.cross_entropy(scores, classes, reduction="none")
    order = each.clone().masked_fill_(is_object, 0).sort(dim=1, descending=True)[1].sort(dim=1)[1]
    is_hard = order < torch.clamp(3 * count, max=BOXES).unsqueeze(-1)
    total = near + (each * (is_object + is_hard).float()).sum(1)
    return (total * (count > 0).float() / count.float().clamp(min=1e-6)).mean(0)


def speech(*, batch: int, precision: str) -> Program:
    """WaveGlow on 8,000 samples, in fp32: the source's option for fp16 is not the one that its program reads."""
    allow_tf32()
    network = WaveGlow(BANDS).train()
    weights = list(network.parameters())
    update = torch.optim.Adam(weights, lr=0.0, foreach=False)
    bands, audio = torch.randn(batch, BANDS, SAMPLES // HOP + 1), torch.randn(batch, SAMPLES)

    def step() -> None:
        network.zero_grad()
        noise, scales, volumes = network(bands, audio)
        total = (noise * noise).sum() / 2 - sum(each.sum() for each in scales) - sum(volumes)
        loss = total / noise.numel()
        loss.item()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 65504.0, foreach=False)
        update.step()
        network.zero_grad(set_to_none=True)

    return network, step


def transformer_xl(*, batch: int, precision: str, size: str = "base") -> Program:
    """Transformer-XL on WikiText-103; in fp16 as apex's O2: weights in fp16, updates of fp32 copies."""
    allow_tf32()
    network, is_half, length = TransformerXL(**SIZES[size]).train(), precision == "amp", LENGTHS[size]
    if is_half:
        network.half()
    weights: list[Tensor] = list(network.parameters())
    masters = [each.detach().float().requires_grad_() for each in weights] if is_half else weights
    update = Lamb(masters) if size == "base" else torch.optim.Adam(masters, lr=0.0, foreach=False)
    ids = torch.zeros(length, batch, dtype=torch.long)
    dtype = torch.float16 if is_half else torch.float32
    memory = [torch.zeros(SIZES[size]["blocks"], length, batch, SIZES[size]["width"], dtype=dtype)]

    def step() -> None:
        for each in weights:
            each.grad = None
        losses, memory[0] = network(ids, ids, memory[0])
        loss = losses.float().mean()
        (loss * LOSS_SCALE if is_half else loss).backward()
        if is_half:
            widen_gradients(weights, masters)
        loss.item()
        nn.utils.clip_grad_norm_(masters, 0.25, foreach=False)
        update.step()
        if is_half:
            with torch.no_grad():
                torch._foreach_copy_(weights, masters)  # noqa: SLF001 - as apex

    return network, step


def large_transformer_xl(*, batch: int, precision: str) -> Program:
    """The same with 18 wider blocks and Adam."""
    return transformer_xl(batch=batch, precision=precision, size="large")


def widen_gradients(weights: list[Tensor], masters: list[Tensor]) -> None:
    """Gradients of fp16 weights as those of their copies, without the loss scale."""
    wide = [torch.empty_like(master) for master in masters]
    narrow = [weight.grad for weight in weights if weight.grad is not None]
    torch._foreach_copy_(wide, narrow)  # noqa: SLF001 - as apex
    torch._foreach_mul_(wide, 1 / LOSS_SCALE)  # noqa: SLF001
    for master, gradient in zip(masters, wide, strict=True):
        master.grad = gradient


class Lamb:
    """LAMB, weight by weight."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights
        self.means, self.squares = ([torch.zeros_like(each) for each in weights] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        """One update."""
        for weight, mean, square in zip(self.weights, self.means, self.squares, strict=True):
            assert weight.grad is not None
            mean.mul_(0.9).add_(weight.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
            change = mean / (square.sqrt() + 1e-6)
            weight.sub_(change * (weight.norm().clamp(0, 10) / change.norm()) * 0.01)


def filtering(*, batch: int, precision: str) -> Program:
    """Neural collaborative filtering on MovieLens-20M. Drawing of negatives, once an epoch, is left out."""
    allow_tf32()
    network, is_half = NeuralFilter().train(), precision == "amp"
    update = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    users, items = (torch.zeros(batch, dtype=torch.long) for _ in range(2))
    labels, scaler = torch.zeros(batch, 1), torch.amp.GradScaler("cuda", enabled=is_half)

    def step() -> None:
        with torch.autocast(users.device.type, dtype=torch.float16, enabled=is_half):
            losses = F.binary_cross_entropy_with_logits(network(users, items), labels, reduction="none")
        scaler.scale(losses.float().mean()).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad(set_to_none=True)

    return network, step


PROGRAMS = {
    "resnet50": image_classes, "ssd": boxes, "waveglow": speech, "transformerxlbase": transformer_xl,
    "transformerxllarge": large_transformer_xl, "ncf": filtering,
}  # fmt: skip
"""By the source's names of columns."""
UNITS = {"waveglow": SAMPLES, "transformerxlbase": LENGTHS["base"], "transformerxllarge": LENGTHS["large"]}
"""What a row of the batch counts for in the source's throughput, where it is not one."""
