"""Forecasts when growing state reaches a limit. Pure arithmetic.

State with a watermark rises and falls as windows fill and close. A line through all points would treat each rise as
growth. So the observed time is divided into four equal parts, and only the peak of each counts:

    steady, with windows that close    120  118  121  120     the peaks do not rise: no forecast
    growing                            120  150  180  210     each peak is higher: a line through the four

There is no forecast during the initial growth, because that ends without action.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

# The number of parts. Three peaks may rise by chance; with more parts each has too few points.
_PARTS = 4

# The minimum number of points for a forecast, two per part.
_MIN_POINTS = 2 * _PARTS

# The number of points to keep. With a batch every ten seconds these are forty minutes.
_MAX_POINTS = 240


@dataclass
class StateGrowth:
    """The recent sizes of a state, with their times. Points before the second `settled` are ignored."""

    settled: float = 0.0
    _points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MAX_POINTS))

    def add(self, second: float, amount: float) -> None:
        """Add a point. Seconds never decrease."""
        if second >= self.settled:
            self._points.append((second, amount))

    def per_second(self) -> float:
        """Return the growth of the peaks by least squares, or 0 if they do not rise from part to part."""
        peaks = self._peaks()
        if len(peaks) < _PARTS or any(after[1] <= before[1] for before, after in pairwise(peaks)):
            return 0.0
        mean_time = sum(second for second, _ in peaks) / _PARTS
        mean_amount = sum(amount for _, amount in peaks) / _PARTS
        spread = sum((second - mean_time) ** 2 for second, _ in peaks)
        return sum((second - mean_time) * (amount - mean_amount) for second, amount in peaks) / spread

    def seconds_until(self, limit: float) -> float | None:
        """Return the seconds until the current growth reaches a limit, or None without growth."""
        slope = self.per_second()
        return max(0.0, (limit - self._points[-1][1]) / slope) if slope > 0 else None

    def _peaks(self) -> list[tuple[float, float]]:
        """Return the time and size of the highest point of each part that has points."""
        if len(self._points) < _MIN_POINTS:
            return []
        first, last = self._points[0][0], self._points[-1][0]
        peaks: dict[int, tuple[float, float]] = {}
        for second, amount in self._points:
            part = min(int((second - first) / (last - first) * _PARTS), _PARTS - 1) if last > first else 0
            if part not in peaks or amount > peaks[part][1]:
                peaks[part] = (second, amount)
        return [peaks[part] for part in sorted(peaks)]
