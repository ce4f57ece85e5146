"""The audit of running flows: records every late, invalid and future row once, off the hot path."""
