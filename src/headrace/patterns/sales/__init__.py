"""Real-time aggregates of sales: windows, rolling windows, and roll-ups that add up."""
