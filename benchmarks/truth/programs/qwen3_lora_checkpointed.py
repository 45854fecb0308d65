"""LoRA on a Qwen3 of 1.5 billion weights in bfloat16, recomputation, two micro-batches."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM, get_cosine_schedule_with_warmup

config = Qwen3Config(
    vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=24, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, use_cache=False,
)  # fmt: skip
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Qwen3ForCausalLM(config)
torch.set_default_dtype(torch.float32)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
model = get_peft_model(model, LoraConfig(r=32, lora_alpha=64, lora_dropout=0.05, target_modules=targets))
model.print_trainable_parameters()
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 8)
for _ in range(8):
    for _ in range(2):
        ids = torch.randint(0, 151936, (2, 1024), device="cuda")
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss / 2
        loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
