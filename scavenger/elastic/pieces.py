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
        number: Number of the list of pieces; it grows whenever the list changes.

    Args:
        aggregators: The aggregators that must have a piece.
    """

    def __init__(self, aggregators: Iterable[int]) -> None:
        self._aggregators = frozenset(aggregators)
        self._made = 0
        self._orphans: list[Share] = []
        self._all: dict[int, Piece] = {}
        self._open: dict[int, Piece] = {}
        self._held: dict[int, set[int]] = {}
        self._reported: set[int] = set()
        self._formed: set[int] = set()
        self.number = 0
        self._withheld: dict[int, Piece] = {}
        self._slots_used: dict[str, int] = {}

    @property
    def aggregators(self) -> frozenset[int]:
        """The aggregators that must have a piece."""
        return self._aggregators

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
        return tuple(number for number in self._all if aggregator in self._held[number])

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
            if share.samples:
                self.give(share, member)

    def give(self, share: Share, member: Member) -> None:
        """Make a piece of a share, and give it to a member."""
        used = self._slots_used.get(member.worker, 0)
        self._slots_used[member.worker] = used + 1
        self._made += 1
        piece = Piece(self._made, share, member.worker, member.slot + used)
        self._all[piece.number] = self._open[piece.number] = self._withheld[piece.number] = piece
        self._held[piece.number] = set()
        self._change()

    def report(self, number: int, aggregator: int | None) -> bool:
        """Record that a piece was computed, and which aggregator has it in its memory; returns whether that is new."""
        if aggregator is not None:
            self._held[number].add(aggregator)
        new = number not in self._reported
        self._reported.add(number)
        self._close([number])
        return new

    def form(self, aggregator: int) -> None:
        """Record that an aggregator has formed the sums of the list."""
        self._formed.add(aggregator)
        self._close(list(self._open))

    @property
    def unformed(self) -> tuple[int, ...]:
        """The aggregators that have not formed the sums of the list."""
        return tuple(sorted(self._aggregators - self._formed))

    def _close(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self._reported and self._aggregators <= self._held[number] | self._formed:
                self._open.pop(number, None)

    def _change(self) -> None:
        """Begin another list: sums of the one before do not count, so only memory holds what was computed."""
        self.number += 1
        if self._formed:
            self._formed.clear()
            self._reopen()

    def _reopen(self) -> None:
        self._open = dict(self._all)
        self._close(list(self._open))

    def share_out(self, aggregators: Iterable[int]) -> None:
        """Go on with other aggregators, or with others of their parts of the model: all sums begin again."""
        self._aggregators = frozenset(aggregators)
        self._change()
        self._reopen()

    def finish(self, number: int) -> None:
        """Record that a piece is complete."""
        for aggregator in self._aggregators:
            self.report(number, aggregator)

    def loses(self, gone: Callable[[str], bool]) -> bool:
        """Whether some aggregator lacks a piece in its memory whose worker is gone."""
        return any(
            gone(piece.worker) and not self._aggregators <= self._held[piece.number]
            for piece in self._all.values()
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
                self.give(share, min(members, key=lambda member: self._slots_used.get(member.worker, 0)))
                continue
            for part, member in zip(split(share.start, share.samples, len(members)), members, strict=True):
                if part.samples:
                    self.give(part, member)

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
        computing = (piece for piece in self.outstanding if piece.number not in self._reported)
        busy = {piece.worker for piece in computing} if one_by_one else set()
        due: list[Piece] = []
        for piece in self._withheld.values():
            if piece.worker not in busy:
                due.append(piece)
            if one_by_one:
                busy.add(piece.worker)
        for piece in due:
            del self._withheld[piece.number]
        return due
