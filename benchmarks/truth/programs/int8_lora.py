"""LoRA on a LLaMA of 0.4 billion weights in bitsandbytes' 8-bit numbers, float16 throughout."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=12,
    num_key_value_heads=12, use_cache=False,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).to(torch.float16).save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(
        folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map={"": 0}, dtype=torch.float16
    )
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(model, lora)
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)
scaler = torch.amp.GradScaler()
for _ in range(8):
    ids = torch.randint(0, 32000, (8, 512)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=ids, labels=ids).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
