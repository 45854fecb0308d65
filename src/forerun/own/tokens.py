"""Which tokenizer turns own texts into ids? The model's; for a model from scratch, byte pairs of the training texts.

Byte pairs are learned within words of any script, digits and runs of marks (`byte_pairs.ANY_SCRIPT`).
A learned tokenizer is one of transformers: `<pad>`, `<s>`, `</s>`, `<mask>` and the roles of a chat have the first ids,
where the model's configuration does not name others. Encoders get `<s> text </s>`, and a second text with its `</s>`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from forerun.data.byte_pairs import ANY_SCRIPT, by_words, learn_byte_pairs
from forerun.data.chat_tokens import SPARE
from forerun.data.word_ids import Ids, WordIds, is_word_by_word
from forerun.errors import InvalidSettings, MissingExtra, UnknownModel
from forerun.models.build import config_of
from forerun.models.first_weights import first_weights, is_from_scratch
from forerun.models.pretrained_tokenizer import load_tokenizer
from forerun.models.smollm2 import is_smollm2, smollm2_tokenizer
from forerun.own.stores import stored_byte_pairs
from forerun.settings.schema import Settings

PAD, START, END, MASK = "<pad>", "<s>", "</s>", "<mask>"
ROLES = ("system", "user", "assistant", "tool")
CALLS = (
    "{% for call in message['tool_calls'] or [] %}{% if message['content'] or not loop.first %}{{ '\\n' }}{% endif %}"
    "<tool_call>\n{\"name\": {{ call['function']['name'] | tojson }}, "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}\n</tool_call>{% endfor %}"
)
"""Calls of tools within an answer, as Qwen2.5 has them."""
CHAT_TEMPLATE = (
    "{% if tools %}<system>\n{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}</s>\n{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}" + CALLS + "</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
PLAIN_TEMPLATE = (
    "{% if tools %}Tools:{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '\\n' }}{% endif %}"
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}"
    + CALLS
    + "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""Chats for a tokenizer without a template of its own: roles in words, and an answer ends in its end token."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")
MINIMUM_COUNT = 2
TEXTS_AT_ONCE, LETTERS_AT_ONCE = 4096, 2**22
GENERATING = ("causal-lm", "seq2seq-lm", "preference")
RUN_FOLDER: ContextVar[Path | None] = ContextVar("run folder", default=None)
"""Assets of the run that is opened again; what it learned by another rule than today's is read, not learned anew."""
T = TypeVar("T")
Encode = Callable[[Sequence[str]], list[Ids]]


def tokenizer_of(
    settings: Settings, texts: Iterable[str], *, rows: Sequence[str] | None = None, lengths_only: bool = False
) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer of the settings' model, and what a forecast must say of it.

    `texts` are only read where a tokenizer is learned; of the same `rows` (their identity) it is learned once and kept
    on disk. With `lengths_only` byte pairs of the texts stand in for a tokenizer that is not on this machine.

    Raises:
        UnknownModel, MissingExtra: it cannot be loaded.
        InvalidSettings: it has more ids than the model.
    """
    name = settings.model.name
    if is_from_scratch(settings) and not _has_files(name):
        return _tokenizer_from_before() or learned_tokenizer(settings, texts, rows), ()
    try:
        tokenizer = _pretrained(settings, lengths_only)
    except (UnknownModel, MissingExtra):
        if not lengths_only:
            raise
        message = f"tokens are those of byte pairs learned from the data; the tokenizer of {name} is not here."
        return learned_tokenizer(settings, texts, rows), (message,)
    if tokenizer.pad_token is None:
        spare = next((token for token in SPARE if token in tokenizer.get_vocab()), tokenizer.eos_token)
        tokenizer.pad_token = spare
    size = int(config_of(settings).vocab_size)
    if len(tokenizer) > size:
        raise InvalidSettings(
            f"model.name: a model has an id for every token of its tokenizer; found {len(tokenizer):,} tokens and "
            f"{size:,} ids of {name}. Take the tokenizer that belongs to it, or set model.config.vocab_size."
        )
    return tokenizer, ()


def learned_tokenizer(settings: Settings, texts: Iterable[str], rows: Sequence[str] | None = None) -> Any:
    """Byte pairs of `texts` with as many ids as the model has, as a tokenizer of transformers.

    With `rows`, the identity of what `texts` are of, the pairs of an earlier process are opened.

    Raises:
        InvalidSettings: the model has too few ids for the bytes and the special tokens.
    """
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    config = config_of(settings)
    special = _special_tokens(config, settings.workload)
    needed_ids = len(special) + 256
    if config.vocab_size < needed_ids:
        raise InvalidSettings(
            f"model.config.vocab_size: bytes and special tokens alone take {needed_ids} ids; found "
            f"{config.vocab_size}. Set it to {needed_ids} or more."
        )

    def learn() -> Tokenizer:
        return learn_byte_pairs(texts, config.vocab_size, list(special), pieces=ANY_SCRIPT, minimum_count=MINIMUM_COUNT)

    meaning = {"workload": settings.workload, "size": config.vocab_size, "special": list(special)}
    tokenizer = learn() if rows is None else stored_byte_pairs(rows, meaning, learn)
    if settings.workload == "masked-lm":
        tokenizer = _with_blank_before_mask(tokenizer)
    if settings.workload == "seq2seq-lm":
        tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[(END, special[END])])  # type: ignore[assignment]
    elif settings.workload not in GENERATING:
        tokenizer.post_processor = TemplateProcessing(  # type: ignore[assignment]
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
            special_tokens=[(START, special[START]), (END, special[END])],
        )  # fmt: skip
    more = {"additional_special_tokens": [f"<{role}>" for role in ROLES], "chat_template": CHAT_TEMPLATE}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=START, eos_token=END, cls_token=START, sep_token=END,
        mask_token=MASK, clean_up_tokenization_spaces=False, **(more if settings.workload in GENERATING else {}),
    )  # fmt: skip


def _with_blank_before_mask(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer whose mask token takes the blank before it, as RoBERTa's: ` word` is one piece, ` <mask>` too."""
    facts = json.loads(tokenizer.to_str())
    for token in facts["added_tokens"]:
        token["lstrip"] = token["content"] == MASK
    return Tokenizer.from_str(json.dumps(facts))


def encoded(
    tokenizer: Any, texts: Iterable[tuple[str, str | None]], sequence_length: int, *, are_pairs: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Ids and types of each text, or pair of texts, with special tokens, cut to `sequence_length`."""
    if not are_pairs and is_word_by_word(tokenizer):
        yield from _words_encoded(tokenizer, (text for text, _ in texts), sequence_length)
        return
    for part in in_batches(texts, lambda both: len(both[0]) + len(both[1] or "")):
        batch = tokenizer(
            [text for text, _ in part], [pair or "" for _, pair in part] if are_pairs else None, truncation=True,
            max_length=sequence_length, verbose=False, return_token_type_ids=True, return_attention_mask=False,
        )  # fmt: skip
        for ids, types in zip(batch["input_ids"], batch["token_type_ids"], strict=True):
            yield {"input_ids": ids, "token_type_ids": types}


def _words_encoded(tokenizer: Any, texts: Iterable[str], sequence_length: int) -> Iterator[Mapping[str, Any]]:
    before, after = around_texts(tokenizer)
    room = sequence_length - len(before) - len(after)
    for ids in plain_ids(plain_encoder(tokenizer), texts):
        whole = [*before, *ids[:room].tolist(), *after]
        yield {"input_ids": whole, "token_type_ids": [0] * len(whole)}


def ask_as_trained(tokenizer: Any, start_id: int | None, *, is_chat: bool) -> None:
    """Make `tokenizer(text)` of plain texts begin with `start_id`, as rows did, and take a chat template away that no
    row went through: whoever opens the files in transformers then asks as `forerun generate` does."""
    from tokenizers.processors import TemplateProcessing

    if is_chat:
        return
    tokenizer.chat_template = None
    if start_id is None or tokenizer("a")["input_ids"][:1] == [start_id]:
        return
    start = tokenizer.convert_ids_to_tokens(start_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{start} $A", pair=f"{start} $A $B:1", special_tokens=[(start, start_id)]
    )


def plain_encoder(tokenizer: Any) -> Encode:
    """What gives the ids of texts without special tokens around; it remembers the words of a learned tokenizer."""
    if is_word_by_word(tokenizer):
        return WordIds(tokenizer)

    def encode(texts: Sequence[str]) -> list[Ids]:
        batch = tokenizer(
            texts, add_special_tokens=False, verbose=False, return_attention_mask=False, return_token_type_ids=False
        )
        return [np.asarray(ids, np.int32) for ids in batch["input_ids"]]

    return encode


def plain_ids(encode: Encode, texts: Iterable[str]) -> Iterator[Ids]:
    """Ids of each text, many of them encoded at once."""
    for part in in_batches(texts, len):
        yield from encode(part)


def in_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in lists of at most `TEXTS_AT_ONCE` and about `LETTERS_AT_ONCE` letters: what is in memory at once."""
    part: list[T] = []
    letters = 0
    for item in items:
        part.append(item)
        letters += size(item)
        if len(part) == TEXTS_AT_ONCE or letters >= LETTERS_AT_ONCE:
            yield part
            part, letters = [], 0
    if part:
        yield part


def around_texts(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    places = [n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain]
    return (whole[: places[0]], whole[places[0] + len(plain) :]) if places else ([], [])


def cutting_rule(folder: Path) -> Any:
    """How the tokenizer in a folder cuts texts before it looks for byte pairs; None without one."""
    path = folder / TOKENIZER_FILES[0]
    return json.loads(path.read_text(encoding="utf-8"))["pre_tokenizer"] if path.exists() else None


def _tokenizer_from_before() -> Any:
    """The tokenizer of the run that is opened again, if it was learned by another rule."""
    from transformers import AutoTokenizer

    folder = RUN_FOLDER.get()
    rule = None if folder is None else cutting_rule(folder)
    if rule is None or rule == json.loads(by_words(ANY_SCRIPT).__getstate__()):
        return None
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _has_files(name: str) -> bool:
    return any((Path(name) / file).exists() for file in TOKENIZER_FILES)


def _pretrained(settings: Settings, lengths_only: bool) -> Any:
    name = settings.model.name
    if is_smollm2(name):
        return smollm2_tokenizer()
    return load_tokenizer(
        first_weights(settings) or name, local_only=lengths_only, purpose=f"{name} is needed to train on your data",
        instead="Give a local directory with one, or go online.",
    )  # fmt: skip


def _special_tokens(config: Any, workload: str) -> dict[str, int]:
    """Special tokens in the order of their ids; where the configuration names an id of a token, that one."""
    tokens = [PAD, START, END, MASK]
    tokens += [f"<{role}>" for role in ROLES] if workload in GENERATING else []
    names = {PAD: "pad_token_id", START: "bos_token_id", END: "eos_token_id"}
    wishes = {token: getattr(config, name, None) for token, name in names.items()}  # T5 has no start token
    places: dict[int, str] = {}
    for token, wish in wishes.items():
        if isinstance(wish, int) and 0 <= wish < len(tokens) and wish not in places:
            places[wish] = token
    rest = [token for token in tokens if token not in places.values()]
    for place in range(len(tokens)):
        if place not in places:
            places[place] = rest.pop(0)
    return {places[place]: place for place in range(len(tokens))}
