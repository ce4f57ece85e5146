"""What watches a query while it runs: its sources, the captures behind them, its state, inputs that are quiet."""
