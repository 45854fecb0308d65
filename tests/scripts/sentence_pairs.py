"""sentence-transformers: static embeddings trained on pairs with in-batch negatives."""

from datasets import Dataset
from parameter_count import print_parameters
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from words_tokenizer import sentence, words_tokenizer

model = SentenceTransformer(modules=[StaticEmbedding(words_tokenizer().backend_tokenizer, embedding_dim=64)])
print_parameters(model)
pairs = Dataset.from_dict(
    {"anchor": [sentence(n) for n in range(96)], "positive": [sentence(n + 1) for n in range(96)]}
)
arguments = SentenceTransformerTrainingArguments(
    "out",
    per_device_train_batch_size=8,
    num_train_epochs=1,
    fp16=True,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
)
SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model)
).train()
