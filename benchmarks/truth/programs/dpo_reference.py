"""Preferences (DPO) by hand: a LLaMA of 0.2 billion weights beside a frozen copy of itself, bfloat16."""

import copy

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM


def log_probabilities(model, ids, answer):
    """(batch, length) -> (batch,): summed over the answer's tokens."""
    logits = model(input_ids=ids).logits[:, :-1].float()
    chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return (chosen * answer[:, 1:]).sum(1)


config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
    num_key_value_heads=4, use_cache=False,
)  # fmt: skip
policy = LlamaForCausalLM(config).cuda()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
policy.train()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-7)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
for _ in range(8):
    prompts = torch.randint(0, 32000, (4, 256))
    answers = torch.randint(0, 32000, (8, 256))
    ids = torch.cat([prompts.repeat(2, 1), answers], 1).cuda()  # the chosen ones, then the rejected ones
    answer = (torch.arange(512) >= 256).float().expand(8, -1).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            known = log_probabilities(reference, ids, answer)
        now = log_probabilities(policy, ids, answer)
    chosen, rejected = (now - known).chunk(2)
    loss = -F.logsigmoid(0.1 * (chosen - rejected)).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
