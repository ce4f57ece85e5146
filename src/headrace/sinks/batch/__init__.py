"""What sinks share while they write one batch: rows read twice, work side by side, the ledger of batches."""
