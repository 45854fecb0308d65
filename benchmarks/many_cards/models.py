"""The networks of `programs.py`, from their papers and sizes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

USERS, ITEMS, WORDS = 138493, 26744, 267735
"""Of MovieLens-20M and WikiText-103."""


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the stride is at the second, as in v1.5."""

    def __init__(self, inputs: int, width: int, stride: int, *, is_first: bool) -> None:
        super().__init__()
        self.narrow, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.middle, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.wide, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        shortcut = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Sequential(*shortcut) if is_first else None

    def forward(self, image: Tensor) -> Tensor:
        """Of (N, C, H, W)."""
        inner = self.relu(self.norm1(self.narrow(image)))
        inner = self.norm3(self.wide(self.relu(self.norm2(self.middle(inner)))))
        inner += image if self.shortcut is None else self.shortcut(image)
        return self.relu(inner)


def stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Blocks of one width."""
    rest = (Bottleneck(4 * width, width, 1, is_first=False) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, width, stride, is_first=True), *rest)


def stem() -> nn.Sequential:
    """What comes before the stages."""
    first = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    return nn.Sequential(*first, nn.MaxPool2d(3, 2, 1))


def resnet50(classes: int) -> nn.Sequential:
    """He et al. 2015, arXiv:1512.03385."""
    stages = stage(64, 64, 3, 1), stage(256, 128, 4, 2), stage(512, 256, 6, 2), stage(1024, 512, 3, 2)
    return nn.Sequential(stem(), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


class SingleShot(nn.Module):
    """SSD300 (Liu et al. 2015, arXiv:1512.02325) on ResNet-50 without its last stage and the stride before that."""

    CHANNELS, NARROW, ANCHORS = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128), (4, 6, 6, 6, 4, 4)

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.features = nn.Sequential(stem(), stage(64, 64, 3, 1), stage(256, 128, 4, 2), stage(512, 256, 6, 1))
        sizes = zip(self.CHANNELS[:-1], self.CHANNELS[1:], self.NARROW, strict=True)
        self.smaller = nn.ModuleList(self._smaller(*each, is_strided=n < 3) for n, each in enumerate(sizes))
        ends = list(zip(self.ANCHORS, self.CHANNELS, strict=True))
        self.offsets = nn.ModuleList(nn.Conv2d(channels, 4 * each, 3, padding=1) for each, channels in ends)
        self.scores = nn.ModuleList(nn.Conv2d(channels, classes * each, 3, padding=1) for each, channels in ends)

    @staticmethod
    def _smaller(inputs: int, outputs: int, narrow: int, *, is_strided: bool) -> nn.Sequential:
        shape = {"stride": 2, "padding": 1} if is_strided else {}
        return nn.Sequential(
            nn.Conv2d(inputs, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True),
            nn.Conv2d(narrow, outputs, 3, bias=False, **shape), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets (N, 4, boxes) and scores (N, classes, boxes)."""
        maps = [self.features(image)]
        for block in self.smaller:
            maps.append(block(maps[-1]))
        count = len(image)
        offsets = [head(each).reshape(count, 4, -1) for head, each in zip(self.offsets, maps, strict=True)]
        scores = [head(each).reshape(count, self.classes, -1) for head, each in zip(self.scores, maps, strict=True)]
        return torch.cat(offsets, 2), torch.cat(scores, 2)


@torch.jit.script
def gated(left: Tensor, right: Tensor, width: int) -> Tensor:
    """Two sums, one through tanh and one through a sigmoid."""
    both = left + right
    return torch.tanh(both[:, :width, :]) * torch.sigmoid(both[:, width:, :])


@torch.jit.script
def scaled_sum(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Of two tensors of one shape."""
    return scale * (left + right)


def normed(inputs: int, outputs: int, kernel: int, *, dilation: int = 1, padding: int = 0) -> nn.Module:
    """A convolution over time whose weights have directions and lengths apart."""
    return nn.utils.weight_norm(nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding=padding))


class Coupling(nn.Module):
    """Dilated convolutions that tell scale and shift of half of the channels."""

    BLOCKS, WIDTH, KERNEL = 8, 512, 3

    def __init__(self, half: int, bands: int) -> None:
        super().__init__()
        width, blocks = self.WIDTH, range(self.BLOCKS)
        self.start, self.end = normed(half, width, 1), nn.Conv1d(width, 2 * half, 1)
        self.inner = nn.ModuleList(
            normed(width, 2 * width, self.KERNEL, dilation=2**n, padding=(self.KERNEL - 1) * 2**n // 2) for n in blocks
        )
        self.conditions = nn.ModuleList(normed(bands, 2 * width, 1) for _ in blocks)
        last = self.BLOCKS - 1
        self.results = nn.ModuleList(normed(width, width if n == last else 2 * width, 1) for n in blocks)

    def forward(self, audio: Tensor, bands: Tensor) -> Tensor:
        """Of (N, half, T)."""
        audio, width, total = self.start(audio), self.WIDTH, None
        for number, (inner, condition, result) in enumerate(
            zip(self.inner, self.conditions, self.results, strict=True), 1
        ):
            both = result(gated(inner(audio), condition(bands), width))
            if number < self.BLOCKS:
                audio, both = both[:, :width] + audio, both[:, width:]
            total = both if total is None else both + total
        return self.end(total)


class Mixing(nn.Module):
    """A product of all channels with one matrix, and the logarithm of how much it stretches."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Of (N, C, T)."""
        volume = audio.size(0) * audio.size(2) * torch.logdet(self.conv.weight.squeeze().float())
        return self.conv(audio), volume


class WaveGlow(nn.Module):
    """Prenger et al. 2018, arXiv:1811.00002: 12 flows, 2 of 8 channels leave after each four."""

    FLOWS, GROUP, EVERY, LEAVING = 12, 8, 4, 2

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.upsampled = nn.ConvTranspose1d(bands, bands, 1024, stride=256)
        channels = [self.GROUP - self.LEAVING * (flow // self.EVERY) for flow in range(self.FLOWS)]
        self.mixing = nn.ModuleList(Mixing(each) for each in channels)
        self.couplings = nn.ModuleList(Coupling(each // 2, bands * self.GROUP) for each in channels)

    def forward(self, bands: Tensor, audio: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Noise (N, 8, T / 8), scales and volumes of bands (N, 80, frames) and samples (N, T)."""
        bands = self.upsampled(bands)[:, :, : audio.size(1)].unfold(2, self.GROUP, self.GROUP).permute(0, 2, 1, 3)
        bands = bands.contiguous().view(bands.size(0), bands.size(1), -1).permute(0, 2, 1)
        audio = audio.unfold(1, self.GROUP, self.GROUP).permute(0, 2, 1)
        done, scales, volumes = [], [], []
        for flow, (mixing, coupling) in enumerate(zip(self.mixing, self.couplings, strict=True)):
            if flow and flow % self.EVERY == 0:
                done.append(audio[:, : self.LEAVING])
                audio = audio[:, self.LEAVING :]
            audio, volume = mixing(audio)
            first, second = audio.chunk(2, 1)
            scale_and_shift = coupling(first, bands)
            shift, scale = scale_and_shift.chunk(2, 1)
            audio = torch.cat([first, torch.exp(scale) * second + shift], 1)
            scales.append(scale)
            volumes.append(volume)
        return torch.cat([*done, audio], 1), scales, volumes


class RelativeAttention(nn.Module):
    """Attention to a row and to what is remembered of the one before, with positions by their distance."""

    def __init__(self, width: int, heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.places, self.result = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.norm, self.dropout, self.attention_dropout = (
            nn.LayerNorm(width), nn.Dropout(dropout), nn.Dropout(attention_dropout)
        )  # fmt: skip

    def forward(
        self, row: Tensor, places: Tensor, biases: tuple[Tensor, Tensor], mask: Tensor, memory: Tensor
    ) -> Tensor:
        """Of a row (T, N, C)."""
        length, rows = row.shape[:2]
        parts = self.queries_keys_values(torch.cat([memory, row])).chunk(3, -1)
        queries, keys, values = (each.view(each.size(0), rows, self.heads, self.size) for each in parts)
        queries = queries[-length:]
        content = torch.einsum("ibnd,jbnd->bnij", (queries + biases[0], keys))
        distance = self.places(places).view(-1, self.heads, self.size)
        position = self.shifted(torch.einsum("ibnd,jnd->bnij", (queries + biases[1], distance)))
        scores = scaled_sum(content, position, self.size**-0.5)
        scores.masked_fill_(mask[None, None], -float("inf"))
        weights = self.attention_dropout(F.softmax(scores, dim=3))
        mixed = torch.einsum("bnij,jbnd->ibnd", (weights, values)).contiguous().view(length, rows, -1)
        return self.norm(row + self.dropout(self.result(mixed)))

    @staticmethod
    def shifted(scores: Tensor) -> Tensor:
        """Scores by distance as scores by place: each row one further to the left."""
        count, heads, length, keys = scores.shape
        padded = torch.cat([scores.new_zeros((count, heads, length, 1)), scores], 3)
        return padded.view(count, heads, keys + 1, length).narrow(2, 1, keys).view_as(scores)


class TransformerXL(nn.Module):
    """Dai et al. 2019, arXiv:1901.02860, without adaptive softmax."""

    def __init__(
        self, *, blocks: int, width: int, heads: int, inner: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(WORDS))
        attention = (RelativeAttention(width, heads, dropout, attention_dropout) for _ in range(blocks))
        self.attention = nn.ModuleList(attention)
        self.forwards = nn.ModuleList(self._forward(width, inner, dropout) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.content, self.position = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))
        self.dropout, self.width = nn.Dropout(dropout), width
        self.frequencies: Tensor
        self.register_buffer("frequencies", 10000 ** -(torch.arange(0.0, width, 2.0) / width))

    @staticmethod
    def _forward(width: int, inner: int, dropout: float) -> nn.Sequential:
        first = nn.Linear(width, inner), nn.ReLU(inplace=True), nn.Dropout(dropout)
        return nn.Sequential(*first, nn.Linear(inner, width), nn.Dropout(dropout))

    def forward(self, ids: Tensor, targets: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Losses of all tokens (T, N), and what the next row remembers (blocks, T, N, C)."""
        words = self.words(ids)
        words.mul_(self.width**0.5)
        length, keys = ids.size(0), ids.size(0) + memory.size(1)
        mask = torch.triu(words.new_ones(length, keys), diagonal=1 + memory.size(1)).bool()
        places = torch.arange(keys - 1, -1, -1.0, device=words.device, dtype=words.dtype)
        angles = torch.outer(places, self.frequencies)
        places = self.dropout(torch.cat([angles.sin(), angles.cos()], -1)[:, None])
        row, remembered = self.dropout(words), []
        blocks = zip(self.attention, self.forwards, self.norms, memory, strict=True)
        for attention, forward, norm, before in blocks:
            remembered.append(row.detach())
            row = attention(row, places, (self.content, self.position), mask, before)
            row = norm(row + forward(row))
        row = self.dropout(row)
        logits = F.linear(row.view(-1, self.width), self.words.weight, self.bias)
        losses = -F.log_softmax(logits, -1).gather(1, targets.view(-1, 1)).squeeze(1)
        return losses, torch.stack(remembered).detach()


class NeuralFilter(nn.Module):
    """He et al. 2017, arXiv:1708.05031."""

    def __init__(self) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(USERS, 64), nn.Embedding(ITEMS, 64)
        self.user_words, self.item_words = nn.Embedding(USERS, 128), nn.Embedding(ITEMS, 128)
        self.layers = nn.ModuleList([nn.Linear(256, 256), nn.Linear(256, 128), nn.Linear(128, 64)])
        self.final = nn.Linear(128, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores (N, 1) of users and items (N)."""
        factors = self.user_factors(users) * self.item_factors(items)
        words = torch.cat((self.user_words(users), self.item_words(items)), 1)
        for layer in self.layers:
            words = F.dropout(F.relu(layer(words)), 0.5, training=self.training)
        return self.final(torch.cat((factors, words), 1))
