"""A tokenizer for llama.cpp: byte pairs whose rule of cutting it knows by name, or SentencePiece's byte pairs.

llama.cpp has no merges of SentencePiece: of all neighbours that make a token together, it joins those whose token has
the highest score, leftmost first. transformers has merges and no scores. Both are the same where every two tokens that
make a third are a merge, and where merges of one token stand together; a token's score is then its place among them.
Both are tried, so that texts do not become other tokens in silence. Bytes stand in for letters that are no token.

Sources: llama.cpp, `convert_hf_to_gguf.py` (get_vocab_base, _create_vocab_sentencepiece) and `src/llama-vocab.cpp`
(expressions of gpt-2, smollm, qwen2, qwen35 and llama-bpe; llm_tokenizer_spm; tokenizer_st_partition; phi-3's rstrip);
transformers 5.24, `generate_merges`.

Not covered: Unigram, WordPiece, byte pairs that Forerun learned before 2026-11-28 (their words were of A to Z); a text
that itself begins with a blank, before which transformers' `Metaspace` puts no further one, and llama.cpp does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.data.byte_pairs import ANY_SCRIPT
from forerun.errors import NotSupported
from forerun.own.facts import TaskFacts

BLANK = "▁"
"""What stands for a blank in SentencePiece."""
_SHORT, _WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|", r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    ANY_SCRIPT: "qwen35", f"{_SHORT}{_WORDS}\\p{{N}}{_REST}": "qwen2",
    f"{_SHORT}{_WORDS}\\p{{N}}{{1,3}}{_REST}": "llama-bpe",
}  # fmt: skip
"""Expression that a tokenizer cuts texts by → llama.cpp's name of it."""
SENTENCE_PIECES = "sentence-pieces"
NORMAL, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of tokens (gguf.TokenType)."""
SET_APART = -1000.0
"""Score of tokens that no two others make (get_vocab_base)."""
STRIPPING_NAMES = re.compile("phi-?3", re.IGNORECASE)
"""Where a model's name says so, llama.cpp takes blanks and line ends away behind its special tokens."""
NEVER_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """How a tokenizer cuts texts."""

    name: str
    """llama.cpp's name, or `SENTENCE_PIECES`."""
    prefix: str = "never"
    """Before which texts a blank is put: `never`, `always` (behind special tokens too) or `first`."""


def split_rule(tokenizer: Any) -> SplitRule:
    """The rule by which a tokenizer cuts texts before it looks for byte pairs.

    Raises:
        NotSupported: it is none that is known here.
    """
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    if parts["model"]["type"] == "BPE" and parts["model"].get("byte_fallback"):
        rule = _sentence_pieces(parts)
    else:
        rule = _cut_by_name(parts)
    if rule is None:
        names = ", ".join(["gpt-2", "smollm", *SPLITS.values(), "SentencePiece's byte pairs"])
        raise NotSupported(
            f"--gguf: a tokenizer of byte pairs that llama.cpp knows by name ({names}); found one that cuts texts "
            f"otherwise, as those do that Forerun learned before 2026-11-28. Leave --gguf out, or train again."
        )
    return rule


def _cut_by_name(parts: Mapping[str, Any]) -> SplitRule | None:
    first = parts["pre_tokenizer"] or {}
    steps = first["pretokenizers"] if first.get("type") == "Sequence" else [first]
    if parts["model"]["type"] != "BPE" or (parts["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        return None
    match steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return SplitRule(name="gpt-2")
        case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}]:
            return SplitRule(name="smollm")
        case [{"type": "Split", "pattern": {"Regex": expression}}, {"type": "ByteLevel", "use_regex": False}] if (
            expression in SPLITS
        ):
            return SplitRule(name=SPLITS[expression])
    return None


def _sentence_pieces(parts: Mapping[str, Any]) -> SplitRule | None:
    """The rule of tokenizers that turn blanks into `BLANK` and cut nothing, as Llama 2's and Gemma's do."""
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    normalizer = parts["normalizer"] or {}
    normals = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    before = parts["pre_tokenizer"] or {"type": "None"}
    cuts_nothing = before["type"] == "None" or (before["type"] == "Split" and before["pattern"] == {"String": " "})
    match normals:
        case [only] if only == blanks and cuts_nothing:
            return SplitRule(name=SENTENCE_PIECES)
        case [{"type": "Prepend", "prepend": "▁"}, only] if only == blanks and cuts_nothing:
            return SplitRule(name=SENTENCE_PIECES, prefix="always")
        case [{}] if not normalizer and before["type"] == "Metaspace" and not before.get("split", True):
            is_known = before["replacement"] == BLANK and before["prepend_scheme"] in ("never", "always", "first")
            return SplitRule(name=SENTENCE_PIECES, prefix=before["prepend_scheme"]) if is_known else None
    return None


def add_tokenizer(writer: Any, tokenizer: Any, facts: TaskFacts, rule: SplitRule, size: int) -> None:
    """Write tokens, kinds, merges or scores, the ends of answers and the chat template; `size` is the model's."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    texts = {number: token for token, number in tokenizer.get_vocab().items()}
    kinds = _kinds(tokenizer, parts, texts, size)
    words = [texts.get(number, f"[PAD{number}]") for number in range(size)]
    merges = [tuple(pair if isinstance(pair, list) else pair.split(" ")) for pair in parts["model"]["merges"]]
    if rule.name == SENTENCE_PIECES:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        # tokens added to the vocabulary are looked for before blanks are turned into BLANK
        writer.add_token_list(
            [word.replace(BLANK, " ") if kind == ADDED else word for word, kind in zip(words, kinds, strict=True)]
        )
        writer.add_token_scores(piece_scores(merges, words, kinds))
        writer.add_add_space_prefix(_has_prefix(tokenizer, facts, rule))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(rule.name)
        writer.add_token_list(words)
        writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_token_types(kinds)
    _add_ends(writer, tokenizer, facts)


def _kinds(tokenizer: Any, parts: Mapping[str, Any], texts: Mapping[int, str], size: int) -> list[int]:
    added = {number: token.special for number, token in tokenizer.added_tokens_decoder.items()}
    is_bytes = bool(parts["model"].get("byte_fallback"))
    bytes_ = {f"<0x{value:02X}>" for value in range(256)} if is_bytes else set()
    missing = sorted(bytes_ - set(texts.values()))
    if missing:
        raise NotSupported(
            f"--gguf: a token for each byte, for letters that are none; found none for {missing[0]} and "
            f"{len(missing) - 1} more. Leave --gguf out."
        )

    def kind(number: int) -> int:
        if number not in texts:
            return UNUSED
        if is_bytes and texts[number] == tokenizer.unk_token:
            return UNKNOWN
        if number in added:
            return CONTROL if added[number] else ADDED
        return BYTE if texts[number] in bytes_ else NORMAL

    return [kind(number) for number in range(size)]


def piece_scores(merges: Sequence[tuple[str, ...]], words: Sequence[str], kinds: Sequence[int]) -> list[float]:
    """A score for each token, by which llama.cpp joins neighbours in the order of `merges`.

    Raises:
        NotSupported: no scores have the order of these merges.
    """
    plain = {word for word, kind in zip(words, kinds, strict=True) if kind == NORMAL}
    parts_of: dict[str, set[tuple[str, ...]]] = {}
    last = ""
    for left, right in merges:
        whole = left + right
        if whole not in plain:
            continue
        if whole != last and whole in parts_of:
            raise NotSupported(
                f"--gguf: merges of one token stand together, as SentencePiece's scores have it; those of {whole!r} "
                f"do not. Leave --gguf out."
            )
        parts_of.setdefault(whole, set()).add((left, right))
        last = whole
    makers = plain | {word for word, kind in zip(words, kinds, strict=True) if kind == ADDED}
    for whole in plain:
        pairs = {(whole[:cut], whole[cut:]) for cut in range(1, len(whole))}
        possible = {pair for pair in pairs if pair[0] in makers and pair[1] in makers}
        others = possible ^ parts_of.get(whole, set())
        if others:
            raise NotSupported(
                f"--gguf: any two tokens that make a third are a merge, as in SentencePiece; found {whole!r}, of which "
                f"{' and '.join(map(repr, sorted(others)[0]))} are not. Leave --gguf out."
            )
    places = {whole: -float(place) for place, whole in enumerate(parts_of)}
    lowest = -float(len(parts_of))  # single letters: nothing makes them
    apart = {NORMAL: lowest, BYTE: 0.0, UNKNOWN: 0.0}
    return [
        places[word] if kind == NORMAL and word in places else apart.get(kind, SET_APART)
        for word, kind in zip(words, kinds, strict=True)
    ]


def _has_prefix(tokenizer: Any, facts: TaskFacts, rule: SplitRule) -> bool:
    """Whether llama.cpp puts a blank before texts; it does so behind each special token as well.

    Raises:
        NotSupported: neither is what the tokenizer does.
    """
    if rule.prefix != "first" or not facts.is_chat:
        return rule.prefix != "never"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    special = tuple(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    if not chat.startswith(special):
        raise NotSupported(
            "--gguf: a chat that begins with a special token, where a tokenizer puts a blank before the first word "
            f"alone; found a chat template that begins with {chat[:20]!r}. Leave --gguf out."
        )
    return False


def stripping_name(tokenizer: Any, name: str) -> str:
    """The model's name; llama.cpp takes blanks away behind special tokens where one of `STRIPPING_NAMES` is in it.

    Raises:
        NotSupported: they are taken away behind some alone, or before some.
    """
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.content not in NEVER_STRIPPING]
    strips = {token.rstrip for token in added}
    lacks = set(NEVER_STRIPPING) - set(tokenizer.get_vocab())  # llama.cpp does not load a file that lacks them
    if len(strips) > 1 or any(token.lstrip for token in added) or (True in strips and lacks):
        raise NotSupported(
            "--gguf: blanks are taken away behind all special tokens (as Phi-3 does, with its <|endoftext|>) or behind "
            "none; found another tokenizer. Leave --gguf out."
        )
    says_so = STRIPPING_NAMES.search(name) is not None
    if True in strips:
        return name if says_so else f"{name} (phi-3)"
    return STRIPPING_NAMES.sub("phi 3", name)


def _add_ends(writer: Any, tokenizer: Any, facts: TaskFacts) -> None:
    start = tokenizer.bos_token_id if facts.start_id is None else facts.start_id
    if start is not None:
        writer.add_bos_token_id(start)
    # a chat's template writes its own start
    writer.add_add_bos_token(start is not None and not facts.is_chat)
    for add, end in zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), facts.end_ids, strict=False
    ):
        add(end)
    writer.add_pad_token_id(facts.pad_id)
    if tokenizer.unk_token_id is not None:
        writer.add_unk_token_id(tokenizer.unk_token_id)
    if facts.is_chat and tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
