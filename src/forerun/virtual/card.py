"""What a recorder asks of the card whose memory is played along."""

from typing import Protocol


class Card(Protocol):
    """Memory of a card that is played along with the program; raises `torch.OutOfMemoryError` when it is full."""

    def allocate(self, key: int, size: int, stream: int = 0, card: int = 0, reduces: int = 0) -> None:
        """Give `size` bytes to the storage `key`, from the pool of `stream`; of the `card` of that number.

        `reduces` as in `Storage`.
        """
        ...

    def free(self, key: int) -> None:
        """Take them back."""
        ...
