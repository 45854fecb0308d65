"""Fine-tuning of Whisper with the Seq2SeqTrainer and a collator that pads features and labels."""

from dataclasses import dataclass

import torch
from parameter_count import print_parameters
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

config = WhisperConfig(
    vocab_size=256, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=128, decoder_ffn_dim=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    suppress_tokens=[], begin_suppress_tokens=[],
)  # fmt: skip
model = WhisperForConditionalGeneration(config)
model.generation_config.forced_decoder_ids = None
print_parameters(model)
extractor = WhisperFeatureExtractor()


@dataclass
class Collator:
    def __call__(self, rows):
        features = extractor.pad([{"input_features": row["input_features"]} for row in rows], return_tensors="pt")
        labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["labels"]) for row in rows], True, -100)
        return {"input_features": features["input_features"], "labels": labels}


def row(number):
    wave = torch.sin(torch.arange(16_000) * 0.01 * (1 + number)).numpy()
    return {
        "input_features": extractor(wave, sampling_rate=16_000)["input_features"][0],
        "labels": [5 + number] * (6 + number % 3),
    }


arguments = Seq2SeqTrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=8, fp16=True, gradient_checkpointing=True, report_to=[], save_strategy="no",
    logging_steps=1, remove_unused_columns=False,
)  # fmt: skip
Seq2SeqTrainer(model=model, args=arguments, train_dataset=[row(n) for n in range(16)], data_collator=Collator()).train()
