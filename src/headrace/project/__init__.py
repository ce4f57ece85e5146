"""A project on disk: headrace.yml, its targets, its secrets by reference, its flows."""
