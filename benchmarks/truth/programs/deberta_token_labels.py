"""The Trainer of transformers: DeBERTa-v2's base size labels tokens in float16, padded to each batch's longest."""

import tempfile

import torch
from transformers import DebertaV2Config, DebertaV2ForTokenClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Random ids of varying length with nine labels."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        seeded = torch.Generator().manual_seed(index)
        length = 128 + index * 29 % 129
        return {
            "input_ids": torch.randint(5, 128000, (length,), generator=seeded),
            "labels": torch.randint(0, 9, (length,), generator=seeded),
        }


def padded(samples):
    """One batch: ids padded with 0, labels with -100."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([sample["input_ids"] for sample in samples], batch_first=True)
    labels = pad([sample["labels"] for sample in samples], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


config = DebertaV2Config(
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, relative_attention=True,
    position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
    position_biased_input=False, max_relative_positions=-1, type_vocab_size=0, num_labels=9,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=16, max_steps=8, fp16=True, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, learning_rate=2e-5, warmup_steps=2, weight_decay=0.01,
    )  # fmt: skip
    Trainer(
        model=DebertaV2ForTokenClassification(config), args=arguments, train_dataset=Sentences(), data_collator=padded
    ).train()
