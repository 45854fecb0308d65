"""LoRA by PEFT on GPT-2 in a plain loop, with autocast and a cosine schedule."""

import torch
from parameter_count import print_parameters
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=128))
model = get_peft_model(
    model, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
)
model.print_trainable_parameters()
model.to(device)
print_parameters(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
for batch in DataLoader(torch.randint(0, 256, (64, 96)), batch_size=8, shuffle=True):
    ids = batch.to(device)
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print(f"loss {loss.detach().float():.3f}")
model.save_pretrained("adapter")
