"""The public test kit: what the tests of a project use."""
