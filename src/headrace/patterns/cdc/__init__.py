"""Change data capture: the tables of a database as Delta tables that equal them."""
