"""Commands for the operation of flows: captures, checkpoints, late and invalid rows, repair, erasure."""
