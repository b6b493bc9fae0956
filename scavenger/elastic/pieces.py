"""The pieces of the step or evaluation in progress: which worker computes each, and which are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scavenger.elastic.view import SLOTS_PER_WORKER, Member, Piece, Share, split

_PIECES_PER_VIEW = 1 << 32


def first_piece(view: int) -> int:
    """Where the numbers of a view's pieces begin.

    Their range is larger than a view ever needs: so a restarted sequencer never reuses the number of a piece that its
    predecessor gave out in the same step under an older view.
    """
    return view * _PIECES_PER_VIEW


class Pieces:
    """The pieces that cover a step's samples, and the shares for which there is no worker (*orphans*).

    A piece is *reported* when its worker has computed it. It is *open* until it was reported and every aggregator has
    it, in its own memory or in the sums of the whole list of pieces. It is *outstanding* if it is open and was ordered.

    Attributes:
        aggregators: The aggregators that must have a piece.
        number: Number of the list of pieces; it grows whenever the list changes.

    Args:
        aggregators: The aggregators that must have a piece.
    """

    def __init__(self, aggregators: Iterable[int]) -> None:
        self._made = 0
        self._take_part(aggregators)
        self._orphans: list[Share] = []
        self._all: dict[int, Piece] = {}
        self._open: dict[int, Piece] = {}
        # sets of aggregators, a bit for each: there is one for every piece, which is looked at with every report
        self._held: dict[int, int] = {}
        self._formed = 0
        self._reported: set[int] = set()
        self.number = 0
        self._withheld: dict[int, Piece] = {}
        self._slots_used: dict[str, int] = {}

    def _take_part(self, aggregators: Iterable[int]) -> None:
        self.aggregators = frozenset(aggregators)
        self._wanted = _bits(self.aggregators)

    @property
    def all(self) -> tuple[Piece, ...]:
        """All pieces, complete or not, in the order of their numbers."""
        return tuple(self._all.values())

    @property
    def by_samples(self) -> tuple[Piece, ...]:
        """All pieces in the order of their samples."""
        return tuple(sorted(self._all.values(), key=lambda piece: piece.share.start))

    @property
    def open(self) -> tuple[Piece, ...]:
        """The pieces that some aggregator does not have, in the order of their numbers."""
        return tuple(self._open.values())

    @property
    def outstanding(self) -> tuple[Piece, ...]:
        """The open pieces that were ordered, in the order of their numbers."""
        return tuple(piece for piece in self._open.values() if piece.number not in self._withheld)

    def held_by(self, aggregator: int) -> tuple[int, ...]:
        """Return the numbers of the pieces that an aggregator has in its memory."""
        return tuple(number for number in self._all if self._held[number] >> aggregator & 1)

    @property
    def awaited(self) -> tuple[Piece, ...]:
        """The open pieces that were not reported; if all were, those that some aggregator lacks."""
        return tuple(piece for piece in self.open if piece.number not in self._reported) or self.open

    @property
    def complete(self) -> bool:
        """Whether every sample is in a piece that all aggregators have."""
        return not self._orphans and not self._open

    @property
    def reported(self) -> bool:
        """Whether every sample is in a piece that was computed."""
        return not self._orphans and len(self._reported) == len(self._all)

    @property
    def covered(self) -> tuple[Share, ...]:
        """The shares of all pieces."""
        return tuple(piece.share for piece in self._all.values())

    def of(self, worker: str, number: int) -> Piece | None:
        """Return the piece of that number if it is this worker's, else None."""
        piece = self._all.get(number)
        return piece if piece is not None and piece.worker == worker else None

    def new_view(self, number: int) -> None:
        """Number the pieces from here on in the range of a view."""
        self._made = max(self._made, first_piece(number))

    def cut(self, shares: tuple[Share, ...], members: tuple[Member, ...]) -> None:
        """Begin a step or evaluation: each member has the share of its rank. Without members, all are orphans."""
        self._all.clear()
        self._held.clear()
        self._reported.clear()
        self._open.clear()
        self._change()
        self._withheld.clear()
        self._orphans.clear()
        self._slots_used.clear()
        if not members:
            self._orphans = [share for share in shares if share.samples]
            return
        for share, member in zip(shares, members, strict=True):
            if share.start < share.stop:
                self._give(share, member)

    def _give(self, share: Share, member: Member) -> None:
        """Make a piece of a share, and give it to a member."""
        worker, used = member.worker, self._slots_used.get(member.worker, 0)
        self._slots_used[worker] = used + 1
        number = self._made = self._made + 1
        self._all[number] = self._open[number] = self._withheld[number] = Piece(
            number, share, worker, member.slot + used
        )
        self._held[number] = 0

    def report(self, number: int, aggregator: int | None) -> bool:
        """Record that a piece was computed, and which aggregator has it in its memory; returns whether that is new."""
        if aggregator is not None:
            self._held[number] |= 1 << aggregator
        new = number not in self._reported
        self._reported.add(number)
        if self._is_had(number):
            self._open.pop(number, None)
        return new

    def form(self, aggregator: int) -> None:
        """Record that an aggregator has formed the sums of the list."""
        self._formed |= 1 << aggregator
        self._close()

    @property
    def unformed(self) -> tuple[int, ...]:
        """The aggregators that have not formed the sums of the list."""
        return tuple(index for index in sorted(self.aggregators) if not self._formed >> index & 1)

    def _is_had(self, number: int) -> bool:
        """Whether every aggregator has a piece."""
        return not self._wanted & ~(self._held[number] | self._formed)

    def _close(self) -> None:
        self._open = {
            number: piece
            for number, piece in self._open.items()
            if number not in self._reported or not self._is_had(number)
        }

    def _change(self) -> None:
        """Begin another list: sums of the one before do not count, so only memory holds what was computed."""
        self.number += 1
        if self._formed:
            self._formed = 0
            self._reopen()

    def _reopen(self) -> None:
        self._open = dict(self._all)
        self._close()

    def share_out(self, aggregators: Iterable[int]) -> None:
        """Go on with other aggregators, or with others of their parts of the model: all sums begin again."""
        self._take_part(aggregators)
        self._change()
        self._reopen()

    def finish(self, number: int) -> None:
        """Record that a piece is complete."""
        for aggregator in self.aggregators:
            self.report(number, aggregator)

    def loses(self, gone: Callable[[str], bool]) -> bool:
        """Whether some aggregator lacks a piece in its memory whose worker is gone."""
        return any(
            gone(piece.worker) and self._wanted & ~self._held[piece.number] for piece in self._all.values()
        )

    def withdraw(self, gone: Callable[[str], bool]) -> dict[str, list[Piece]]:
        """Make orphans of the open pieces of the workers that are gone.

        Returns:
            For each worker that had open pieces, those of them that it may have been computing.
        """
        if self.loses(gone):
            self._change()
        outstanding: dict[str, list[Piece]] = {}
        for piece in self.open:
            if gone(piece.worker):
                del self._all[piece.number], self._open[piece.number]
                self._orphans.append(piece.share)
                of_worker = outstanding.setdefault(piece.worker, [])
                if self._withheld.pop(piece.number, None) is None and piece.number not in self._reported:
                    of_worker.append(piece)
                self._reported.discard(piece.number)
        return outstanding

    @property
    def orphans(self) -> tuple[Share, ...]:
        """The shares for which there is no worker."""
        return tuple(self._orphans)

    def adopt(self) -> list[Share]:
        """Remove and return the orphans."""
        orphans, self._orphans = self._orphans, []
        return orphans

    def has_room(self, members: tuple[Member, ...], pieces: int) -> bool:
        """Whether each of the members has free slots for that many more pieces."""
        return max(self._slots_used.get(member.worker, 0) for member in members) + pieces <= SLOTS_PER_WORKER

    def divide(self, parts: Iterable[tuple[Share, bool]], members: tuple[Member, ...]) -> None:
        """Give shares to members: one that has to be computed alone to one of them, any other one to all of them."""
        for share, alone in parts:
            if alone:
                # to the first of those with the fewest pieces in this step
                self._give(share, min(members, key=lambda member: self._slots_used.get(member.worker, 0)))
                continue
            for part, member in zip(split(share.start, share.samples, len(members)), members, strict=True):
                if part.samples:
                    self._give(part, member)
        self._change()

    @property
    def withholds(self) -> bool:
        """Whether some open piece was not ordered yet."""
        return bool(self._withheld)

    def order(self, *, one_by_one: bool) -> list[Piece]:
        """Return the open pieces that are to be ordered now, and record that they were.

        Args:
            one_by_one: Whether a worker's next piece waits until it has reported all that were ordered. Then a death
                can only be due to the one that was not, even if the results of earlier ones were lost with the worker.
        """
        if not one_by_one:
            every = list(self._withheld.values())
            self._withheld.clear()
            return every
        busy = {piece.worker for piece in self.outstanding if piece.number not in self._reported}
        due: list[Piece] = []
        for piece in self._withheld.values():
            if piece.worker not in busy:
                due.append(piece)
            busy.add(piece.worker)
        for piece in due:
            del self._withheld[piece.number]
        return due


def _bits(indices: Iterable[int]) -> int:
    return sum(1 << index for index in indices)
