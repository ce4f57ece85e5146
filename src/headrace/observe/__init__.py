"""What is known about running flows: counts, bad and late rows, history."""
