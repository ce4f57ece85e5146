"""Where rows go. Each sink states its guarantee in its type and the conditions in its docstring."""
