"""GPT-2 with accelerate, two micro-batches, bfloat16."""

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = GPT2LMHeadModel(GPT2Config())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ids = torch.randint(0, 50257, (64, 512), generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in ids], batch_size=4, shuffle=True)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
