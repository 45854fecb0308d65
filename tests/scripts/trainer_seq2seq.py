"""Summaries by T5 with the Seq2SeqTrainer: dynamic padding, label smoothing, generation at evaluation."""

from datasets import Dataset
from parameter_count import print_parameters
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)
from words_tokenizer import sentence, words_tokenizer

tokenizer = words_tokenizer()
config = T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config)
print_parameters(model)
rows = [
    {"input_ids": tokenizer(sentence(n))["input_ids"], "labels": tokenizer(sentence(n + 1))["input_ids"]}
    for n in range(64)
]
arguments = Seq2SeqTrainingArguments(
    "out", per_device_train_batch_size=8, max_steps=6, bf16=True, report_to=[], logging_steps=1, save_strategy="no",
    predict_with_generate=True, generation_max_length=8, label_smoothing_factor=0.1, eval_strategy="steps", eval_steps=1,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model=model, args=arguments, train_dataset=Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows[:8]),
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model), processing_class=tokenizer,
)  # fmt: skip
trainer.train()
