"""How leases say no: each answer once, with what its reader has to do."""

from __future__ import annotations

from gateway.core.keys import FencingKey, Token


class LeaseError(Exception):
    """A call on a lease that was not done. The message is for people."""

    def __init__(self, key: FencingKey, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


class Held(LeaseError):
    """Somebody else holds the key; ask later, or wait in line."""

    def __init__(
        self, key: FencingKey, holder: str | None, expires_in_s: float, free_in_s: float, *, pending: bool = False
    ) -> None:
        """`holder` None: others stand in line before. `pending`: the holder's time has not begun."""
        held = f"{holder!r} holds it for {expires_in_s:.1f} s more, unless it is renewed"
        if pending:
            held = f"{holder!r} has been granted it, for {expires_in_s:.1f} s from the end of its pending hand-over"
        elif not expires_in_s:
            held = (
                f"the lease of {holder!r} has run out, and the key is free in {free_in_s:.1f} s, unless it is renewed"
            )
        why = "others wait for it" if holder is None else held
        super().__init__(key, f"{key!r} cannot be had now: {why}. Ask later, or wait in line (`wait_s`, or `--wait`).")
        self.holder = holder
        self.expires_in_s = expires_in_s
        self.free_in_s = free_in_s


class Lost(LeaseError):
    """The lease is over: stop the work, and begin anew with another lease."""

    def __init__(self, key: FencingKey, token: Token, floor: int, *, sealed: bool) -> None:
        why = "has been given up, completed or shut out" if sealed else f"is overtaken: token {floor} holds the key"
        super().__init__(key, f"Token {token} of {key!r} {why}. Stop, and discard what is not yet written.")
        self.token = token
        self.floor = floor
        self.sealed = sealed


class Capped(LeaseError):
    """The lease goes on until it runs out, and cannot be renewed any more."""

    def __init__(self, key: FencingKey, token: Token, expires_in_s: float) -> None:
        super().__init__(
            key,
            f"The lease of token {token} on {key!r} has been renewed as often, or for as long, as [lease] in the "
            f"gateway's settings allows; it ends in {expires_in_s:.1f} s.",
        )
        self.token = token
        self.expires_in_s = expires_in_s


class Completed(LeaseError):
    """The job is done: there is nothing to lease, unless an operator reopens it."""

    def __init__(self, key: FencingKey, token: Token) -> None:
        super().__init__(
            key, f"{key!r} has been completed by token {token}. To have it done again, reopen it (`job reopen`)."
        )
        self.token = token


class Exhausted(LeaseError):
    """No higher token is left: the job needs another key."""

    def __init__(self, key: FencingKey) -> None:
        super().__init__(key, f"The floor of {key!r} is the highest token there is. Give the job another key.")


class Repeated(LeaseError):
    """An idempotency key has come again with another request: use a new one for each."""

    def __init__(self, key: FencingKey) -> None:
        super().__init__(
            key, f"This Idempotency-Key was sent before for {key!r}, with another holder or time. Draw a new one."
        )
