"""TRL's trainers on a small LLaMA: `sft` (with LoRA), `dpo`, `reward` or `grpo` (with generation, also by vLLM)."""

import sys

from datasets import Dataset
from parameter_count import print_parameters
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from words_tokenizer import sentence, words_tokenizer

kind = sys.argv[1]
tokenizer = words_tokenizer()
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, num_labels=1,
)  # fmt: skip
options = {
    "output_dir": "out", "per_device_train_batch_size": 4, "max_steps": 6, "bf16": True, "report_to": [], "logging_steps": 1,
    "save_strategy": "no",
}  # fmt: skip
model = (LlamaForSequenceClassification if kind == "reward" else LlamaForCausalLM)(config)


def message(role, number):
    return [{"role": role, "content": sentence(number)}]


if kind == "sft":
    from trl import SFTConfig, SFTTrainer

    rows = Dataset.from_list([{"messages": message("user", n) + message("assistant", n + 1)} for n in range(40)])
    adapter = LoraConfig(r=4, target_modules="all-linear")
    arguments = SFTConfig(**options, gradient_checkpointing=True)
    trainer = SFTTrainer(model, args=arguments, train_dataset=rows, processing_class=tokenizer, peft_config=adapter)
elif kind == "dpo":
    from trl import DPOConfig, DPOTrainer

    pairs = [
        {"prompt": message("user", n), "chosen": message("assistant", n), "rejected": message("assistant", n + 3)}
        for n in range(40)
    ]
    rows, reference = Dataset.from_list(pairs), LlamaForCausalLM(config)
    trainer = DPOTrainer(model, reference, args=DPOConfig(**options), train_dataset=rows, processing_class=tokenizer)
elif kind == "reward":
    from trl import RewardConfig, RewardTrainer

    pairs = [
        {
            "chosen": message("user", n) + message("assistant", n),
            "rejected": message("user", n) + message("assistant", n + 3),
        }
        for n in range(40)
    ]
    arguments = RewardConfig(**options)
    trainer = RewardTrainer(model, args=arguments, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
else:
    from trl import GRPOConfig, GRPOTrainer

    rows = Dataset.from_list([{"prompt": message("user", n)} for n in range(40)])
    engine = {"use_vllm": True, "vllm_mode": "colocate"} if kind == "grpo-vllm" else {}
    if engine:  # which finds the model by its name
        config.save_pretrained("model")
        model.name_or_path = "model"
    arguments = GRPOConfig(**options, **engine, num_generations=4, max_completion_length=8)

    def brevity(completions, **_):
        return [-float(len(completion[0]["content"])) for completion in completions]

    trainer = GRPOTrainer(model, reward_funcs=brevity, args=arguments, train_dataset=rows, processing_class=tokenizer)
reference = [trainer.ref_model] if getattr(trainer, "ref_model", None) is not None else []
print_parameters(trainer.model, *reference)
trainer.train()
