"""LoRA on a LLaMA of 0.3 billion weights in NF4, paged 8-bit AdamW."""

import tempfile

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
    num_key_value_heads=8,
)  # fmt: skip
nf4 = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_use_double_quant=True
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, quantization_config=nf4, device_map={"": 0}, dtype=torch.bfloat16)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
model.train()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=2e-4)
for _ in range(8):
    ids = torch.randint(0, 32000, (4, 1024), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
