"""TRL's SFTTrainer with LoRA over chats of varying lengths, bfloat16."""

import tempfile

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["<pad>", "<eos>", "<unk>", *[f"w{n}" for n in range(2000)]]
bare = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
texts = [" ".join(f"w{(n * 7 + m) % 2000}" for m in range(64 + n * 37 % 700)) for n in range(64)]
config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
    num_key_value_heads=8,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        output_dir=folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=8, bf16=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, max_length=1024,
    )  # fmt: skip
    SFTTrainer(
        model=LlamaForCausalLM(config), args=arguments, train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer, peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).train()  # fmt: skip
