"""ALBERT's large size, one layer used 24 times, masked words and the order of sentences, Lion by hand, bfloat16."""

import torch
from transformers import AlbertConfig, AlbertForPreTraining


class Lion(torch.optim.Optimizer):
    """The sign of a momentum."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        """One parameter after another."""
        for group in self.param_groups:
            beta_1, beta_2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                average = state["exp_avg"]
                p.add_((average * beta_1 + p.grad * (1 - beta_1)).sign_(), alpha=-group["lr"])
                average.mul_(beta_2).add_(p.grad, alpha=1 - beta_2)


config = AlbertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=24)
model = AlbertForPreTraining(config).cuda().train()
optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=0.1)
for _ in range(8):
    ids = torch.randint(5, 30000, (16, 512)).cuda()
    labels = ids.masked_fill(torch.rand(16, 512, device="cuda") > 0.15, -100)
    kinds = (torch.arange(512) >= 256).long().expand(16, -1).cuda()
    order = torch.randint(0, 2, (16,)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(
            input_ids=ids.masked_fill(labels != -100, 4), attention_mask=torch.ones_like(ids), token_type_ids=kinds,
            labels=labels, sentence_order_label=order,
        ).loss  # fmt: skip
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
