"""The place where a library comes from."""

from typing import NamedTuple


class Origin(NamedTuple):
    """The place where a library comes from: a file, or ``path=None`` where it was compiled in this process."""

    path: str | None = None
    signer: str | None = None
    """The public key (64 hexadecimal digits) that a file's signature names; anybody can name any key."""
    trusted: bool = False
    """Whether the signature was checked, and is by one of the trusted keys."""

    def __str__(self) -> str:
        if self.path is None:
            return "compiled here"
        if self.signer is None:
            return f"{self.path}, unsigned"
        state = "" if self.trusted else " (not checked: no trusted keys were given)"
        return f"{self.path}, signed by {self.signer}{state}"
