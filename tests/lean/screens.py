"""A terminal's screen: what a program that writes to it leaves to be seen, also where the window changes its size.

It knows what live displays use: text that wraps, line ends, moves up, erasing, and colours, which it leaves out. Like
most terminals of today, it wraps its lines anew when it is made narrower or wider.
"""

from __future__ import annotations

import re

_PIECES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r|\n|[^\x1b\r\n]+|\x1b")


class Screen:
    """The screen, with the lines that have scrolled away above it.

    Args:
        lines, columns: Its size.
    """

    def __init__(self, lines: int = 24, columns: int = 80) -> None:
        self.lines, self.columns = lines, columns
        self._rows = [""]
        self._wraps = [False]  # whether the next row goes on with the same line
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        """Take what a program has written."""
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._down(wraps=False)
            elif piece == "\r":
                self._column = 0
            elif piece.startswith("\x1b"):
                self._obey(piece)
            else:
                for character in piece:
                    self._put(character)

    @property
    def history(self) -> list[str]:
        """All rows, those that have scrolled away, too."""
        return [row.rstrip() for row in self._rows]

    @property
    def shown(self) -> list[str]:
        """The rows of the screen."""
        return self.history[-self.lines :]

    def resize(self, lines: int, columns: int) -> None:
        """Change the size; rows that do not fit any more are wrapped."""
        whole: list[str] = []
        at = place = 0
        begins = True
        for number, (row, wraps) in enumerate(zip(self._rows, self._wraps, strict=True)):
            if begins:
                whole.append("")
            if number == self._row:
                at, place = len(whole) - 1, len(whole[-1]) + self._column
            whole[-1] += row.ljust(self.columns) if wraps else row.rstrip()
            begins = not wraps
        self.lines, self.columns, self._rows, self._wraps = lines, columns, [], []
        for number, line in enumerate(whole):
            parts = [line[start : start + columns] for start in range(0, max(len(line), 1), columns)]
            if number == at:
                self._row = len(self._rows) + min(place // columns, len(parts) - 1)
                self._column = place % columns
            self._rows += parts
            self._wraps += [True] * (len(parts) - 1) + [False]

    def _put(self, character: str) -> None:
        if self._column >= self.columns:
            self._down(wraps=True)
            self._column = 0
        row = self._rows[self._row].ljust(self._column)
        self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        self._column += 1

    def _down(self, *, wraps: bool) -> None:
        self._wraps[self._row] = wraps
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
            self._wraps.append(False)

    def _obey(self, piece: str) -> None:
        number = int(piece[2:-1]) if piece[2:-1].isdigit() else 0
        match piece[-1]:
            case "A":
                self._row = max(self._row - max(number, 1), len(self._rows) - self.lines, 0)
            case "K":
                row = self._rows[self._row]
                self._rows[self._row] = "" if number == 2 else row[: self._column]
                self._wraps[self._row] = False
            case "J":
                del self._rows[self._row + 1 :], self._wraps[self._row + 1 :]
                self._rows[self._row] = self._rows[self._row][: self._column]
                self._wraps[self._row] = False
