"""Commands on flows that ran: captures, checkpoints, late and invalid rows, repair, erasure."""
