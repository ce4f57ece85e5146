"""What is found out before a flow runs: its plan, the machine, the size of its batches, its state."""
