"""When growing state will reach a limit: arithmetic on what was measured, nothing else.

State with a watermark rises and falls: windows fill, close and are taken out. A line through all points would call each
rise growth. So the time that was watched is cut into four equal parts, and only the highest point of each counts:

    steady, with windows that close    120  118  121  120     the peaks do not rise: no forecast
    growing                            120  150  180  210     each peak is higher: a line through the four

The forecast is silent while the state fills for the first time, because that is growth and ends by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

# Parts that the time is cut into. Three peaks may rise by chance; with more parts each has too few points.
_PARTS = 4

# Points below which nothing is said, two for each part.
_FEWEST = 2 * _PARTS

# Points that are kept. At a batch every ten seconds these are forty minutes.
_MOST = 240


@dataclass
class Growth:
    """The latest sizes of one thing, with their times. `settled` is the second before which nothing is taken."""

    settled: float = 0.0
    _points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MOST))

    def take(self, second: float, amount: float) -> None:
        """Add a point. Seconds never go back."""
        if second >= self.settled:
            self._points.append((second, amount))

    def per_second(self) -> float:
        """Return the growth of the peaks by least squares, or 0 when they do not rise from part to part."""
        peaks = self._peaks()
        if len(peaks) < _PARTS or any(after[1] <= before[1] for before, after in pairwise(peaks)):
            return 0.0
        mean_time = sum(second for second, _ in peaks) / _PARTS
        mean_amount = sum(amount for _, amount in peaks) / _PARTS
        spread = sum((second - mean_time) ** 2 for second, _ in peaks)
        return sum((second - mean_time) * (amount - mean_amount) for second, amount in peaks) / spread

    def seconds_until(self, limit: float) -> float | None:
        """Return after how many seconds the present growth reaches a limit, or None when it does not grow."""
        slope = self.per_second()
        return max(0.0, (limit - self._points[-1][1]) / slope) if slope > 0 else None

    def _peaks(self) -> list[tuple[float, float]]:
        """Return the time and size of the highest point of each part that has points."""
        if len(self._points) < _FEWEST:
            return []
        first, last = self._points[0][0], self._points[-1][0]
        found: dict[int, tuple[float, float]] = {}
        for second, amount in self._points:
            part = min(int((second - first) / (last - first) * _PARTS), _PARTS - 1) if last > first else 0
            if part not in found or amount > found[part][1]:
                found[part] = (second, amount)
        return [found[part] for part in sorted(found)]
