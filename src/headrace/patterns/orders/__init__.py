"""Orders and payments: two streams, joined in four ways within an hour."""
