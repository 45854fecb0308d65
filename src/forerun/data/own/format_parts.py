"""What does a row of each format consist of, and what are its columns called? Tables of names, and no logic.

Names are those of TRL, OpenAI, Gemini, axolotl, LLaMA-Factory, sentence-transformers and of data sets on the Hugging
Face hub.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.settings.schema import DataFormat

EXACT, ALIAS, VALUES = 3, 2, 1
ALIASES: dict[str, tuple[str, ...]] = {
    "text": ("text", "content", "sentence", "review", "comment", "tweet", "body", "utterance", "utt", "post", "message",
             "document", "article", "excerpt", "description", "abstract", "question", "query", "title", "code",
             "story", "data.text"),
    "pair": ("pair", "text_pair", "sentence2", "question2", "hypothesis", "text2", "text_b", "sentence_b", "passage"),
    "label": ("label", "labels", "class", "category", "categories", "sentiment", "intent", "topic", "topics", "tag",
              "target", "emotion", "emotions", "stars", "rating", "score", "is_duplicate", "y", "class index",
              "class_index", "class_id", "label_id", "polarity", "grade", "note", "gold_label"),
    "words": ("words", "tokens", "sentence", "text"),
    "tags": ("tags", "ner_tags", "pos_tags", "chunk_tags", "ner", "pos", "token_labels", "labels"),
    "messages": ("messages", "conversations", "conversation", "chat", "dialog", "dialogue", "contents"),
    "conversations": ("conversations", "conversation", "messages", "chat"),
    "system": ("system", "system_prompt", "systeminstruction", "system_instruction"),
    "instruction": ("instruction", "instructions", "question"),
    "input": ("input", "context"),
    "output": ("output", "response", "answer", "completion", "answers.text.0"),
    "history": ("history",),
    "prompt": ("prompt", "question", "problem", "instruction", "query", "conversations", "messages",
               "input.messages", "input", "user", "human"),
    "completion": ("completion", "response", "answer", "canonical_solution", "solution", "answers.text.0",
                   "output", "assistant", "bot", "gpt"),
    "chosen": ("chosen", "chosen_response", "accepted", "preferred", "response_j", "better", "good",
               "preferred_output"),
    "rejected": ("rejected", "rejected_response", "refused", "dispreferred", "response_k", "worse", "bad",
                 "non_preferred_output"),
    "desirable": ("kto_tag", "label", "desirable", "is_desirable"),
    "anchor": ("anchor", "query", "sentence1", "sentence_a", "question"),
    "positive": ("positive", "pos", "positives", "sentence2", "sentence_b", "passage", "answer", "document"),
    "negative": ("negative", "neg", "negatives", "hard_negative", "negative_1"),
    "message": (),
    "parent": (),
    "role": (),
    "rank": (),
    "better": (),
    "selected": (),
    "score": ("score", "similarity", "similarity_score"),
    "source": ("source", "src", "document", "article", "dialogue", "text", "input", "translation.en"),
    "target": ("target", "tgt", "summary", "highlights", "translation", "output"),
    "spans": ("spans", "entities", "label", "labels", "annotations", "annotation", "ents", "ner"),
    "sentence": (),
    "tools": ("tools", "functions", "available_tools", "tool_definitions", "input.tools"),
}  # fmt: skip
"""Part of a row → names of its column; the first is the format's own. A sentence of words is told by values."""


@dataclass(frozen=True)
class FormatParts:
    """What a row of one format consists of."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("causal-lm",)
    """What can be trained on it, the usual one first."""


PARTS: dict[DataFormat, FormatParts] = {
    "tagged": FormatParts(("words", "tags"), ("sentence",), ("token-classification",)),
    "spans": FormatParts(("text", "spans"), (), ("token-classification",)),
    "preference": FormatParts(
        ("chosen", "rejected"), ("prompt", "input", "system", "tools", "better"), ("preference",)
    ),
    "unpaired-preference": FormatParts(
        ("prompt", "desirable"), ("completion", "input", "system", "history", "tools"), ("preference",)
    ),
    "messages": FormatParts(("messages",), ("system", "tools", "message", "parent", "role", "rank")),
    "conversations": FormatParts(("conversations",), ("system", "tools")),
    "triplets": FormatParts(("anchor", "positive", "negative"), ("selected",), ("embedding",)),
    "alpaca": FormatParts(
        ("instruction", "output"), ("input", "system", "history", "tools"), ("causal-lm", "seq2seq-lm")
    ),
    "prompt-completion": FormatParts(("prompt", "completion"), ("system", "tools"), ("causal-lm", "seq2seq-lm")),
    "pairs": FormatParts(("anchor", "positive"), ("score",), ("embedding",)),
    "translation": FormatParts(("source", "target"), (), ("seq2seq-lm",)),
    "labelled": FormatParts(("text", "label"), ("pair",), ("sequence-classification",)),
    "text": FormatParts(("text",), (), ("causal-lm", "masked-lm")),
}
"""Formats, those that say most about a row first."""
MAY_BE_EMPTY: dict[str, tuple[str, ...]] = {
    "messages": ("system", "tools", "message", "parent", "role", "rank"), "conversations": ("system", "tools"),
    "alpaca": ("input", "system", "history", "tools"), "prompt-completion": ("system", "tools"),
    "preference": ("prompt", "input", "system", "tools", "better"), "triplets": ("selected",),
    "unpaired-preference": ("input", "system", "history", "tools"), "tagged": ("sentence",),
}  # fmt: skip
"""Parts of a format that a row can do without."""
TAGGED = ("tagged", "spans")
"""Formats of rows that are words with a tag each."""
LANGUAGES = (
    "ar", "bg", "bn", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id", "it",
    "ja", "ko", "lt", "lv", "ms", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "sw", "th", "tr", "uk",
    "ur", "vi", "zh",
)  # fmt: skip
"""Names of columns that hold a text and its translation (ISO 639-1)."""
LISTED = ("positive", "positives", "pos", "negative", "negatives", "neg")
"""Columns that may hold lists of texts, each of which is a row (`listed_texts.py`)."""
SPEAKERS = (("user", "human"), ("assistant", "bot", "gpt"))
"""Columns called by who asks and who answers; a user beside other columns is somebody's name."""
PAIRS_OF_TEXTS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence"), ("text", "text_pair"),
    ("query", "passage"), ("query", "document"), ("question", "passage"), ("question", "document"),
)  # fmt: skip
"""Columns of two texts with one label, as GLUE, SNLI, Quora and judgements of search results name them."""
ANSWERED_TEXTS = (
    ("question", "answer"), ("question", "response"), ("query", "answer"), ("query", "response"),
    ("prompt", "response"),
)  # fmt: skip
"""Columns of two texts that are more often learned as question and answer than as a pair with a label."""
ORIGINS = (
    "source origin domain site dataset subset split lang language locale country author user from sender date year "
    "license file customer client kunde kundin cliente herkunft quelle datei autor auteur sprache langue idioma land "
    "pays filiale jahr annee"
)
"""Names of columns that say where a text comes from: that is not what somebody wants to learn of it."""


@dataclass(frozen=True)
class Proposal:
    """One thing that the rows could be."""

    format: DataFormat
    fields: Mapping[str, str]
    """Part → column, all parts that were recognised."""
    workload: str
    is_certain: bool
    reason: str
    """One sentence."""
    weight: int
    """`EXACT`, `ALIAS` or `VALUES`: the least that speaks for one of its columns."""
