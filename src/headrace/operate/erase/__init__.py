"""A subject erased from tables, files and topics, with a proof."""
