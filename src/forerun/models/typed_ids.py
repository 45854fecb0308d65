"""What does somebody mean who types an address, a copy's id or a packed file's name in place of a hub id?

`plain_id` makes an id of a page's address ("https://huggingface.co/Qwen/Qwen3-8B/tree/main") and of "hf.co/…".
`packing` tells by its end that an id or file is a copy packed for running ("…-GGUF", "…-AWQ", "q4_K_M"), which nothing
trains as it is, and `unpacked` what is before that end.
"""

import re

ADDRESS = re.compile(r"^(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com)/|hf://)(?:models/)?", re.I)
PAGES = ("tree", "blob", "resolve", "commit")
"""Parts of a page's address before a revision."""
MAIN = "main"
PACKED = re.compile(
    r"[-_.:](?:gguf|gptq|awq|exl[23]|mlx|hqq|aqlm|autoround|quip|fp8|nvfp4|mxfp4|int[48]|w\d+a\d+|quantized|\d(?:\.\d+)?-?bit"
    r"|i?q[2-8](?:_[0-9k]\w*)?)(?![a-z0-9]).*$",
    re.IGNORECASE,
)
"""From where on an id says how its weights are packed."""
BITSANDBYTES = re.compile(r"(-unsloth)?-bnb-4bit$")
"""End of the ids of copies whose weights bitsandbytes packed, which train with adapters."""
COPIERS = ("unsloth",)
"""Owners of unchanged copies of others' models under the same names."""


def plain_id(name: str) -> str:
    """The id of a page's address, with its revision behind @ where that is not main; any other name as it is."""
    address = ADDRESS.match(name.strip())
    if address is None:
        return name.removesuffix(f"@{MAIN}")
    parts = re.split(r"[?#]", name.strip()[address.end() :])[0].strip("/").split("/")
    revision = parts[3] if len(parts) > 3 and parts[2] in PAGES else MAIN
    return "/".join(parts[:2]) + ("" if revision == MAIN else f"@{revision}")


def packing(name: str) -> str:
    """How the copy of an id or file name is packed ("GGUF", "AWQ"), empty where the name does not say."""
    if BITSANDBYTES.search(name.lower()):
        return ""
    match = PACKED.search(name)
    return re.split(r"[-_.:]", match[0][1:])[0].upper() if match else ""


def unpacked(name: str) -> str:
    """The name without its owner and without how it is packed."""
    return PACKED.sub("", BITSANDBYTES.sub("", name.rpartition("/")[2].lower()))


def is_copy(name: str) -> bool:
    """Whether the owner of an id publishes others' models unchanged."""
    return name.lower().partition("/")[0] in COPIERS and "/" in name
