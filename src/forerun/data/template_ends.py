"""At which tokens does an answer end, and a call of a tool? Tried with one of each.

Most templates write the token themselves after both (`<|im_end|>`). gpt-oss ends a call in `<|call|>`, Gemma 4 in
`<|tool_response>`; GLM 4.5 ends nothing: its model stops at the token with which the next message begins.

Not covered: a call that ends in a token which is not special to the tokenizer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forerun.data.template_tools import QUESTION, RESULT, TOOL, VALUE, CallForm, Render, answer_of, call_of, in_form

PROBE, NEXT = "PROBE", "NEXT"


def end_of_answer(render: Callable[[Sequence[Mapping[str, Any]]], str], tokenizer: Any) -> tuple[str, str] | None:
    """What stands after an answer, and the token that is left to the next message; empty where the template ends it.

    None where the template leaves out what messages say.
    """
    exchange = [{"role": "user", "content": NEXT}, {"role": "assistant", "content": PROBE}]
    whole = render(exchange)
    if NEXT not in whole or PROBE not in whole:
        return None
    after = whole.rpartition(PROBE)[2]
    if after:
        return after, ""
    following = render([*exchange, {"role": "user", "content": NEXT}]).rpartition(PROBE)[2].partition(NEXT)[0]
    token = first_special(following, tokenizer)
    return token, token


def end_of_call(render: Render, tokenizer: Any, form: CallForm) -> tuple[int | None, str]:
    """Id of the token that a call ends in, and that token where it is left to the tool's result; None without one."""
    result = {"role": "tool", "tool_call_id": "probecall", "name": call_of()["function"]["name"], "content": RESULT}
    messages = in_form([QUESTION, answer_of(call_of()), result], form)
    called, whole = render(messages[:2], [TOOL]), render(messages, [TOOL])
    if called is None:
        return None, ""
    after = called.rpartition(VALUE)[2]
    special = _special_ids(tokenizer)
    ids = tokenizer(after, add_special_tokens=False)["input_ids"]
    place = max((place for place, token in enumerate(ids) if token in special), default=None)
    if place is not None and not tokenizer.decode(ids[place + 1 :]).strip():
        return ids[place], ""
    token = first_special(whole[len(called) :], tokenizer) if whole is not None and whole.startswith(called) else ""
    return (tokenizer.convert_tokens_to_ids(token), token) if token else (None, "")


def first_special(text: str, tokenizer: Any) -> str:
    """The special token with which `text` begins; empty where it begins otherwise."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:1]
    return str(tokenizer.convert_ids_to_tokens(ids[0])) if ids and ids[0] in _special_ids(tokenizer) else ""


def _special_ids(tokenizer: Any) -> set[int]:
    added = {token for token, facts in tokenizer.added_tokens_decoder.items() if facts.special}
    return added | {tokenizer.eos_token_id}
