"""One fence key: its floor, its sends by token, and the hand-over from one token to the next (R1, R3, R5).

The rules, for a key with floor f:

1. A token below f is stale; one that equals a sealed f is sealed. Both are refused, always.
2. A token above f raises the floor first, durably; only `raised` tells the gate so. Where our own leases issue the
   key's tokens, a write's never does: nobody has issued it (R10).
3. A send passes its commit point (`enter`) only while its token is f and no unsettled send has a lower one.
4. When the floor rises, staged sends with lower tokens are to be cancelled, those past their commit point are
   waited for. Then the hand-over is complete, and the completed floor follows.
5. After an unclean start, what the last run sent may still land until `unsettled_until`: a token above the completed
   floor waits for that moment.
6. An operator's word settles what is in doubt, and nothing that still awaits its answer.
7. A gate that is closed, since the job is being completed, lets no send of the floor's token pass its commit point,
   until it is opened again. What has passed is waited for, of that token too.

The gate decides and remembers; it does no I/O and has no clock: `now` is monotonic seconds, given by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from gateway.core.errors import Malformed, Reason, Refused, TryAgain
from gateway.core.keys import NO_TOKEN, UNLIMITED, FencingKey, Token, TokenLimits
from gateway.core.write import IllegalTransition, Phase, Signal, advance


class Admission(Enum):
    """What has to happen before a token that is not too low may go on."""

    GO = auto()
    RAISE = auto()
    """Raise the floor durably, tell `raised`, wait for the hand-over."""
    HAND_OVER = auto()
    """The floor is already there, its hand-over is not yet complete: wait for it."""


@dataclass(eq=False, slots=True)
class Send:
    """One send of a gate. Belongs to it from `stage` until it is settled."""

    token: Token
    settle_timeout_s: float
    phase: Phase = Phase.STAGED
    settles_at: float = math.inf
    """When a send in doubt is settled by time-out, monotonic seconds."""

    @property
    def unsettled(self) -> bool:
        """Past its commit point and still able to take effect."""
        return self.phase is Phase.COMMITTING or self.phase is Phase.IN_DOUBT


class Gate:
    """The fence of one key. `floor`, `completed_floor` and `sealed_token` are the durable ones."""

    def __init__(
        self,
        key: FencingKey,
        floor: int = 0,
        completed_floor: int = 0,
        sealed_token: int = 0,
        unsettled_until: float = -math.inf,
        granted_token: int = 0,
    ) -> None:
        self.key = key
        self.floor = floor
        self.completed_floor = completed_floor
        self.sealed_token = sealed_token
        self.unsettled_until = unsettled_until
        self.granted_token = granted_token
        """The highest that our own leases have issued; 0: this key's tokens come from elsewhere."""
        self._closed_to: int | None = None
        """The token whose work is being completed; None: the gate is open."""
        self._sends: dict[Send, None] = {}  # in their order: a set's would differ from run to run

    def admit(self, token: Token, limits: TokenLimits = UNLIMITED, *, issued: bool = False) -> Admission:
        """What a write of `token` has to do before it may be staged. Raises `Refused` (stale or sealed), and
        `Malformed` (TokenNotIssued, TokenJump) for one that may not raise the floor, or not so far. `issued`: an
        operator vouches for it."""
        self.refuse_overtaken(token)
        if token > self.floor:
            if self.granted_token and not issued:
                raise self._not_issued(token)
            limits.refuse_beyond(self.key, token, self.floor)
            return Admission.RAISE
        return Admission.GO if token <= self.completed_floor else Admission.HAND_OVER

    def _not_issued(self, token: Token) -> Malformed:
        return Malformed(
            Reason.TOKEN_NOT_ISSUED,
            f"No lease has been granted with token {token}: the tokens of {self.key!r} come from this gateway's own "
            f"leases, the highest of which was {self.granted_token}. Acquire a lease, and send its token.",
            key=self.key,
            token=token,
            floor=self.floor,
            argument=("X-Fencing-Token", str(token)),
        )

    def refuse_overtaken(self, token: Token) -> None:
        """Raises `Refused` if `token` is below the floor, or sealed; no token is token 0."""
        if token == self.floor != self.sealed_token:
            return  # by far the most
        if token == NO_TOKEN < self.floor:
            raise Refused(
                Reason.TOKEN_REQUIRED,
                f"{self.key!r} is fenced: token {self.floor} holds it, and this write bears none. Send the token of "
                "your lease in X-Fencing-Token.",
                key=self.key,
                floor=self.floor,
            )
        if token < self.floor:
            raise Refused(
                Reason.STALE_TOKEN,
                f"Token {token} is stale: token {self.floor} now holds {self.key!r}. Another worker has taken over "
                "this job; stop, discard your result, and do not retry with this token.",
                key=self.key,
                token=token,
                floor=self.floor,
            )
        if token and token == self.sealed_token:
            raise Refused(
                Reason.SEALED,
                f"Token {token} of {self.key!r} is sealed: its work has been completed or given up, and it may write "
                "no more. A new lease brings a new token.",
                key=self.key,
                token=token,
                floor=self.floor,
            )

    def raised(self, floor: int, sealed_token: int = 0) -> list[Send]:
        """The store has made `floor` durable. Answers the staged sends that are overtaken; the caller cancels them.

        A lower `floor` than the gate's changes nothing: a floor never falls."""
        self.floor = max(self.floor, floor)
        self.sealed_token = max(self.sealed_token, sealed_token)
        return [s for s in self._sends if s.phase is Phase.STAGED and self.overtaken(s.token)]

    def granted(self, token: int) -> None:
        """Our own leases have issued `token`: from now on they alone issue this key's."""
        self.granted_token = max(self.granted_token, token)

    def overtaken(self, token: int) -> bool:
        """Whether `token` is below the floor, or sealed."""
        return token < self.floor or (token > 0 and token == self.sealed_token)

    def stage(self, token: Token, settle_timeout_s: float) -> Send:
        """Begin a send. Raises `Refused` if the token has been overtaken."""
        self.refuse_overtaken(token)
        send = Send(token, settle_timeout_s)
        self._sends[send] = None
        return send

    def may_enter(self, send: Send) -> bool:
        """Whether the send may pass its commit point now."""
        return (
            send.token == self.floor == self.completed_floor
            and not (send.token and send.token == self.sealed_token)
            and send.phase is Phase.STAGED
            and send.token != self._closed_to
            and not self._lower_unsettled(send.token)
        )

    def enter(self, send: Send) -> None:
        """Pass the commit point. Raises `Refused` if overtaken, `TryAgain` while the gate is closed. The hand-over of
        an admitted token is complete and stays so, hence nothing else can keep it out; if it does, that is
        `IllegalTransition`."""
        self.refuse_overtaken(send.token)
        if not self.may_enter(send):
            if send.token == self._closed_to:
                raise self._being_completed(send.token)
            raise IllegalTransition(
                f"a send of token {send.token} at its commit point before its hand-over is complete"
            )
        send.phase = advance(send.phase, Signal.ENTER)

    def _being_completed(self, token: int) -> TryAgain:
        return TryAgain(
            Reason.HANDOVER_PENDING,
            f"The work of token {token} on {self.key!r} is just being completed, so it writes no more. Send the "
            "request again: should the completion fail, it goes through.",
            key=self.key,
            token=token,
            floor=self.floor,
            retry_after_s=1.0,
        )

    def close(self, token: Token) -> None:
        """Let no send of `token` pass its commit point any more. Raises `Refused` if it has been overtaken."""
        self.refuse_overtaken(token)
        assert token == self.floor, "only who holds the floor completes"
        self._closed_to = token

    def open(self) -> None:
        """Let sends pass again, as far as they are not overtaken."""
        self._closed_to = None

    def quiet(self, now: float) -> float | None:
        """None: nothing that has been sent so far can take effect any more. Else the latest moment until which that
        may take, infinity while an answer is still awaited."""
        wait = max([self.unsettled_until, *(s.settles_at for s in self.unsettled())])
        return wait if wait > now else None

    def lost(self, send: Send, now: float) -> None:
        """The answer is lost and the connection reset: in doubt until the settle time-out."""
        send.phase = advance(send.phase, Signal.LOST)
        send.settles_at = now + send.settle_timeout_s

    def settle(self, send: Send, signal: Signal) -> None:
        """The send can no longer take effect, or its effect is known."""
        send.phase = advance(send.phase, signal)
        self._sends.pop(send, None)

    def expire(self, now: float) -> list[Send]:
        """Settle by time-out what is due; answers what was settled."""
        due = [s for s in self._sends if s.settles_at <= now]
        for send in due:
            self.settle(send, Signal.TIMED_OUT)
        return due

    def overrule(self, sends: Iterable[Send]) -> list[Send]:
        """Settle, on an operator's word, those of `sends` that are still in doubt; answers them. What still awaits its
        answer is left alone: its connection may deliver yet."""
        doubtful = [s for s in sends if s.phase is Phase.IN_DOUBT]
        for send in doubtful:
            self.settle(send, Signal.OVERRULED)
        return doubtful

    def hand_over(self, token: Token, now: float) -> float | None:
        """Try to complete the hand-over to `token`. None: it is complete, and the completed floor has followed. Else
        the latest moment until which it may have to wait, infinity while an answer is still awaited; a moment that has
        passed means that `expire` is due.
        Raises `Refused` if the token has been overtaken meanwhile."""
        self.refuse_overtaken(token)
        if token <= self.completed_floor:
            return None
        assert token == self.floor, "only a durable floor is handed over"
        return self.hand_over_floor(now)

    def hand_over_floor(self, now: float) -> float | None:
        """The same to the floor, whoever may still write under it: nobody if it is sealed."""
        lower = self._lower_unsettled(self.floor)
        wait = max([self.unsettled_until, *(s.settles_at for s in lower)])
        if lower or wait > now:
            return wait
        self.completed_floor = self.floor
        return None

    def _lower_unsettled(self, token: int) -> list[Send]:
        return [s for s in self._sends if s.token < token and s.unsettled]

    def unsettled(self) -> Iterator[Send]:
        """The sends that may still take effect."""
        return (s for s in self._sends if s.unsettled)

    @property
    def idle(self) -> bool:
        """Nothing is staged or unsettled: the gate holds no more than the store does."""
        return not self._sends
