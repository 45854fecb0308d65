"""A transformer cut into stages by hand, as PyTorch's tutorial on pipeline parallelism does it; started by torchrun."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

LAYERS, WIDTH, HEADS, WORDS, LENGTH, ROWS, MICRO_BATCHES = 8, 256, 4, 4000, 128, 16, 8
SCHEDULES = {"gpipe": (ScheduleGPipe, 1), "1f1b": (Schedule1F1B, 1), "interleaved": (ScheduleInterleaved1F1B, 2)}


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict(
            {str(number): nn.TransformerDecoderLayer(WIDTH, HEADS, batch_first=True) for number in range(LAYERS)}
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens) if self.tok_embeddings else tokens
        for layer in self.layers.values():
            h = layer(h, h)
        h = self.norm(h) if self.norm else h
        return self.output(h) if self.output else h


def part_of_model(stage, stages):
    """The layers of one stage; the first has the embedding too, the last the head."""
    model = Transformer()
    each = LAYERS // stages
    for number in range(LAYERS):
        if number // each != stage:
            del model.layers[str(number)]
    if stage > 0:
        model.tok_embeddings = None
    if stage < stages - 1:
        model.norm = model.output = None
    return model


def main(name):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{int(os.environ['LOCAL_RANK'])}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    schedule_class, parts = SCHEDULES[name]
    stages, modules = [], []
    for index in range(rank, ranks * parts, ranks):
        module = part_of_model(index, ranks * parts).to(device)
        assert next(module.parameters()).device == device
        modules.append(module)
        stages.append(PipelineStage(module, index, ranks * parts, device))

    def loss_of(output, target):
        return nn.functional.cross_entropy(output.reshape(-1, WORDS), target.reshape(-1))

    schedule = schedule_class(stages[0] if parts == 1 else stages, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([parameter for module in modules for parameter in module.parameters()], lr=1e-4)
    tokens = torch.randint(WORDS, (ROWS, LENGTH), device=device)
    print(f"PARAMETERS {sum(p.numel() for module in modules for p in module.parameters())} rank {rank}")
    for _ in range(10):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        elif rank == ranks - 1:
            losses = []
            schedule.step(target=tokens, losses=losses)
        else:
            schedule.step()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
