"""Spark's plans, read and rebuilt: the only room that walks one. A change of Spark's plans is a change here."""
