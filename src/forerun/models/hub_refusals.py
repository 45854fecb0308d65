"""What a Hugging Face hub refuses, and what to do about it: the remedy for each kind of error of its client.

The errors of `huggingface_hub` (2.4) come wrapped in those of transformers, so the chain of causes is looked through.
"""

from collections.abc import Iterator

PIN = "@"
"""Between an id and its revision: `owner/name@v1.0`; no id has this letter."""
RATE_LIMITED = 429


def pinned(name: str) -> tuple[str, str | None]:
    """An id and the branch, tag or commit that it is pinned to."""
    identity, _, revision = name.partition(PIN)
    return identity, revision or None


def hub_remedy(error: BaseException, name: str, instead: str) -> str:
    """What helps where the hub did not give `name`; `instead` where nothing more exact is known."""
    identity, revision = pinned(name)
    for each in _chain(error):
        kind = type(each).__name__
        response = getattr(each, "response", None)
        if kind == "GatedRepoError":
            return (
                f"Its owner asks for consent: accept its terms on the page of {identity}, then log in with `hf auth "
                f"login`. Or give a folder with its config.json, which a forecast needs and no more."
            )
        if kind == "RevisionNotFoundError":
            return f"{identity} has no revision {revision!r}. Name another after {PIN}, or leave it out."
        if kind == "RepositoryNotFoundError":
            return f"Check the id, or log in with `hf auth login` where it is private. {instead}"
        if "trust_remote_code" in str(each):
            return (
                "Its architecture is code of its own, which forerun never runs. To forecast it by choice, put the "
                "training script that loads it under forerun exec."
            )
        if "Unrecognized model" in str(each):  # transformers/models/auto/configuration_auto.py:450 (5.23)
            return f"{identity} has no config.json that names a type of transformers. {instead}"
        if getattr(response, "status_code", None) == RATE_LIMITED:
            seconds = response.headers.get("Retry-After") if response is not None else None
            wait = f"{seconds} s" if seconds else "some minutes"
            return f"The hub limits requests: wait {wait}, or log in for a higher limit."
    if any("Timeout" in type(each).__name__ for each in _chain(error)):
        return "The hub did not answer in time: try again, or raise HF_HUB_ETAG_TIMEOUT (seconds)."
    return f"A folder with its config.json is enough, and needs no hub. {instead}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__
