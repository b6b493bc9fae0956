"""An aggregator's sums of a step, which are formed as gradients arrive, in memory that does not grow with the workers.

The gradient of a piece stays with its worker until the step is over. What an aggregator needs of it is cut into
*buckets*, the same for all pieces. Of each bucket, the aggregator adds the pieces in the order of its list, so that the
sum depends on the pieces alone, bit for bit, and not on when they arrive. A worker sends what it is *asked* for: so
much that what was asked for and what waits for its turn (*kept*) stay within a budget. Events in, actions out, as this
table says of one bucket of one piece (rows: its state; an entry gives the transition)::

    state      PieceOffered       BucketArrived       Answered         list that lacks the piece
    UNKNOWN    -> OFFERED         turn: ADD           -                -
                                  room: -> KEPT
    OFFERED    -                  turn: ADD           -                -> UNKNOWN
      |                           room: -> KEPT
      +- room: -> ASKED (ASK)
    ASKED      first ones that    turn: ADD           lost: -> OFFERED -> UNKNOWN
               were lost:         else: -> KEPT
               -> OFFERED
    KEPT       -                  -                   -                -> UNKNOWN (DROP)
      |
      +- turn: ADD
    ADDED      -                  -                   -                its bucket begins again

*Turn* means that every earlier piece of the list is added to this bucket. Of a piece in the aggregator's own memory
nothing is asked; it is added when it is offered and has its turn.

**Exactly once.** A sum is the sum of a prefix of the list: the next piece is added when it is there, and the position
moves on; whatever arrives again finds its position passed. A new list, which comes when a worker is lost, keeps a sum
if what it consists of begins the new list too, and drops it otherwise: then the pieces are asked for again. Only when
every bucket has the whole list is the step `ListSummed`.

**Room.** The first buckets of a worker's own share are sent without being asked for, and their room is set aside: all
of them if the budget holds those of all workers, so that small models need no further message. What can be added as
soon as the link has carried it may use all of the budget, what has to wait for another worker leaves a quarter of it.
If nothing is on its way, one bucket that has its turn is asked for in any case. So at most the budget and one bucket
are asked for or kept, and there is always progress.

**Migration.** The aggregator may come to hold other buckets (`HoldBuckets`). What it gives up is dropped at once; a
bucket that it gains has no sum before the next list, since until then another aggregator may be adding to it.

**Lost messages.** A link delivers in order, but may break, and then loses consecutive messages. A worker answers a
question after all that it was asked for before. So what has not arrived by then was lost, and is asked for again;
`NothingArrived` asks workers that have been silent. Nothing that arrived is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scavenger.elastic import sum_events as se

_RESERVE = 4
"""One in so many bytes of the budget is for what can be added on arrival."""
_UNASKED = 2
"""One in so many bytes of the budget is for what is sent without being asked for, if it does not hold everything."""


def unasked(sizes: Sequence[int], budget_bytes: int, workers: int) -> int:
    """Return how many buckets a worker sends of its own share without being asked for.

    Args:
        sizes: Largest size of each bucket, bytes.
        budget_bytes: The aggregator's budget.
        workers: Number of workers that may do so.
    """
    room, count = budget_bytes // max(1, workers), 0
    if sum(sizes) <= room:
        return len(sizes)
    room //= _UNASKED
    for size in sizes:
        room -= size
        if room < 0:
            break
        count += 1
    return count


class Sums:
    """The sums of one aggregator. Not thread-safe; feed it one event at a time.

    Args:
        sizes: Largest size of each bucket, bytes.
        budget_bytes: How much may be asked for or kept, apart from one bucket.

    Attributes:
        expected: The newest list; None before the first.
        used_bytes: How much is asked for or kept, with what may arrive without being asked for.
    """

    def __init__(self, sizes: Sequence[int], budget_bytes: int) -> None:
        self._sizes, self._budget = tuple(sizes), budget_bytes
        self.expected: se.PieceList | None = None
        self.used_bytes = 0
        self._largest = max(self._sizes, default=0)
        self._positions: dict[int, int] = {}
        self._added = [0] * len(sizes)
        self._held = self._active = tuple(range(len(sizes)))
        """The buckets that the aggregator holds, and those of them that have sums of the newest list."""
        self._is_active = [True] * len(sizes)
        self._open = 0
        """Active buckets that lack a piece of the list; the lowest has at least index `_first` among them."""
        self._first = 0
        self._offers: dict[int, se.PieceOffered] = {}
        self._asked: dict[int, dict[int, int]] = {}
        """Of each piece, the buckets that were asked for and the numbers of the questions; 0 for unasked ones."""
        self._kept: dict[int, set[int]] = {}
        self._senders: dict[int, str] = {}
        """Of each piece of which a bucket is kept, the worker that has sent it."""
        self._questions = 0
        self._newest = -1
        """The highest number of a piece so far; only a higher one can belong to a list that is not here yet."""

    @property
    def formed(self) -> bool:
        """Whether every bucket has the whole list."""
        return self.expected is not None and self._open == 0

    @property
    def awaited(self) -> tuple[str, ...]:
        """The workers whose gradients have not arrived as a whole."""
        if self.expected is None or self.formed:
            return ()
        low = min(self._added[bucket] for bucket in self._active)
        return tuple(dict.fromkeys(term.worker for term in self.expected.terms[low:]))

    def handle(self, event: se.Event) -> list[se.Action]:
        """Process one event; returns the resulting actions, in order."""
        match event:
            case se.PieceList():
                return self._expect(event)
            case se.PieceOffered():
                return self._offered(event)
            case se.BucketArrived():
                return self._arrived(event)
            case se.Answered():
                return self._answered(event)
            case se.HoldBuckets():
                return self._hold(event)
            case se.NothingArrived():
                return self._tick()

    # ---- one method per event ------------------------------------------------------------------------------

    def _expect(self, event: se.PieceList) -> list[se.Action]:
        before = self.expected
        if before is not None and event <= before:
            return [se.ListSummed(before)] if self.formed and event == before else []
        self.expected = event
        self._positions = {term.piece: position for position, term in enumerate(event.terms)}
        self._newest = max((self._newest, *self._positions, *(() if event.terms else self._offers)))
        self._keep_sums(before, event)
        actions = self._forget_pieces()
        for term in event.terms:
            if term.piece in self._offers or term.unasked == 0:
                continue
            asked, kept = self._asked.setdefault(term.piece, {}), self._kept.get(term.piece, set())
            for bucket in self._held[: term.unasked]:
                if self.used_bytes + self._sizes[bucket] > self._budget:
                    break
                if bucket not in kept and bucket not in asked and not self._is_added(term.piece, bucket):
                    asked[bucket] = 0
                    self.used_bytes += self._sizes[bucket]
        for bucket in self._active:
            actions += self._add_in_turn(bucket)
        return actions + self._make_room() + self._go_on(changed=True)

    def _offered(self, event: se.PieceOffered) -> list[se.Action]:
        if event.piece in self._offers:
            return self._lose(event.piece, 0)
        if not self._is_expected(event.worker, event.piece):
            return []
        self._offers[event.piece] = event
        actions: list[se.Action] = []
        if event.own:
            for bucket in list(self._asked.pop(event.piece, ())):
                self.used_bytes -= self._sizes[bucket]
            if (position := self._positions.get(event.piece)) is not None:
                for bucket in self._active:
                    if self._added[bucket] == position:
                        actions += self._add_in_turn(bucket)
            return actions + self._go_on(changed=bool(actions))
        # it was sent after the first ones
        return self._lose(event.piece, 0) or self._go_on()

    def _arrived(self, event: se.BucketArrived) -> list[se.Action]:
        piece, bucket = event.piece, event.bucket
        if not 0 <= bucket < len(self._sizes) or not self._is_active[bucket]:
            return []
        if not self._is_expected(event.worker, piece):
            return []
        if self._is_added(piece, bucket) or bucket in self._kept.get(piece, ()):
            return []
        if asked := self._asked.get(piece, {}).pop(bucket, None) is not None:
            self.used_bytes -= self._sizes[bucket]
        position = self._positions.get(piece)
        if position is not None and self._added[bucket] == position:
            self._step_on(bucket)
            return [se.Add(piece, bucket, position), *self._add_in_turn(bucket), *self._go_on(changed=True)]
        if not asked and self.used_bytes + self._sizes[bucket] > self._budget - self._reserve:
            return []
        self._kept.setdefault(piece, set()).add(bucket)
        self._senders[piece] = event.worker
        self.used_bytes += self._sizes[bucket]
        return [se.Keep(piece, bucket)]

    def _answered(self, event: se.Answered) -> list[se.Action]:
        offer = self._offers.get(event.piece)
        if offer is None or offer.worker != event.worker:
            return []
        return self._lose(event.piece, event.question)

    def _hold(self, event: se.HoldBuckets) -> list[se.Action]:
        kept, actions = {*event.buckets}, list[se.Action]()
        for piece in list(self._kept):
            for bucket in sorted(self._kept[piece] - kept):
                self._release(piece, bucket)
                actions.append(se.Drop(piece, bucket))
        for asked in self._asked.values():
            for bucket in asked.keys() - kept:
                del asked[bucket]
                self.used_bytes -= self._sizes[bucket]
        self._held, self._budget = event.buckets, event.budget_bytes
        self._activate(bucket for bucket in self._active if bucket in kept)
        return actions

    def _tick(self) -> list[se.Action]:
        if self.expected is None:
            return []
        if self.formed:
            return [se.ListSummed(self.expected)]
        asking = self._go_on()
        asked = {action.piece for action in asking if isinstance(action, se.FetchBuckets)}
        for term in self.expected.terms:
            if term.piece not in asked and term.piece in self._offers and self._asked.get(term.piece):
                asking.append(self._ask(term.worker, term.piece, ()))
        return asking

    # ---- what several events lead to -----------------------------------------------------------------------

    @property
    def _reserve(self) -> int:
        return max(self._budget // _RESERVE, self._largest)

    def _is_expected(self, worker: str, piece: int) -> bool:
        """Whether this is the worker's piece in the list, or may be in a list that is not here yet."""
        position = self._positions.get(piece)
        if position is None or self.expected is None:
            return piece > self._newest
        return self.expected.terms[position].worker == worker

    def _is_added(self, piece: int, bucket: int) -> bool:
        position = self._positions.get(piece)
        return position is not None and self._added[bucket] > position

    def _keep_sums(self, before: se.PieceList | None, now: se.PieceList) -> None:
        """Keep those sums that begin the new list; the others begin again."""
        same = 0
        if before is not None and before.step == now.step and _weight(before) == _weight(now):
            for old, new in zip(before.terms, now.terms, strict=False):
                if (old.piece, old.samples) != (new.piece, new.samples):
                    break
                same += 1
        self._added = [
            added if added <= same and is_active else 0
            for added, is_active in zip(self._added, self._is_active, strict=True)
        ]
        self._activate(self._held)

    def _activate(self, buckets: Iterable[int]) -> None:
        """Form the sums of these buckets from now on."""
        self._active = tuple(buckets)
        self._is_active = [False] * len(self._sizes)
        for bucket in self._active:
            self._is_active[bucket] = True
        length = 0 if self.expected is None else len(self.expected.terms)
        self._open, self._first = sum(self._added[bucket] < length for bucket in self._active), 0

    def _forget_pieces(self) -> list[se.Action]:
        """Forget the pieces that are not in the list, except for those of a list that is still to come."""
        actions: list[se.Action] = []
        self._offers = {
            piece: offer for piece, offer in self._offers.items() if self._is_expected(offer.worker, piece)
        }
        for piece in [piece for piece in self._asked if piece not in self._positions]:
            self.used_bytes -= sum(self._sizes[bucket] for bucket in self._asked.pop(piece))
        for piece in list(self._kept):
            for bucket in sorted(self._kept[piece]):
                if not self._is_expected(self._senders[piece], piece) or self._is_added(piece, bucket):
                    self._release(piece, bucket)
                    actions.append(se.Drop(piece, bucket))
        return actions

    def _make_room(self) -> list[se.Action]:
        """Return to the budget if what had its turn has it no more: forget what would be added last."""
        here = {(piece, bucket) for piece, buckets in self._kept.items() for bucket in buckets}
        coming = {(piece, bucket) for piece, buckets in self._asked.items() for bucket in buckets}
        actions: list[se.Action] = []
        for piece, bucket in sorted(
            here | coming, key=lambda one: (-one[1], -self._positions.get(one[0], 1 << 62))
        ):
            if self.used_bytes <= self._budget:
                break
            if self._added[bucket] == self._positions.get(piece):
                continue
            if (piece, bucket) in here:
                self._release(piece, bucket)
                actions.append(se.Drop(piece, bucket))
            else:
                del self._asked[piece][bucket]
                self.used_bytes -= self._sizes[bucket]
        return actions

    def _release(self, piece: int, bucket: int) -> None:
        """Forget a bucket that is kept."""
        self._kept[piece].remove(bucket)
        if not self._kept[piece]:
            del self._kept[piece], self._senders[piece]
        self.used_bytes -= self._sizes[bucket]

    def _step_on(self, bucket: int) -> None:
        """Record that the next piece is added to a bucket."""
        assert self.expected is not None
        self._added[bucket] += 1
        self._open -= self._added[bucket] == len(self.expected.terms)

    def _add_in_turn(self, bucket: int) -> list[se.Action]:
        """Add those pieces to a bucket that are here and have their turn."""
        assert self.expected is not None
        actions: list[se.Action] = []
        while (position := self._added[bucket]) < len(self.expected.terms):
            piece = self.expected.terms[position].piece
            if bucket in self._kept.get(piece, ()):
                self._release(piece, bucket)
            elif (offer := self._offers.get(piece)) is None or not offer.own:
                break
            self._step_on(bucket)
            actions.append(se.Add(piece, bucket, position))
        return actions

    def _lose(self, piece: int, question: int) -> list[se.Action]:
        """Ask again for what was asked for up to a question, and has not arrived."""
        asked = self._asked.get(piece, {})
        lost = [bucket for bucket, number in asked.items() if number <= question]
        for bucket in lost:
            del asked[bucket]
            self.used_bytes -= self._sizes[bucket]
        return self._go_on() if lost else []

    def _go_on(self, *, changed: bool = False) -> list[se.Action]:
        """Ask for what there is room for; or report that all is added.

        Args:
            changed: Whether something was added, or the list is new.
        """
        if self.expected is None:
            return []
        if self.formed:
            return [se.ListSummed(self.expected)] if changed else []
        wanted: dict[int, list[int]] = {}
        active, length = self._active, len(self.expected.terms)
        while self._first < len(active) and self._added[active[self._first]] == length:
            self._first += 1
        offered = [
            self._positions[p] for p, offer in self._offers.items() if p in self._positions and not offer.own
        ]
        if not offered:
            return []
        smallest, last = min(self._sizes[bucket] for bucket in active), max(offered)
        for bucket in active[self._first :]:
            if self.used_bytes + smallest > self._budget and self._is_moving():
                break
            self._want(bucket, last, wanted)
        return [
            self._ask(self.expected.terms[position].worker, self.expected.terms[position].piece, buckets)
            for position, buckets in sorted(wanted.items())
        ]

    def _want(self, bucket: int, last: int, wanted: dict[int, list[int]]) -> None:
        """Find the pieces, up to position `last`, of which a bucket is to be asked for now."""
        assert self.expected is not None
        size, in_turn = self._sizes[bucket], True
        for position in range(self._added[bucket], last + 1):
            term = self.expected.terms[position]
            offer, asked = self._offers.get(term.piece), self._asked.get(term.piece, {})
            if bucket in asked or bucket in self._kept.get(term.piece, ()):
                continue
            if offer is not None and offer.own:
                continue
            if offer is None:
                in_turn = False
                continue
            limit = self._budget if in_turn else self._budget - self._reserve
            has_turn = position == self._added[bucket]
            if self.used_bytes + size <= limit or (has_turn and not self._is_moving()):
                self._asked.setdefault(term.piece, {})[bucket] = self._questions + 1
                self.used_bytes += size
                wanted.setdefault(position, []).append(bucket)
            else:
                in_turn = False

    def _is_moving(self) -> bool:
        """Whether something that was asked for, and has its turn, is on its way."""
        return any(
            self._added[bucket] == self._positions.get(piece)
            for piece, buckets in self._asked.items()
            if piece in self._offers
            for bucket in buckets
        )

    def _ask(self, worker: str, piece: int, buckets: Sequence[int]) -> se.FetchBuckets:
        self._questions += 1
        for bucket in buckets:
            self._asked[piece][bucket] = self._questions
        return se.FetchBuckets(worker, piece, self._questions, tuple(buckets))


def _weight(expected: se.PieceList) -> int:
    return sum(term.samples for term in expected.terms)
