"""accelerate: accumulation, clipping, gathered metrics, a scheduler, a checkpoint."""

import torch
from accelerate import Accelerator
from parameter_count import print_parameters
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
config = BertConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
model = BertForSequenceClassification(config)
print_parameters(model)


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


rows = [{"input_ids": [5 + (n + i) % 200 for i in range(16)], "label": n % 2} for n in range(64)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 20)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for batch in loader:
    with accelerator.accumulate(model):
        output = model(**batch)
        accelerator.backward(output.loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    predictions, labels = accelerator.gather_for_metrics((output.logits.argmax(-1), batch["labels"]))
    accelerator.print("accuracy", (predictions == labels).float().mean().item())
accelerator.save_state("state")
